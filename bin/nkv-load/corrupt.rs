//! `--inject-corruption`: damages a stored byte directly in the segment, as a stray write of
//! another process would, to prove that wrong bytes are detected. Nothing else in this program
//! writes a segment directly.

use anyhow::ensure;
use nkv::message::ObjMeta;
use nkv_store::Memory;

/// Flips one bit of the byte in the middle of an object's payload, through a mapping of its own of
/// the owner's segment.
///
/// # Errors
/// If the segment has no name (private memory), or is not where the location says.
pub(crate) fn flip_one_byte(segment: &str, meta: &ObjMeta) -> anyhow::Result<()> {
    ensure!(!segment.is_empty(), "--inject-corruption needs a segment in named shared memory");
    let memory = nkv_store::shm::attach(segment, false)?;
    let at = meta.object.payload_off() + meta.object.bytes_total / 2;
    let mut byte = [0];
    memory.read(at, &mut byte)?;
    memory.write(at, &[byte[0] ^ 1])?;
    eprintln!("nkv-load: flipped one bit at offset {at} of {segment}, on request");
    Ok(())
}
