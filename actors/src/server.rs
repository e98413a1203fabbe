//! The control port of a node: accepts connections, checks the hello, and serves clients, ranks and
//! attached processes. Each connection is a task on the executor of the actor that it talks to, so
//! a request costs no thread hop. A connection whose frames do not decode is closed, and affects no
//! other [I19].

mod attach;
mod commands;
mod link;
mod local_owner;
mod registry;
mod requests;
mod unauthenticated;

pub(crate) use attach::serve_attached;
pub(crate) use commands::{Executing, SegmentCommands};
pub(crate) use local_owner::LocalSegment;
pub(crate) use registry::{RegisteredSegment, SegmentRegistry};
pub(crate) use requests::MAX_RINGS;
pub use unauthenticated::UnauthenticatedPeers;

use crate::current_master::CurrentMaster;
use crate::election::Voter;
use crate::master::Join;
use crate::message::{Hello, MESSAGES_VERSION, Purpose, Refusal, Settings, Term, Welcome};
use crate::race::race;
use nkv_store::clock::Clock;
use nkv_store::log_lines::LogLines;
use nkv_store::random::Random;
use nkv_store::{KeyHasher, StoreError};
use nkv_transport::wire::auth::{AuthError, Guard};
use nkv_transport::wire::{
    BoxStream, Listener, Peer, WireError, pass_descriptor, read_frame, write_frame,
};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Most authenticated control connections at a time; further ones are closed.
pub(crate) const MAX_CONNECTIONS: usize = 4096;
/// A connection that has not authenticated within this time is closed; so is one that then sends no
/// hello for as long again.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// Largest hello.
const MAX_HELLO_BYTES: usize = 64 * 1024;
/// Largest frame from a rank: twice the largest part of a report.
const MAX_TO_MASTER_BYTES: usize = 8 << 20;
/// A call to an actor that takes longer is answered with Timeout.
const ACTOR_LIMIT: Duration = Duration::from_secs(5);
/// Heartbeats of the master on a rank's link per TTL, and the longest pause between two.
const BEATS_PER_TTL: u64 = 4;
/// The same, and a rank's, per lease of the master.
pub(crate) const BEATS_PER_LEASE: u64 = 8;
const LONGEST_BEAT: Duration = Duration::from_millis(250);
/// Pause after an accept error (out of file descriptors), so that it cannot spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a node's control port needs to serve.
pub struct Server {
    /// The job.
    pub job: String,
    /// Authenticates its peers.
    pub guard: Arc<Guard>,
    /// The hasher that makes the identities of the job's keys [I16].
    pub hasher: KeyHasher,
    /// This rank.
    pub rank: u32,
    /// Where the master is: perhaps here.
    pub(crate) master: Arc<CurrentMaster>,
    /// Answers for this rank, if another rank than 0 may become master.
    pub(crate) voter: Option<Arc<Voter>>,
    /// The master's term and the cluster's settings, once joined; those of this node until then.
    pub settings: watch::Receiver<(Term, Settings)>,
    /// This node's segments, by incarnation.
    pub(crate) registry: SegmentRegistry,
    /// Mounts and unmounts them.
    pub(crate) segments: Weak<dyn SegmentCommands>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where tokens come from.
    pub random: Arc<dyn Random>,
    /// Set when the node shuts down.
    pub closing: Arc<AtomicBool>,
    /// Free slots of authenticated connections.
    pub connections: Arc<Semaphore>,
    /// Connections that have not authenticated yet.
    pub unauthenticated: UnauthenticatedPeers,
    /// Limits log lines that peers could cause without end.
    pub lines: LogLines,
    /// Free ring slots.
    pub rings: Arc<Semaphore>,
}

impl Server {
    /// Accepts until the node closes. Runs on the master's executor on rank 0, else on the owner's.
    pub async fn run(self: Arc<Self>, mut listener: Box<dyn Listener>) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let slot = self.unauthenticated.enter(peer.unix.is_some());
                    let server = self.clone();
                    tokio::task::spawn_local(async move {
                        let text = peer.text.clone();
                        if let Err(why) = server.connection(stream, peer, slot).await {
                            tracing::debug!(peer = %text, %why, "control connection closed");
                        }
                    });
                }
                Err(error) => {
                    if let Some(before) = self.lines.next(self.clock.now_ms()) {
                        tracing::warn!(%error, before, "accept failed");
                    }
                    self.unauthenticated.evict_half();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
            if self.closing.load(Ordering::Acquire) {
                return;
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        mut stream: BoxStream,
        peer: Peer,
        slot: unauthenticated::PeerSlot,
    ) -> Result<(), WireError> {
        let shown = || slot.has_shown();
        let admitted =
            async { Some(self.guard.admit(&mut stream, &peer, HELLO_LIMIT, &shown).await) };
        let gives_way = async {
            slot.evicted().await;
            None
        };
        let session = match race(admitted, gives_way).await {
            Some(Ok(session)) => session,
            // Nothing more is read from it; the guard has counted and logged the refusal [I20].
            Some(Err(_)) => return Ok(()),
            None => {
                self.guard.refuse(&peer.text, AuthError::Crowded.to_string());
                return Ok(());
            }
        };
        drop(slot);
        let Ok(_slot) = self.connections.clone().try_acquire_owned() else {
            if let Some(before) = self.lines.next(self.clock.now_ms()) {
                tracing::warn!(peer = %peer.text, before, "closed: {MAX_CONNECTIONS} connections");
            }
            return Ok(());
        };
        let mut stream = session.seal(stream);
        let mut buf = Vec::new();
        let hello = read_frame::<_, Hello>(&mut stream, &mut buf, MAX_HELLO_BYTES);
        let Ok(hello) = tokio::time::timeout(HELLO_LIMIT, hello).await else {
            return Ok(());
        };
        let Some((_, hello)) = hello? else {
            return Ok(());
        };
        if let Some(why) = self.refusal(&hello) {
            return refuse(&mut stream, why).await;
        }
        match hello.purpose {
            Purpose::Client { producer, ring } => self.client(stream, producer, ring).await,
            Purpose::Rank { info, obeyed, holds, seen, siblings } => {
                let Some(here) = self.master.here() else { return Ok(()) };
                let ours = self.registry.get(info.incarnation);
                let own = ours.is_some();
                let only = here.members.term().master;
                let of_this_life = ours.is_some_and(|ours| ours.tables.obeyed_only(only));
                let info = *info;
                let join = |tx| Join { info, obeyed, holds, seen, siblings, own, of_this_life, tx };
                self.rank(stream, here, join).await
            }
            Purpose::Attach { producer, incarnation, by } => {
                let Some(endpoint) = self.registry.get(incarnation) else {
                    return refuse(&mut stream, self.no_door(incarnation)).await;
                };
                let served =
                    serve_attached(&endpoint, stream, peer, (producer, by), self.random.u64());
                // When the segment closes, this connection ends, and with it the client's
                // attachment: none of its verbs succeeds any more.
                let closed = async {
                    endpoint.closed().await;
                    Ok(())
                };
                race(served, closed).await
            }
            Purpose::Descriptor { incarnation } => match self.registry.get(incarnation) {
                Some(endpoint) => {
                    pass(stream, endpoint.memory.name().and_then(nkv_store::shm::descriptor)).await
                }
                None => refuse(&mut stream, self.no_door(incarnation)).await,
            },
            Purpose::Payload { incarnation } => match self.registry.get(incarnation) {
                Some(endpoint) => {
                    let payload = endpoint.payload.filter(|_| stream.is_unix());
                    let exported = payload.map(|payload| payload.descriptor());
                    let failed = |e: &StoreError| tracing::warn!(error = %e, "payloads not passed");
                    pass(stream, exported.and_then(|fd| fd.inspect_err(failed).ok())).await
                }
                None => refuse(&mut stream, self.no_door(incarnation)).await,
            },
            Purpose::Elect(ballot) => match &self.voter {
                Some(voter) => {
                    let standing = voter.answer(ballot);
                    write_frame(&mut stream, &mut buf, 0, &Welcome::Elect(standing)).await
                }
                None => refuse(&mut stream, self.not_elected()).await,
            },
            Purpose::Segments(command) => {
                let done = self.command_with_signs(command, &mut stream).await;
                write_frame(&mut stream, &mut buf, 0, &Welcome::Segments(done)).await
            }
        }
    }

    fn refusal(&self, hello: &Hello) -> Option<Refusal> {
        if hello.version != MESSAGES_VERSION {
            return Some(Refusal::Version { ours: MESSAGES_VERSION, theirs: hello.version });
        }
        if hello.job != self.job {
            let (ours, theirs) = (self.job.clone(), hello.job.clone());
            return Some(Refusal::Job { ours, theirs });
        }
        match &hello.purpose {
            Purpose::Rank { .. } if self.master.here().is_none() => Some(match &self.voter {
                Some(_) => Refusal::Later(format!("rank {} is not the master", self.rank)),
                None => self.not_elected(),
            }),
            Purpose::Elect(ballot) => match ballot.check() {
                Ok(()) => None,
                Err(e) => Some(Refusal::Invalid(e.message().to_string())),
            },
            _ => None,
        }
    }

    fn not_elected(&self) -> Refusal {
        Refusal::NotHere(match self.rank {
            0 => "rank 0 runs without --election: give every rank the same".to_string(),
            rank => format!(
                "rank {rank} is not the master, and runs without --election: join at rank 0's \
                 control port, or give every rank the same --election"
            ),
        })
    }

    fn no_door(&self, incarnation: u64) -> Refusal {
        Refusal::NotHere(format!(
            "rank {} has no segment of incarnation {incarnation:016x}: unmounted, or of an earlier \
             start",
            self.rank
        ))
    }
}

/// Passes a segment's descriptor to a client on this host.
async fn pass(mut stream: BoxStream, fd: Option<OwnedFd>) -> Result<(), WireError> {
    let Some(fd) = fd.filter(|_| stream.is_unix()) else {
        let why = "only shared memory and payloads in a GPU are passed on, over a unix socket";
        return refuse(&mut stream, Refusal::NotHere(why.to_string())).await;
    };
    write_frame(&mut stream, &mut Vec::new(), 0, &Welcome::Descriptor).await?;
    let passing = pass_descriptor(stream, fd.as_fd());
    // A client that does not take it is ignored.
    match tokio::time::timeout(HELLO_LIMIT, passing).await {
        Ok(passed) => Ok(passed.map(drop)?),
        Err(_) => Ok(()),
    }
}

async fn refuse(stream: &mut BoxStream, why: Refusal) -> Result<(), WireError> {
    write_frame(stream, &mut Vec::new(), 0, &Welcome::Refused { why }).await
}
