//! What a package is made of besides the programs: completions for shells and man pages, made from
//! the very parsers. It exists once so that each program can print its own; each includes it by
//! path.

use clap::{Args, Command};
use clap_complete::Shell;
use std::io::{self, Write};

/// Flags of a program without commands.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PackagingFlags {
    /// Print completions for a shell and end
    #[arg(long, value_name = "SHELL", exclusive = true)]
    completions: Option<Shell>,

    /// Print the man page, for man -l or a file in man1, and end
    #[arg(long, exclusive = true)]
    man: bool,
}

impl PackagingFlags {
    /// Prints what they ask for; false if they ask for nothing.
    ///
    /// # Errors
    /// If stdout takes no more.
    pub(crate) fn print(&self, command: Command) -> io::Result<bool> {
        if let Some(shell) = self.completions {
            completions(command, shell)?;
        } else if self.man {
            man(command)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Prints completions for a shell.
///
/// # Errors
/// If stdout takes no more.
pub(crate) fn completions(mut command: Command, shell: Shell) -> io::Result<()> {
    let name = command.get_name().to_string();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    io::stdout().lock().write_all(&script)
}

/// Prints the man page.
///
/// # Errors
/// If stdout takes no more.
pub(crate) fn man(command: Command) -> io::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    io::stdout().lock().write_all(&page)
}
