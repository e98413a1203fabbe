//! The data plane between hosts: one-sided verbs to a segment by way of an agent in its owner's
//! process. The program's own grants decide which bytes may be written, and an owner that revokes a
//! token cuts the connections that use it. Only the wire is simulated: batches arrive late, in
//! parts, or not at all, and part of a batch may still arrive after its client gave up: a late
//! write.
//!
//! Shared memory does not need this: there the program's own verbs run over simulated memory.

mod agent;
mod verbs;

pub use agent::{AgentEndpoint, SimAgent};
pub use verbs::SimVerbs;

use crate::dice::Dice;
use nkv_transport::Op;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How bad the wire is, and how long its ends wait.
#[derive(Debug, Clone, Copy)]
pub struct WireProfile {
    /// Of a thousand pauses between two parts of a batch, how many are long, and how long.
    pub gap_permille: u64,
    pub gap_ms: (u64, u64),
    /// Of a thousand batches, how many lose their connection on the way there or back.
    pub loss_permille: u64,
    /// A connect that gets no answer.
    pub connect: Duration,
    /// A post that gets no answer, as transport/src/tcp/client.rs has it.
    pub stall: Duration,
    /// An agent that gets no more of a batch, as transport/src/tcp/agent.rs has it.
    pub agent_stall: Duration,
}

/// One end of the wire: how bad it is for now.
#[derive(Debug)]
pub struct Wire {
    wire_profile: WireProfile,
    // True once the wire has no faults any more.
    kind: Arc<AtomicBool>,
    dice: Mutex<Dice>,
}

impl Wire {
    pub fn new(wire_profile: WireProfile, kind: Arc<AtomicBool>, dice: Dice) -> Self {
        Self { wire_profile, kind, dice: Mutex::new(dice) }
    }

    fn is_kind(&self) -> bool {
        self.kind.load(Ordering::Relaxed)
    }

    fn dice(&self) -> MutexGuard<'_, Dice> {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A verb on its way.
#[derive(Debug)]
enum Sent {
    Read { offset: u64, len: usize },
    Write { offset: u64, bytes: Vec<u8> },
    Store { offset: u64, value: u64 },
    FetchAdd { offset: u64, add: u64 },
    CompareSwap { offset: u64, expect: u64, new: u64 },
    Flush,
}

impl Sent {
    fn of(op: &Op<'_>) -> Self {
        match op {
            Op::Read { offset, dst } => Self::Read { offset: *offset, len: dst.len() },
            Op::Write { offset, src } => Self::Write { offset: *offset, bytes: src.to_vec() },
            Op::Store { offset, value } => Self::Store { offset: *offset, value: *value },
            Op::FetchAdd { offset, add, .. } => Self::FetchAdd { offset: *offset, add: *add },
            Op::CompareSwap { offset, expect, new, .. } => {
                Self::CompareSwap { offset: *offset, expect: *expect, new: *new }
            }
            // Buffers of a device are on the host by now.
            Op::Flush | Op::ReadToDevice { .. } | Op::WriteFromDevice { .. } => Self::Flush,
        }
    }

    fn changes(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush)
    }
}

/// Result of a verb.
#[derive(Debug)]
enum Result1 {
    Bytes(Vec<u8>),
    Word(u64),
    Nothing,
}

/// The agent's answer.
type Answer = Result<Vec<Result1>, String>;

/// A batch on its way.
#[derive(Debug)]
struct Batch {
    from: usize,
    token: u64,
    ops: Vec<Sent>,
    // The rest of it never arrives once its client is gone.
    ends_with_client: bool,
    answer: oneshot::Sender<Answer>,
}
