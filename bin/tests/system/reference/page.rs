//! A page: how its text is compared with its file, and the parts that every page is made of.

use crate::cluster_process::{Ended, clean_command, run_to_end};
use std::fmt::Write;
use std::path::Path;

/// If this variable is set, pages are written instead of compared.
const WRITE: &str = "NKV_WRITE_REFERENCE";
/// Columns of a line, as everywhere in the project.
const COLUMNS: usize = 100;

/// The text of a page being generated.
pub struct Page {
    name: &'static str,
    text: String,
}

impl Page {
    /// A page with its heading and what it is about.
    pub fn new(name: &'static str, heading: &str, about: &str) -> Self {
        let mut page = Self { name, text: format!("# {heading}\n\n") };
        page.text(&format!("<!-- Made by {WRITE}=1 cargo test --test system reference:: -->"));
        page.text(about);
        page
    }

    /// A heading of the second level.
    pub fn section(&mut self, heading: &str) {
        self.text(&format!("## {heading}"));
    }

    /// A paragraph, or several; lines of more than 100 columns are broken.
    pub fn text(&mut self, text: &str) {
        let _ = writeln!(self.text, "{}\n", wrapped(text));
    }

    /// What a program prints.
    pub fn output(&mut self, text: &str) {
        let _ = writeln!(self.text, "```\n{}\n```\n", wrapped(text.trim_matches('\n')));
    }

    /// A table; cells are escaped.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let row = |cells: &mut dyn Iterator<Item = String>| {
            let cells: Vec<String> = cells.map(|c| c.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        self.text += &row(&mut head.iter().map(|c| (*c).to_string()));
        self.text += &format!("|{}\n", "---|".repeat(head.len()));
        for cells in rows {
            assert_eq!(cells.len(), head.len(), "{cells:?}");
            self.text += &row(&mut cells.iter().cloned());
        }
        self.text.push('\n');
    }

    /// Compares the page with its file, or writes it.
    pub fn check(self) {
        let made = format!("{}\n", self.text.trim_end());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(self.name);
        if std::env::var_os(WRITE).is_some() {
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("docs/reference");
            std::fs::write(&file, made).expect("the page is written");
            return;
        }
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        if let Some((number, made, found)) = first_difference(&made, &found) {
            panic!(
                "docs/reference/{} is not what the programs say. Line {number}\n  is:        \
                 {found}\n  should be: {made}\nRewrite it with: {WRITE}=1 cargo test --test \
                 reference",
                self.name
            );
        }
    }
}

/// The number of the first line in which two texts differ, and that line of each.
fn first_difference(a: &str, b: &str) -> Option<(usize, String, String)> {
    let (mut a, mut b) = (a.lines(), b.lines());
    (1..).find_map(|number| match (a.next(), b.next()) {
        (None, None) => Some(None),
        (x, y) if x == y => None,
        (x, y) => {
            let shown = |line: Option<&str>| line.unwrap_or("(the end)").to_string();
            Some(Some((number, shown(x), shown(y))))
        }
    })?
}

/// Lines of more than 100 columns are broken at blanks; what follows is indented as they are, or to
/// the second column of a list.
fn wrapped(text: &str) -> String {
    let mut out = Vec::new();
    for line in text.lines() {
        let line = line.trim_end();
        let indent = indent(line);
        let mut rest = line.to_string();
        while rest.chars().count() > COLUMNS {
            let most = rest.char_indices().nth(COLUMNS).map_or(rest.len(), |(at, _)| at);
            let Some(at) = rest[..=most].rfind(' ').filter(|at| *at > indent) else { break };
            out.push(rest[..at].trim_end().to_string());
            rest = format!("{}{}", " ".repeat(indent), rest[at..].trim_start());
        }
        out.push(rest);
    }
    out.join("\n")
}

/// Where a line's text begins: behind its blanks, or behind the first column of a list.
fn indent(line: &str) -> usize {
    let start = line.len() - line.trim_start().len();
    let column = line[start..].find("  ").map(|at| start + at);
    let second = column.map(|at| at + line[at..].len() - line[at..].trim_start().len());
    second.filter(|_| start > 0).filter(|at| *at < COLUMNS / 2).unwrap_or(start)
}

/// What a program prints for these arguments.
pub fn output_of(program: &str, args: &[&str]) -> String {
    let ended = run(program, args);
    assert_eq!(ended.code, 0, "{program} {args:?}: {}", ended.stderr);
    ended.stdout
}

/// Runs a program to its end, in an environment without nkv's variables.
pub fn run(program: &str, args: &[&str]) -> Ended {
    let mut command = clean_command(program);
    command.args(args);
    run_to_end(command, nkv_pace::HANGS)
}

/// The rows `  N  text` under `Exit status:` of a program's help, as number and text.
pub fn exit_statuses(help: &str) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = Vec::new();
    let lines = help.lines().skip_while(|l| *l != "Exit status:").skip(1);
    for line in lines.take_while(|l| l.starts_with("  ")) {
        let cells = line.trim().split_once(' ').map(|(n, text)| (n, text.trim()));
        match (cells, rows.last_mut()) {
            (Some((n, text)), _) if n.bytes().all(|b| b.is_ascii_digit()) => {
                rows.push((n.to_string(), text.to_string()));
            }
            (_, Some((_, before))) => *before += &format!(" {}", line.trim()),
            _ => panic!("no exit status in {line:?}"),
        }
    }
    assert!(!rows.is_empty(), "no table of exit statuses in {help}");
    rows
}

#[test]
fn a_long_line_is_broken_at_a_blank_and_keeps_its_indentation() {
    let long = format!("  {}end of it", "word ".repeat(19));
    let broken = wrapped(&long);
    let lines: Vec<&str> = broken.lines().collect();
    assert_eq!(lines.len(), 2, "{broken}");
    assert!(lines.iter().all(|l| l.len() <= COLUMNS && l.starts_with("  ")), "{broken}");
    assert_eq!(wrapped(&"x".repeat(120)), "x".repeat(120));
    let list = wrapped(&format!("  name   {}end", "word ".repeat(19)));
    assert!(list.lines().nth(1).is_some_and(|l| l.starts_with("         w")), "{list}");
}

#[test]
fn the_first_line_that_differs_is_named() {
    assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
    let (number, made, found) = first_difference("a\nb\n", "a\nc\n").expect("a difference");
    assert_eq!((number, &*made, &*found), (2, "b", "c"));
    assert_eq!(first_difference("a\n", "").expect("a difference").2, "(the end)");
}
