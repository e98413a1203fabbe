//! A ring: two byte lanes in memory that a node and a client of the same host share, in place of
//! their unix socket. Each end looks for the other's bytes only while the other is awake, then says
//! that it sleeps and is woken by a futex (a thread) or by one byte on the socket (an event loop).
//! The socket stays: its end is the peer's end. The peer is another process and is believed in
//! nothing: every word of it is checked, and every wait has a limit [I19].
//!
//! A ring is one more byte stream under [`crate::wire`]: frames, limits and time limits are the
//! socket's, and a frame larger than a lane goes through in parts. It is not to be split: one task
//! writes a request, then reads its answer, or the other way round.

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
