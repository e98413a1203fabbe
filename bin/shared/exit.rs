//! Exit statuses of nkv's programs: one for each case that a script handles differently.

use nkv::{ErrorKind, StartError};

/// Done, and everything that was asked for is there.
pub const DONE: u8 = 0;
/// A key is not there, nothing matched, or a check failed.
pub const ABSENT: u8 = 1;
/// The command line or the configuration is wrong, or a key or value is invalid.
pub const USAGE: u8 = 2;
/// It exists already: a key, or a rank of that number.
pub const EXISTS: u8 = 3;
/// Not reached, not ready or not in time.
pub const UNREACHED: u8 = 4;
/// Refused by the cluster.
pub const REFUSED: u8 = 5;
/// Too large, or the heaps are full.
pub const NO_ROOM: u8 = 6;
/// A failure of this machine: a file, a stream, a port, a limit, or a feature that this machine or
/// build lacks.
pub const LOCAL: u8 = 7;
/// Damaged bytes, or a defect of nkv.
pub const BROKEN: u8 = 8;

/// For `--help` and the man pages of all programs. In brackets: the error kinds with this status.
pub const TABLE: &str = "  0  done, and everything that was asked for is there
  1  no: a key is not there, nothing matched, a check found a fault (NotFound)
  2  wrong command line or configuration, or what is given is no key (InvalidArgument)
  3  it exists already: a key, or a rank of that number (AlreadyExists)
  4  not reached, not ready or not in time: try again (Disconnected, NotReady, Timeout, Reclaimed)
  5  refused: another job, secret, version or world size (Refused)
  6  no room: too large, or the heaps are full (OutOfMemory)
  7  this machine: a file, a stream, a port, a limit, or a transport not here (Io, Unsupported)
  8  damaged bytes or a defect of nkv: the log says more (Corrupt, Internal)";

/// The status of a call that failed.
pub fn of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::NotFound => ABSENT,
        ErrorKind::InvalidArgument => USAGE,
        ErrorKind::AlreadyExists => EXISTS,
        ErrorKind::OutOfMemory => NO_ROOM,
        ErrorKind::Unsupported => LOCAL,
        ErrorKind::Disconnected
        | ErrorKind::NotReady
        | ErrorKind::Timeout
        | ErrorKind::Reclaimed => UNREACHED,
        // Corrupt, Internal, and what this program does not know.
        _ => BROKEN,
    }
}

/// The status of a node that could not start.
pub fn of_start(error: &StartError) -> u8 {
    match error {
        StartError::Config(_) => USAGE,
        StartError::RankAlive(_) => EXISTS,
        StartError::NoMaster(_) => UNREACHED,
        StartError::WorldSize(_) | StartError::Refused(_) => REFUSED,
        StartError::HeapTooLarge(_) => NO_ROOM,
        StartError::PortInUse(_) | StartError::Disk(_) => LOCAL,
        StartError::Internal(_) => BROKEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_status() {
        let lines: Vec<_> = TABLE.lines().collect();
        assert_eq!(lines.len(), usize::from(BROKEN) + 1);
        for (status, line) in lines.iter().enumerate() {
            assert!(line.starts_with(&format!("  {status}  ")), "{line}");
        }
    }
}
