//! The pages of `docs/reference` that are made from the programs and the sources: each test makes
//! one page's text and compares it with the file. It writes files only where `NKV_WRITE_REFERENCE`
//! is set, which is how a page is brought up to date.

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
