//! Late writers, in whole processes: stopped with SIGSTOP at the worst moment and resumed after the
//! end of their plan, or after a new master has started. Their writes then change no byte of
//! another object, and acknowledged objects stay ([I6], [I10], [I11], [I12], [I17]).

pub mod expired;
pub mod held;
pub mod overtaken;
pub mod races;
mod relay;
mod scene;
pub mod steps;
pub mod stopped;
pub mod viewer;
mod writer;
