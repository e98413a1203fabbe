//! Whole-process tests that stop and kill writers, readers and owners. Cargo's test harness cannot
//! be started again as one of these, so this program has a `main` of its own: with a task in its
//! environment it is that process, without one it runs the tests, one at a time.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod accounts;
mod chaos;
#[path = "../cluster_process/mod.rs"]
mod cluster_process;
mod content;
mod flood;
mod kernels;
mod late_writers;
#[path = "../../../gpu/tests/mock_library.rs"]
mod mock_library;
mod past_the_handle;
mod random;
mod stress;
mod task;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// Adds functions of a module, each by its path, as cargo's harness names tests.
macro_rules! trials {
    ($all:ident, $($module:ident)::+ { $($name:ident),+ $(,)? }) => {{
        use crate::$($module)::+ as module;
        let of = stringify!($($module)::+).replace(' ', "");
        $($all.push(Trial::test(format!("{of}::{}", stringify!($name)), || {
            module::$name();
            Ok(())
        }));)+
    }};
}

fn main() -> ExitCode {
    if let Some(ended) = task::run() {
        return ended;
    }
    let mut arguments = Arguments::from_args();
    // They share processors, memory and ports.
    arguments.test_threads = Some(1);
    let mut all = Vec::new();
    trials!(all, chaos::master_rounds { sigkill_of_rank_0_under_load });
    trials!(all, chaos::producer_rounds { sigkill_of_a_producer_under_load });
    trials!(
        all,
        chaos::owner_rounds {
            sigkill_of_an_owner_under_load,
            sigkill_of_an_idle_owner_is_seen_at_once,
        }
    );
    trials!(
        all,
        chaos::hole_rounds { i14_a_hole_is_void_only_after_the_death_of_its_stopped_producer }
    );
    trials!(all, flood { i13_every_claim_of_a_flood_is_accounted_for_by_position });
    trials!(
        all,
        kernels {
            i1_kernels_of_the_owners_process_put_into_its_log,
            i1_kernels_of_two_processes_put_into_one_log_for_several_laps,
            i14_kernels_of_killed_processes_leave_nothing_that_stays,
        }
    );
    trials!(
        all,
        late_writers::expired {
            a_stopped_writer_by_shm_holds_its_extent_and_others_go_on,
            a_stopped_writer_by_tcp_changes_nothing_in_its_reused_extent,
            a_late_commit_of_an_expired_plan_is_reclaimed_and_commits_nobody_elses,
            a_publish_past_the_deadline_is_reclaimed_and_leaves_nothing,
        }
    );
    trials!(
        all,
        late_writers::held {
            i10_a_rank_whose_plan_is_held_for_a_kernel_is_reported_to_a_new_master,
            i12_what_a_kernel_publishes_while_the_master_is_away_is_committed_when_there_is_one,
            i12_what_a_kernel_published_is_kept_if_its_handle_is_closed_while_the_master_is_away,
        }
    );
    trials!(
        all,
        late_writers::overtaken {
            a_plan_of_a_lower_term_is_refused_before_its_first_byte_to_a_late_attachment,
            a_plan_of_a_lower_term_is_refused_before_its_first_byte_to_an_attached_writer,
            an_owner_with_a_stopped_writer_reports_to_a_new_master_when_it_runs_again,
            an_owner_with_a_stopped_writer_of_an_unknown_plan_reports_when_it_runs_again,
            an_owner_with_a_stopped_writer_reports_to_a_new_master_when_it_dies,
        }
    );
    trials!(
        all,
        late_writers::stopped {
            a_master_that_stood_for_longer_than_the_ttl_declares_nobody_gone,
            an_owner_that_stood_for_longer_than_the_ttl_comes_back_as_another_and_empty,
        }
    );
    trials!(
        all,
        late_writers::viewer {
            i9_a_view_of_a_stopped_process_holds_its_object_until_it_is_dropped,
            i9_a_view_of_a_killed_process_ends_with_it,
            i9_a_log_goes_on_beside_a_view_and_takes_its_bytes_back_when_its_process_was_killed,
        }
    );
    trials!(all, late_writers::races { what_a_remove_overtook_is_never_read_again });
    trials!(all, stress::run { every_byte_is_right_while_writers_readers_and_an_owner_die });
    libtest_mimic::run(&arguments, all).exit_code()
}
