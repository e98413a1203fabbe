//! Producers that write to the device log through the tcp agent: the rights of each, and the
//! clean-up after those that are gone. The agent knows what each of them has claimed, so the owner
//! asks none of them; a producer whose claim stays open too long loses its rights [I13] [I14]. Kept
//! outside the Owner actor.

use nkv_store::device_log::{Abandon, LogLayout};
use nkv_store::heap::Heap;
use nkv_store::layout::AtomicDomain;
use nkv_transport::grants::Grants;
use nkv_transport::log_rights::LogRights;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A producer that has open claims below a hole is fenced after this time.
const ANSWER_NS: u64 = 1_000_000_000;

#[derive(Debug)]
struct Producer {
    rights: Arc<LogRights>,
    over: bool,
    // The position below which it was last found to have open claims, and since when.
    asked: Option<(u64, u64)>,
}

/// See the file's first paragraph.
#[derive(Debug)]
pub struct LogProducers {
    log: Option<(LogLayout, Heap)>,
    grants: Arc<Grants>,
    by_token: Mutex<BTreeMap<u64, Producer>>,
}

/// The state of a producer with regard to a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProducerState {
    /// It has no open claim below the hole.
    Clear,
    /// It can write no more.
    Fenced,
    /// It may still write below the hole.
    Open,
}

impl LogProducers {
    /// Without producers. Gives no rights if the segment has no log, or a log whose claims a device
    /// counts.
    pub fn of(heap: &Heap, grants: Arc<Grants>) -> Self {
        // The agent counts claims on this processor, which must not be mixed with counting by a
        // device [I1].
        let ours = heap.layout().atomic_domain == AtomicDomain::Cpu;
        let log = heap.layout().device_log().filter(|_| ours).map(|log| (log, heap.clone()));
        Self { log, grants, by_token: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Producer>> {
        self.by_token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives log rights to the attachment that shows `token`, and returns the token; none if there
    /// is no log, or a device counts its claims.
    pub fn give(&self, token: u64) -> Option<u64> {
        let (layout, heap) = self.log.as_ref().filter(|_| token != 0)?;
        let rights = Arc::new(LogRights::new(*layout, heap.memory().clone()));
        let producer = Producer { rights: rights.clone(), over: false, asked: None };
        self.lock().insert(token, producer);
        self.grants.open_log(token, rights);
        Some(token)
    }

    /// That attachment ended: its token is revoked, and `finish_ended` settles its claims.
    pub fn end(&self, token: u64) {
        if let Some(producer) = self.lock().get_mut(&token) {
            producer.over = true;
        }
        self.grants.revoke(token);
    }

    /// A producer abandoned a claim; false if it had none there, or had begun to write.
    pub fn abandon(&self, token: u64, claim: Abandon) -> bool {
        let rights = self.lock().get(&token).map(|p| p.rights.clone());
        rights.is_some_and(|rights| rights.abandon(claim))
    }

    /// Settles the open claims of ended producers; returns those that nobody wrote to, which the
    /// caller records in the log. Called again until none is left: a request may still be in
    /// flight.
    pub fn finish_ended(&self) -> Vec<Abandon> {
        let over: Vec<_> = {
            let all = self.lock();
            let over = all.iter().filter(|(_, p)| p.over);
            over.map(|(token, p)| (*token, p.rights.clone())).collect()
        };
        let mut abandoned = Vec::new();
        for (token, rights) in over.into_iter().filter(|(token, _)| self.grants.is_drained(*token))
        {
            match rights.finish() {
                Ok(settled) => {
                    abandoned.extend(&settled.abandoned);
                    if settled.in_flight == 0 {
                        self.lock().remove(&token);
                        self.grants.forget(token);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "claims of an ended producer cannot be settled yet");
                }
            }
        }
        abandoned
    }

    /// True while an ended producer still has open claims.
    pub fn is_settling(&self) -> bool {
        self.lock().values().any(|p| p.over)
    }

    /// Tokens of the producers that a hole may belong to.
    pub fn tokens(&self) -> Vec<u64> {
        self.lock().keys().copied().collect()
    }

    /// The state of a producer with regard to a hole below this position. Fences it once its claims
    /// were open for `ANSWER_NS`.
    pub fn stands(&self, token: u64, below: u64, now_ns: u64) -> ProducerState {
        let fence = {
            let mut all = self.lock();
            // Settled and forgotten.
            let Some(p) = all.get_mut(&token) else { return ProducerState::Fenced };
            if p.rights.clear_below(below) {
                p.asked = None;
                return ProducerState::Clear;
            }
            let asked = p.asked.filter(|(about, _)| *about == below).unwrap_or((below, now_ns));
            p.asked = Some(asked);
            now_ns.saturating_sub(asked.1) >= ANSWER_NS && !p.over
        };
        if fence {
            tracing::warn!("a tcp producer keeps a claim in the device log open: fencing it");
            self.end(token);
        }
        ProducerState::Open
    }
}
