//! Standard streams of the programs. What stdout does not take is an error, also where it was
//! closed before the program began; help and version are no exception. It exists once; each
//! program includes it by path.

use nkv::exit;
use nkv_store::std_fds::was_closed;
use std::io::{self, Write};

/// Its number.
const STDIN: u8 = 0;
/// Its number.
const STDOUT: u8 = 1;

/// # Errors
/// If there is no stdin.
pub(crate) fn check_stdin() -> io::Result<()> {
    open(STDIN)
}

/// # Errors
/// If there is no stdout.
pub(crate) fn check_stdout() -> io::Result<()> {
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
/// If there is none, or it takes no more.
pub(crate) fn write(bytes: &[u8]) -> io::Result<()> {
    check_stdout()?;
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// Prints help, the version or what is wrong about the command line; the exit status.
pub(crate) fn print(program: &str, error: &clap::Error) -> u8 {
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
