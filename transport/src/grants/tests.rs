//! What a token covers, and that a fence is complete only when no byte can be written any more.

use super::*;
use nkv_pace::{HANGS, HANGS_MS, timed};
use nkv_store::threads::spawn_named;
use std::sync::atomic::{AtomicUsize, Ordering};

const GRANT: Grant =
    Grant { header_off: 4096, epoch: 7, extent: Extent { offset: 1 << 20, len: 8192 } };

#[derive(Debug, Default)]
struct CountCuts(AtomicUsize);

impl Cut for CountCuts {
    fn cut(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn connection() -> (Arc<CountCuts>, Arc<dyn Cut>) {
    let c = Arc::new(CountCuts::default());
    (c.clone(), c)
}

fn write(offset: u64, len: u64) -> Intent {
    Intent::Write { offset, len }
}

#[test]
fn i10_a_grant_covers_its_header_fields_and_extent_and_nothing_else() {
    let (h, x) = (GRANT.header_off, GRANT.extent.offset);
    for ok in [write(h, 40), write(h + 8, 8), write(h + 32, 8), write(x, 8192), write(x + 8191, 1)]
    {
        GRANT.check(&ok).unwrap();
    }
    for bad in [
        write(h - 1, 2),
        write(h, 41),
        write(h + 32, 9),
        write(h + 40, 8),
        write(h + 48, 8),
        write(h + 48, 16),
        write(h + 56, 8),
        write(h + 64, 8),
        write(x - 1, 1),
        write(x, 8193),
        write(x + 8192, 1),
        write(u64::MAX, 2),
        Intent::FetchAdd { offset: 16, add: 128 },
        Intent::FetchAdd { offset: h + 40, add: 128 },
    ] {
        assert!(GRANT.check(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn i3_the_publish_word_takes_only_this_epoch_and_only_a_producers_steps() {
    use state::{DEAD, READY, RESERVED, WRITING};
    let publish = GRANT.header_off + 40;
    let store = |low, epoch| Intent::Store { offset: publish, value: word(low, epoch) };
    for (low, epoch, ok) in [
        (WRITING, 7, true),
        (DEAD, 7, true),
        (READY, 7, false),
        (RESERVED, 7, false),
        (WRITING, 8, false),
        (DEAD, 6, false),
    ] {
        assert_eq!(GRANT.check(&store(low, epoch)).is_ok(), ok, "store {low} {epoch}");
    }
    for elsewhere in [32, 48, 56] {
        let offset = GRANT.header_off + elsewhere;
        assert!(GRANT.check(&Intent::Store { offset, value: word(WRITING, 7) }).is_err());
    }
    assert!(GRANT.check(&Intent::Store { offset: GRANT.extent.offset, value: 0 }).is_err());
    for from in [RESERVED, WRITING, READY, DEAD] {
        for to in [RESERVED, WRITING, READY, DEAD] {
            for (e1, e2) in [(7, 7), (7, 8), (6, 7)] {
                let intent = Intent::CompareSwap {
                    offset: publish,
                    expect: word(from, e1),
                    new: word(to, e2),
                };
                let ok = from <= WRITING && to != RESERVED && (e1, e2) == (7, 7);
                assert_eq!(GRANT.check(&intent).is_ok(), ok, "{intent:?}");
            }
        }
    }
    let elsewhere = Intent::CompareSwap {
        offset: GRANT.header_off + 48,
        expect: word(WRITING, 7),
        new: word(READY, 7),
    };
    assert!(GRANT.check(&elsewhere).is_err());
}

#[test]
fn i10_revoke_refuses_the_next_and_cuts_whoever_is_inside() {
    let grants = Grants::new();
    let (count, cut) = connection();
    grants.open(5, GRANT);
    assert!(!grants.is_drained(5), "an open token may still be used");
    let in_flight = grants.enter(5, Duration::ZERO, &cut).unwrap();
    assert!(!in_flight.is_revoked());
    assert!(grants.revoke(5));
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(in_flight.is_revoked() && !grants.is_drained(5));
    assert!(!grants.wait_drained(5, Duration::from_millis(1)));
    assert!(grants.enter(5, Duration::ZERO, &cut).unwrap_err().contains("revoked"));
    grants.open(5, GRANT);
    assert!(grants.enter(5, Duration::ZERO, &cut).is_err(), "a repeated open lifted the fence");
    drop(in_flight);
    assert!(grants.is_drained(5) && grants.wait_drained(5, Duration::ZERO));
    grants.forget(5);
    assert_eq!(grants.len(), 0);
    assert!(grants.is_drained(5) && !grants.revoke(5));
    assert!(grants.enter(5, Duration::ZERO, &cut).unwrap_err().contains("no open plan"));
}

#[test]
fn a_request_that_has_left_is_not_cut() {
    let grants = Grants::new();
    let (gone, gone_cut) = connection();
    let (here, here_cut) = connection();
    grants.open(5, GRANT);
    drop(grants.enter(5, Duration::ZERO, &gone_cut).unwrap());
    let _inside = grants.enter(5, Duration::ZERO, &here_cut).unwrap();
    grants.revoke(5);
    assert_eq!(gone.0.load(Ordering::SeqCst), 0);
    assert_eq!(here.0.load(Ordering::SeqCst), 1);
}

#[test]
fn a_request_waits_a_moment_for_a_plan_that_the_owner_has_not_heard_of() {
    let grants = Arc::new(Grants::new());
    let g = grants.clone();
    let early = spawn_named("early", move || {
        let (_, cut) = connection();
        g.enter(9, HANGS, &cut).map(|_| ())
    })
    .unwrap();
    while grants.lock().waiting == 0 {
        std::thread::yield_now();
    }
    grants.open(8, GRANT);
    let (admitted, took) = timed(|| {
        grants.open(9, GRANT);
        early.join().unwrap()
    });
    admitted.unwrap();
    assert!(took.ms < HANGS_MS, "it is woken when its plan is there: {took}");
    assert_eq!(grants.lock().waiting, 0);
    let (_, cut) = connection();
    let moment = Duration::from_millis(20);
    let (late, took) = timed(|| grants.enter(10, moment, &cut).is_err());
    assert!(late && took.ms >= 20, "{took}");
    let (refused, took) = timed(|| grants.enter(0, HANGS, &cut).is_err());
    assert!(refused && took.ms < HANGS_MS, "token 0 waits for nothing: {took}");
}

#[test]
fn i10_no_permit_is_held_once_a_revoked_token_is_out() {
    for _ in 0..200 {
        let grants = Arc::new(Grants::new());
        let placed = Arc::new(AtomicUsize::new(0));
        grants.open(5, GRANT);
        let placers: Vec<_> = (0..2)
            .map(|_| {
                let (grants, placed) = (grants.clone(), placed.clone());
                spawn_named("placer", move || {
                    let (_, cut) = connection();
                    while let Ok(_permit) = grants.enter(5, Duration::ZERO, &cut) {
                        placed.fetch_add(1, Ordering::SeqCst);
                    }
                })
                .unwrap()
            })
            .collect();
        while placed.load(Ordering::SeqCst) < 50 {
            std::thread::yield_now();
        }
        grants.revoke(5);
        assert!(grants.wait_drained(5, HANGS));
        let before = placed.load(Ordering::SeqCst);
        for p in placers {
            p.join().unwrap();
        }
        assert_eq!(placed.load(Ordering::SeqCst), before);
    }
}

#[test]
fn i10_a_request_that_enters_while_its_token_is_revoked_is_refused() {
    let grants = Arc::new(Grants::new());
    grants.open(5, GRANT);
    let entry = grants.lock().entries.get(&5).cloned().unwrap();
    // The state in which revoke sees a request that has passed the gate and is not in the list yet.
    let list = entry.in_flight();
    let g = grants.clone();
    let request = spawn_named("request", move || {
        let (_, cut) = connection();
        g.enter(5, HANGS, &cut).map(drop)
    })
    .unwrap();
    while entry.gate.is_drained() {
        std::thread::yield_now();
    }
    entry.gate.close();
    assert!(list.is_empty(), "nobody to cut");
    drop(list);
    assert!(request.join().unwrap().unwrap_err().contains("revoked"));
    assert!(grants.is_drained(5));
}
