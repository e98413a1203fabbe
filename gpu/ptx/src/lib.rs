//! Runs the text of PTX kernels on the processor, over ordinary memory, so that tests can check the
//! order in which a kernel makes its stores visible. It knows the instructions that the kernels of
//! this repository use, and is for tests alone.
//!
//! The memory model is weaker than a GPU in what it permits: `memory.rs` describes it.
#![expect(unsafe_code, reason = "a kernel accesses memory by address")]

mod buffer;
mod exec;
mod instr;
mod memory;
mod module;
mod operands;
mod parse;
mod rng;
mod thread;

pub use exec::{ExecError, Execution, Launch, Stats, run};
pub use memory::Stale;
pub use module::{Kernel, Module, Param};
pub use parse::ParseError;
