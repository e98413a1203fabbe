//! Reads and writes by `preadv` and `pwritev`: one call for all pieces.

use crate::piece::Piece;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most pieces of one call: a header, a payload, its last block, and some to spare.
pub(super) const MOST_PIECES: usize = 8;

pub(super) fn read(file: BorrowedFd<'_>, at: u64, into: &mut [Piece<'_>]) -> io::Result<()> {
    let (mut vectors, count) = vectors_of(into);
    read_vectors(file, at, &mut vectors[..count])
}

/// As [`read`]; whoever calls it has the memory that the vectors name to itself.
pub(super) fn read_vectors(
    file: BorrowedFd<'_>,
    at: u64,
    vectors: &mut [libc::iovec],
) -> io::Result<()> {
    // SAFETY: each vector is a range of a piece, valid for that many bytes, and borrowed.
    let call = |vectors, count, at| unsafe { libc::preadv(file.as_raw_fd(), vectors, count, at) };
    whole(at, vectors, call, io::ErrorKind::UnexpectedEof)
}

pub(super) fn write(file: BorrowedFd<'_>, at: u64, from: &[Piece<'_>]) -> io::Result<()> {
    let (mut vectors, count) = vectors_of(from);
    // SAFETY: each vector is a range of a piece, valid for that many bytes, and borrowed.
    let call = |vectors, count, at| unsafe { libc::pwritev(file.as_raw_fd(), vectors, count, at) };
    whole(at, &mut vectors[..count], call, io::ErrorKind::WriteZero)
}

fn vectors_of(pieces: &[Piece<'_>]) -> ([libc::iovec; MOST_PIECES], usize) {
    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut vectors = [none; MOST_PIECES];
    assert!(pieces.len() <= MOST_PIECES, "{} pieces", pieces.len());
    let mut count = 0;
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        let base = piece.start().as_ptr().cast();
        vectors[count] = libc::iovec { iov_base: base, iov_len: piece.len() };
        count += 1;
    }
    (vectors, count)
}

/// Repeats a call until all vectors are done. A call may do less than asked: at the end of a full
/// disk, past 2 GiB, or when a signal came.
fn whole(
    at: u64,
    vectors: &mut [libc::iovec],
    call: impl Fn(*const libc::iovec, i32, i64) -> isize,
    ended: io::ErrorKind,
) -> io::Result<()> {
    let count = vectors.len();
    let (mut first, mut at) = (0, i64::try_from(at).map_err(io::Error::other)?);
    while first < count {
        let done = call(vectors[first..].as_ptr(), (count - first) as i32, at);
        if done < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        if done == 0 {
            return Err(ended.into());
        }
        at += done as i64;
        let mut left = done as usize;
        while first < count && left >= vectors[first].iov_len {
            left -= vectors[first].iov_len;
            first += 1;
        }
        if left > 0 {
            let vector = &mut vectors[first];
            vector.iov_base = vector.iov_base.wrapping_byte_add(left);
            vector.iov_len -= left;
        }
    }
    Ok(())
}
