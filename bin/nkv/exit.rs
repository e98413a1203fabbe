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

/// For `--help`.
pub(crate) const TABLE: &str = "\
Exit status:
  0  done, and everything that was asked for is there
  1  no: a key is not there, nothing matched, the doctor found a fault
  2  wrong command line, or what is given is no key
  3  the key exists already
  4  not reached, not ready or not in time: try again
  5  refused: another job, another secret or another version
  6  no room: too large, or the heaps are full
  7  this machine: a file, a stream, the terminal, or a transport that is not here
  8  damaged bytes or a defect of nkv

With --json an error is one object on stderr:
  {\"error\":{\"kind\":...,\"message\":...,\"key\":...}}";
