//! Rings from below: the words under a model checker, a lane against a queue, garbage in place of
//! the peer's words, and whole ends over a real socket.

mod ends;
mod garbage;
mod lanes;
mod passing;
mod words;
