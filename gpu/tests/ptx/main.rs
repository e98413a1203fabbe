//! The kernels' PTX: its text, and what it does to memory in the weak order that PTX permits. No
//! GPU is needed.
#![expect(unsafe_code, reason = "kernels are run over this test's memory")]
#![expect(clippy::unwrap_used, reason = "helpers of tests, outside of test functions")]

mod heap;
mod log;
mod mutants;
mod mutate;
mod processes;
mod text;
mod triton;
mod weak_memory;
