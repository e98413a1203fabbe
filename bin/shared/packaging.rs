//! What a package contains besides the programs: shell completions and man pages, generated from
//! the parsers. All programs share this file; each includes it by path.

use crate::exit;
use crate::streams;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;

// Flags of a program without commands.
#[expect(missing_docs, reason = "clap would print it as the program's description")]
#[derive(Debug, Clone, Default, Args)]
pub struct PackagingFlags {
    /// Print completions for a shell and end
    #[arg(long, value_name = "SHELL", conflicts_with = "man")]
    completions: Option<Shell>,

    /// Print the man page, for man -l or a file in man1, and end
    #[arg(long)]
    man: bool,
}

impl PackagingFlags {
    /// Prints what these flags request; false if none is given.
    ///
    /// # Errors
    /// If writing to stdout fails.
    pub fn print(&self, command: impl FnOnce() -> Command) -> io::Result<bool> {
        if let Some(shell) = self.completions {
            completions(command(), shell)?;
        } else if self.man {
            man(command(), &[])?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// The section of `--help` about exit statuses.
pub fn statuses() -> String {
    format!("Exit status:\n{}", exit::TABLE)
}

/// The command with a usage line that names only required arguments: clap's own shows flags that a
/// variable has set as if they were required.
pub fn with_plain_usage(command: Command) -> Command {
    let mut built = command.clone();
    built.build();
    let plain = |c: &Command| {
        let usage = c.clone().render_usage().to_string();
        usage.trim_start_matches("Usage:").trim().to_string()
    };
    let mut command = command.override_usage(plain(&built));
    for one in built.get_subcommands() {
        // The usage of rm is written by hand.
        let usage = plain(one);
        let name = one.get_name().to_string();
        if command.find_subcommand(&name).is_some() {
            command = command.mut_subcommand(name, |c| c.override_usage(usage));
        }
    }
    command
}

/// Prints completions for a shell.
///
/// # Errors
/// If writing to stdout fails.
pub fn completions(mut command: Command, shell: Shell) -> io::Result<()> {
    let name = command.get_name().to_string();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    streams::write(&script)
}

/// Prints the man page, with `sections` besides those of every page.
///
/// # Errors
/// If writing to stdout fails.
pub fn man(command: Command, sections: &[(&str, &str)]) -> io::Result<()> {
    streams::write(&page(command, sections)?)
}

/// A man page. What follows the options in `--help` is in sections of its own here.
///
/// # Errors
/// Never in practice: the page is made in memory.
pub fn page(command: Command, sections: &[(&str, &str)]) -> io::Result<Vec<u8>> {
    let has_commands = command.get_subcommands().any(|c| !c.is_hide_set());
    let has_version = command.get_version().is_some();
    let (man, mut page) = (Man::new(command), Vec::new());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    for (title, text) in sections.iter().chain(&[("EXIT STATUS", exit::TABLE)]) {
        let mut roff = Roff::default();
        // `nf`: no filling, since these are tables.
        roff.control("SH", [*title]).control("nf", []);
        for line in text.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []).to_writer(&mut page)?;
    }
    if has_version {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}
