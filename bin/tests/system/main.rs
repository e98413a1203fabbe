//! The programs as whole processes, one file for what each test is about.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod budgets;
mod cli;
#[path = "../cluster_process/mod.rs"]
mod cluster_process;
mod drain;
mod election;
mod etcd;
mod fork;
mod gpu;
mod launcher;
mod load;
mod lost_ack;
mod ls;
mod mount;
mod operator;
mod pool;
#[cfg(feature = "rdma")]
mod rdma;
mod reference;
mod replicas;
mod retention;
mod ring;
mod silent;
mod ssd;
mod striped;
mod top;
mod trace;
mod truncated;
mod trust;
