//! Standard streams of the programs. A failed write to stdout is an error, also if stdout was
//! closed before the program began, and also for help and version. All programs share this file;
//! each includes it by path.

use crate::exit;
use nkv_store::std_fds::was_closed;
use std::io::{self, Write};

/// File descriptor of stdin.
const STDIN: u8 = 0;
/// File descriptor of stdout.
const STDOUT: u8 = 1;

/// # Errors
/// If there is no stdin.
pub fn check_stdin() -> io::Result<()> {
    open(STDIN)
}

/// # Errors
/// If there is no stdout.
pub fn check_stdout() -> io::Result<()> {
    open(STDOUT)
}

fn open(fd: u8) -> io::Result<()> {
    match was_closed(fd) {
        true => Err(io::Error::from_raw_os_error(rustix::io::Errno::BADF.raw_os_error())),
        false => Ok(()),
    }
}

/// Writes to stdout, all of it.
///
/// # Errors
/// If stdout is closed, or the write fails.
pub fn write(bytes: &[u8]) -> io::Result<()> {
    check_stdout()?;
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Prints help, the version or the error of the command line; returns the exit status.
pub fn print(program: &str, error: &clap::Error) -> u8 {
    let code = u8::try_from(error.exit_code()).unwrap_or(exit::USAGE);
    let printed = match error.use_stderr() {
        // A closed stderr changes nothing about the outcome.
        true => error.print().or(Ok(())),
        false => check_stdout().and_then(|()| error.print()).and_then(|()| io::stdout().flush()),
    };
    match printed {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "{program}: stdout: {e}");
            exit::LOCAL
        }
        _ => code,
    }
}
