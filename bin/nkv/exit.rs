//! Exit statuses: one for each thing that a script does something else about.

/// A key is not there, or nothing matched.
pub(crate) const ABSENT: u8 = 1;
/// The command line is wrong, or a key or value is none.
pub(crate) const USAGE: u8 = 2;
/// The key is there already.
pub(crate) const EXISTS: u8 = 3;
/// Not reached, not ready or not in time.
pub(crate) const UNREACHED: u8 = 4;
/// Refused by the node: another job, another secret, another version.
pub(crate) const REFUSED: u8 = 5;
/// No room for it.
pub(crate) const NO_ROOM: u8 = 6;
/// A file, a stream, the terminal, or something that this machine or build has not.
pub(crate) const LOCAL: u8 = 7;
/// Damaged bytes, or a defect of nkv.
pub(crate) const BROKEN: u8 = 8;

/// For `--help`. In brackets: the error kinds that end with it.
pub(crate) const TABLE: &str = "\
Exit status:
  0  done, and everything that was asked for is there
  1  no: a key is not there, nothing matched, the doctor found a fault (NotFound)
  2  wrong command line, or what is given is no key (InvalidArgument)
  3  the key exists already (AlreadyExists)
  4  not reached, not ready or not in time: try again (Disconnected, NotReady, Timeout, Reclaimed)
  5  refused: another job, another secret or another version (Refused)
  6  no room: too large, or the heaps are full (OutOfMemory)
  7  this machine: a file, a stream, the terminal, or a transport that is not here (Io, Unsupported)
  8  damaged bytes or a defect of nkv (Corrupt, Internal)

A reader that closes the pipe (nkv ls | head) is no failure.

With --json a command prints one JSON object to stdout. If it fails, also for a wrong command line,
it prints one to stderr:
  {\"error\":{\"kind\":\"AlreadyExists\",\"message\":\"a exists on rank 2; ...\",\"key\":\"a\"}}
kind is one of the library's error kinds, Refused for a node that does not take this client, or Io
for a file or stream. key is there if the error is about one key, written as below.";
