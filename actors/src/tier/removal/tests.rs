use super::*;
use std::sync::mpsc;

/// As of a disk with many keys: the master does not wait for it, and the caller asks again.
#[test]
fn a_removal_that_ends_late_is_known_for_five_seconds_more() {
    let (which, removals) = (DiskSelection::Matching("^k".into()), Removals::default());
    removals.add(1, &which, 0, Box::new(|_| {}));
    let asked = removals.next(Kind::Search).unwrap();
    removals.over(1, true, 1);
    let ended_ns = 20_000_000_000;
    // The first try removed a part.
    let taken = |count| Taken { keys: Vec::new(), count };
    let failed = Err(Error::not_ready("the disk does not write"));
    removals.carried_out(&asked, (taken(3), &failed), ended_ns);
    removals.add(2, &which, ended_ns, Box::new(|_| {}));
    removals.over(2, true, ended_ns - AGAIN_NS);
    removals.carried_out(&asked, (taken(4), &Ok(())), ended_ns);
    removals.expire(ended_ns + AGAIN_NS - 1);
    let (sender, done) = mpsc::channel();
    removals.add(3, &which, ended_ns, Box::new(move |result| sender.send(result).unwrap()));
    assert_eq!(done.recv().unwrap().unwrap().count, 7);
    removals.over(3, false, ended_ns);
    removals.expire(ended_ns + AGAIN_NS);
    assert!(!removals.any());
}
