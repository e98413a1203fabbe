//! The question "have you no claim open below B?" against a fetch-and-add at each of its steps, and
//! with threads. The table has one lock, so its steps are all the states there are.

use super::*;
use nkv_store::StoreError;
use nkv_store::testkit::MemoryDouble;
use nkv_store::threads::spawn_named;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

#[test]
fn i14_a_claim_is_open_from_before_its_fetch_and_add_until_its_last_verb() {
    let w = world(16);
    w.add(2 * U).unwrap();
    w.rights.abandon(Abandon { p: 0, n: 2 * U });
    let (_, cut) = line();
    let request = w.request(&cut);
    let add = Op::FetchAdd { offset: BUMP_PTR_OFF, add: U, old: 0 };
    let intent = intent(&add).unwrap();
    request.check(&[add]).unwrap();
    assert!(w.rights.clear_below(u64::MAX), "what comes after the question is above it");
    w.rights.starts(&intent, &[], &cut).unwrap();
    assert!(w.rights.clear_below(2 * U) && !w.rights.clear_below(3 * U));
    // Others claim, then this producer does, and the owner reads B from the bump.
    w.memory.fetch_add(BUMP_PTR_OFF, 3 * U).unwrap();
    let p = w.memory.fetch_add(BUMP_PTR_OFF, U).unwrap();
    assert!(!w.rights.clear_below(w.memory.load(BUMP_PTR_OFF).unwrap()));
    w.rights.done(&intent, p, &cut);
    assert!(w.rights.clear_below(p) && !w.rights.clear_below(p + U));
    drop(request);
    assert!(!w.rights.clear_below(p + U));
    assert_eq!(w.rights.open(), (1, 0));
    assert!(w.rights.abandon(Abandon { p, n: U }));
    assert!(w.rights.clear_below(u64::MAX));
}

#[test]
fn i14_a_request_that_ends_before_its_fetch_and_add_claimed_nothing() {
    let w = world(16);
    let (_, cut) = line();
    let request = w.request(&cut);
    request.check(&[Op::FetchAdd { offset: BUMP_PTR_OFF, add: U, old: 0 }]).unwrap();
    drop(request);
    assert_eq!(w.rights.open(), (0, 0));
    assert_eq!(w.rights.finish().unwrap(), EndedClaims::default());
}

/// Memory whose fetch-and-add adds and then panics.
#[derive(Debug)]
struct Panics {
    memory: AnonMemory,
    now: AtomicBool,
}

impl MemoryDouble for Panics {
    fn inner(&self) -> &dyn Memory {
        &self.memory
    }
    fn host_base(&self) -> Option<NonNull<u8>> {
        self.memory.host_base()
    }
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
        let found = self.memory.fetch_add(offset, add);
        assert!(!self.now.load(Ordering::SeqCst), "a panic right after the addition");
        found
    }
}

#[test]
fn i14_a_fetch_and_add_that_panics_is_open_until_its_producer_is_settled() {
    let memory = AnonMemory::new(LOG_BASE + 16 * U).unwrap();
    let memory = Arc::new(Panics { memory, now: AtomicBool::new(false) });
    let mut w = world_of(memory.clone(), 16);
    w.put(1, U);
    memory.now.store(true, Ordering::SeqCst);
    let claims = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| w.add(2 * U)));
    assert!(claims.is_err());
    assert_eq!(w.memory.load(BUMP_PTR_OFF).unwrap(), 3 * U);
    assert_eq!(w.rights.open(), (1, 1));
    assert!(w.rights.clear_below(U) && !w.rights.clear_below(3 * U));
    w.accept();
    assert_eq!(w.log.hole(0).unwrap().map(|check| check.below()), None);
    w.log.accept(20, &mut w.index).unwrap();
    let check = w.log.hole(20).unwrap().unwrap();
    let settled = w.rights.finish().unwrap();
    assert_eq!((settled.unknown, settled.dead), (1, 0));
    assert!(w.rights.clear_below(check.below()));
    let mut asking = check.ask([1]);
    asking.clear(&1);
    w.log.close_holes(asking.all_clear().unwrap(), 20, &mut w.index).unwrap();
    assert_eq!(w.log.counts().voided.bytes, 2 * U);
    assert_eq!(w.log.unsettled_bytes().unwrap(), 0);
}

/// Whenever the answer is that nothing is open below the bump that was read, everything below is
/// settled: no claim is missed at any moment.
#[test]
fn i14_no_answer_is_clear_while_a_claim_below_is_open() {
    const ROUNDS: u64 = 4_000;
    let w = Arc::new(world(1 << 16));
    let settled: Arc<Vec<AtomicUsize>> =
        Arc::new((0..2 * ROUNDS).map(|_| AtomicUsize::new(0)).collect());
    let start = Arc::new(Barrier::new(3));
    let producers: Vec<_> = (0..2)
        .map(|i| {
            let (w, settled, start) = (w.clone(), settled.clone(), start.clone());
            spawn_named(&format!("producer-{i}"), move || {
                start.wait();
                for _ in 0..ROUNDS {
                    let p = w.add(U).unwrap();
                    settled[(p / U) as usize].store(1, Ordering::SeqCst);
                    assert!(w.rights.abandon(Abandon { p, n: U }));
                }
            })
            .unwrap()
        })
        .collect();
    start.wait();
    let (mut said_clear, mut below) = (0, 0);
    while below < 2 * ROUNDS * U {
        below = w.memory.load(BUMP_PTR_OFF).unwrap();
        if w.rights.clear_below(below) {
            said_clear += 1;
            let all = settled[..(below / U) as usize].iter();
            assert!(all.rev().take(64).all(|claim| claim.load(Ordering::SeqCst) == 1));
        }
    }
    producers.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(said_clear > 0 && w.rights.clear_below(u64::MAX));
}
