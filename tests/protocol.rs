//! docs/PROTOCOL.md names, under each invariant, the tests that pin it. This keeps it true both ways:
//! every test that carries an invariant's number or a model's condition in its name is listed, and
//! every listed name is a test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders with sources, below the repository's root.
const ROOTS: [&str; 6] = ["store", "transport", "actors", "bin", "tests", "src"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|n| n != "target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// True for `i7_...` and `model_...`.
fn pins_something(name: &str) -> bool {
    let number = name.strip_prefix('i').and_then(|rest| rest.split('_').next());
    let invariant = number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    (invariant && name.contains('_')) || name.starts_with("model_")
}

/// Names of functions in a source that pin something.
fn tests_in(text: &str) -> impl Iterator<Item = String> + '_ {
    let names = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let rest = line.strip_prefix("pub ").unwrap_or(line);
        let rest = rest.strip_prefix("pub(crate) ").unwrap_or(rest);
        let rest = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ")?;
        rest.split(['(', '<']).next().map(str::to_string)
    });
    names.filter(|n| pins_something(n))
}

#[test]
fn the_protocol_page_lists_exactly_the_tests_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ROOTS.iter().for_each(|r| sources(&root.join(r), &mut files));
    let mut real = BTreeSet::new();
    for file in files.iter().filter(|f| !f.ends_with("tests/protocol.rs")) {
        real.extend(tests_in(&std::fs::read_to_string(file).unwrap()));
    }
    let page = std::fs::read_to_string(root.join("docs/PROTOCOL.md")).unwrap();
    let quoted = page.split('`').skip(1).step_by(2).map(str::to_string);
    let listed: BTreeSet<String> = quoted.filter(|n| pins_something(n)).collect();
    let unlisted: Vec<_> = real.difference(&listed).collect();
    let unreal: Vec<_> = listed.difference(&real).collect();
    assert!(unlisted.is_empty(), "tests that docs/PROTOCOL.md does not name: {unlisted:#?}");
    assert!(unreal.is_empty(), "docs/PROTOCOL.md names tests that do not exist: {unreal:#?}");
    assert!(real.len() > 80, "only {} found: the search is broken", real.len());
}
