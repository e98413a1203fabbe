//! What orders memory in the text that Triton emits, one after the other, and where the stores are.

use super::{KERNELS, LOG_PUT, PUSH_OBJECT, PUSH_PAGES, WAIT_READ, text_of};
use crate::mutate::{lines, ordering, unguarded};
use crate::text::accesses;

const BAR: &str = "bar.sync 0";
const ACQUIRE: &str = "ld.global.sys.acquire.b64";
/// Weak stores, any number.
const STORES: &str = "stores";
/// A word that the first thread reads and tells the others; what they were told before is used up.
const WORD: [&str; 3] = [BAR, ACQUIRE, BAR];

fn expected(kernel: &str) -> Vec<&'static str> {
    match kernel {
        // The publish word is read for its epoch, then exchanged; then `found` is stored.
        PUSH_OBJECT => {
            vec![STORES, BAR, ACQUIRE, BAR, BAR, "atom.global.acq_rel.sys.cas.b64", BAR, STORES]
        }
        PUSH_PAGES => vec![
            STORES,
            BAR,
            "atom.global.sys.acq_rel.add.u32",
            BAR,
            "atom.global.sys.relaxed.exch.b32",
            BAR,
            "atom.global.acq_rel.sys.cas.b64",
            BAR,
            STORES,
        ],
        // Publish word, again, and the five others; the copy; all words again.
        WAIT_READ => {
            let after = ["fence.acq_rel.sys", BAR, ACQUIRE, BAR];
            let words = |n: usize| WORD.repeat(n);
            let mut all = vec![ACQUIRE, BAR];
            all.extend(words(6));
            all.push(STORES);
            all.extend(after);
            all.extend(words(5));
            all.push("atom.global.gpu.relaxed.max.s64");
            all
        }
        LOG_PUT => {
            let (ready, claim) =
                ("atom.global.sys.release.exch.b64", "atom.global.sys.relaxed.add.u64");
            // READY and the results; DEAD.
            let mut all = vec![BAR, ready, STORES, ready];
            // Limit, bump, claim, limit again.
            all.extend(WORD);
            all.extend([BAR, "ld.global.sys.relaxed.b64", BAR, BAR, claim, BAR]);
            all.extend(WORD);
            // Fields; the barrier before DEAD; WRITING; the payload, before the first barrier.
            all.extend([STORES, BAR, "atom.global.sys.relaxed.exch.b64", STORES]);
            all
        }
        other => panic!("no kernel {other}"),
    }
}

/// What is wrong with the text of a kernel, if anything.
pub fn check(kernel: &str, text: &str) -> Result<(), String> {
    let lines = lines(text, kernel);
    let mut found: Vec<String> = Vec::new();
    for (_, line) in &lines {
        let named = match ordering(line) {
            Some(name) => name.split_whitespace().collect::<Vec<_>>().join(" "),
            None if unguarded(line).starts_with("st.global") => STORES.to_owned(),
            None => continue,
        };
        if named != STORES || found.last().is_none_or(|last| last != STORES) {
            found.push(named);
        }
    }
    if found != expected(kernel) {
        return Err(format!("{kernel} orders memory by {found:#?}"));
    }
    accesses(kernel, &lines)?;
    copies(kernel, &lines)
}

/// Whole tiles are copied by vectors: 16 bytes, four in flight; a tile of values by 8.
fn copies(kernel: &str, lines: &[(usize, &str)]) -> Result<(), String> {
    let vectors = |(_, line): &(usize, &str)| {
        let line = unguarded(line);
        let vector = line.contains(".v4.b32") || line.contains(".v2.b32");
        vector.then(|| line.starts_with("ld"))
    };
    let order: Vec<bool> = lines.iter().filter_map(vectors).collect();
    let wanted: &[bool] = match kernel {
        PUSH_OBJECT => &[true, false],
        _ => &[true, true, true, true, false, false, false, false],
    };
    if order != wanted {
        return Err(format!("{kernel} copies in another way"));
    }
    Ok(())
}

#[test]
fn the_texts_order_memory_as_expected() {
    for kernel in KERNELS {
        for arch in [80, 90] {
            check(kernel, text_of(kernel, arch)).unwrap();
        }
    }
}

#[test]
fn other_texts_are_refused() {
    let changes = [
        (PUSH_OBJECT, "st.global.v2.b32", "st.global.b64"),
        (PUSH_PAGES, "ld.global.cg.v4.b32", "ld.global.nc.v4.b32"),
        (PUSH_PAGES, "st.global.v4.b32", "st.local.v4.b32"),
        (WAIT_READ, "bar.sync", "bar.warp.sync"),
        (WAIT_READ, "ld.global.sys.acquire.b64", "atom.global.sys.acquire.add.u64"),
        (LOG_PUT, "st.global.v4.b32", "st.v4.b32"),
    ];
    for (kernel, from, to) in changes {
        let text = text_of(kernel, 80);
        let changed = text.replacen(from, to, 1);
        assert!(changed != text && check(kernel, &changed).is_err(), "{from} became {to}");
    }
}
