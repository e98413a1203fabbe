//! Every instruction that orders memory in Triton's kernels, dropped or weakened.

use super::text::check;
use super::{LOG_PUT, PUSH_OBJECT, PUSH_PAGES, Pair, THREADS, WAIT_READ, module, text_of};
use crate::heap::Event;
use crate::log;
use crate::mutants::found_out;
use crate::mutate::{
    ACQUIRED, CHECKED, CLAIM, EARLY, FENCED, HINT, Mutant, NOBODY, OWNER_WORD, READ_AGAIN,
    Survivors, WRITING, mutants,
};
use nkv_ptx::Module;

/// Runs of each kind that a mutant must survive to count as a survivor.
const SEEDS: u64 = 24;

/// One thread reads a word and tells the others, between two barriers.
const FIRST_ALONE: &str = "the first thread alone uses what it would tell the others";
const NEXT_BARRIER: &str = "the next one, behind the read of the word, is before the exchange, too";

const SURVIVORS: &[Survivors] = &[
    Survivors {
        kernel: PUSH_OBJECT,
        at: &[0],
        what: &["bar.sync dropped"],
        legal: true,
        why: NEXT_BARRIER,
    },
    Survivors {
        kernel: PUSH_OBJECT,
        at: &[1],
        what: &["ld.acquire relaxed"],
        legal: true,
        why: CHECKED,
    },
    Survivors {
        kernel: PUSH_OBJECT,
        at: &[1],
        what: &["ld.acquire gpu"],
        legal: false,
        why: NOBODY,
    },
    Survivors {
        kernel: PUSH_OBJECT,
        at: &[2, 3],
        what: &["bar.sync dropped"],
        legal: true,
        why: "the first barrier is before the exchange, and one thread makes it",
    },
    Survivors {
        kernel: PUSH_OBJECT,
        at: &[4],
        what: &["atom.acq_rel release"],
        legal: true,
        why: CHECKED,
    },
    Survivors {
        kernel: PUSH_OBJECT,
        at: &[5],
        what: &["bar.sync dropped"],
        legal: true,
        why: FIRST_ALONE,
    },
    Survivors {
        kernel: PUSH_PAGES,
        at: &[1],
        what: &["atom.acq_rel release"],
        legal: true,
        why: "each program's stores are visible at scope sys before it counts",
    },
    Survivors {
        kernel: PUSH_PAGES,
        at: &[1],
        what: &["atom.acq_rel gpu"],
        legal: true,
        why: "programs of one launch; the exchange releases what was acquired at scope sys",
    },
    Survivors {
        kernel: PUSH_PAGES,
        at: &[2],
        what: &["bar.sync dropped"],
        legal: false,
        why: "the first thread publishes, but others may take another branch and miss barriers",
    },
    Survivors {
        kernel: PUSH_PAGES,
        at: &[3],
        what: &["atom.relaxed gpu"],
        legal: true,
        why: "the counter belongs to one launch",
    },
    Survivors {
        kernel: PUSH_PAGES,
        at: &[4],
        what: &["bar.sync dropped"],
        legal: true,
        why: "the barrier before the counter orders the same stores",
    },
    Survivors {
        kernel: PUSH_PAGES,
        at: &[5],
        what: &["atom.acq_rel release"],
        legal: true,
        why: CHECKED,
    },
    Survivors {
        kernel: PUSH_PAGES,
        at: &[5],
        what: &["atom.acq_rel acquire", "atom.acq_rel relaxed", "atom.acq_rel gpu"],
        legal: false,
        why: "the counter's release orders the same on hardware; PTX asks for one of this word",
    },
    Survivors {
        kernel: PUSH_PAGES,
        at: &[6],
        what: &["bar.sync dropped"],
        legal: true,
        why: FIRST_ALONE,
    },
    Survivors {
        kernel: WAIT_READ,
        at: &[6, 9, 12, 15, 18],
        what: &["ld.acquire relaxed"],
        legal: true,
        why: ACQUIRED,
    },
    Survivors {
        kernel: WAIT_READ,
        at: &[6, 9, 12, 15, 18],
        what: &["ld.acquire gpu"],
        legal: false,
        why: READ_AGAIN,
    },
    Survivors {
        kernel: WAIT_READ,
        at: &[20],
        what: &["fence.acq_rel dropped", "fence.acq_rel gpu"],
        legal: false,
        why: "the barrier ends the loads on hardware; PTX asks for a fence of scope sys",
    },
    Survivors {
        kernel: WAIT_READ,
        at: &[22, 25, 28, 31, 34, 37],
        what: &["ld.acquire relaxed"],
        legal: true,
        why: FENCED,
    },
    Survivors {
        kernel: WAIT_READ,
        at: &[28, 31, 34, 37],
        what: &["ld.acquire gpu"],
        legal: false,
        why: OWNER_WORD,
    },
    Survivors {
        kernel: WAIT_READ,
        at: &[23, 24, 26, 27, 29, 30, 32, 33, 35, 36, 38],
        what: &["bar.sync dropped"],
        legal: true,
        why: FIRST_ALONE,
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[3],
        what: &["bar.sync dropped"],
        legal: false,
        why: "after a put that found no room a slow thread could be told the next limit as bump",
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[4],
        what: &["ld.acquire relaxed", "ld.acquire gpu"],
        legal: false,
        why: EARLY,
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[7],
        what: &["ld.relaxed weak", "ld.relaxed gpu"],
        legal: true,
        why: HINT,
    },
    Survivors { kernel: LOG_PUT, at: &[10], what: &["atom.relaxed gpu"], legal: true, why: CLAIM },
    Survivors {
        kernel: LOG_PUT,
        at: &[13],
        what: &["ld.acquire relaxed", "ld.acquire gpu"],
        legal: false,
        why: EARLY,
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[15],
        what: &["bar.sync dropped"],
        legal: true,
        why: "the thread that sets DEAD wrote the fields",
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[16],
        what: &["atom.relaxed gpu"],
        legal: true,
        why: WRITING,
    },
];

/// Whether the runs find it.
fn killed(mutant: &Mutant) -> bool {
    let Ok(changed) = Module::parse(&mutant.text) else {
        panic!("{} {} cannot be run", mutant.kernel, mutant.name);
    };
    let kernel = changed.kernel(mutant.kernel).unwrap();
    let other = module(if mutant.kernel == WAIT_READ { PUSH_PAGES } else { WAIT_READ }, 80);
    (1..=SEEDS).any(|seed| match mutant.kernel {
        WAIT_READ => {
            let writer = other.kernel(PUSH_PAGES).unwrap();
            let pair = Pair { writer, name: PUSH_PAGES, reader: kernel };
            let retire = |after| Event::Retire(after % 12_000);
            let retired = [retire(seed * 401), retire(seed * 977)];
            let events = [[Event::Late, Event::Nothing], retired].concat();
            events.into_iter().any(|event| pair.run(event, seed).is_err())
        }
        LOG_PUT => log::run(&log::Case { kernel, block: THREADS, seed, spins: 1 << 20 }).is_err(),
        name => {
            let reader = other.kernel(WAIT_READ).unwrap();
            Pair { writer: kernel, name, reader }.run(Event::Nothing, seed).is_err()
        }
    })
}

fn weaker_are_found_out(kernel: &'static str) {
    let all = mutants(text_of(kernel, 80), kernel);
    let of = |survivors: &&Survivors| survivors.kernel == kernel;
    let survivors: Vec<Survivors> = SURVIVORS.iter().filter(of).cloned().collect();
    let accepted = |mutant: &Mutant| check(kernel, &mutant.text).is_ok();
    found_out(&all, &survivors, killed, accepted);
}

#[test]
fn weaker_pushes_are_found_out() {
    weaker_are_found_out(PUSH_OBJECT);
}

#[test]
fn weaker_pushes_by_a_grid_are_found_out() {
    weaker_are_found_out(PUSH_PAGES);
}

/// As Triton compiles a kernel without `tl.debug_barrier()` that names its epoch: nothing but the
/// exchange is left.
#[test]
fn i4_a_push_without_any_barrier_is_torn() {
    let text = text_of(PUSH_OBJECT, 80);
    let (before, after) = text.split_at(text.find("atom.global.acq_rel.sys.cas").unwrap());
    let changed = Module::parse(&[&before.replace("bar.sync", "// bar.sync"), after].concat());
    let (changed, read) = (changed.unwrap(), module(WAIT_READ, 80));
    let writer = changed.kernel(PUSH_OBJECT).unwrap();
    let pair = Pair { writer, name: PUSH_OBJECT, reader: read.kernel(WAIT_READ).unwrap() };
    let torn = (1..=SEEDS).filter(|seed| pair.run(Event::Nothing, *seed).is_err()).count();
    assert!(torn as u64 > SEEDS / 2, "{torn} of {SEEDS}");
}

#[test]
fn weaker_reads_are_found_out() {
    weaker_are_found_out(WAIT_READ);
}

#[test]
fn weaker_puts_into_a_log_are_found_out() {
    weaker_are_found_out(LOG_PUT);
}
