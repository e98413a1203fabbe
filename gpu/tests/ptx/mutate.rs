//! The texts of weaker kernels: every instruction that orders memory, dropped or weakened. It runs
//! none of them.

use nkv_gpu::kernels::{GATHER_BULK, GATHER_PUBLISH, LOG_PUT, WAIT_SCATTER};
use std::collections::BTreeMap;

/// A changed text.
pub struct Mutant {
    pub kernel: &'static str,
    /// Opcode, its number among the kernel's ordering instructions, and the change.
    pub name: String,
    pub text: String,
}

fn changes(line: &str) -> Vec<(&'static str, String)> {
    let replace = |from: &str, to: &str| line.replacen(from, to, 1);
    let atom = unguarded(line).starts_with("atom");
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
    let lines = lines(text, kernel);
    let ordering = lines.iter().filter_map(|(n, line)| Some((n, line, ordering(line)?)));
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

/// Lines of the kernel, with their numbers.
pub fn lines<'a>(text: &'a str, kernel: &str) -> Vec<(usize, &'a str)> {
    let entry = format!(".entry {kernel}(");
    let all = text.lines().enumerate().skip_while(|(_, line)| !line.contains(&entry));
    all.take_while(|(_, line)| *line != "}").map(|(i, line)| (i, line.trim())).collect()
}

/// The instruction without its predicate.
pub fn unguarded(line: &str) -> &str {
    line.split_once(' ').filter(|(guard, _)| guard.starts_with('@')).map_or(line, |(_, rest)| rest)
}

/// The instruction on a line, if it orders memory: its opcode, and the operand where that is a
/// number.
pub fn ordering(line: &str) -> Option<&str> {
    let line = line.strip_prefix("{ .reg .pred p; ").unwrap_or(line);
    let line = unguarded(line);
    let whole = line.split(';').next().unwrap_or_default();
    let opcode = line.split_whitespace().next()?.trim_end_matches(';');
    let words = ["bar", "barrier", "fence", "membar", "atom", "red", "mbarrier"];
    let parts: Vec<&str> = opcode.split('.').collect();
    let orders = words.contains(&parts[0])
        || opcode.starts_with("cp.async")
        || parts.iter().any(|p| ["acquire", "release", "relaxed", "volatile", "mmio"].contains(p));
    let number = whole.split_whitespace().nth(1).is_some_and(|w| w.parse::<u32>().is_ok());
    orders.then_some(if number { whole.trim() } else { opcode })
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

pub const SURVIVORS: &[Survivors] = &[
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
pub fn listed(survivors: &[Survivors]) -> BTreeMap<(&'static str, String), bool> {
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
