//! The mutants of `mutate`. The runs in weak memory kill a mutant or it is in the table of
//! survivors with the reason. The check of the text kills each one.

use crate::heap::{self, Event};
use crate::log;
use crate::mutate::{Mutant, SURVIVORS, Survivors, listed, mutants};
use crate::text;
use nkv_gpu::kernels::{GATHER_BULK, GATHER_PUBLISH, LOG_PUT, PTX_SM80, PTX_SM90, WAIT_SCATTER};
use nkv_ptx::Module;

/// Runs of each kind that a mutant must survive to count as a survivor.
const SEEDS: u64 = 60;

/// Whether the runs find it.
fn killed(mutant: &Mutant, original: &Module) -> bool {
    let Ok(module) = Module::parse(&mutant.text) else {
        panic!("{} {} cannot be run", mutant.kernel, mutant.name);
    };
    // The bulk engine's objects are large.
    let seeds = if mutant.kernel == GATHER_BULK { SEEDS / 4 } else { SEEDS };
    (1..=seeds).any(|seed| {
        let heap = |writer, reader, gather, event| {
            heap::run(&heap::Case { writer, gather, reader, event, seed }).is_err()
        };
        match mutant.kernel {
            WAIT_SCATTER => {
                let retire = |after| Event::Retire(after % 300);
                heap(original, &module, GATHER_PUBLISH, Event::Nothing)
                    || heap(original, &module, GATHER_PUBLISH, retire(seed * 5))
                    || heap(original, &module, GATHER_PUBLISH, retire(seed * 37))
                    || heap(original, &module, GATHER_PUBLISH, retire(seed * 101))
                    || heap(original, &module, GATHER_PUBLISH, Event::OtherKey)
            }
            GATHER_PUBLISH | GATHER_BULK => heap(&module, original, mutant.kernel, Event::Nothing),
            LOG_PUT => {
                let kernel = module.kernel(LOG_PUT).unwrap();
                log::run(&log::Case { kernel, block: 8, seed, spins: 1 << 20 }).is_err()
            }
            other => panic!("no runs for {other}"),
        }
    })
}

/// Each mutant is killed by the runs or listed, not both, and none passes the check of its text.
pub fn found_out(
    all: &[Mutant],
    survivors: &[Survivors],
    killed: impl Fn(&Mutant) -> bool,
    accepted: impl Fn(&Mutant) -> bool,
) {
    let mut wrong = Vec::new();
    let mut listed = listed(survivors);
    let legal = listed.values().filter(|legal| **legal).count();
    let mut dead = 0;
    for mutant in all {
        if accepted(mutant) {
            wrong.push(format!("{} {}: the text is accepted", mutant.kernel, mutant.name));
        }
        let killed = killed(mutant);
        dead += usize::from(killed);
        if killed == listed.remove(&(mutant.kernel, mutant.name.clone())).is_some() {
            let what = if killed { "is listed but dies" } else { "survives" };
            wrong.push(format!("{} {}: {what}", mutant.kernel, mutant.name));
        }
    }
    wrong.extend(listed.keys().map(|(kernel, name)| format!("{kernel} {name}: no such mutant")));
    println!("{} mutants: {dead} killed by runs in weak memory, {legal} legal", all.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Each of the two alone would do on hardware; the table says so.
#[test]
fn i7_a_reader_needs_its_counter_or_its_fence() {
    let original = Module::parse(PTX_SM80).unwrap();
    let (before, kernel) = PTX_SM80.split_at(PTX_SM80.find(".entry nkv_wait_scatter(").unwrap());
    let counted = kernel.replacen("atom.acq_rel.gpu", "atom.relaxed.gpu", 1);
    let weak = [before, &counted.replacen("fence.acq_rel.sys;", "", 1)].concat();
    let module = Module::parse(&weak).unwrap();
    // The schedule must fit closely: some thousand seeds for one torn read.
    let torn = (1..=20_000).any(|seed| {
        let event = Event::Retire(seed % 300);
        let gather = GATHER_PUBLISH;
        let case = heap::Case { writer: &original, gather, reader: &module, event, seed };
        heap::run(&case).is_err()
    });
    assert!(torn);
}

#[test]
fn weaker_kernels_are_found_out() {
    let original = Module::parse(PTX_SM90).unwrap();
    let of = |(kernel, _): &(&'static str, _)| mutants(PTX_SM80, kernel);
    let mut all: Vec<Mutant> = text::kernels(PTX_SM80).iter().flat_map(of).collect();
    all.extend(mutants(PTX_SM90, GATHER_BULK));
    let accepted = |mutant: &Mutant| text::check(&mutant.text).is_ok();
    found_out(&all, SURVIVORS, |mutant| killed(mutant, &original), accepted);
}
