//! What a rank promises, for whom it votes, and what it knows of the others.

use super::*;
use nkv_store::clock::ManualClock;

const LEASE_MS: u64 = 1_000;
const PROMISE_MS: u64 = 1_125;

fn at(port: u32) -> Address {
    format!("h:{port}").parse().unwrap()
}

/// Rank 1 of 5, which obeyed term 3 and knows a master at port 9.
fn voter() -> (Voter, ManualClock) {
    let clock = ManualClock::default();
    let master = Arc::new(CurrentMaster::of_node(MasterPath::Remote([at(9)].into())));
    let obeyed = Box::new(|| Term { number: 3, master: 7 });
    let who = (1, 5, at(100));
    (Voter::new(who, LEASE_MS, Arc::new(clock.clone()), obeyed, master), clock)
}

fn ballot(rank: u32, stands: bool) -> Ballot {
    Ballot { rank, control: at(rank), world_size: 5, stands, knows: 0 }
}

#[test]
fn i24_a_rank_obeys_no_other_master_for_a_lease_and_an_eighth() {
    let (voter, clock) = voter();
    assert!(!voter.is_free(), "a master may count on its former process");
    clock.advance_ms(PROMISE_MS);
    assert!(voter.is_free());
    assert_eq!(voter.standing().master, None, "none was heard");
    assert!(voter.heard(7));
    assert!(!voter.heard(8), "another master may count on this rank");
    let standing = voter.answer(ballot(0, true));
    assert_eq!((standing.free, standing.granted), (false, false));
    assert_eq!(standing.master, Some((Term { number: 3, master: 7 }, at(9))));
    clock.advance_ms(PROMISE_MS - 1);
    assert!(!voter.is_free() && !voter.vote_for(0));
    clock.advance_ms(1);
    assert!(voter.is_free() && voter.standing().master.is_none());
    assert!(voter.heard(8) && !voter.heard(7) && voter.heard(8));
    // A master of this process that has ended counts on nobody.
    voter.release(7);
    assert!(!voter.is_free());
    voter.release(8);
    assert!(voter.is_free());
}

#[test]
fn a_rank_of_another_world_gets_no_vote_and_is_not_remembered() {
    let (voter, clock) = voter();
    clock.advance_ms(PROMISE_MS);
    let answer = voter.answer(Ballot { world_size: 4, ..ballot(0, true) });
    assert_eq!((answer.granted, answer.world_size), (false, 5));
    assert!(voter.others().is_empty());
}

#[test]
fn of_several_that_stand_the_lowest_gets_the_vote() {
    let (voter, clock) = voter();
    clock.advance_ms(PROMISE_MS);
    assert!(voter.vote_for(2));
    assert!(!voter.answer(ballot(3, true)).granted, "a higher one, too soon");
    assert!(voter.answer(ballot(2, true)).granted, "again");
    assert!(voter.answer(ballot(1, true)).granted, "a lower one");
    assert!(!voter.answer(ballot(2, true)).granted);
    assert!(!voter.answer(ballot(0, false)).granted, "it did not ask");
    clock.advance_ms(VOTE_MS);
    assert!(voter.answer(ballot(3, true)).granted);
}

#[test]
fn a_rank_passes_on_where_others_are_and_believes_others_only_where_nobody_answers() {
    let (voter, _) = voter();
    voter.answer(ballot(2, false));
    voter.answer(Ballot { rank: 7, ..ballot(3, false) });
    assert_eq!(voter.others(), [at(2)], "there is no rank 7");
    let named = voter.answer(ballot(3, false)).others;
    assert_eq!(named, [(2, at(2)), (3, at(3))]);
    assert!(voter.answer(Ballot { knows: 2, ..ballot(3, false) }).others.is_empty());
    voter.knows_too(2, &at(22));
    voter.knows_too(4, &at(4));
    assert_eq!(voter.others(), [at(2), at(3), at(4)]);
    voter.answered(&at(2), false);
    assert_eq!(voter.ballot(false).knows, 2, "not where nobody answers");
    voter.knows_too(2, &at(22));
    assert_eq!(voter.others(), [at(22), at(3), at(4)]);
}
