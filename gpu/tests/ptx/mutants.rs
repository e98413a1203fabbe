//! Every instruction that orders memory, dropped or weakened. The runs in weak memory kill a mutant
//! or it is in the table of survivors with the reason. The check of the text kills each one.

use crate::heap::{self, Event};
use crate::log;
use crate::text;
use nkv_gpu::kernels::{GATHER_BULK, GATHER_PUBLISH, LOG_PUT, PTX_SM80, PTX_SM90, WAIT_SCATTER};
use nkv_ptx::Module;
use std::collections::BTreeMap;

/// Runs of each kind that a mutant must survive to count as a survivor.
const SEEDS: u64 = 60;

/// A changed text.
pub struct Mutant {
    pub kernel: &'static str,
    /// Opcode, its number among the kernel's ordering instructions, and the change.
    pub name: String,
    pub text: String,
}

fn changes(line: &str) -> Vec<(&'static str, String)> {
    let replace = |from: &str, to: &str| line.replacen(from, to, 1);
    let atom = text::unguarded(line).starts_with("atom");
    let mut all = Vec::new();
    if ["bar.sync", "fence", "cp.async.bulk.wait_group"].iter().any(|s| line.starts_with(s)) {
        // Another instruction may follow on its line.
        let rest = line.split_once(';').map_or("", |(_, rest)| rest);
        all.push(("dropped", rest.to_owned()));
    }
    if line.contains(".acq_rel.") && atom {
        all.push(("acquire", replace(".acq_rel.", ".acquire.")));
        all.push(("release", replace(".acq_rel.", ".release.")));
        all.push(("relaxed", replace(".acq_rel.", ".relaxed.")));
    }
    for order in [".acquire.", ".release."] {
        if line.contains(order) {
            all.push(("relaxed", replace(order, ".relaxed.")));
        }
    }
    for relaxed in [".relaxed.sys", ".sys.relaxed"] {
        if line.contains(relaxed) && !atom {
            all.push(("weak", replace(relaxed, "")));
        }
    }
    if line.contains(".sys") {
        all.push(("gpu", replace(".sys", ".gpu")));
    }
    if line.contains(".gpu") {
        all.push(("cta", replace(".gpu", ".cta")));
    }
    all
}

/// All weaker forms of one kernel.
pub fn mutants(text: &str, kernel: &'static str) -> Vec<Mutant> {
    let mut all = Vec::new();
    let lines = text::lines(text, kernel);
    let ordering = lines.iter().filter_map(|(n, line)| Some((n, line, text::ordering(line)?)));
    for (i, (number, line, opcode)) in ordering.enumerate() {
        for (change, new) in changes(line) {
            let changed = text.lines().enumerate();
            let changed = changed.map(|(n, line)| if n == *number { new.as_str() } else { line });
            let opcode = opcode.split_whitespace().next().unwrap_or_default();
            let parts = opcode.split('.').filter(|part| !["global", "sys", "gpu"].contains(part));
            let opcode = parts.take(2).collect::<Vec<_>>().join(".");
            all.push(Mutant {
                kernel,
                name: format!("{i} {opcode} {change}"),
                text: changed.collect::<Vec<_>>().join("\n"),
            });
        }
    }
    all
}

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

/// Mutants that the runs do not kill.
#[derive(Clone)]
pub struct Survivors {
    pub kernel: &'static str,
    /// Numbers of ordering instructions in the kernel.
    pub at: &'static [usize],
    /// Opcode and change.
    pub what: &'static [&'static str],
    /// The mutant is correct, at least on hardware; else only the check of the text holds it.
    pub legal: bool,
    pub why: &'static str,
}

pub const CHECKED: &str = "the value decides whether to publish; nothing is read after it";
pub const EARLY: &str =
    "stores must come after the owner cleared LIVE; the runs execute no store early";
pub const HINT: &str = "a hint: the fetch-and-add returns the position";
pub const CLAIM: &str =
    "the word lies in the memory of this GPU; sys, since PTX's gpu means one program";
pub const NOBODY: &str =
    "processors write the word, so scope sys; in the runs nobody does meanwhile";
pub const READ_AGAIN: &str =
    "processors write the words, so scope sys; all are read again after the copy";
pub const ACQUIRED: &str =
    "the acquire of the publish word is before them, and a barrier before the copy";
pub const FENCED: &str = "the fence is before them, and nothing is read after them";
pub const WRITING: &str = "WRITING is a hint, and READY of the same thread follows";
const FIELDS: &str = "aligned words that the release behind them makes visible";
pub const OWNER_WORD: &str = "processors write the words, so scope sys; the owner word, which \
                              is read again at that scope, changes before them";

const SURVIVORS: &[Survivors] = &[
    Survivors {
        kernel: GATHER_PUBLISH,
        at: &[2],
        what: &["ld.acquire relaxed"],
        legal: true,
        why: CHECKED,
    },
    Survivors {
        kernel: GATHER_PUBLISH,
        at: &[2],
        what: &["ld.acquire gpu"],
        legal: false,
        why: NOBODY,
    },
    Survivors {
        kernel: WAIT_SCATTER,
        at: &[1, 2, 3, 4, 5],
        what: &["ld.acquire relaxed"],
        legal: true,
        why: ACQUIRED,
    },
    Survivors {
        kernel: WAIT_SCATTER,
        at: &[1, 2, 3, 4, 5],
        what: &["ld.acquire gpu"],
        legal: false,
        why: READ_AGAIN,
    },
    Survivors {
        kernel: WAIT_SCATTER,
        at: &[8],
        what: &["atom.acq_rel acquire", "atom.acq_rel release", "atom.acq_rel relaxed"],
        legal: true,
        why: "barriers end the loads of each block before it counts, and the fence follows",
    },
    Survivors {
        kernel: WAIT_SCATTER,
        at: &[9],
        what: &["fence.acq_rel dropped", "fence.acq_rel gpu"],
        legal: false,
        why: "the counter orders the same on hardware; PTX asks for scope sys here",
    },
    Survivors {
        kernel: WAIT_SCATTER,
        at: &[10, 11, 12, 13, 14, 15],
        what: &["ld.acquire relaxed"],
        legal: true,
        why: FENCED,
    },
    Survivors {
        kernel: WAIT_SCATTER,
        at: &[10],
        what: &["ld.acquire gpu"],
        legal: false,
        why: OWNER_WORD,
    },
    Survivors {
        kernel: WAIT_SCATTER,
        at: &[12, 13, 14, 15],
        what: &["ld.acquire gpu"],
        legal: false,
        why: OWNER_WORD,
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[0],
        what: &["ld.acquire relaxed", "ld.acquire gpu"],
        legal: false,
        why: EARLY,
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[1],
        what: &["ld.relaxed weak", "ld.relaxed gpu"],
        legal: true,
        why: HINT,
    },
    Survivors { kernel: LOG_PUT, at: &[2], what: &["atom.relaxed gpu"], legal: true, why: CLAIM },
    Survivors {
        kernel: LOG_PUT,
        at: &[3],
        what: &["ld.acquire relaxed", "ld.acquire gpu"],
        legal: false,
        why: EARLY,
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[4, 5, 6, 7, 8],
        what: &["st.relaxed weak", "st.relaxed gpu"],
        legal: true,
        why: FIELDS,
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[10, 11, 12, 13, 14],
        what: &["st.relaxed weak", "st.relaxed gpu"],
        legal: true,
        why: FIELDS,
    },
    Survivors {
        kernel: LOG_PUT,
        at: &[15],
        what: &["st.relaxed weak", "st.relaxed gpu"],
        legal: true,
        why: WRITING,
    },
    Survivors {
        kernel: GATHER_BULK,
        at: &[13],
        what: &["ld.acquire relaxed"],
        legal: true,
        why: CHECKED,
    },
    Survivors {
        kernel: GATHER_BULK,
        at: &[13],
        what: &["ld.acquire gpu"],
        legal: false,
        why: NOBODY,
    },
];

/// {(kernel, mutant): whether it is legal}.
fn listed(survivors: &[Survivors]) -> BTreeMap<(&'static str, String), bool> {
    let mut all = BTreeMap::new();
    for Survivors { kernel, at, what, legal, why } in survivors {
        assert!(!why.is_empty());
        for at in *at {
            for what in *what {
                let twice = all.insert((*kernel, format!("{at} {what}")), *legal);
                assert!(twice.is_none(), "{kernel} {at} {what} is listed twice");
            }
        }
    }
    all
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
