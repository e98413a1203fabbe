//! Producer: does the background work of a client handle when no call is running. It attaches to
//! owners (one attempt at a time for each), sends the touches that readers noted, and gives up
//! dropped plans. Open plans and attached peers are kept outside of it; it never sees a payload
//! byte.

use super::control::ControlPool;
use super::log_names::NAMES_PER_TICK;
use super::peer::{Attaching, Peer, TOUCH_BATCH};
use super::shared::Shared;
use crate::actor::{Context, Message, On, Reply, Role};
use crate::error::Result;
use crate::message::{RankInfo, Request, Response, View};
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Touches and key strings are checked this often, and touches sent.
const FLUSH_MS: u64 = 20;
/// Every this many checks, key strings are sent however few they are.
const FLUSH_ALL_TICKS: u64 = 5;
/// Checks between two requests for the membership because of owners not attached to yet.
const ATTACH_AGAIN_TICKS: u64 = 25;
/// Checks between two attempts to restore attachments that claim through RDMA devices: 5 s.
const CLAIM_AGAIN_TICKS: u64 = 250;
/// Plans that cannot be given up within this time are left to their deadline.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// Pause before a withdrawal is sent a second time.
const WITHDRAW_AGAIN: Duration = Duration::from_millis(250);
/// Most owners waiting to be attached to.
const MAX_UNATTACHED: usize = 256;
/// Most callers waiting for one attachment.
const MAX_WAITERS: usize = 4096;

/// What outlives the Producer actor.
#[derive(Clone)]
pub struct ProducerDurable {
    pub(super) shared: Weak<Shared>,
    pub(super) pool: Arc<ControlPool>,
}

type Waiters = Vec<Reply<Result<Arc<Peer>>>>;

/// See the file's first paragraph.
pub struct Producer {
    durable: ProducerDurable,
    attaching: HashMap<u64, Waiters>,
    ticks: u64,
    unattached: BTreeSet<u64>,
    asking: bool,
    attach_again_at: u64,
}

/// Attach to an owner, or return the attachment that exists.
#[derive(Debug)]
pub struct Attach(pub RankInfo);
/// Incarnations of owners to attach to, if they are on this host; others are ignored.
#[derive(Debug)]
pub struct AttachTo(pub BTreeSet<u64>);
/// The membership, requested for an `AttachTo`, if the master sent it.
struct Members(Option<View>);
/// The result of an attempt to attach: the attachment, and maybe a second one for claims.
struct Attached(u64, Result<(Arc<Peer>, Option<Arc<Peer>>)>);
/// The result of an attempt to restore an attachment that claims through RDMA devices.
struct Claiming(Result<Arc<Peer>>);
/// The request that gives up plans: `Abort`, or `Withdraw` if the caller of an open is gone before
/// its answer came. The `Arc` is held until the master was notified or the attempt failed.
#[derive(Debug)]
pub struct GiveUp(pub Request, pub Arc<()>);
/// A timer.
struct ProducerTick;

impl Message for Attach {
    type Reply = Result<Arc<Peer>>;
}
impl Message for AttachTo {
    type Reply = ();
}
impl Message for Members {
    type Reply = ();
}
impl Message for Attached {
    type Reply = ();
}
impl Message for Claiming {
    type Reply = ();
}
impl Message for GiveUp {
    type Reply = ();
}
impl Message for ProducerTick {
    type Reply = ();
}

impl Role for Producer {
    type Durable = ProducerDurable;
    const NAME: &'static str = "producer";

    fn boot(durable: &ProducerDurable, ctx: &mut Context<'_, Self>) -> Self {
        ctx.after(Duration::from_millis(FLUSH_MS), ProducerTick);
        Self {
            durable: durable.clone(),
            attaching: HashMap::new(),
            ticks: 0,
            unattached: BTreeSet::new(),
            asking: false,
            attach_again_at: 0,
        }
    }
}

impl On<Attach> for Producer {
    fn on(&mut self, m: Attach, reply: Reply<Result<Arc<Peer>>>, ctx: &mut Context<'_, Self>) {
        let Some(shared) = self.durable.shared.upgrade() else {
            return;
        };
        let incarnation = m.0.incarnation;
        if let Some(peer) = shared.peers.get(incarnation) {
            return reply.send(Ok(peer));
        }
        let waiters = self.attaching.entry(incarnation).or_default();
        if waiters.len() >= MAX_WAITERS {
            let text = format!("{MAX_WAITERS} calls already wait for rank {}", m.0.rank);
            return reply.send(Err(crate::Error::not_ready(text)));
        }
        waiters.push(reply);
        if waiters.len() > 1 {
            return;
        }
        let attaching = Attaching::new(shared, m.0);
        ctx.work(async move { Attached(incarnation, attaching.run().await) });
    }
}

impl Producer {
    /// Tries again to make attachments for claims that were lost or failed.
    fn claim_again(&self, shared: &Arc<Shared>, ctx: &mut Context<'_, Self>) {
        let lacking = shared.peers.lacking();
        if lacking.is_empty() {
            return;
        }
        for (info, _) in shared.view().ranks {
            let owner = info.incarnation;
            if lacking.contains(&owner) && !self.attaching.contains_key(&owner) {
                let attaching = Attaching::new(shared.clone(), info);
                ctx.work(async move { Claiming(attaching.to_claim().await) });
            }
        }
    }

    /// Attaches to the waiting owners that are members and on this host; drops the others.
    fn attach_to(&mut self, shared: &Shared, view: &View, ctx: &mut Context<'_, Self>) {
        let here = shared.env.machine.boot_id();
        let wanted = std::mem::take(&mut self.unattached);
        for (info, _) in &view.ranks {
            if info.boot_id == here && wanted.contains(&info.incarnation) {
                self.on(Attach(info.clone()), Reply::nobody(), ctx);
            }
        }
    }
}

impl On<AttachTo> for Producer {
    fn on(&mut self, m: AttachTo, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        reply.send(());
        let Some(shared) = self.durable.shared.upgrade() else {
            return;
        };
        let room = MAX_UNATTACHED.saturating_sub(self.unattached.len());
        self.unattached.extend(m.0.into_iter().take(room));
        let view = shared.view();
        if view.ranks.iter().any(|(i, _)| self.unattached.contains(&i.incarnation)) {
            self.attach_to(&shared, &view, ctx);
        } else if !self.asking && self.ticks >= self.attach_again_at {
            self.asking = true;
            self.attach_again_at = self.ticks + ATTACH_AGAIN_TICKS;
            let pool = self.durable.pool.clone();
            ctx.work(async move {
                Members(match pool.call(Request::View, ABORT_LIMIT).await {
                    Ok(Response::View(view)) => Some(view),
                    _ => None,
                })
            });
        }
    }
}

impl On<Members> for Producer {
    fn on(&mut self, m: Members, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        reply.send(());
        self.asking = false;
        match (m.0, self.durable.shared.upgrade()) {
            (Some(view), Some(shared)) => {
                shared.keep_view(view.clone());
                self.attach_to(&shared, &view, ctx);
            }
            // The next `AttachTo` requests them again.
            _ => self.unattached.clear(),
        }
    }
}

impl On<Attached> for Producer {
    fn on(&mut self, m: Attached, reply: Reply<()>, _: &mut Context<'_, Self>) {
        let Attached(incarnation, result) = m;
        let shared = self.durable.shared.upgrade();
        let take_in = |peer: &Arc<Peer>| shared.as_ref().is_none_or(|s| s.take_in(peer.clone()));
        let attached = result.and_then(|(peer, claiming)| {
            let taken = take_in(&peer) && claiming.as_ref().is_none_or(take_in);
            taken.then_some(peer).ok_or_else(crate::Error::handle_closed)
        });
        for w in self.attaching.remove(&incarnation).unwrap_or_default() {
            w.send(attached.clone());
        }
        reply.send(());
    }
}

impl On<Claiming> for Producer {
    fn on(&mut self, m: Claiming, reply: Reply<()>, _: &mut Context<'_, Self>) {
        match m.0 {
            // Not taken in if the handle is closed or gone.
            Ok(peer) => drop(self.durable.shared.upgrade().map(|shared| shared.take_in(peer))),
            Err(error) => tracing::debug!(%error, "puts into a log still take plans"),
        }
        reply.send(());
    }
}

impl On<GiveUp> for Producer {
    fn on(&mut self, m: GiveUp, reply: Reply<()>, _: &mut Context<'_, Self>) {
        let pool = self.durable.pool.clone();
        tokio::task::spawn_local(async move {
            let GiveUp(request, _until_reported) = m;
            // A withdrawal is sent twice: the open uses another connection, and the first
            // withdrawal may overtake it.
            let mut again = matches!(request, Request::Withdraw { .. });
            loop {
                if let Err(error) = pool.call(request.clone(), ABORT_LIMIT).await {
                    let kind = Request::KINDS[request.kind()];
                    tracing::debug!(kind, %error, "plans not given up; they end at their deadline");
                }
                if !std::mem::take(&mut again) {
                    return;
                }
                tokio::time::sleep(WITHDRAW_AGAIN).await;
            }
        });
        reply.send(());
    }
}

impl On<ProducerTick> for Producer {
    fn on(&mut self, _: ProducerTick, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        ctx.after(Duration::from_millis(FLUSH_MS), ProducerTick);
        reply.send(());
        let Some(shared) = self.durable.shared.upgrade() else {
            return;
        };
        shared.peers.remove_dead();
        self.ticks += 1;
        if self.ticks.is_multiple_of(CLAIM_AGAIN_TICKS) {
            self.claim_again(&shared, ctx);
        }
        // Send a batch that is worth a message, or one that has waited long enough.
        let all = self.ticks.is_multiple_of(FLUSH_ALL_TICKS);
        let peers = shared.peers.all();
        for peer in &peers {
            if all {
                peer.verbs.trim();
            }
            if let Some(log) =
                peer.log.as_ref().filter(|log| log.should_report_now(TOUCH_BATCH, all))
                && peer.send_names(NAMES_PER_TICK) >= TOUCH_BATCH
            {
                log.batch_reported.store(true, Ordering::Relaxed);
            }
        }
        // The last touches of a steady reader are sent with its next batch.
        let due = |p: &Arc<Peer>| {
            let (noted, steady) = (p.touches_noted(), p.touches_sent());
            noted >= TOUCH_BATCH || noted > 0 && !steady
        };
        for peer in peers.into_iter().filter(due) {
            tokio::task::spawn_local(async move {
                if let Err(error) = peer.send_touches(false).await {
                    tracing::debug!(%error, "touches lost");
                }
            });
        }
    }
}
