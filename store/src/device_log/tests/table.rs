//! The open claims of a process. Their race with the owner's question is tested by the model
//! checker (tests/words/log_table.rs).

use super::*;

#[test]
fn i14_a_put_is_open_below_from_before_its_claim_until_it_has_left() {
    let claims = OpenClaims::new(Landing::InCall);
    assert!(claims.clear_below(u64::MAX));
    let open = claims.enter(8 * U).unwrap();
    assert!(claims.clear_below(8 * U));
    assert!(!claims.clear_below(8 * U + 1));
    open.note(10 * U);
    assert!(claims.clear_below(10 * U) && !claims.clear_below(11 * U));
    let zero = claims.enter(0).unwrap();
    assert!(!claims.clear_below(1) && claims.clear_below(0));
    zero.leave();
    open.leave();
    assert!(claims.clear_below(u64::MAX));
    assert_eq!(open_entries(&claims), (0, 0));
}

#[test]
fn a_full_table_refuses_and_has_room_again_after_one_left() {
    let claims = OpenClaims::new(Landing::InCall);
    let mut open: Vec<_> = (0..OPEN_CLAIMS).map(|_| claims.enter(U).unwrap()).collect();
    assert!(claims.enter(U).is_none());
    open.swap_remove(7).leave();
    let again = claims.enter(2 * U).unwrap();
    assert!(claims.enter(U).is_none());
    drop((open, again));
    assert_eq!(open_entries(&claims), (0, 0));
}

#[test]
fn i14_a_put_that_fails_half_way_stays_open_until_its_connection_is_fenced() {
    let claims = OpenClaims::new(Landing::Later);
    drop(claims.enter(U).unwrap());
    let open = claims.enter(2 * U).unwrap();
    assert_eq!(open_entries(&claims), (2, 1));
    assert!(!claims.clear_below(2 * U));
    assert_eq!(claims.fenced(), 1);
    assert!(claims.clear_below(2 * U) && !claims.clear_below(3 * U));
    open.leave();
    // If every verb has landed when its call returns, nothing is written after the call.
    let claims = OpenClaims::new(Landing::InCall);
    drop(claims.enter(U).unwrap());
    assert!(claims.clear_below(u64::MAX));
}

#[test]
fn i14_a_launch_is_open_until_it_has_left_and_for_good_if_its_end_is_not_known() {
    let claims = Arc::new(OpenClaims::new(Landing::InCall));
    let launch = claims.enter_launch(8 * U).unwrap();
    assert!(claims.clear_below(8 * U) && !claims.clear_below(9 * U));
    launch.leave();
    assert!(claims.clear_below(u64::MAX));
    drop(claims.enter_launch(8 * U).unwrap());
    assert!(!claims.clear_below(9 * U));
    assert_eq!(open_entries(&claims), (1, 1));
}

#[test]
fn i14_threads_that_put_at_once_are_all_seen() {
    let claims = Arc::new(OpenClaims::new(Landing::InCall));
    let bump = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let start = Arc::new(std::sync::Barrier::new(4));
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let (claims, bump, start) = (claims.clone(), bump.clone(), start.clone());
            crate::threads::spawn_named(&format!("put-{i}"), move || {
                start.wait();
                for _ in 0..5000 {
                    let bound = bump.load(std::sync::atomic::Ordering::Acquire);
                    let open = claims.enter(bound).unwrap();
                    let p = bump.fetch_add(U, std::sync::atomic::Ordering::AcqRel);
                    assert!(p >= bound && !claims.clear_below(p + U));
                    open.note(p);
                    assert!(!claims.clear_below(p + U));
                    open.leave();
                }
            })
            .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(open_entries(&claims), (0, 0));
}
