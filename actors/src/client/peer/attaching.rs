//! How a handle comes to an owner: in its own process, by shared memory, or over tcp, the best way that
//! is allowed and works.

use super::super::counters::Messages;
use super::super::put_log::PeerLog;
use super::link::run_link;
use super::{ATTACH_LIMIT, LINK_FRAMES, Link, Peer, TransportChoice};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::greeting::hello;
use crate::message::{AttachBy, Purpose, RankInfo, ToOwner, Welcome};
use crate::owner::attachments::Route;
use crate::owner::pin_tables::Proof;
use crate::plans::{Obeyed, OpenPlans};
use nkv_store::Stripes;
use nkv_store::device_log::{Landing, Line, OpenClaims};
use nkv_store::heap::Heap;
use nkv_store::pins::Pins;
use nkv_store::reader::Reader;
use nkv_transport::Alive;
use nkv_transport::fabric::{Answer, FabricConfig};
use nkv_transport::local::LocalVerbs;
use nkv_transport::log_rights::MAX_OPEN_CLAIMS;
use nkv_transport::shm::ShmVerbs;
use nkv_transport::verbs::{Kind, Verbs};
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{BoxStream, write_frame};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// Reads and writes of at least so many bytes are cut into stripes; see `docs/performance.md`.
const STRIPED_FROM: u64 = 8 << 20;

/// What a peer is made from.
pub(crate) struct Attaching {
    pub env: Environment,
    pub credentials: Credentials,
    pub producer: u64,
    pub info: RankInfo,
    pub choice: TransportChoice,
    pub data_stripes: usize,
    pub fabric: FabricConfig,
    pub prefault: bool,
    pub plans: Arc<OpenPlans>,
    pub obeyed: Arc<Obeyed>,
    /// Whether something is still written through an earlier attachment.
    pub writes_on: bool,
    pub messages: Arc<Messages>,
}

/// What an owner gave with its welcome.
struct Attached {
    stream: BoxStream,
    pins: Option<u32>,
    log_token: Option<u64>,
    fabric: Option<std::result::Result<Answer, String>>,
}

/// What an attachment may do beyond reading by verbs.
struct Rights {
    // The segment by loads, and a pin table, where it is mapped.
    mapped: Option<(Reader, Option<u32>)>,
    // Its words are this process's to change, without an agent.
    at_hand: bool,
    log_token: Option<u64>,
}

impl Attaching {
    /// Attaches by the best way that is allowed. Must run on a place with `spawn_local`.
    pub(crate) async fn run(self) -> Result<Arc<Peer>> {
        if self.choice == TransportChoice::Rdma {
            return self.devices().await;
        }
        if self.choice != TransportChoice::Tcp {
            if let Some(peer) = self.local() {
                return Ok(peer);
            }
            match self.shared().await {
                Ok(Some(peer)) => return Ok(peer),
                Ok(None) => {}
                // It does not answer: by tcp it would not either, and the call's limit is near.
                Err(e) if e.kind == ErrorKind::Timeout => return Err(e),
                Err(e) if self.choice == TransportChoice::Shm => return Err(e),
                Err(error) => tracing::info!(rank = self.info.rank, %error, "not by shm"),
            }
            if self.choice == TransportChoice::Shm {
                return Err(Error::unsupported(format!(
                    "rank {} shares no memory with this process (other host or private heap)",
                    self.info.rank
                )));
            }
            if self.info.fabric.is_some() {
                match self.devices().await {
                    Ok(peer) => return Ok(peer),
                    Err(e) if e.kind == ErrorKind::Timeout => return Err(e),
                    Err(error) => tracing::info!(rank = self.info.rank, %error, "not by rdma"),
                }
            }
        }
        self.tcp().await
    }

    fn peer(&self, verbs: Arc<dyn Verbs>, (link, alive): (Link, Alive), rights: Rights) -> Peer {
        let Rights { mapped, at_hand, log_token } = rights;
        let pins = mapped.as_ref().and_then(|(reader, table)| {
            let region = &reader.geometry().pins;
            Pins::new(reader.memory().clone(), region, (*table)?).map(Arc::new)
        });
        let claims = self.obeyed.claims().cloned();
        let log = match (at_hand, log_token) {
            // Memory at hand: the token is shown to nobody.
            (true, _) => claims.map(|claims| (claims, 1)),
            // The agent knows the claims: nobody asks this table.
            (false, Some(token)) => {
                // As many as the agent lets one token have open.
                let entries = (0..MAX_OPEN_CLAIMS).map(|_| Line::default()).collect();
                Some((Arc::new(OpenClaims::with(entries, Landing::InCall)), token))
            }
            (false, None) => None,
        };
        let log = self.info.device_log().zip(log);
        let log = log.map(|(geometry, (claims, token))| PeerLog::new(geometry, claims, token));
        Peer {
            rank: self.info.rank,
            incarnation: self.info.incarnation,
            first: self.info.seat().is_first(),
            slots: self.info.slots,
            header_base: self.info.header_base,
            index: self.info.index(),
            payloads: self.info.payloads(),
            reader: mapped.map(|(reader, _)| reader),
            pins,
            log,
            takes_puts: AtomicBool::new(true),
            quarantine_ns: u64::from(self.info.quarantine_ms) * 1_000_000,
            verbs,
            attached_ns: self.env.clock.now_ns(),
            obeyed: self.obeyed.clone(),
            link,
            alive,
            parted: AtomicBool::new(false),
            silent_until_ns: AtomicU64::new(0),
            touches: Mutex::default(),
            told_touches: AtomicBool::new(false),
            messages: self.messages.clone(),
        }
    }

    fn local(&self) -> Option<Arc<Peer>> {
        let l = self.env.owners.get(self.info.incarnation)?;
        let route = Route::Local(self.plans.clone(), self.obeyed.clone());
        let id = l.tables.attachments.add(self.producer, route);
        // Read after it is registered: a later term reaches the route.
        self.plans.obey(&self.obeyed, l.tables.term());
        let verbs = LocalVerbs::new(l.memory.clone(), l.alive.clone());
        let verbs = verbs.with_stripes(self.stripes());
        let link = Link::Local(l.owner.clone(), l.tables.clone(), id);
        let heap = Heap::open(l.memory.clone()).ok();
        let mapped = heap.as_ref().and_then(|heap| self.reader(heap));
        let mapped = mapped.map(|reader| (reader, l.tables.pins.give(id, Proof::Here)));
        let rights = Rights { mapped, at_hand: true, log_token: None };
        Some(Arc::new(self.peer(Arc::new(verbs), (link, l.alive.clone()), rights)))
    }

    async fn shared(&self) -> Result<Option<Arc<Peer>>> {
        let Some(address) = &self.info.local else {
            return Ok(None);
        };
        if self.info.boot_id != self.env.machine.boot_id() || self.info.segment.is_empty() {
            return Ok(None);
        }
        let attached = self.hello(address, AttachBy::Map).await?;
        let (mut stream, table) = (attached.stream, attached.pins);
        let heap = match self.map() {
            Ok(heap) => heap,
            Err(e) => {
                // Registered by the hello: take that back, or the owner would wait for our word. Not with a
                // write going on through an earlier attachment, for which this one stands.
                if !self.writes_on {
                    let _ = write_frame(&mut stream, &mut Vec::new(), 0, &ToOwner::Detach).await;
                }
                return Err(e);
            }
        };
        let alive = Alive::new();
        let verbs = ShmVerbs::new(heap.memory().clone(), alive.clone());
        let verbs = verbs.with_stripes(self.stripes());
        let mapped = self.reader(&heap).map(|reader| (reader, table));
        let rights = Rights { mapped, at_hand: true, log_token: None };
        Ok(Some(self.linked(stream, Arc::new(verbs), alive, rights)))
    }

    fn stripes(&self) -> Stripes {
        Stripes::new(self.data_stripes, STRIPED_FROM)
    }

    fn reader(&self, heap: &Heap) -> Option<Reader> {
        Some(Reader::of(heap)?.with_stripes(self.stripes()))
    }

    fn map(&self) -> Result<Heap> {
        let (segment, machine) = (&self.info.segment, &self.env.machine);
        let heap = Heap::open(machine.attach(segment)?)?;
        if heap.geometry().incarnation != self.info.incarnation {
            return Err(Error::disconnected(format!(
                "segment {segment} holds another incarnation"
            )));
        }
        if self.prefault && self.info.prefault {
            // Beside the first calls: it takes 0.3 s/GiB.
            machine.prefault(segment);
        }
        Ok(heap)
    }

    async fn tcp(&self) -> Result<Arc<Peer>> {
        let Some(data) = self.info.data.clone() else {
            return Err(Error::unsupported(format!("rank {} has no tcp agent", self.info.rank)));
        };
        let attached = self.hello(&self.info.control, AttachBy::Agent).await?;
        let (stream, log_token) = (attached.stream, attached.log_token);
        let machine = &self.env.machine;
        let (owner, stripes) = (self.info.incarnation, self.stripes());
        let connecting = machine.connect(&data, owner, &self.credentials, stripes);
        let (verbs, alive) = connecting.await?;
        Ok(self.linked(stream, verbs, alive, Rights { mapped: None, at_hand: false, log_token }))
    }

    /// Through devices of both ends.
    async fn devices(&self) -> Result<Arc<Peer>> {
        let rank = self.info.rank;
        let none =
            |e: String| Error::unsupported(format!("rank {rank} is not reached by rdma: {e}"));
        if self.info.fabric.is_none() {
            return Err(none(
                "its memory is registered with no device; its log says why".to_string(),
            ));
        }
        let (machine, wanted) = (self.env.machine.clone(), self.fabric.clone());
        let opening = move || machine.fabric(&wanted)?.offer();
        let failed = |e| Error::internal(format!("offering to rank {rank} failed: {e}"));
        let opened = tokio::task::spawn_blocking(opening).await.map_err(failed)?;
        let offering = opened.map_err(|e| none(e.to_string()))?;
        let offer = offering.offer();
        let attached = self.hello(&self.info.control, AttachBy::Fabric(offer)).await?;
        let answer = match attached.fabric {
            Some(Ok(answer)) => answer,
            Some(Err(why)) => return Err(none(why)),
            None => return Err(Error::internal(format!("rank {rank} gave no answer to an offer"))),
        };
        let (alive, len) = (Alive::new(), self.info.segment_bytes);
        let way = alive.clone();
        // The first packets through it are waited for: not on the place of a handle.
        let connecting = tokio::task::spawn_blocking(move || offering.connect(&answer, len, way));
        let connected = connecting.await;
        let verbs = connected
            .map_err(|e| Error::internal(format!("connecting to rank {rank} failed: {e}")))?
            .map_err(|e| none(e.to_string()))?;
        let rights = Rights { mapped: None, at_hand: false, log_token: None };
        Ok(self.linked(attached.stream, verbs, alive, rights))
    }

    /// The link, and what it was given: a pin table, a token for the log.
    async fn hello(
        &self,
        address: &nkv_transport::wire::Address,
        by: AttachBy,
    ) -> Result<Attached> {
        let (producer, incarnation) = (self.producer, self.info.incarnation);
        let purpose = Purpose::Attach { producer, incarnation, by };
        let work = hello(&*self.env.net, address, &self.credentials, purpose);
        match tokio::time::timeout(ATTACH_LIMIT, work).await {
            Ok(Ok((stream, Welcome::Attached { term, pins, log_token, fabric }))) => {
                self.plans.obey(&self.obeyed, term);
                Ok(Attached { stream, pins, log_token, fabric })
            }
            Ok(Ok((_, Welcome::Refused { why }))) => Err(Error::disconnected(why.to_string())),
            Ok(Ok((_, other))) => Err(Error::internal(format!("{address} said {other:?}"))),
            Ok(Err(e)) => {
                Err(Error::disconnected(format!("rank {} is not reachable: {e}", self.info.rank)))
            }
            Err(_) => Err(Error::timeout(format!(
                "rank {} at {address} did not answer within {ATTACH_LIMIT:?}: stopped or overloaded? \
                 nkv status says when it was last heard of",
                self.info.rank
            ))),
        }
    }

    fn linked(
        &self,
        stream: BoxStream,
        verbs: Arc<dyn Verbs>,
        alive: Alive,
        rights: Rights,
    ) -> Arc<Peer> {
        let (tx, rx) = mpsc::channel(LINK_FRAMES);
        let (rank, weak) = (self.info.rank, tx.downgrade());
        let plans = (self.plans.clone(), self.obeyed.clone());
        let way = (verbs.kind() == Kind::Rdma).then(|| alive.clone());
        let peer = Arc::new(self.peer(verbs, (Link::Remote(tx), alive.clone()), rights));
        tokio::task::spawn_local(async move {
            let why = run_link(stream, rx, weak, plans, way).await;
            // From here on no verb through this handle may report success.
            alive.mark_dead();
            tracing::debug!(rank, %why, "detached");
        });
        peer
    }
}
