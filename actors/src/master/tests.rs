//! The Master against ranks played by hand, frame by frame: the conditions under which a model of
//! the first protocol failed. `model_NAME` is the switch of that model which a test stands for.

pub(super) mod bench;
mod commit;
mod late;
mod lies;
mod listing;
mod log;
mod objects;
mod segments;
mod terms;
