//! Which producers the owner waits for before it answers for a listing.

use super::NameSenders;
use crate::message::OwnerToClient;
use tokio::sync::mpsc;

#[test]
fn a_round_waits_for_every_producer_that_was_asked_and_for_no_other() {
    let senders = NameSenders::default();
    let (tx, mut asked) = mpsc::channel(4);
    let (first, second) = (senders.add(tx.clone()), senders.add(tx.clone()));
    let round = senders.ask();
    assert_eq!(asked.try_recv().unwrap(), OwnerToClient::SendNames(round));
    senders.add(tx);
    senders.sent(first, round);
    assert!(senders.waits(round));
    senders.sent(second, round);
    assert!(!senders.waits(round), "the third came after the question");
}

#[test]
fn an_answer_counts_for_its_round_and_earlier_ones_and_a_lie_about_later_ones_for_none() {
    let senders = NameSenders::default();
    let (tx, _asked) = mpsc::channel(4);
    let id = senders.add(tx);
    let first = senders.ask();
    senders.sent(id, u64::MAX);
    let second = senders.ask();
    assert!(!senders.waits(first));
    assert!(senders.waits(second), "it was not asked yet when it claimed to have answered");
    senders.sent(id, second);
    assert!(!senders.waits(second));
}

#[test]
fn a_producer_that_is_gone_is_not_waited_for() {
    let senders = NameSenders::default();
    let (tx, _asked) = mpsc::channel(4);
    let id = senders.add(tx);
    let round = senders.ask();
    senders.remove(id);
    assert!(!senders.waits(round));
}

#[test]
fn a_late_producer_is_waited_for_once_until_it_answers() {
    let senders = NameSenders::default();
    let (tx, mut asked) = mpsc::channel(4);
    let id = senders.add(tx);
    let first = senders.ask();
    assert_eq!(senders.give_up(first), 1);
    let second = senders.ask();
    assert!(!senders.waits(second));
    assert_eq!(asked.try_recv().unwrap(), OwnerToClient::SendNames(first));
    assert!(asked.try_recv().is_err(), "nothing more is queued for a process that is stopped");
    senders.sent(id, first);
    let third = senders.ask();
    assert!(senders.waits(third));
}

#[test]
fn a_producer_whose_queue_is_full_is_not_waited_for() {
    let senders = NameSenders::default();
    let (tx, _asked) = mpsc::channel(1);
    senders.add(tx);
    assert!(senders.waits(senders.ask()));
    assert!(!senders.waits(senders.ask()));
}
