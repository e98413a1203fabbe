//! Plans whose object a kernel writes and publishes: held until it has ended, and committed once
//! READY is seen.

use super::announce;
use super::commit::is_ready;
use super::write_plan::WritePlan;
use crate::client::Client;
use crate::client::addresses::{KernelAccess, MappedSegment};
use crate::client::plans::PlanState;
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

/// Pauses between two looks at a word that a kernel sets: a part of the time that it took so far,
/// within these bounds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
const SHARE_OF_WAIT: u32 = 32;

/// The longest pause between two commits while the master does not answer.
const AWAY_PAUSE: Duration = Duration::from_millis(500);

/// How long a plan is held for kernels, and then its commit tried, at most.
const MOST_HELD: Duration = Duration::from_secs(600);

/// Addresses of a plan's object in this process.
#[derive(Debug, Clone)]
pub struct PlanAddresses {
    /// Of the header.
    pub header: u64,
    /// Of the first payload byte.
    pub payload: u64,
    /// Where the payload is in a GPU: what lets its kernels reach the header, as long as it lives.
    pub access: Option<KernelAccess>,
}

impl WritePlan {
    /// For kernels: writes the header's fields and WRITING, and keeps the object's memory from
    /// being reused until the plan is committed, aborted or dropped, also past its deadline. False
    /// if this process does not map the owner's memory: no kernel of it can write there.
    ///
    /// The caller drops the plan, and closes its handle, after its kernels have ended.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("announce", async |cache| {
    /// let plan = cache.open_for_write(b"block/1", 4096, &PutOptions::default()).await?;
    /// assert!(plan.announce()?);
    /// // A kernel writes the pages and sets READY.
    /// # Ok(())
    /// # });
    /// ```
    pub fn announce(&self) -> Result<bool> {
        let p = self.state()?;
        if p.peer.reader.is_none() {
            return Ok(false);
        }
        p.check_whole()?;
        p.hold(self.client.shared.env.clock.now_ns())?;
        if p.first_write() {
            announce(p).inspect_err(|_| p.break_off())?;
        }
        Ok(true)
    }

    /// Where the object lies in this process, for kernels: in the segment for which the plan was
    /// granted, whatever incarnation its rank has since. Call [`WritePlan::announce`] first.
    ///
    /// # Errors
    /// `Disconnected` if that segment is gone, `Unsupported` if this process does not map it.
    pub async fn addresses(&self) -> Result<PlanAddresses> {
        self.addresses_with(&self.client).await
    }

    /// Over the connections of `client`, a clone of the handle that opened the plan.
    pub(in crate::client) async fn addresses_with(&self, client: &Client) -> Result<PlanAddresses> {
        let p = self.state()?;
        let (meta, peer) = (&p.desc.meta, &p.peer);
        if !peer.is_alive() {
            return Err(Error::disconnected(format!(
                "the memory of rank {} that this plan is for is gone (the rank ended, or started \
                 again): open a new plan",
                meta.rank
            )));
        }
        let segment = MappedSegment::of(peer).ok_or_else(|| {
            Error::unsupported(format!(
                "this process does not map the memory of rank {}",
                meta.rank
            ))
        })?;
        let (control, access) = match segment.control == segment.payload {
            true => (segment.control, None),
            false => {
                let access = client.control_of(peer.clone()).await?;
                (access.control(), Some(access))
            }
        };
        Ok(PlanAddresses {
            header: control.wrapping_add(meta.header_off),
            payload: segment.payload.wrapping_add(meta.object.payload_off()),
            access,
        })
    }

    /// Whether it is committed, by whichever call.
    pub fn is_committed(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.is_committed())
    }

    /// Whether READY is set, as far as this handle can tell.
    pub fn is_published(&self) -> bool {
        self.state().and_then(|p| is_ready(p)).unwrap_or(false)
    }

    /// Commits the plan over the connections of `client`, a clone of the handle that opened it,
    /// once a kernel has set READY, also if the master is away meanwhile. Ends without that when
    /// the plan does. Gives the plan up after ten minutes without READY, or ten without a master.
    pub fn commit_when_published(
        &self,
        client: Client,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let plan = self.plan.clone();
        async move {
            let Some(plan) = plan else { return Ok(()) };
            let clock = client.shared.env.clock.clone();
            let mut since_ns = clock.now_ns();
            let mut longest = LONGEST_PAUSE;
            let waited =
                |since_ns: u64| Duration::from_nanos(clock.now_ns().saturating_sub(since_ns));
            while client.shared.plans.holds(plan.desc.plan) {
                if is_ready(&plan)? {
                    if longest == LONGEST_PAUSE {
                        (since_ns, longest) = (clock.now_ns(), AWAY_PAUSE);
                    }
                    let done = client.commit_of_kernel(&plan).await;
                    // Else the master is away, or has no report of the owner yet.
                    if !matches!(&done, Err(e) if passes(e.kind())) || waited(since_ns) > MOST_HELD
                    {
                        return done.inspect_err(|error| client.lost(&plan, error));
                    }
                } else if waited(since_ns) > MOST_HELD {
                    tracing::warn!(
                        "a plan for key {} is held for kernels for {MOST_HELD:?}, and given up: \
                         commit or drop plans whose kernels have ended",
                        plan.key
                    );
                    client.abandon(std::slice::from_ref(&plan));
                    return Ok(());
                }
                let pause = (waited(since_ns) / SHARE_OF_WAIT).clamp(SHORTEST_PAUSE, longest);
                tokio::time::sleep(pause).await;
            }
            Ok(())
        }
    }
}

impl Client {
    /// A kernel's object cannot be committed.
    fn lost(&self, plan: &Arc<PlanState>, error: &Error) {
        if self.shared.plans.holds(plan.desc.plan) {
            tracing::warn!(%error, "what a kernel wrote for key {} is lost", plan.key);
            self.abandon(std::slice::from_ref(plan));
        }
    }
}

/// True for errors that a commit may not get the next time: the master is away, was started again
/// under the call, or does not know yet what the plan's owner has.
fn passes(kind: ErrorKind) -> bool {
    use ErrorKind::{Disconnected, Internal, NotReady, Timeout};
    matches!(kind, NotReady | Disconnected | Timeout | Internal)
}
