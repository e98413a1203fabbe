//! A ring: two byte lanes in memory that a node and a client of the same host share, in place of
//! their unix socket. Each end polls for the other's bytes only while the other end is awake; then
//! it announces that it sleeps and is woken by a futex (a thread) or by one byte on the socket (an
//! event loop). The socket stays open: its close signals the end of the peer. The peer is another
//! process and is not trusted: every word it writes is checked, and every wait has a limit [I19].
//!
//! A ring is another byte stream under [`crate::wire`]: frames, limits and time limits are the same
//! as for the socket, and a frame larger than a lane is transferred in parts. It must not be split:
//! one task writes a request, then reads its answer, or the other way round.

mod doorbell;
mod lane;
mod layout;
mod pass;
mod polling;
mod sleep;
mod stream;

pub use pass::{Offer, take};
pub use polling::Polling;
pub use stream::{RingStream, Waiting};

#[cfg(test)]
mod tests;
