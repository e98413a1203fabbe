//! A digest behind a value's bytes, for those who ask for it: memory that was damaged, or written by
//! another program, is then noticed when it is read.

use crate::buffers::Memory;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use xxhash_rust::xxh3::Xxh3Default;

/// In front of each digest: a value without one is not mistaken for one that has it.
const MAGIC: [u8; 8] = *b"nkv xxh3";
/// Bytes of a digest.
const SEAL_BYTES: usize = MAGIC.len() + size_of::<u64>();

fn seal_of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; SEAL_BYTES] {
    let mut hasher = Xxh3Default::new();
    parts.for_each(|part| hasher.update(part));
    let mut seal = [0; SEAL_BYTES];
    seal[..MAGIC.len()].copy_from_slice(&MAGIC);
    seal[MAGIC.len()..].copy_from_slice(&hasher.digest().to_le_bytes());
    seal
}

/// What is put behind the bytes of these parts.
#[pyfunction]
pub(crate) fn seal<'py>(
    py: Python<'py>,
    parts: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let parts = Memory::all(&parts, false)?;
    let seal = py.detach(|| seal_of(parts.iter().map(Memory::bytes)));
    Ok(PyBytes::new(py, &seal))
}

/// The length of a value of which `read` bytes with its digest were read into these parts; None if
/// they are not what was put.
#[pyfunction]
pub(crate) fn unseal(
    py: Python<'_>,
    parts: Vec<Bound<'_, PyAny>>,
    read: usize,
) -> PyResult<Option<usize>> {
    let parts = Memory::all(&parts, false)?;
    Ok(py.detach(|| unsealed(&parts.iter().map(Memory::bytes).collect::<Vec<_>>(), read)))
}

fn unsealed(parts: &[&[u8]], read: usize) -> Option<usize> {
    let len = read.checked_sub(SEAL_BYTES)?;
    let within = |from: usize, to: usize| {
        let mut at = 0;
        parts.iter().map(move |part| {
            let begin = at;
            at += part.len();
            let cut = |end: usize| end.clamp(begin, at) - begin;
            &part[cut(from)..cut(to)]
        })
    };
    let found: Vec<u8> = within(len, read).flatten().copied().collect();
    (found == seal_of(within(0, len))).then_some(len)
}
