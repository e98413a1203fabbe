//! Late writers, in whole processes: stopped with SIGSTOP at the worst moment and resumed after the
//! end of their plan, or after a new master has started. Their writes then change no byte of
//! another object, and acknowledged objects stay ([I6], [I10], [I11], [I12], [I17]).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster_process;
#[path = "chaos/content.rs"]
mod content;
#[path = "late_writers/expired.rs"]
mod expired;
#[path = "chaos/harness.rs"]
mod harness;
#[path = "late_writers/overtaken.rs"]
mod overtaken;
#[path = "chaos/past_the_handle.rs"]
mod past_the_handle;
#[path = "late_writers/races.rs"]
mod races;
#[path = "chaos/random.rs"]
#[expect(dead_code, reason = "contents need one stream of it, and no seed")]
mod random;
#[path = "late_writers/relay.rs"]
mod relay;
#[path = "late_writers/scene.rs"]
mod scene;
#[path = "late_writers/steps.rs"]
mod steps;
#[path = "late_writers/stopped.rs"]
mod stopped;
#[path = "late_writers/viewer.rs"]
mod viewer;
#[path = "late_writers/writer.rs"]
mod writer;

use harness::Case;
use std::process::ExitCode;

macro_rules! cases {
    ($($of:ident :: $name:ident),+ $(,)?) => {
        [$(Case { name: stringify!($name), run: $of::$name }),+]
    };
}

fn main() -> ExitCode {
    let cases = cases![
        expired::a_stopped_writer_by_shm_holds_its_extent_and_others_go_on,
        expired::a_stopped_writer_by_tcp_changes_nothing_in_its_reused_extent,
        expired::a_late_commit_of_an_expired_plan_is_reclaimed_and_commits_nobody_elses,
        expired::a_publish_past_the_deadline_is_reclaimed_and_leaves_nothing,
        overtaken::a_plan_of_a_lower_term_is_refused_before_its_first_byte_to_a_late_attachment,
        overtaken::a_plan_of_a_lower_term_is_refused_before_its_first_byte_to_an_attached_writer,
        overtaken::an_owner_with_a_stopped_writer_reports_to_a_new_master_when_it_runs_again,
        overtaken::an_owner_with_a_stopped_writer_of_an_unknown_plan_reports_when_it_runs_again,
        overtaken::an_owner_with_a_stopped_writer_reports_to_a_new_master_when_it_dies,
        stopped::a_master_that_stood_for_longer_than_the_ttl_declares_nobody_gone,
        stopped::an_owner_that_stood_for_longer_than_the_ttl_comes_back_as_another_and_empty,
        viewer::i9_a_view_of_a_stopped_process_holds_its_object_until_it_is_dropped,
        viewer::i9_a_view_of_a_killed_process_ends_with_it,
        viewer::i9_a_log_that_a_killed_viewer_kept_full_goes_on,
        races::what_a_remove_overtook_is_never_read_again,
    ];
    match std::env::var(steps::WRITER_VARIABLE) {
        Ok(task) => steps::main(&task),
        Err(_) => harness::main(&cases),
    }
}
