//! The documentation agrees with the code: every invariant of docs/PROTOCOL.md has a test with its
//! number, no test has a number that the page lacks, and no link is broken.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders with sources, below the repository's root.
const ROOTS: [&str; 6] = ["store", "transport", "actors", "bin", "tests", "src"];

fn files(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|n| n != "target") {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

/// The invariants that a test names: 2 and 4 for `i2_i4_a_reader_...`.
fn invariants_of(name: &str) -> impl Iterator<Item = u32> + '_ {
    name.split('_').map_while(|part| part.strip_prefix('i')?.parse().ok())
}

/// Names of functions in a source.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub ").unwrap_or(line);
        let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
        line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?.split(['(', '<']).next()
    })
}

#[test]
fn every_invariant_of_the_protocol_page_is_pinned_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    ROOTS.iter().for_each(|r| files(&root.join(r), "rs", &mut sources));
    let mut pinned = BTreeSet::new();
    for source in &sources {
        let text = std::fs::read_to_string(source).unwrap();
        pinned.extend(functions(&text).flat_map(invariants_of));
    }
    let page = std::fs::read_to_string(root.join("docs/PROTOCOL.md")).unwrap();
    let number = |line: &str| line.strip_prefix("- [I")?.split_once(']')?.0.parse().ok();
    let stated: BTreeSet<u32> = page.lines().filter_map(number).collect();
    let unpinned: Vec<_> = stated.difference(&pinned).collect();
    let unstated: Vec<_> = pinned.difference(&stated).collect();
    assert!(unpinned.is_empty(), "no test carries the numbers of these invariants: {unpinned:?}");
    assert!(unstated.is_empty(), "tests name invariants that the page lacks: {unstated:?}");
    assert!(stated.len() >= 20, "only {} found: the search is broken", stated.len());
}

#[test]
fn every_link_of_the_documentation_leads_to_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![root.join("README.md")];
    files(&root.join("docs"), "md", &mut pages);
    let mut dead = Vec::new();
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            let local = !path.is_empty() && !path.contains("://");
            if local && !page.parent().unwrap().join(path).exists() {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(pages.len() > 20, "only {} pages found: the search is broken", pages.len());
    assert!(dead.is_empty(), "links that lead nowhere: {dead:#?}");
}
