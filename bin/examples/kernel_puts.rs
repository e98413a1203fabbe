//! Puts by a kernel of this process into the log of a running node, and reads what it put: what
//! `scripts/gpu-test` runs on a GPU. Arguments: address, job, rank, seed, objects, and threads of a
//! block.
#![expect(clippy::unwrap_used, reason = "a proof that cannot go on says where")]

#[path = "../tests/processes/kernels/putting.rs"]
mod putting;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.len() != 6 {
        eprintln!("usage: kernel_puts ADDRESS JOB RANK SEED OBJECTS THREADS");
        return ExitCode::from(2);
    }
    let ended = putting::main(&words.join(" "));
    println!("{{\"name\":\"objects put by kernels into a node's log\",\"text\":\"{}\"}}", words[4]);
    ended
}
