//! A client's attachment to one owner: the one-sided verbs to its segment, and the link that
//! carries touches to the owner and its orders to drop plans back. The Producer actor makes it;
//! calls use it without the actor.

mod attaching;
mod link;

pub(crate) use attaching::Attaching;
pub(super) use attaching::beside_driver;
use link::Outgoing;

use super::counters::Messages;
use super::holds_within;
use super::peer_log::PeerLog;
use crate::attachment::{AttachId, LocalOwner, ProducerGates};
use crate::error::{Error, Result};
use crate::message::{ClientToOwner, ObjMeta, PlanId, ReadCounts, Touch, TouchBatch, Via};
use nkv_store::fork::ProcessMark;
use nkv_store::pins::Pins;
use nkv_store::reader::Reader;
use nkv_store::{KeyHasher, SegmentLayout};
use nkv_transport::Alive;
#[cfg(test)]
use nkv_transport::mapped::MappedVerbs;
use nkv_transport::verbs::{Kind, Verbs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};

/// Most frames queued for one owner.
const LINK_FRAMES: usize = 1024;
/// A hello that takes longer fails.
const ATTACH_LIMIT: Duration = Duration::from_millis(1_500);
/// After a failed read of its index, a rank's index is not read for this long.
const RETRY_RANK_AFTER_NS: u64 = 1_000_000_000;
/// Touches that are worth a message; fewer wait for the Producer's timer.
pub(super) const TOUCH_BATCH: usize = 128;
/// Most touches kept until they are sent. Beyond it the older half is dropped: only recency is
/// lost, the counters stay correct.
const MAX_TOUCHES: usize = 65_536;

/// Which data path a client may use to an owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Same process, else shared memory, else RDMA where both ends have it, else tcp.
    #[default]
    Auto,
    /// Shared memory (or the same process) or an error.
    Shm,
    /// tcp even where shared memory would do.
    Tcp,
    /// RDMA even where shared memory would do, or an error.
    Rdma,
}

impl std::str::FromStr for TransportChoice {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let all = [Self::Auto, Self::Shm, Self::Tcp, Self::Rdma];
        let named = all.into_iter().find(|choice| choice.to_string() == s);
        let wrong = || Error::invalid(format!("transport is auto, shm, tcp or rdma, not '{s}'"));
        named.ok_or_else(wrong)
    }
}

impl std::fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// What a handle may use an attachment for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AttachmentUse {
    /// Reads, writes, and claims in the log if the transport allows them.
    Everything,
    /// Only claims in a log whose claims an RDMA device counts: another attachment of the handle
    /// maps the segment.
    Claims,
}

enum Link {
    Local(Arc<dyn LocalOwner>, AttachId),
    Remote(mpsc::Sender<Outgoing>),
}

/// See the file's first paragraph.
pub struct Peer {
    pub(crate) rank: u32,
    pub(crate) incarnation: u64,
    // Makes key identities as the owner does.
    pub(crate) hasher: KeyHasher,
    pub(crate) used_for: AttachmentUse,
    // The segment is mapped, but an RDMA device counts claims in its log: another attachment makes
    // them.
    pub(crate) claims_elsewhere: bool,
    // Better transports, and why each was not used.
    pub(crate) passed_over: Vec<String>,
    // Whether it is the first segment of its rank, which is where a key's hash resolves to.
    pub(crate) first: bool,
    // Where headers, index and payloads lie, and the quarantine.
    pub(crate) layout: SegmentLayout,
    // Reads the segment by plain loads, if this process maps it.
    pub(crate) reader: Option<Reader>,
    pub(crate) pins: Option<Arc<Pins>>,
    // The device log, if the segment has one and this handle may write to it.
    pub(crate) log: Option<PeerLog>,
    takes_puts: AtomicBool,
    pub(crate) verbs: Arc<dyn Verbs>,
    // A plan requested before this time must be checked with the owner before its first write.
    pub(crate) attached_ns: u64,
    pub(crate) gates: Arc<dyn ProducerGates>,
    link: Link,
    alive: Alive,
    disconnected: AtomicBool,
    // Until then its index is not read.
    unresponsive_until_ns: AtomicU64,
    touches: Mutex<TouchBatch>,
    usual_bytes: AtomicU64,
    // A whole batch was sent since the last call of `touches_sent`: the next batch takes the rest
    // along.
    touches_sent: AtomicBool,
    messages: Arc<Messages>,
    made: ProcessMark,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer(rank {} by {})", self.rank, self.verbs.kind())
    }
}

impl Peer {
    pub(crate) fn is_alive(&self) -> bool {
        !self.disconnected.load(Ordering::SeqCst) && self.alive.is_alive() && self.verbs.is_alive()
    }

    /// Internal error if an object cannot lie in this segment as the master's answer says.
    pub(crate) fn check(&self, meta: &ObjMeta) -> Result<()> {
        meta.check(&self.layout)
            .map_err(|e| Error::internal(format!("the master's answer cannot be: {}", e.message())))
    }

    /// Records that its index could not be read: lookups skip it for a while.
    pub(crate) fn mark_unresponsive(&self, now_ns: u64) {
        self.unresponsive_until_ns.store(now_ns + RETRY_RANK_AFTER_NS, Ordering::Relaxed);
    }

    pub(crate) fn is_unresponsive(&self, now_ns: u64) -> bool {
        now_ns < self.unresponsive_until_ns.load(Ordering::Relaxed)
    }

    /// Sets whether its rank takes new objects, as the membership view says.
    pub(crate) fn take_puts(&self, takes: bool) {
        self.takes_puts.store(takes, Ordering::Relaxed);
    }

    /// Its log, while its rank takes new objects.
    pub(crate) fn open_log(&self) -> Option<&PeerLog> {
        self.log.as_ref().filter(|_| self.takes_puts.load(Ordering::Relaxed))
    }

    /// Sends a message to the owner without waiting; false if the link is full or down.
    pub(crate) fn send(&self, message: ClientToOwner) -> bool {
        let sent = match &self.link {
            Link::Local(owner, _) => owner.send(message),
            Link::Remote(tx) => tx.try_send(Outgoing::Frame(message)).is_ok(),
        };
        self.messages.one_way.add(usize::from(sent));
        sent
    }

    /// Reports given-up claims and the keys of objects put into its log, at most `most` keys;
    /// returns how many keys it reported.
    pub(crate) fn send_names(&self, most: usize) -> usize {
        let Some(log) = &self.log else { return 0 };
        log.report_given_up(|message| self.send(ClientToOwner::Abandoned(message)));
        log.names.send(most, |names| self.send(ClientToOwner::KeysReported(names)))
    }

    /// The master declared the owner gone: this handle neither reads nor writes it any more, even
    /// if the owner still answers.
    pub(crate) fn disconnect(&self) {
        self.disconnected.store(true, Ordering::SeqCst);
        self.alive_for_detach();
    }

    /// A peer that reaches nothing, for tests of plans.
    #[cfg(test)]
    pub(crate) fn nowhere(gates: Arc<dyn ProducerGates>) -> Arc<Self> {
        let memory = nkv_store::AnonMemory::new(4096).expect("a page of memory");
        let alive = Alive::new();
        Arc::new(Self {
            rank: 0,
            incarnation: 0,
            hasher: KeyHasher::new([7; 16]),
            used_for: AttachmentUse::Everything,
            claims_elsewhere: false,
            passed_over: Vec::new(),
            first: true,
            layout: SegmentLayout::default(),
            reader: None,
            pins: None,
            log: None,
            takes_puts: AtomicBool::new(true),
            verbs: Arc::new(MappedVerbs::local(Arc::new(memory), alive.clone())),
            attached_ns: 0,
            gates,
            link: Link::Remote(mpsc::channel(1).0),
            alive,
            disconnected: AtomicBool::new(false),
            unresponsive_until_ns: AtomicU64::new(0),
            touches: Mutex::default(),
            usual_bytes: AtomicU64::new(0),
            touches_sent: AtomicBool::new(false),
            messages: Arc::default(),
            made: ProcessMark::here(),
        })
    }

    /// The transport it uses.
    pub fn kind(&self) -> Kind {
        self.verbs.kind()
    }

    /// Runs data-plane work that may block on a socket without starving an async runtime.
    pub(crate) fn run_blocking<T>(&self, work: impl FnOnce() -> T) -> T {
        let multi = || {
            Handle::try_current().is_ok_and(|h| h.runtime_flavor() == RuntimeFlavor::MultiThread)
        };
        let waits = matches!(self.kind(), Kind::Tcp | Kind::Rdma);
        if waits && multi() { tokio::task::block_in_place(work) } else { work() }
    }

    fn noted(&self) -> MutexGuard<'_, TouchBatch> {
        self.touches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a read, or a put of what is stored already. The Producer's timer sends the touches in
    /// batches. Returns how many are noted.
    pub(crate) fn note(&self, read: Option<Via>, touch: Touch) -> usize {
        let mut noted = self.noted();
        if let Some(via) = read {
            noted.counts.count(via);
        }
        if noted.list.len() >= MAX_TOUCHES {
            // Drops the older half: they carry recency, and the first reads of objects until read.
            noted.list.drain(..MAX_TOUCHES / 2);
        }
        if read.is_some() {
            self.usual_bytes.store(touch.bytes, Ordering::Relaxed);
        }
        noted.list.push(touch);
        noted.list.len()
    }

    /// Bytes of the object that was read last.
    pub(crate) fn usual_bytes(&self) -> u64 {
        self.usual_bytes.load(Ordering::Relaxed)
    }

    /// Sends the noted touches without waiting, if there are at least `enough`.
    pub(crate) fn flush_touches(&self, enough: usize) {
        if self.touches_noted() < enough {
            return;
        }
        self.touches_sent.store(true, Ordering::Relaxed);
        let batch = std::mem::take(&mut *self.noted());
        // If it is lost, some recency is, and first reads of objects until read.
        let _ = self.send(ClientToOwner::Touched(batch));
    }

    /// Reads noted and not sent.
    pub(crate) fn touches_noted(&self) -> usize {
        self.noted().list.len()
    }

    /// Whether a whole batch was sent since the last call of this.
    pub(crate) fn touches_sent(&self) -> bool {
        self.touches_sent.swap(false, Ordering::Relaxed)
    }

    /// Sends the noted touches; with `wait`, returns once they have left this process.
    pub(crate) async fn send_touches(&self, wait: bool) -> Result<()> {
        let batch = std::mem::take(&mut *self.noted());
        let some = !batch.list.is_empty() || batch.counts != ReadCounts::default();
        self.messages.one_way.add(usize::from(some));
        match &self.link {
            Link::Local(owner, _) => {
                if some {
                    owner.touched(batch).await?;
                }
            }
            Link::Remote(tx) => {
                let gone = || Error::disconnected(format!("rank {} is gone", self.rank));
                if some {
                    let touched = Outgoing::Frame(ClientToOwner::Touched(batch));
                    tx.send(touched).await.map_err(|_| gone())?;
                }
                if wait {
                    let (done, flushed) = oneshot::channel();
                    tx.send(Outgoing::Flushed(done)).await.map_err(|_| gone())?;
                    flushed.await.map_err(|_| gone())?;
                }
            }
        }
        Ok(())
    }

    /// Asks the owner whether a plan that was granted before this attachment may still be written.
    /// Reclaimed if not; Disconnected if the owner does not answer within `limit`.
    pub(crate) async fn check_plan(&self, plan: PlanId, limit: Duration) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        self.messages.waited.one();
        let work = async {
            match &self.link {
                Link::Local(owner, _) => Some(owner.is_open(plan).await),
                Link::Remote(tx) => {
                    tx.send(Outgoing::Check(plan, answer)).await.ok()?;
                    answered.await.ok()
                }
            }
        };
        match tokio::time::timeout(limit, work).await {
            Ok(Some(true)) => Ok(()),
            Ok(Some(false)) => Err(Error::reclaimed(format!(
                "rank {} ended the plan before its first byte",
                self.rank
            ))),
            _ => Err(Error::disconnected(format!("rank {} does not answer", self.rank))),
        }
    }

    /// Detaches: sends the owner that nothing is or will be written or viewed through this
    /// attachment, nor through an earlier one, which `writes_on` checks. Returns once that is sent.
    /// Sends nothing while a view is still held: the attachment then ends when the view is dropped
    /// or this process ends.
    pub(crate) async fn detach(&self, writes_on: impl Fn() -> bool) {
        self.alive_for_detach();
        let drained = || self.log.as_ref().is_none_or(|log| log.gate.is_drained()) && !writes_on();
        if !holds_within(ATTACH_LIMIT, drained).await {
            tracing::warn!(rank = self.rank, "closed with a put in flight: its claim stays open");
            return;
        }
        if self.pins.as_ref().is_some_and(|pins| !pins.close()) {
            tracing::warn!(rank = self.rank, "closed with views: their objects stay in place");
            return;
        }
        if let Link::Remote(tx) = &self.link
            && tx.send(Outgoing::Frame(ClientToOwner::Detach)).await.is_ok()
        {
            // The link task ends, and with it the receiver, when the frame is written.
            let _ = tokio::time::timeout(ATTACH_LIMIT, tx.closed()).await;
        }
    }

    /// From here on no verb through this attachment succeeds. The flag of a local segment belongs
    /// to its node and is not set.
    fn alive_for_detach(&self) {
        if let Link::Remote(_) = &self.link {
            self.alive.mark_dead();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A forked child must not detach its parent, which may also have held the lock at the fork.
        if !self.made.is_here() {
            return;
        }
        // Every plan holds its peer, so without a peer there is no writer. A remote link sends the
        // Detach itself when its sender is dropped.
        if let Link::Local(owner, id) = &self.link {
            // Views hold their peer as well, so none is left.
            owner.detach(*id);
        }
    }
}
