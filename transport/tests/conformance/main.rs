//! One conformance suite for every transport. A transport is added with a factory in `fixtures` and
//! a line below; a property with a function in `suite` and a name below. Nothing here may depend on
//! how a transport works.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by panicking")]

mod fixtures;
mod suite;

/// One `#[test]` per property.
macro_rules! properties {
    ($make:path: $($property:ident)*) => {
        $(
            #[test]
            fn $property() {
                crate::suite::$property($make());
            }
        )*
    };
}

/// One module of tests per transport.
macro_rules! conformance {
    ($($transport:ident)*) => {
        $(
            mod $transport {
                properties! { crate::fixtures::$transport:
                    a_batch_is_executed_in_order
                    an_empty_batch_succeeds
                    operations_of_no_bytes_succeed_and_change_nothing
                    unaligned_ranges_arrive_whole_and_touch_nothing_else
                    operations_larger_than_any_socket_buffer_arrive_whole
                    a_batch_of_many_operations_is_executed_whole
                    buffers_of_a_device_are_read_and_filled_in_order
                    batches_with_buffers_of_a_device_end_each_for_itself
                    batches_of_one_call_end_each_for_itself
                    i10_each_batch_of_one_call_leaves_by_itself_and_few_are_on_their_way
                    a_large_read_before_a_change_sees_the_old_bytes
                    out_of_bounds_is_refused_and_nothing_of_the_batch_happens
                    misaligned_words_are_refused_and_nothing_of_the_batch_happens
                    without_a_token_there_are_only_reads
                    i1_atomics_of_four_threads_add_up
                    i1_words_written_beside_each_other_are_never_torn
                    compare_swap_returns_what_it_found
                    i4_a_ready_word_is_never_seen_before_its_payload
                    posts_of_several_threads_do_not_mix
                    a_handle_marked_dead_says_disconnected
                    i18_after_the_owners_death_every_post_ends_within_two_seconds
                }
            }
        )*
    };
}

conformance! { local local_striped local_split shm }
conformance! { tcp tcp_striped tcp_authenticated tcp_unaddressable tcp_split }
#[cfg(feature = "rdma")]
conformance! { rdma rdma_spread }
