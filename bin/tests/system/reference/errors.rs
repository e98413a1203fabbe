//! `errors.md`: every kind of error with what to do about it and the exit status of `nkv`, the exit
//! statuses of all programs, and the messages of every error type as the sources have them.

use crate::reference::page::{Page, exit_statuses, output_of};
use crate::reference::sources::{self, Source};
use nkv::ErrorKind;
use nkv_programs::exit;

/// How an error type is marked in the sources: by this derive.
const DERIVE: &str = "thiserror::Error";

/// Those that have exit statuses.
const PROGRAMS: [&str; 3] =
    [env!("CARGO_BIN_EXE_nkv"), env!("CARGO_BIN_EXE_nkv-node"), env!("CARGO_BIN_EXE_nkv-load")];

#[test]
fn errors_is_what_programs_and_sources_say() {
    let mut page = Page::new(
        "errors.md",
        "Errors: reference",
        "Every call of the library ends with a value or with an `Error`: it has a `kind()` and a \
         `message()`, and where they are known a `key()`, a `rank()` and a `source()`. The kind \
         says what the caller can do; the message names key, rank and numbers. A put that ends \
         with `Timeout` or `Disconnected` is whole or absent, never torn.",
    );
    page.section("Kinds");
    let kinds = ErrorKind::ALL.iter().map(|kind| {
        let status = exit::of(*kind).to_string();
        let cells = [format!("`{kind}`"), kind.meaning().into(), kind.what_to_do().into(), status];
        cells.to_vec()
    });
    let head = ["kind", "what happened", "what the caller does", "exit status"];
    page.table(&head, &kinds.collect::<Vec<_>>());

    page.section("Exit statuses");
    let tables: Vec<_> = PROGRAMS.map(|p| exit_statuses(&output_of(p, &["--help"]))).into();
    let (first, others) = tables.split_first().expect("programs");
    assert!(others.iter().all(|t| t == first), "one table for all programs: {tables:?}");
    let rows: Vec<_> = first.iter().map(|(n, text)| vec![n.clone(), text.clone()]).collect();
    page.table(&["`nkv`, `nkv-node`, `nkv-load`", "meaning"], &rows);

    page.section("Messages");
    page.text(
        "By the type that makes them. `{name}` stands for a value; a message that is `{0}` alone \
         is written where the error is made.",
    );
    let sources = sources::all();
    for (source, line, name) in error_types(&sources) {
        page.text(&format!("### {name}"));
        let doc = sources::doc_above(&source.text, line);
        page.text(&format!("{doc} (`{}`)", source.path));
        let items = sources::items(&source.text, &format!("enum {name}")).expect("its variants");
        assert!(!items.is_empty(), "{name} has no variant that is understood");
        // A variant without a message of its own has that of its type.
        let shared = source.text.lines().nth(line - 1).filter(|above| above.starts_with("#[error"));
        let rows = items.into_iter().map(|item| {
            let message = match item.attributes.is_empty() {
                true => message(shared.unwrap_or_default()),
                false => message(&item.attributes),
            };
            vec![format!("`{}`", item.name), item.doc, message]
        });
        page.table(&["variant", "meaning", "message"], &rows.collect::<Vec<_>>());
    }
    page.check();
}

/// The enumerations that are errors: their source, the line of their header, their name.
fn error_types(sources: &[Source]) -> Vec<(&Source, usize, String)> {
    let mut found = Vec::new();
    for source in sources {
        let mut derived = false;
        for (number, line) in source.text.lines().enumerate() {
            if line.starts_with("#[derive") {
                derived = line.contains(DERIVE);
            }
            let header = line.strip_suffix(" {").and_then(|l| l.split_once("enum "));
            if let Some((_, name)) = header.filter(|_| derived && !line.starts_with(' ')) {
                found.push((source, number, name.to_string()));
                derived = false;
            }
        }
    }
    assert!(found.iter().any(|(_, _, name)| name == "StoreError"), "no error types are found");
    found
}

/// What `#[error(...)]` says, as a cell: formats of values left out.
fn message(attributes: &str) -> String {
    if attributes.contains("error(transparent)") {
        return "that of its cause".to_string();
    }
    let Some(start) = attributes.find('"') else { return String::new() };
    let literal = &attributes[start + 1..];
    let (mut text, mut chars) = (String::new(), literal.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                // A line that is continued: blanks are skipped.
                Some('\n') => chars = chars.as_str().trim_start().chars(),
                Some(escaped) => text.push(escaped),
                None => break,
            },
            c => text.push(c),
        }
    }
    format!("`{}`", without_formats(&text))
}

/// `{bytes:03o}` becomes `{bytes}`.
fn without_formats(text: &str) -> String {
    let mut out = String::new();
    let mut format = false;
    for c in text.chars() {
        match c {
            ':' if out.rfind('{') > out.rfind('}') => format = true,
            '}' => {
                format = false;
                out.push(c);
            }
            c if !format => out.push(c),
            _ => {}
        }
    }
    out
}

#[test]
fn a_message_is_read_without_continued_lines_and_formats() {
    let attributes = "#[error(\n    \"a {x:03o}: \\\n     b \\\"c\\\" {y}\",\n    y = 1\n)]\n";
    assert_eq!(message(attributes), "`a {x}: b \"c\" {y}`");
    assert_eq!(message("#[error(transparent)]"), "that of its cause");
}
