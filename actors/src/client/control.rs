//! Calls to the master: a message to the actor within its process, else a pool of connections. One
//! call at a time uses a connection, on the caller's own runtime, so that a reply wakes only the
//! caller. To a master on this host a connection is a ring where possible.

use super::Shared;
use super::keys::HandleKeys;
use super::search::KnownNodes;
use crate::control_hello::{HelloError, hello};
use crate::current_master::{CurrentMaster, LocalMaster, MasterPath};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::OnceCompiled;
use crate::master::{Ask, Members, WATCH_LIMIT};
use crate::message::{Purpose, Request, Response, Welcome};
use crate::race::race;
use crate::slow_path::ClientSlowPath;
use nkv_store::KeyHasher;
use nkv_store::fork::OwnProcessOnly;
use nkv_transport::ring::{self, Waiting};
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{
    Address, BoxStream, MAX_FRAME_BYTES, Net, WireError, read_frame, within, write_frame,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Most idle connections that a pool keeps.
const MAX_IDLE: usize = 8;
/// Bytes that are written while an end of a ring polls.
const POLLED_BYTES: u64 = 256 << 10;
/// A connect to the node in this process that takes longer fails.
const OWN_RING_LIMIT: Duration = Duration::from_millis(100);
/// A connect for presence that takes longer fails.
const PRESENCE_LIMIT: Duration = Duration::from_secs(5);
/// Pause between tries to reach a master that does not answer, within the call's limit.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A connection with its frame buffer.
struct Conn {
    stream: BoxStream,
    // Of the master's path by which it was made.
    number: u64,
    buf: Vec<u8>,
    is_ring: bool,
}

/// Why a connection to the master was not made.
enum ConnectError {
    /// The node is not the master any more, and names another one.
    Elsewhere(Address),
    Failed(Error),
}

impl From<Error> for ConnectError {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

impl From<ConnectError> for Error {
    fn from(e: ConnectError) -> Self {
        match e {
            ConnectError::Elsewhere(at) => {
                Self::disconnected(format!("the master is changing; {at} was named last"))
            }
            ConnectError::Failed(e) => e,
        }
    }
}

/// One caller's connections. A pool belongs to one runtime.
pub(crate) struct ControlPool {
    net: Arc<dyn Net>,
    master: Arc<CurrentMaster>,
    credentials: Credentials,
    keys: HandleKeys,
    producer: u64,
    // Closing a socket removes it from an event loop that a forked child shares with its parent.
    idle: OwnProcessOnly<Mutex<Vec<Conn>>>,
    next_id: AtomicU64,
    // How a call waits at a ring.
    waiting: Waiting,
    // The plans opened last take longer to write than an end of a ring polls.
    writes_long: AtomicBool,
    // Whether to ask for rings; false once a ring could not be used.
    rings: AtomicBool,
    // One for all pools of a handle.
    pub(super) slow_path: Arc<ClientSlowPath>,
}

impl std::fmt::Debug for ControlPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ControlPool{}", self.master.path())
    }
}

/// True if the request may be repeated: all except removals, whose repeat would return NotFound.
fn repeatable(request: &Request) -> bool {
    !matches!(request, Request::Remove(_) | Request::RemoveMatching(_))
}

impl ControlPool {
    pub(crate) fn new(
        net: Arc<dyn Net>,
        master: Arc<CurrentMaster>,
        (credentials, keys): (Credentials, HandleKeys),
        producer: u64,
        rings: bool,
    ) -> Self {
        Self {
            net,
            master,
            credentials,
            keys,
            producer,
            idle: OwnProcessOnly::new(Mutex::default()),
            next_id: AtomicU64::new(1),
            waiting: Waiting::Task,
            writes_long: AtomicBool::new(false),
            rings: AtomicBool::new(rings),
            slow_path: Arc::default(),
        }
    }

    /// Another pool to the same master, for another runtime.
    pub(crate) fn another(&self) -> Self {
        let means = (self.credentials.clone(), self.keys.clone());
        let rings = self.rings.load(Ordering::Relaxed);
        let fresh = Self::new(self.net.clone(), self.master.clone(), means, self.producer, rings);
        Self { slow_path: self.slow_path.clone(), ..fresh }
    }

    /// The same for a runtime that one thread drives: a call may block it.
    pub(super) fn for_a_thread(&self) -> Self {
        Self { waiting: Waiting::Thread, ..self.another() }
    }

    /// The same, over sockets alone.
    pub(super) fn without_rings(self) -> Self {
        self.rings.store(false, Ordering::Relaxed);
        self
    }

    /// Whether one thread drives its calls, and may be blocked by them.
    pub(super) fn is_of_a_thread(&self) -> bool {
        matches!(self.waiting, Waiting::Thread)
    }

    /// A thread asks the master in its process over a ring, too: both ends poll for a while, where
    /// a mailbox would wake one thread for a request and another for its answer. Not while it
    /// writes more than that while is enough for: then both are asleep anyway.
    fn by_ring<'a>(&self, master: &'a LocalMaster, request: &Request) -> Option<&'a Address> {
        if let Request::OpenForWrite { items, .. } = request {
            let bytes = items.iter().fold(0, |sum: u64, i| sum.saturating_add(i.bytes_total));
            self.writes_long.store(bytes > POLLED_BYTES, Ordering::Relaxed);
        }
        let wanted = matches!(self.waiting, Waiting::Thread)
            && self.rings.load(Ordering::Relaxed)
            && !self.writes_long.load(Ordering::Relaxed);
        let mut unix = master.addresses.iter().filter(|at| matches!(at, Address::Unix(_)));
        unix.next().filter(|_| wanted)
    }

    /// The error for an answer of the wrong kind: the other end is not the master that this client
    /// expects.
    pub(crate) fn unexpected(&self, asked: &str, got: &Response) -> Error {
        Error::disconnected(format!(
            "the master {} answered {asked} with {got}: use one release of nkv in a job",
            self.master.path()
        ))
    }

    /// One request, one response, within `limit`.
    #[inline(never)]
    pub(crate) fn call(
        &self,
        request: Request,
        limit: Duration,
    ) -> OnceCompiled<'_, Result<Response>> {
        Box::pin(self.called(request, limit))
    }

    #[tracing::instrument(level = "debug", name = "request", skip_all, fields(
        kind = Request::KINDS[request.kind()]
    ))]
    async fn called(&self, request: Request, limit: Duration) -> Result<Response> {
        let path = self.master.path();
        let asked = async {
            match self.call_once(&path, &request, limit).await {
                // A panic in another call dropped this call's parked reply: ask the restarted
                // actor.
                Err(e) if e.kind() == ErrorKind::Internal && repeatable(&request) => {
                    self.slow_path.asked_again.one();
                    self.call_once(&path, &request, limit).await
                }
                other => other,
            }
        };
        let response = match &path {
            MasterPath::Local(_) => asked.await,
            MasterPath::Remote(_) => self.in_time(limit, &path, asked).await,
        };
        if let Err(e) = &response
            && matches!(e.kind(), ErrorKind::Disconnected | ErrorKind::Timeout)
        {
            self.master.doubt();
        }
        let response = response?;
        response.check().map(|()| response)
    }

    async fn in_time(
        &self,
        limit: Duration,
        path: &MasterPath,
        asked: impl Future<Output = Result<Response>>,
    ) -> Result<Response> {
        within(limit, asked).await.unwrap_or_else(|_| {
            let ms = limit.as_millis();
            Err(Error::timeout(format!("the master {path} did not answer within {ms} ms")))
        })
    }

    async fn call_once(
        &self,
        path: &MasterPath,
        request: &Request,
        limit: Duration,
    ) -> Result<Response> {
        let answered = match path {
            MasterPath::Remote(addresses) => self.call_remote(addresses, request).await,
            MasterPath::Local(master) => {
                let ring = match self.by_ring(master, request) {
                    Some(socket) => self.own_ring(socket).await,
                    None => None,
                };
                match ring {
                    Some(ring) => {
                        self.in_time(limit, path, self.exchange_and_keep(ring, request)).await
                    }
                    None => {
                        let (producer, request) = (self.producer, request.clone());
                        master.actor.call(Ask { producer, request }, limit).await
                    }
                }
            }
        };
        match answered? {
            Response::Failed(e) => Err(e),
            response => Ok(response),
        }
    }

    /// A ring to the master in this process. None if it has none left, or its socket is gone: from
    /// then on its mailbox is used.
    async fn own_ring(&self, socket: &Address) -> Option<Conn> {
        if let Some(idle) = self.take_idle() {
            return Some(idle);
        }
        let made = within(OWN_RING_LIMIT, self.connect_to(socket, true)).await;
        let ring = made.ok().and_then(std::result::Result::ok).filter(|conn| conn.is_ring);
        if ring.is_none() {
            self.rings.store(false, Ordering::Relaxed);
        }
        ring
    }

    /// A connection that was made while the master was where it is now; others are closed.
    fn take_idle(&self) -> Option<Conn> {
        let number = self.master.path_and_number().1;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|conn| conn.number == number);
        idle.pop()
    }

    async fn call_remote(&self, master: &[Address], request: &Request) -> Result<Response> {
        if let Some(conn) = self.take_idle() {
            match self.exchange_and_keep(conn, request).await {
                Err(e) if repeatable(request) && e.kind() != ErrorKind::InvalidArgument => {
                    // The master may have restarted since: try a fresh connection.
                    self.slow_path.reconnected.one();
                }
                done => return done,
            }
        }
        self.exchange_and_keep(self.connect(master).await?, request).await
    }

    /// One request over a connection, which is kept for a later one if it served this one.
    async fn exchange_and_keep(&self, mut conn: Conn, request: &Request) -> Result<Response> {
        let response = self.exchange(&mut conn, request).await?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(conn);
        }
        Ok(response)
    }

    async fn exchange(&self, conn: &mut Conn, request: &Request) -> Result<Response> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let broken = |e: &dyn std::fmt::Display| {
            Error::disconnected(format!("the connection to the master broke: {e}"))
        };
        let Conn { stream, buf, .. } = conn;
        write_frame(stream, buf, id, request).await.map_err(|e| match e {
            WireError::TooLarge { .. } | WireError::Encode(_) => Error::invalid(format!(
                "this batch does not fit a frame of {MAX_FRAME_BYTES} bytes; split it ({e})"
            )),
            other => broken(&other),
        })?;
        match read_frame::<_, Response>(stream, buf, MAX_FRAME_BYTES).await {
            Ok(Some((answered, response))) if answered == id => Ok(response),
            Ok(Some((other, _))) => Err(broken(&format!("answer {other} to request {id}"))),
            Ok(None) => Err(broken(&"closed by the master")),
            Err(e) => Err(broken(&e)),
        }
    }

    async fn connect(&self, addresses: &[Address]) -> Result<Conn> {
        let mut last = Error::disconnected("no address for the master");
        for address in addresses {
            let mut ring =
                matches!(address, Address::Unix(_)) && self.rings.load(Ordering::Relaxed);
            loop {
                match self.connect_to(address, ring).await {
                    Ok(conn) => return Ok(conn),
                    Err(ConnectError::Failed(e)) => last = e,
                    // Another rank became master.
                    Err(ConnectError::Elsewhere(at)) => match self.connect_to(&at, false).await {
                        Ok(conn) => return Ok(conn),
                        Err(e) => last = e.into(),
                    },
                }
                // The failure was not about the ring: without one the connect would fail too.
                if !ring || self.rings.load(Ordering::Relaxed) {
                    break;
                }
                ring = false;
            }
        }
        Err(last)
    }

    async fn connect_to(
        &self,
        address: &Address,
        ring: bool,
    ) -> std::result::Result<Conn, ConnectError> {
        let number = self.master.path_and_number().1;
        let purpose = Purpose::Client { producer: self.producer, ring };
        let done = hello(&*self.net, address, &self.credentials, purpose).await;
        let (stream, welcome) = done.map_err(|error| match error {
            HelloError::NoListener(..) => Error::disconnected(format!(
                "{error}: this call needs the master, which is down or out of reach"
            )),
            other => other.into(),
        })?;
        let ring = match welcome {
            Welcome::Client { master: None, hasher, ring, .. } => {
                self.keys.keep(KeyHasher::new(hasher.0));
                ring
            }
            Welcome::Client { master: Some(at), .. } => return Err(ConnectError::Elsewhere(at)),
            Welcome::Refused { why } => {
                let text = format!("{address} refused: {why}");
                return Err(Error::disconnected(text).into());
            }
            other => {
                let text = format!("{address} is not the master: it answers {other}");
                return Err(Error::disconnected(text).into());
            }
        };
        let Some(lane_bytes) = ring else {
            return Ok(Conn { stream, number, buf: Vec::new(), is_ring: false });
        };
        let ring = ring::take(stream, lane_bytes, self.waiting).await.map_err(|error| {
            tracing::debug!(%address, %error, "no ring; using the socket");
            self.rings.store(false, Ordering::Relaxed);
            Error::disconnected(format!("no ring with {address}: {error}"))
        })?;
        Ok(Conn { stream: Box::new(ring), number, buf: Vec::new(), is_ring: true })
    }

    /// Keeps one connection open for as long as the client lives: by it the master counts the
    /// client as alive, and sends it membership views.
    pub(crate) async fn presence(self, client: Weak<Shared>) {
        let mut nodes = KnownNodes::default();
        while client.strong_count() > 0 {
            match self.master.path() {
                MasterPath::Local(master) => {
                    // Handles of threads come and go; the producer lives as long as this.
                    master.members.producer_up(self.producer, false);
                    let ended = self.master.ended(&master);
                    race(watch_here(&master.members, &client), ended).await;
                }
                MasterPath::Remote(addresses) => {
                    let number = self.master.path_and_number().1;
                    let over = race(self.master.changed_since(number), self.master.doubted());
                    race(self.watch_at(&addresses, &client), over).await;
                    self.search(&mut nodes, &client).await;
                }
            }
            tokio::time::sleep(RETRY_PAUSE * 5).await;
        }
    }

    /// Connects, and receives views until the connection or the client ends.
    async fn watch_at(&self, addresses: &[Address], client: &Weak<Shared>) {
        let connecting = tokio::time::timeout(PRESENCE_LIMIT, self.connect(addresses));
        if let Ok(Ok(conn)) = connecting.await {
            self.watch_there(conn, client).await;
        }
    }

    /// Looks for the master that another rank became, if that is possible in this cluster.
    async fn search(&self, nodes: &mut KnownNodes, client: &Weak<Shared>) {
        let Some(view) = client.upgrade().map(|c| c.view()) else { return };
        if !self.master.is_followed() {
            return;
        }
        nodes.learn(&view);
        let found = nodes.search(&*self.net, &self.credentials, self.producer).await;
        let elsewhere = |at: &Address| !self.master.path().addresses().contains(at);
        if let Some((at, client)) = found.filter(elsewhere).zip(client.upgrade()) {
            tracing::info!(%at, "the master is there now");
            self.master.set(MasterPath::Remote(
                client.view().nearest_first(at, client.env.machine.boot_id()).into(),
            ));
        }
    }

    /// Receives views until the connection or the client ends.
    async fn watch_there(&self, mut conn: Conn, client: &Weak<Shared>) {
        while let Some((term, number)) = client.upgrade().map(|c| c.view().order()) {
            // The master answers within WATCH_LIMIT, even if nothing changed.
            let watch = Request::Watch { term, number };
            let answer = self.exchange(&mut conn, &watch);
            let Ok(Ok(Response::View(view))) =
                tokio::time::timeout(PRESENCE_LIMIT + WATCH_LIMIT, answer).await
            else {
                return;
            };
            if let Some(client) = client.upgrade() {
                client.keep_view(view);
            }
        }
    }
}

/// Receives views until the client ends.
async fn watch_here(members: &Members, client: &Weak<Shared>) {
    while let Some(seen) = client.upgrade().map(|c| c.view().order()) {
        let view = members.view_after(seen).await;
        if let Some(client) = client.upgrade() {
            client.keep_view(view);
        }
    }
}

#[cfg(test)]
mod tests;
