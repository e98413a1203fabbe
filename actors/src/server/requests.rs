//! Requests of one client to the master in this node: over its connection, or over a ring instead
//! if both are on one host. They are answered on the master's own thread, one at a time, in order.

use super::{ACTOR_LIMIT, HELLO_LIMIT, Server, refuse};
use crate::actor::ActorAddr;
use crate::master::{Ask, Master, Members};
use crate::message::{HasherKey, MAX_AWAIT_MS, Refusal, Request, Response, View, Welcome};
use crate::race::race;
use nkv_store::clock::Clock;
use nkv_transport::ring::{Offer, Polling, RingStream};
use nkv_transport::wire::{
    Address, BoxStream, MAX_FRAME_BYTES, WireError, read_frame, write_frame,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Most rings of a node at a time, some 130 KiB each; further clients keep their sockets.
pub(crate) const MAX_RINGS: usize = 256;
/// How long a node spins for the next request of a client that usually sends one soon.
const SPIN: Duration = Duration::from_micros(50);
/// The same after an open. A sleeping client has to wake, on a core that may have been halted, and
/// write its bytes: with some 100 KiB the commit comes within this time.
const SPIN_AFTER_OPEN: Duration = Duration::from_micros(100);

/// What answering a client's requests needs.
struct RequestContext<'a> {
    master: &'a ActorAddr<Master>,
    members: &'a Members,
    producer: u64,
    clock: &'a dyn Clock,
}

impl Server {
    pub(super) async fn client(
        self: Arc<Self>,
        mut stream: BoxStream,
        producer: u64,
        takes_ring: bool,
    ) -> Result<(), WireError> {
        let here = self.master.here();
        // A view of one that nobody obeys would count as later than that of the real master.
        let now_ms = self.clock.now_ms();
        let here = here.filter(|h| self.voter.is_none() || h.members.has_quorum(now_ms));
        let Some(elsewhere) = self.named(here.is_some()) else {
            let why = "no rank is known to be master at this moment; try again".to_string();
            return refuse(&mut stream, Refusal::Later(why)).await;
        };
        let view = here.as_ref().map_or_else(View::default, |here| here.members.view());
        let ring = self.offer(&stream, takes_ring);
        let welcome = Welcome::Client {
            master: elsewhere,
            view,
            settings: self.settings.borrow().1.clone(),
            hasher: HasherKey(self.hasher.key()),
            ring: ring.as_ref().map(|(offer, _)| offer.lane_bytes()),
        };
        let mut buf = Vec::new();
        write_frame(&mut stream, &mut buf, 0, &welcome).await?;
        let Some(here) = here else {
            // The client was only to learn the master's address.
            return Ok(());
        };
        let (master, members) = (&here.actor, &here.members);
        let desk = RequestContext { master, members, producer, clock: &*self.clock };
        let by_ring = ring.is_some();
        members.producer_up(producer, by_ring);
        let serving = async {
            match ring {
                None => desk.serve(&mut stream).await,
                Some((offer, _slot)) => {
                    match tokio::time::timeout(HELLO_LIMIT, offer.pass(stream)).await {
                        Ok(Ok(mut ring)) => desk.serve_ring(&mut ring).await,
                        Ok(Err(e)) => Err(e.into()),
                        // The client did not take the ring that it asked for.
                        Err(_) => Ok(()),
                    }
                }
            }
        };
        let served = self.master.while_here(&here, serving).await;
        members.producer_down(producer, by_ring, self.clock.now_ms());
        served
    }

    /// Where a client finds the master: None within if it is here, none at all if it is unknown.
    fn named(&self, here: bool) -> Option<Option<Address>> {
        if here {
            return Some(None);
        }
        let named = match &self.voter {
            Some(voter) => voter.standing().master.map(|(_, at)| at),
            None => self.master.path().addresses().first().cloned(),
        };
        named.map(Some)
    }

    /// A ring for a client that wants one, if a slot is free.
    fn offer(&self, stream: &BoxStream, wanted: bool) -> Option<(Offer, OwnedSemaphorePermit)> {
        if !wanted || self.master.here().is_none() || !stream.is_unix() {
            return None;
        }
        let slot = self.rings.clone().try_acquire_owned().ok()?;
        match Offer::new() {
            Ok(offer) => Some((offer, slot)),
            Err(error) => {
                tracing::debug!(%error, "no ring for a client; it keeps its socket");
                None
            }
        }
    }
}

impl RequestContext<'_> {
    async fn serve(&self, stream: &mut BoxStream) -> Result<(), WireError> {
        let mut buf = Vec::new();
        while let Some((id, request)) = read_frame(stream, &mut buf, MAX_FRAME_BYTES).await? {
            let response = match request {
                Request::Watch { term, number } => {
                    let view = self.members.view_after((term, number));
                    let later = async { Response::View(view.await) };
                    unless_it_ends(stream, &mut buf, later).await
                }
                // A caller that has seen the object itself waits no longer.
                Request::AwaitReady(_) => {
                    unless_it_ends(stream, &mut buf, self.answer(request)).await
                }
                request => Some(self.answer(request).await),
            };
            let Some(response) = response else { return Ok(()) };
            write_frame(stream, &mut buf, id, &response).await?;
        }
        Ok(())
    }

    async fn serve_ring(&self, ring: &mut RingStream) -> Result<(), WireError> {
        let mut buf = Vec::new();
        let mut budget = SpinBudget::default();
        while let Some((id, request)) = read_frame(ring, &mut buf, MAX_FRAME_BYTES).await? {
            let kind = Kind::of(&request);
            budget.asked(ring.slept());
            let response = self.answer(request).await;
            write_frame(ring, &mut buf, id, &response).await?;
            let spin = budget.answered(kind);
            ring.set_spin(spin);
            if spin.is_zero() {
                // This thread goes to sleep: flush pending messages now, instead of waking again
                // for them.
                self.members.flush_all();
            }
        }
        Ok(())
    }

    async fn answer(&self, request: Request) -> Response {
        let (kind, asked_ns) = (request.kind(), self.clock.now_ns());
        let limit = match &request {
            Request::AwaitReady(asked) => {
                ACTOR_LIMIT + Duration::from_millis(asked.wait_ms.min(MAX_AWAIT_MS))
            }
            _ => ACTOR_LIMIT,
        };
        let ask = Ask { producer: self.producer, request };
        let answer = self.master.call(ask, limit).await;
        self.members.requests[kind].record(self.clock.now_ns().saturating_sub(asked_ns));
        answer.unwrap_or_else(Response::Failed)
    }
}

/// An answer that comes late. None once the connection ends: meanwhile its client sends nothing.
async fn unless_it_ends(
    stream: &mut BoxStream,
    buf: &mut Vec<u8>,
    answer: impl Future<Output = Response>,
) -> Option<Response> {
    let end = async {
        let _ = read_frame::<_, Request>(stream, buf, MAX_FRAME_BYTES).await;
        None
    };
    race(async { Some(answer.await) }, end).await
}

/// Kinds of requests, by what a client does after the answer.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// It writes, then commits.
    Open,
    /// It reads.
    Locate,
    /// Its call is over.
    Other,
}

impl Kind {
    fn of(request: &Request) -> Self {
        match request {
            Request::OpenForWrite { .. } => Self::Open,
            Request::GetLocation { .. } => Self::Locate,
            _ => Self::Other,
        }
    }

    /// How long to spin for the next request.
    fn spin(self) -> Duration {
        match self {
            Self::Open => SPIN_AFTER_OPEN,
            Self::Locate | Self::Other => SPIN,
        }
    }
}

/// How soon the client sent its next request after each kind of answer. Spinning occupies a core.
#[derive(Debug, Default)]
struct SpinBudget {
    polling: [Polling; 3],
    answered: Option<Kind>,
}

impl SpinBudget {
    /// Records the next request, and whether the node slept before it came.
    fn asked(&mut self, slept: bool) {
        if let Some(kind) = self.answered.take() {
            self.polling[kind as usize].ended(slept);
        }
    }

    /// How long to spin for the next request; zero: sleep.
    fn answered(&mut self, kind: Kind) -> Duration {
        self.answered = Some(kind);
        if self.polling[kind as usize].should_poll() { kind.spin() } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_spins_after_those_answers_after_which_a_client_comes_back_soon() {
        let mut budget = SpinBudget::default();
        for _ in 0..4 {
            assert_eq!(budget.answered(Kind::Open), SPIN_AFTER_OPEN);
            budget.asked(false);
            budget.answered(Kind::Other);
            budget.asked(true);
        }
        budget.answered(Kind::Other);
        budget.asked(true);
        assert_eq!(budget.answered(Kind::Other), Duration::ZERO, "it pauses between its puts");
        budget.asked(false);
        assert_eq!(budget.answered(Kind::Other), SPIN, "it does no longer");
    }
}
