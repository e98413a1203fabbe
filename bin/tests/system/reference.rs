//! The pages of `docs/reference` that are generated from the programs and the sources: each test
//! generates one page and compares it with the file. With `NKV_WRITE_REFERENCE` set it writes the
//! file instead.

mod cli;
mod errors;
mod metrics;
mod page;
mod settings;
mod sources;
