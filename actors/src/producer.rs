//! Producer: what stands behind a client handle when no call is running. It attaches to owners (one
//! attempt at a time for each), sends the touches that readers noted, and gives up the plans that
//! were dropped. Open plans and attached peers lie outside it; it never sees a payload byte.

use crate::cell::{Message, On, Reply, Role, Turn};
use crate::client::Shared;
use crate::client::control::ControlPool;
use crate::client::peer::{Attaching, Peer};
use crate::error::Result;
use crate::message::{PlanRef, RankInfo, Request};
use crate::plans::Obeyed;
use hashbrown::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// Touches wait at most this long.
const FLUSH_MS: u64 = 20;
/// An abort that takes longer is left to the plan's deadline.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// When a withdrawal is said again.
const WITHDRAW_AGAIN: Duration = Duration::from_millis(250);
/// Callers that wait for one attachment.
const MAX_WAITERS: usize = 4096;

/// What outlives the Producer actor.
#[derive(Clone)]
pub struct ProducerTruth {
    shared: Weak<Shared>,
    pool: Arc<ControlPool>,
}

impl ProducerTruth {
    pub(crate) fn new(shared: &Arc<Shared>, pool: ControlPool) -> Self {
        Self { shared: Arc::downgrade(shared), pool: Arc::new(pool) }
    }
}

type Waiters = Vec<Reply<Result<Arc<Peer>>>>;

/// See the file's first paragraph.
pub struct Producer {
    truth: ProducerTruth,
    attaching: HashMap<u64, Waiters>,
}

/// Attach to an owner, or get the attachment that is there.
#[derive(Debug)]
pub struct Attach(pub RankInfo);
/// An attempt to attach ended.
struct Attached(u64, Result<Arc<Peer>>);
/// Plans that nobody will finish.
#[derive(Debug)]
pub struct Abandon(pub Vec<PlanRef>);
/// The caller of this open is gone before its answer came.
#[derive(Debug)]
pub struct Withdrawn(pub u64);
/// A timer.
struct ProducerTick;

impl Message for Attach {
    type Reply = Result<Arc<Peer>>;
}
impl Message for Attached {
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
    type Truth = ProducerTruth;
    const NAME: &'static str = "producer";

    fn boot(truth: &ProducerTruth, turn: &mut Turn<'_, Self>) -> Self {
        turn.after(Duration::from_millis(FLUSH_MS), ProducerTick);
        Self { truth: truth.clone(), attaching: HashMap::new() }
    }
}

impl On<Attach> for Producer {
    fn on(&mut self, m: Attach, reply: Reply<Result<Arc<Peer>>>, turn: &mut Turn<'_, Self>) {
        let Some(shared) = self.truth.shared.upgrade() else {
            return;
        };
        let incarnation = m.0.incarnation;
        let known = {
            let peers = shared.peers.read().unwrap_or_else(PoisonError::into_inner);
            peers.get(&incarnation).filter(|p| p.is_alive()).cloned()
        };
        if let Some(peer) = known {
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
        let attaching = Attaching {
            env: shared.env.clone(),
            credentials: shared.credentials.clone(),
            producer: shared.producer_id,
            info: m.0,
            choice: shared.config.transport,
            plans: shared.plans.clone(),
            obeyed: Obeyed::new(incarnation),
        };
        turn.work(async move { Attached(incarnation, attaching.run().await) });
    }
}

impl On<Attached> for Producer {
    fn on(&mut self, m: Attached, reply: Reply<()>, _: &mut Turn<'_, Self>) {
        let Attached(incarnation, result) = m;
        if let (Ok(peer), Some(shared)) = (&result, self.truth.shared.upgrade()) {
            tracing::debug!(rank = peer.rank, transport = %peer.kind(), "attached");
            let mut peers = shared.peers.write().unwrap_or_else(PoisonError::into_inner);
            peers.insert(incarnation, peer.clone());
        }
        for w in self.attaching.remove(&incarnation).unwrap_or_default() {
            w.send(result.clone());
        }
        reply.send(());
    }
}

impl On<Abandon> for Producer {
    fn on(&mut self, m: Abandon, reply: Reply<()>, _: &mut Turn<'_, Self>) {
        let pool = self.truth.pool.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = pool.call(Request::Abort(m.0), ABORT_LIMIT).await {
                tracing::debug!(%error, "plans left to their deadline");
            }
        });
        reply.send(());
    }
}

impl On<Withdrawn> for Producer {
    fn on(&mut self, m: Withdrawn, reply: Reply<()>, _: &mut Turn<'_, Self>) {
        let pool = self.truth.pool.clone();
        tokio::task::spawn_local(async move {
            // Twice: the open itself may be overtaken, it travels on another connection.
            for pause in [Duration::ZERO, WITHDRAW_AGAIN] {
                tokio::time::sleep(pause).await;
                if let Err(error) = pool.call(Request::Withdraw { request: m.0 }, ABORT_LIMIT).await
                {
                    tracing::debug!(%error, "an open left to its deadline");
                }
            }
        });
        reply.send(());
    }
}

impl On<ProducerTick> for Producer {
    fn on(&mut self, _: ProducerTick, reply: Reply<()>, turn: &mut Turn<'_, Self>) {
        turn.after(Duration::from_millis(FLUSH_MS), ProducerTick);
        reply.send(());
        let Some(shared) = self.truth.shared.upgrade() else {
            return;
        };
        let peers: Vec<_> = {
            let mut peers = shared.peers.write().unwrap_or_else(PoisonError::into_inner);
            // A dead owner's segment must not stay mapped here.
            peers.retain(|_, p| p.is_alive());
            peers.values().cloned().collect()
        };
        for peer in peers.into_iter().filter(|p| p.has_touches()) {
            tokio::task::spawn_local(async move {
                if let Err(error) = peer.send_touches(false).await {
                    tracing::debug!(%error, "touches lost");
                }
            });
        }
    }
}
