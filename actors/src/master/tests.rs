//! The Master against simulated ranks, frame by frame: the conditions under which a model of the
//! first protocol failed. `model_NAME` is the switch of that model that a test covers.

mod awaiting;
pub(super) mod bench;
mod commit;
mod disk;
mod extras;
mod late;
mod lease;
mod lies;
mod listing;
mod log;
mod log_replicas;
mod objects;
mod placement;
mod replica_puts;
mod replicas;
mod saving;
mod segments;
mod terms;
