//! Tests of the driver and VRAM against a stand-in for the driver library (gpu/mock). A process
//! loads that library once and for good, so each test starts this program again as a task with an
//! environment of its own; without a task it runs the tests.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![expect(unsafe_code, reason = "tasks fork, and allocate as PyTorch does")]

mod conformance;
#[path = "../descriptors.rs"]
mod descriptors;
mod failures;
mod launches;
mod memory;
#[path = "../mock_library.rs"]
mod mock_library;
mod opening;
mod processes;
mod stand_in;
mod start;
mod task;
mod tensors;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// Functions of a module as tests, each by its path.
macro_rules! trials {
    ($($module:ident { $($name:ident),+ $(,)? })+) => {
        vec![$($(Trial::test(concat!(stringify!($module), "::", stringify!($name)), || {
            $module::$name();
            Ok(())
        }),)+)+]
    };
}

/// What says something about a GPU; the others are about the stand-in, or what it reports.
const ON_A_GPU: [&str; 11] = [
    "conformance::vram_and_host_memory_answer_alike",
    "conformance::copies_larger_than_a_piece_are_whole",
    "launches::a_launch_is_queued_in_a_stream_of_the_caller",
    "launches::i4_a_kernel_reads_what_a_kernel_of_another_process_published",
    "launches::i4_a_kernel_waits_for_what_a_kernel_of_another_stream_publishes",
    "launches::i4_objects_are_put_into_a_log_by_a_launch",
    "memory::a_tensor_of_this_process_needs_no_mapping",
    "memory::threads_copy_at_the_same_time",
    "processes::a_tensor_of_another_process_is_mapped",
    "processes::memory_outlives_its_owner_that_was_killed",
    "processes::two_processes_see_each_others_bytes",
];

fn main() -> ExitCode {
    if let Some(ended) = task::run() {
        return ended;
    }
    let mut all = trials! {
        opening {
            no_library_is_an_error_that_says_what_to_install,
            a_file_that_is_no_library_is_an_error,
            each_missing_symbol_is_named,
            a_driver_that_is_too_old_is_refused,
            an_error_of_init_has_its_name_number_and_remedy,
            no_device_is_an_error,
            a_device_beyond_the_last_is_refused,
            a_device_without_what_vram_needs_is_refused,
            the_device_lists_what_it_can_do,
        }
        memory {
            nothing_is_left_after_a_good_run,
            memory_is_unmapped_before_its_addresses_and_its_handle_are_given_back,
            the_context_of_the_caller_is_current_again,
            memory_is_exported_as_a_dma_buf_where_the_device_can,
            more_than_there_is_and_nothing_at_all_are_refused,
            a_tensor_of_this_process_needs_no_mapping,
            memory_that_the_older_calls_do_not_export_is_refused,
            registered_host_memory_has_an_address_for_kernels,
            rdma_writes_are_ordered_for_all_where_the_device_says_so_and_has_no_other_link,
            a_mapping_is_pinned_by_its_first_user_until_its_last_one_drops_it,
            memory_that_cannot_be_pinned_says_which_limit_to_raise_and_leaves_nothing,
            rdma_writes_are_flushed_where_they_are_not_ordered,
            i4_a_reader_flushes_rdma_writes_once_before_each_copy_where_they_are_not_ordered,
            i4_a_reader_whose_flush_fails_gets_no_bytes,
            threads_copy_at_the_same_time,
            i4_payload_in_vram_is_visible_before_the_control_word,
        }
        failures {
            each_call_that_fails_is_a_clear_error_and_nothing_is_left,
            a_flush_that_fails_stops_every_later_access,
        }
        launches {
            i4_a_kernel_reads_what_a_kernel_of_another_process_published,
            i4_a_kernel_waits_for_what_a_kernel_of_another_stream_publishes,
            i4_objects_are_put_into_a_log_by_a_launch,
            a_launch_is_queued_in_a_stream_of_the_caller,
            arguments_that_cannot_be_are_refused_before_the_launch,
            text_that_does_not_compile_is_an_error_with_the_reason,
            a_launch_that_fails_is_an_error_with_the_kernel_and_the_sizes,
            launches_that_nobody_waits_for_are_bounded_and_give_their_memory_back,
        }
        processes {
            two_processes_see_each_others_bytes,
            memory_outlives_its_owner_that_was_killed,
            a_tensor_of_another_process_is_mapped,
            a_forked_child_gets_an_error_and_gives_nothing_back,
        }
        stand_in {
            a_copy_is_executed_after_its_call_returned,
            copies_of_two_streams_end_in_any_order,
            a_stream_waits_for_an_event_of_another,
            a_batch_of_copies_is_executed_in_its_stream,
        }
        tensors {
            bytes_of_tensors_reach_segments_of_each_kind_and_come_back,
            a_driver_without_copies_in_batches_copies_one_by_one,
            a_copy_waits_for_the_stream_of_its_caller,
            what_is_no_tensor_is_refused_and_so_is_what_is_no_stream,
            tensors_in_parts_and_host_memory_answer_alike,
        }
        conformance {
            vram_and_host_memory_answer_alike,
            copies_larger_than_a_piece_are_whole,
        }
    };
    if start::on_a_gpu() {
        all.retain(|trial| ON_A_GPU.contains(&trial.name()));
        assert_eq!(all.len(), ON_A_GPU.len(), "a test of that list has another name");
    }
    let arguments = Arguments::from_args();
    all.sort_by(|a, b| a.name().cmp(b.name()));
    libtest_mimic::run(&arguments, all).exit_code()
}
