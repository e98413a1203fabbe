//! `cli.md`: the help of every program and every command of `nkv`. Options that all commands share
//! are shown once.

use crate::reference::page::{Page, output_of};

/// Heading of the options that every command of `nkv` takes.
const SHARED: &str = "Options of every command:";

#[test]
fn cli_is_what_the_programs_say() {
    let mut page = Page::new(
        "cli.md",
        "The programs: reference",
        "| program | what it does |\n|---|---|\n\
         | [`nkv`](#nkv) | looks at a cluster, moves single values in and out of it |\n\
         | [`nkv-node`](#nkv-node) | runs one rank |\n\
         | [`nkv-load`](#nkv-load) | puts load on a cluster and measures it |\n\n\
         Every text is what `--help` prints. Settings as a table: [settings.md](settings.md); \
         errors and exit statuses: [errors.md](errors.md).",
    );
    let nkv = env!("CARGO_BIN_EXE_nkv");
    let help = output_of(nkv, &["--help"]);
    page.section("nkv");
    page.output(&help);
    for command in commands(&help) {
        page.section(&format!("nkv {command}"));
        page.output(without_shared(&output_of(nkv, &[&command, "--help"])));
    }
    for (name, program) in
        [("nkv-node", env!("CARGO_BIN_EXE_nkv-node")), ("nkv-load", env!("CARGO_BIN_EXE_nkv-load"))]
    {
        page.section(name);
        page.output(&output_of(program, &["--help"]));
    }
    page.check();
}

/// The commands that a help lists, but for `help` itself.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|l| *l != "Commands:").skip(1);
    let lines = lines.take_while(|l| l.starts_with("  "));
    let names = lines.filter_map(|l| l.split_whitespace().next());
    let names: Vec<String> = names.filter(|name| *name != "help").map(String::from).collect();
    assert!(names.iter().any(|name| name == "get"), "{help}");
    names
}

/// A command's help up to the options that all commands share.
fn without_shared(help: &str) -> &str {
    let at = help.find(SHARED).unwrap_or_else(|| panic!("no {SHARED:?} in {help}"));
    help[..at].trim_end()
}
