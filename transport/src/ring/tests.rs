//! The parts of a ring: the words under a model checker, a lane against a queue, invalid values in
//! the peer's words, and both ends over a real socket.

mod ends;
mod garbage;
mod lanes;
mod passing;
mod words;
