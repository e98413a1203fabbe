//! Facts that only the sources have: documented fields of a structure, and the messages of error
//! types. It parses code formatted by rustfmt.

use std::path::{Path, PathBuf};

/// Folders with sources of the library and the programs.
const FOLDERS: [&str; 7] = [
    "store/src",
    "transport/src",
    "actors/src",
    "bin/shared",
    "bin/nkv",
    "bin/nkv-load",
    "bin/nkv-node",
];
/// Most files read.
const MAX_FILES: usize = 5_000;

/// One source file.
pub struct Source {
    /// From the repository's root.
    pub path: String,
    /// All of it.
    pub text: String,
}

/// Every source, by path.
pub fn all() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| root.join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    assert!(files.len() < MAX_FILES, "{} files", files.len());
    files.sort();
    let source = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a source");
        let shown = path.strip_prefix(&root).expect("below the root").display().to_string();
        Source { path: shown, text }
    };
    files.into_iter().map(source).collect()
}

/// A field of a structure, or a variant of an enumeration.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub name: String,
    /// Its documentation as one text.
    pub doc: String,
    /// The attributes between documentation and name, as one text.
    pub attributes: String,
    /// A field's type.
    pub of: String,
}

/// The documentation and the items of `pub struct NAME` or `pub enum NAME`, visibility aside.
pub fn items(text: &str, header: &str) -> Option<Vec<Item>> {
    let start = text.lines().position(|line| line.trim_end_matches(" {").ends_with(header))?;
    let mut found = Vec::new();
    let mut next = Item::default();
    let mut in_attribute = false;
    for line in text.lines().skip(start + 1).take_while(|line| *line != "}") {
        let Some(inner) = line.strip_prefix("    ") else { continue };
        if in_attribute || inner.starts_with("#[") {
            next.attributes += &format!("{inner}\n");
            in_attribute = !inner.ends_with(']') || inner.starts_with(' ');
        } else if let Some(doc) = inner.strip_prefix("///") {
            next.doc += &format!("{} ", doc.trim());
        } else if inner.starts_with(|c: char| c.is_alphabetic()) {
            let inner = inner.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            let ends = inner.find(|c: char| !c.is_alphanumeric() && c != '_');
            next.name = inner[..ends.unwrap_or(inner.len())].to_string();
            next.of = inner[next.name.len()..].trim_matches([':', ' ', ',']).to_string();
            // Links of rustdoc lead nowhere from a page.
            next.doc = next.doc.trim().replace("[`", "`").replace("`]", "`");
            found.push(std::mem::take(&mut next));
        }
    }
    Some(found)
}

/// The documentation right above a line, attributes aside, as one text.
pub fn doc_above(text: &str, line: usize) -> String {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let doc = lines.iter().rev().take_while(|l| l.starts_with("///") || l.starts_with("#["));
    let mut doc: Vec<&str> = doc.filter_map(|l| l.strip_prefix("///")).map(str::trim).collect();
    doc.reverse();
    doc.join(" ")
}

#[test]
fn items_are_read_with_their_documentation_and_attributes() {
    let text = "pub enum E {\n    /// One\n    /// thing.\n    #[error(\"a {x}\")]\n    A \
                {\n        /// Inner.\n        x: u8,\n    },\n    /// Two.\n    #[error(\n        \
                \"b\",\n    )]\n    B(String),\n}\n";
    let found = items(text, "enum E").expect("items");
    let names: Vec<(&str, &str)> = found.iter().map(|i| (&*i.name, &*i.doc)).collect();
    assert_eq!(names, [("A", "One thing."), ("B", "Two.")]);
    assert!(found[1].attributes.contains("\"b\""), "{found:?}");
}

#[test]
fn fields_are_read_with_their_types() {
    let found = items("pub struct S {\n    /// A.\n    pub a: Vec<u8>,\n}\n", "struct S");
    let found = found.expect("items");
    assert_eq!((&*found[0].name, &*found[0].of), ("a", "Vec<u8>"));
}
