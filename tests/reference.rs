//! The pages of `docs/reference` that are generated from the programs and the sources: each test
//! generates one page and compares it with the file. With `NKV_WRITE_REFERENCE` set it writes the
//! file instead.

#[path = "reference/cli.rs"]
mod cli;
mod cluster_process;
#[path = "reference/errors.rs"]
mod errors;
#[path = "reference/metrics.rs"]
mod metrics;
#[path = "reference/page.rs"]
mod page;
#[path = "reference/settings.rs"]
mod settings;
#[path = "reference/sources.rs"]
mod sources;
