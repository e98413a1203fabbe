//! The external dependencies of a process: time, network, randomness, the machine, and threads. In
//! production they are the operating system's. A simulation provides its own and runs the same
//! code, with one environment for each simulated process. It decides nothing.

use crate::attachment::LocalOwners;
use crate::error::Result;
use crate::executor::OwnedExecutor;
use crate::log_claims::LogClaims;
use crate::machine::{Machine, OsMachine};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::random::{OsRandom, Random};
use nkv_transport::wire::{Net, OsNet};
use std::sync::Arc;

/// Where actors run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Platform {
    /// A thread for each executor.
    Threads,
    /// The calling thread, inside a tokio `LocalSet`.
    Here,
}

/// See the file's first paragraph. Cheap to clone; all clones belong to one process.
#[derive(Clone)]
pub struct Environment {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Connects to other processes, and accepts their connections.
    pub net: Arc<dyn Net>,
    /// Source of incarnations, terms, tokens and nonces.
    pub random: Arc<dyn Random>,
    /// Memory, and the data plane's agent and connections.
    pub machine: Arc<dyn Machine>,
    pub(crate) platform: Platform,
    pub(crate) owners: LocalOwners,
    pub(crate) claims: LogClaims,
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Environment({:?} on {:?})", self.machine, self.platform)
    }
}

impl Environment {
    /// This process on this machine.
    pub fn of_this_process() -> Self {
        Self {
            clock: Arc::new(BootClock),
            net: Arc::new(OsNet),
            random: Arc::new(OsRandom),
            machine: Arc::new(OsMachine),
            platform: Platform::Threads,
            owners: LocalOwners::of_this_process(),
            claims: LogClaims::of_this_process(),
        }
    }

    /// A process of a simulation. It runs entirely on the thread that starts it, inside a tokio
    /// `LocalSet`. Dropping that set ends the process at whatever its tasks wait for.
    pub fn simulated(
        clock: Arc<dyn Clock>,
        net: Arc<dyn Net>,
        random: Arc<dyn Random>,
        machine: Arc<dyn Machine>,
    ) -> Self {
        let (platform, owners) = (Platform::Here, LocalOwners::default());
        Self { clock, net, random, machine, platform, owners, claims: LogClaims::default() }
    }

    /// The same as of another process: it reaches segments of this one only as other processes do.
    /// For tests that run several hosts in one process.
    #[must_use]
    pub fn apart(self) -> Self {
        Self { owners: LocalOwners::default(), claims: LogClaims::default(), ..self }
    }

    /// An executor for actors.
    pub(crate) fn executor(&self) -> Result<OwnedExecutor> {
        match self.platform {
            Platform::Threads => OwnedExecutor::arbiter(),
            Platform::Here => Ok(OwnedExecutor::here(self.clock.clone())),
        }
    }
}
