//! Producer: what stands behind a client handle when no call is running. It attaches to owners (one
//! attempt at a time for each), sends the touches that readers noted, and gives up the plans that
//! were dropped. Open plans and attached peers lie outside it; it never sees a payload byte.

use crate::actor::{Context, Message, On, Reply, Role};
use crate::client::control::ControlPool;
use crate::client::peer::{Attaching, Peer};
use crate::client::put_log::NAMES_PER_TICK;
use crate::client::{Shared, closed};
use crate::error::Result;
use crate::message::{PlanRef, RankInfo, Request, Response, View};
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Touches are looked at this often, and sent if there are so many of an owner.
const FLUSH_MS: u64 = 20;
const TOUCH_BATCH: usize = 128;
/// At so many such looks they are sent however few they are.
const FLUSH_ALL_TICKS: u64 = 5;
/// So many such looks lie between two questions for owners that were not met.
const ATTACH_AGAIN_TICKS: u64 = 25;
/// So many lie between two attempts to attach anew to where claims are made through devices: 5 s.
const CLAIM_AGAIN_TICKS: u64 = 250;
/// An abort that takes longer is left to the plan's deadline.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// When a withdrawal is said again.
const WITHDRAW_AGAIN: Duration = Duration::from_millis(250);
/// Owners heard of and not met at a time.
const MAX_UNATTACHED: usize = 256;
/// Callers that wait for one attachment.
const MAX_WAITERS: usize = 4096;

/// What outlives the Producer actor.
#[derive(Clone)]
pub struct ProducerDurable {
    shared: Weak<Shared>,
    pool: Arc<ControlPool>,
}

impl ProducerDurable {
    pub(crate) fn new(shared: &Arc<Shared>, pool: ControlPool) -> Self {
        Self { shared: Arc::downgrade(shared), pool: Arc::new(pool) }
    }
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

/// Attach to an owner, or get the attachment that is there.
#[derive(Debug)]
pub struct Attach(pub RankInfo);
/// Owners that were heard of: those of this host are attached to, others are left alone.
#[derive(Debug)]
pub struct AttachTo(pub Vec<u64>);
/// The members, asked for on behalf of a `AttachTo`.
struct Members(Result<View>);
/// An attempt to attach ended: the attachment, and maybe one more that claims.
struct Attached(u64, Result<Vec<Arc<Peer>>>);
/// An attempt ended to attach once more to where claims are made through devices.
struct Claiming(Result<Arc<Peer>>);
/// Plans that nobody will finish; what it holds until the master was told, or could not be.
#[derive(Debug)]
pub struct Abandon(pub Vec<PlanRef>, pub Arc<()>);
/// The caller of this open is gone before its answer came; what it holds as [`Abandon`] does.
#[derive(Debug)]
pub struct Withdrawn(pub u64, pub Arc<()>);
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
impl Message for Abandon {
    type Reply = ();
}
impl Message for Withdrawn {
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
        let attaching = attaching(&shared, m.0);
        ctx.work(async move { Attached(incarnation, attaching.run().await) });
    }
}

fn attaching(shared: &Shared, info: RankInfo) -> Attaching {
    let incarnation = info.incarnation;
    Attaching {
        env: shared.env.clone(),
        credentials: shared.credentials.clone(),
        hasher: shared.keys.now(),
        producer: shared.producer_id,
        claims: (info.log_slots > 0).then(|| shared.env.claims.of(incarnation)),
        info,
        choice: shared.config.transport,
        data_stripes: shared.config.data_stripes,
        fabric: shared.config.fabric.clone(),
        prefault: shared.config.prefault,
        plans: shared.plans.clone(),
        writes_on: shared.peers.writes_on(incarnation, None),
        claims_already: shared.peers.claims(incarnation),
        messages: shared.messages.clone(),
    }
}

impl Producer {
    /// A way that only claims was lost, or could not be had: tried once more.
    fn claim_again(&self, shared: &Shared, ctx: &mut Context<'_, Self>) {
        let lacking = shared.peers.lacking();
        if lacking.is_empty() {
            return;
        }
        for (info, _) in shared.view().ranks {
            let owner = info.incarnation;
            if lacking.contains(&owner) && !self.attaching.contains_key(&owner) {
                let attaching = attaching(shared, info);
                ctx.work(async move { Claiming(attaching.to_claim().await) });
            }
        }
    }

    /// Attaches to those of these owners that are members, of this host, and met no better way.
    fn attach_to(&mut self, view: &View, ctx: &mut Context<'_, Self>) {
        let Some(shared) = self.durable.shared.upgrade() else { return };
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
            self.attach_to(&view, ctx);
        } else if !self.asking && self.ticks >= self.attach_again_at {
            self.asking = true;
            self.attach_again_at = self.ticks + ATTACH_AGAIN_TICKS;
            let pool = self.durable.pool.clone();
            ctx.work(async move {
                Members(match pool.call(Request::View, ABORT_LIMIT).await {
                    Ok(Response::View(view)) => Ok(view),
                    Ok(other) => Err(pool.unexpected("View", &other)),
                    Err(e) => Err(e),
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
            (Ok(view), Some(shared)) => {
                shared.keep_view(view.clone());
                self.attach_to(&view, ctx);
            }
            // Heard of again, they are asked for again.
            _ => self.unattached.clear(),
        }
    }
}

impl On<Attached> for Producer {
    fn on(&mut self, m: Attached, reply: Reply<()>, _: &mut Context<'_, Self>) {
        let Attached(incarnation, mut result) = m;
        if let (Ok(peers), Some(shared)) = (&result, self.durable.shared.upgrade())
            && !peers.iter().all(|peer| take_in(&shared, peer))
        {
            result = Err(closed());
        }
        let first = result.and_then(|peers| {
            peers.into_iter().next().ok_or_else(|| crate::Error::internal("attached by no way"))
        });
        for w in self.attaching.remove(&incarnation).unwrap_or_default() {
            w.send(first.clone());
        }
        reply.send(());
    }
}

/// False if the handle was closed meanwhile.
fn take_in(shared: &Shared, peer: &Arc<Peer>) -> bool {
    let (rank, transport) = (peer.rank, peer.kind());
    let taken = shared.take_in(peer.clone());
    if taken {
        tracing::info!(rank, %transport, passed_over = ?peer.passed_over, "attached");
    }
    taken
}

impl On<Claiming> for Producer {
    fn on(&mut self, m: Claiming, reply: Reply<()>, _: &mut Context<'_, Self>) {
        match (m.0, self.durable.shared.upgrade()) {
            (Ok(peer), Some(shared)) => {
                take_in(&shared, &peer);
            }
            (Err(error), _) => tracing::debug!(%error, "puts into a log still take plans"),
            _ => {}
        }
        reply.send(());
    }
}

impl On<Abandon> for Producer {
    fn on(&mut self, m: Abandon, reply: Reply<()>, _: &mut Context<'_, Self>) {
        let pool = self.durable.pool.clone();
        tokio::task::spawn_local(async move {
            let Abandon(plans, _until_reported) = m;
            if let Err(error) = pool.call(Request::Abort(plans), ABORT_LIMIT).await {
                tracing::debug!(%error, "plans left to their deadline");
            }
        });
        reply.send(());
    }
}

impl On<Withdrawn> for Producer {
    fn on(&mut self, m: Withdrawn, reply: Reply<()>, _: &mut Context<'_, Self>) {
        let pool = self.durable.pool.clone();
        tokio::task::spawn_local(async move {
            let Withdrawn(request, _until_reported) = m;
            // Twice: the open itself may be overtaken, it travels on another connection.
            for pause in [Duration::ZERO, WITHDRAW_AGAIN] {
                tokio::time::sleep(pause).await;
                if let Err(error) = pool.call(Request::Withdraw { request }, ABORT_LIMIT).await {
                    tracing::debug!(%error, "an open left to its deadline");
                }
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
        // A batch that is worth a message, or one that has waited long enough.
        let all = self.ticks.is_multiple_of(FLUSH_ALL_TICKS);
        let enough = if all { 1 } else { TOUCH_BATCH };
        let peers = shared.peers.all();
        for peer in &peers {
            if all {
                peer.verbs.trim();
            }
            if let Some(log) =
                peer.log.as_ref().filter(|log| log.should_report_now(TOUCH_BATCH, all))
                && peer.send_names(NAMES_PER_TICK) >= TOUCH_BATCH
            {
                log.batch_reported();
            }
        }
        // What a steady reader noted last goes with his next batch.
        let due = |p: &Arc<Peer>| p.touches_noted() >= enough && !(all && p.touches_sent());
        for peer in peers.into_iter().filter(due) {
            tokio::task::spawn_local(async move {
                if let Err(error) = peer.send_touches(false).await {
                    tracing::debug!(%error, "touches lost");
                }
            });
        }
    }
}
