//! When a producer can no longer write for a plan, and by which proof [I10] [I14].

use super::*;
use crate::message::Term;
use std::os::fd::OwnedFd;

fn plan(seq: u64) -> PlanId {
    PlanId { term: Term::default(), seq }
}

/// A process that lives: this one.
fn living() -> OwnedFd {
    let flags = rustix::process::PidfdFlags::empty();
    rustix::process::pidfd_open(rustix::process::getpid(), flags).unwrap()
}

/// The way of a living process that maps the memory.
fn mapping() -> Route {
    Route::Process { tx: mpsc::channel(4).0, process: Arc::new(living()) }
}

/// Producer 7 must drop plan 1; its attachment is broken, and it attached again.
fn after_a_broken_one() -> (Attachments, AttachId) {
    let a = Attachments::default();
    let first = a.add(7, mapping());
    a.drop_plan(7, plan(1), 0);
    a.cut(first);
    let second = a.add(7, mapping());
    (a, second)
}

#[test]
fn i10_a_plan_is_dropped_only_when_its_producer_said_so() {
    let a = Attachments::default();
    let (tx, mut rx) = mpsc::channel(4);
    let process: Arc<dyn Process> = Arc::new(living());
    a.add(7, Route::Process { tx: tx.clone(), process: process.clone() });
    a.add(7, Route::Process { tx: tx.clone(), process: process.clone() });
    a.add(8, Route::Process { tx, process });
    a.drop_plan(7, plan(1), 0);
    assert_eq!(rx.try_recv().unwrap(), OwnerToClient::Drop(plan(1)));
    assert!(!a.is_dropped(7, plan(1), 1));
    a.dropped(3, 8, plan(1));
    assert!(!a.is_dropped(7, plan(1), 1), "another producer's reply does not count");
    a.dropped(2, 7, plan(1));
    assert!(a.is_dropped(7, plan(1), 1), "all its attachments share one gate");
}

#[derive(Debug, Default)]
struct FakeAccess(std::sync::atomic::AtomicBool);

impl RemoteAccess for FakeAccess {
    fn sever(&self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
    fn is_severed(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
    fn pairs(&self) -> &[u32] {
        &[]
    }
}

#[test]
fn i10_a_producer_that_writes_through_devices_is_fenced_by_its_own_reply_or_by_severing() {
    let a = Attachments::default();
    let (tx, mut rx) = mpsc::channel(4);
    let accesses: [Arc<FakeAccess>; 2] = Default::default();
    let route = |i: usize| Route::Fabric { tx: tx.clone(), served: accesses[i].clone() };
    let (first, second) = (a.add(7, route(0)), a.add(7, route(1)));
    a.drop_plan(7, plan(1), 0);
    assert_eq!(rx.try_recv().unwrap(), OwnerToClient::Drop(plan(1)));
    a.dropped(second, 7, plan(1));
    assert!(!a.is_dropped(7, plan(1), 1), "what went through the first may still arrive");
    a.dropped(first, 7, plan(1));
    assert!(a.is_dropped(7, plan(1), 1) && !accesses[0].is_severed());
    // It does not answer: its path is severed.
    a.drop_plan(7, plan(2), 2);
    a.dropped(second, 7, plan(2));
    assert!(!a.is_dropped(7, plan(2), SEVER_NS));
    assert!(!a.is_dropped(7, plan(2), SEVER_NS + 3), "severed now, seen by the next look");
    assert!(accesses[0].is_severed() && !accesses[1].is_severed());
    assert!(a.is_dropped(7, plan(2), SEVER_NS + 4));
}

#[test]
fn i10_severing_a_way_proves_nothing_of_memory_that_the_same_process_maps() {
    let a = Attachments::default();
    let first = a.add(7, mapping());
    a.drop_plan(7, plan(1), 0);
    a.cut(first);
    let (tx, mut rx) = mpsc::channel(4);
    let access = Arc::new(FakeAccess::default());
    let second = a.add(7, Route::Fabric { tx: tx.clone(), served: access.clone() });
    assert_eq!(rx.try_recv().unwrap(), OwnerToClient::Drop(plan(1)), "it is asked at once");
    assert!(!a.is_dropped(7, plan(1), SEVER_NS * 9) && !access.is_severed(), "and given time");
    access.sever();
    a.cut(second);
    assert!(!a.is_dropped(7, plan(1), SEVER_NS * 9), "the mapping may still be written through");
    let third = a.add(7, Route::Fabric { tx, served: Arc::new(FakeAccess::default()) });
    a.dropped(third, 7, plan(1));
    assert!(a.is_dropped(7, plan(1), SEVER_NS * 9), "both share one gate");
}

#[test]
fn i10_an_attachment_that_was_never_used_does_not_speak_for_a_broken_one() {
    let (a, second) = after_a_broken_one();
    a.take_back(second);
    assert!(!a.is_dropped(7, plan(1), 1), "the broken one may still write");
    let other = a.add(8, mapping());
    a.take_back(other);
    assert_eq!(a.len(), 1, "one that replaces no other is forgotten");
}

#[test]
fn i10_a_detach_does_not_answer_what_an_attachment_took_over_from_a_broken_one() {
    let (a, second) = after_a_broken_one();
    a.detach(second);
    assert!(!a.is_dropped(7, plan(1), 1), "the broken one may still write");
    let third = a.add(7, mapping());
    a.dropped(third, 7, plan(1));
    assert!(a.is_dropped(7, plan(1), 1));
    a.detach(third);
    assert!(a.is_empty(), "it owes nothing");
}

#[test]
fn i10_a_broken_path_through_devices_is_not_replaced_before_it_is_severed() {
    let a = Attachments::default();
    let access = Arc::new(FakeAccess::default());
    let first = a.add(7, Route::Fabric { tx: mpsc::channel(4).0, served: access.clone() });
    a.drop_plan(7, plan(1), 0);
    a.cut(first);
    let second = a.add(7, mapping());
    a.dropped(second, 7, plan(1));
    assert!(!a.is_dropped(7, plan(1), 1), "what was posted may still land");
    access.sever();
    assert!(a.is_dropped(7, plan(1), 2));
}

#[test]
fn i10_an_attachment_whose_end_is_noticed_late_leaves_its_requests_to_the_later_one() {
    let a = Attachments::default();
    let attach = || {
        let (tx, rx) = mpsc::channel(4);
        (a.add(7, Route::Process { tx, process: Arc::new(living()) }), rx)
    };
    let (first, unread) = attach();
    let term = Term { number: 2, master: 1 };
    a.drop_plan(7, plan(1), 0);
    a.new_term(term, 0);
    drop(unread);
    let (second, mut rx) = attach();
    rx.try_recv().unwrap_err();
    a.cut(first);
    assert_eq!(rx.try_recv().unwrap(), OwnerToClient::Term(term));
    assert_eq!(rx.try_recv().unwrap(), OwnerToClient::Drop(plan(1)));
    assert_eq!(a.len(), 1);
    let none = BTreeSet::new();
    assert!(!a.is_dropped(7, plan(1), 1) && a.all_obey(term, &none, 1).is_none());
    a.dropped(second, 7, plan(1));
    a.term_obeyed((second, 7), (term, vec![]), &none);
    assert!(a.is_dropped(7, plan(1), 1) && a.all_obey(term, &none, 1).is_some());
}

#[test]
fn i10_a_stopped_process_holds_its_plan_and_is_reminded() {
    let a = Attachments::default();
    let (tx, mut rx) = mpsc::channel(4);
    let id = a.add(7, Route::Process { tx, process: Arc::new(living()) });
    a.drop_plan(7, plan(1), 0);
    a.cut(id);
    assert!(!a.is_dropped(7, plan(1), 1), "its process lives: a cut connection proves nothing");
    assert!(!a.is_dropped(7, plan(1), RESEND_NS + 2));
    assert_eq!(rx.try_recv().unwrap(), OwnerToClient::Drop(plan(1)));
    assert_eq!(rx.try_recv().unwrap(), OwnerToClient::Drop(plan(1)));
}

#[test]
fn i14_a_process_that_died_before_its_answer_is_fenced_and_not_clear() {
    let a = Attachments::default();
    let (tx, _rx) = mpsc::channel(4);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let id = a.add(7, Route::Process { tx, process: Arc::new(fd) });
    assert_eq!(a.ask_clear(4_096, 0), [id]);
    assert!(!a.cannot_write(id) && !a.is_clear_below(id, 4_096, 1), "it lives and says nothing");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(a.cannot_write(id), "its death is the proof");
    a.cut(id);
    assert!(a.is_empty());
    assert!(a.cannot_write(id), "its death stays the proof when its connection is gone too");
    assert_eq!(a.ask_clear(8_192, 2), [0; 0], "the next check does not ask it");
    assert!(!a.cannot_write(id));
}
