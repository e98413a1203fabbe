//! One gate per plan: a writer is inside the gate while it writes bytes for the plan; a fence
//! closes the gate and then waits until no writer is inside [I10]. The gate contains neither plan
//! nor memory, and it never spins: waiting is a futex with a deadline.

use nkv_store::clock::{BootClock, Clock};
use rustix::thread::futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const CLOSED: u32 = 1 << 31;

/// A gate is open until it is closed permanently. Bit 31: closed; the rest: number of writers
/// inside.
#[derive(Debug, Default)]
pub struct Gate(AtomicU32);

/// Proof of being inside. Every byte written before it is dropped is visible to a thread that then
/// sees the gate empty.
#[derive(Debug)]
#[must_use = "the gate is left when this is dropped"]
pub struct InFlight<'a>(&'a Gate);

/// As [`InFlight`], of who keeps the gate.
#[derive(Debug)]
#[must_use = "the gate is left when this is dropped"]
pub struct Inside(Arc<Gate>);

impl Inside {
    /// Another one, also of a gate that was closed meanwhile: a fence waits for both.
    pub fn again(&self) -> Self {
        // Inside already, so the count is at least one and no fence has passed.
        self.0.0.fetch_add(1, Ordering::SeqCst);
        Self(self.0.clone())
    }
}

impl Gate {
    /// An open gate, empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters; `None` once the gate is closed.
    pub fn enter(&self) -> Option<InFlight<'_>> {
        self.acquire().then(|| InFlight(self))
    }

    /// As [`Gate::enter`], with a guard that may outlive the caller's reference.
    pub fn enter_shared(self: &Arc<Self>) -> Option<Inside> {
        self.acquire().then(|| Inside(self.clone()))
    }

    /// Enters without a guard: the caller must call [`Gate::release`] once for every true.
    pub fn acquire(&self) -> bool {
        // SeqCst against `close`: either this thread sees the gate closed or the closer sees it
        // inside.
        let went = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |w| {
            // 2^31 - 1 writers inside at once cannot happen; refusing is still the safe answer.
            (w & CLOSED == 0 && w + 1 < CLOSED).then_some(w + 1)
        });
        went.is_ok()
    }

    /// Leaves; every byte written inside is visible to a thread that then sees the gate empty.
    pub fn release(&self) {
        let before = self.0.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before & !CLOSED > 0, "left an empty gate");
        // Only a fence waits, and it closes first: leaving an open gate costs no system call.
        if before == CLOSED | 1 {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Closes the gate: nobody can enter any more. Idempotent.
    pub fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::SeqCst);
    }

    /// True once closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// True if no writer is inside now. Final only once the gate is closed.
    pub fn is_drained(&self) -> bool {
        self.inside() == 0
    }

    /// Number of writers inside now.
    pub fn inside(&self) -> u32 {
        self.0.load(Ordering::SeqCst) & !CLOSED
    }

    /// Waits until no writer is inside; false if one still is after `timeout`. Close first: on an
    /// open gate the answer is neither prompt nor final.
    pub fn wait_drained(&self, timeout: Duration) -> bool {
        let deadline = BootClock.now_ns().saturating_add(timeout.as_nanos() as u64);
        loop {
            let word = self.0.load(Ordering::SeqCst);
            if word & !CLOSED == 0 {
                return true;
            }
            let left = deadline.saturating_sub(BootClock.now_ns());
            if left == 0 {
                return false;
            }
            let left = futex::Timespec {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_nsec: (left % 1_000_000_000) as i64,
            };
            // After any return (woken, word changed, timed out, signal) the loop checks the word
            // again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, word, Some(&left));
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nkv_store::threads::spawn_named;
    use nkv_store::{AnonMemory, Memory};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_closed_gate_lets_nobody_in_and_counts_who_is_inside() {
        let g = Gate::new();
        let a = g.enter().unwrap();
        let b = g.enter().unwrap();
        assert!(!g.is_drained() && !g.is_closed());
        g.close();
        assert!(g.enter().is_none());
        drop(a);
        assert!(!g.is_drained());
        assert!(!g.wait_drained(Duration::from_millis(5)));
        drop(b);
        let shared = Arc::new(Gate::new());
        let kept = shared.enter_shared().unwrap();
        let _also = shared.enter().unwrap();
        assert_eq!(shared.inside(), 2);
        shared.close();
        assert!(shared.enter_shared().is_none());
        let again = kept.again();
        assert_eq!(shared.inside(), 3);
        drop(again);
        drop(kept);
        assert_eq!(shared.inside(), 1);
        assert!(g.is_drained() && g.is_closed());
        assert!(g.wait_drained(Duration::ZERO));
    }

    #[test]
    fn the_last_one_out_wakes_who_waits() {
        let g = Arc::new(Gate::new());
        let (g2, started) = (g.clone(), Arc::new(AtomicBool::new(false)));
        let in_flight = g.enter().unwrap();
        g.close();
        let s2 = started.clone();
        let waiter = spawn_named("waiter", move || {
            s2.store(true, Ordering::SeqCst);
            g2.wait_drained(Duration::from_secs(10))
        })
        .unwrap();
        while !started.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let clock = BootClock;
        let t0 = clock.now_ms();
        drop(in_flight);
        assert!(waiter.join().unwrap());
        assert!(clock.now_ms() - t0 < 5_000, "it slept through the wake");
    }

    #[test]
    fn i10_after_closed_and_out_no_byte_is_written() {
        for round in 0..200 {
            let g = Arc::new(Gate::new());
            let entries = Arc::new(AtomicU32::new(0));
            let m = Arc::new(AnonMemory::new(4096).unwrap());
            let writers: Vec<_> = (0..2)
                .map(|t| {
                    let (g, m, entries) = (g.clone(), m.clone(), entries.clone());
                    spawn_named("writer", move || {
                        let mut n = 0u64;
                        while let Some(_inside) = g.enter() {
                            n += 1;
                            entries.fetch_add(1, Ordering::Relaxed);
                            m.write(t * 2048, &n.to_le_bytes().repeat(8)).unwrap();
                        }
                    })
                    .unwrap()
                })
                .collect();
            while entries.load(Ordering::Relaxed) < (round % 7) * 100 {
                std::thread::yield_now();
            }
            g.close();
            assert!(g.wait_drained(Duration::from_secs(10)));
            let mut before = [0u8; 4096];
            m.read(0, &mut before).unwrap();
            for w in writers {
                w.join().unwrap();
            }
            let mut after = [0u8; 4096];
            m.read(0, &mut after).unwrap();
            assert!(before == after, "a byte changed after the gate was empty");
        }
    }
}
