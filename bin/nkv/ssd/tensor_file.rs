//! An exported object: a safetensors file with one tensor `payload` of bytes. Its metadata has the
//! key in hexadecimal, the layout, and the XXH3 of 128 bits of the payload.

use crate::cli_error::CliError;
use nkv_store::Key;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

const TENSOR: &str = "payload";
const SUFFIX: &str = "safetensors";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    text.len().is_multiple_of(2).then(|| (0..text.len()).step_by(2).map(pair).collect())?
}

/// Writes one, under a name that its key gives; it is there whole or not at all.
pub(super) fn write(into: &Path, key: &Key, layout: u64, bytes: &[u8]) -> Result<(), CliError> {
    let failed = |e: io::Error| CliError::io(into.display().to_string(), e);
    let other = |e: safetensors::SafeTensorError| failed(io::Error::other(e.to_string()));
    let view = TensorView::new(Dtype::U8, vec![bytes.len()], bytes).map_err(other)?;
    let metadata = HashMap::from([
        ("key".to_string(), hex(key.as_bytes())),
        ("layout".to_string(), layout.to_string()),
        ("xxh3_128".to_string(), format!("{:032x}", xxh3_128(bytes))),
    ]);
    let whole = safetensors::serialize([(TENSOR, view)], Some(metadata)).map_err(other)?;
    let mut file = tempfile::NamedTempFile::new_in(into).map_err(failed)?;
    file.write_all(&whole).map_err(failed)?;
    file.as_file().sync_data().map_err(failed)?;
    let name = into.join(format!("{:032x}.{SUFFIX}", xxh3_128(key.as_bytes())));
    file.persist(name).map(drop).map_err(|e| failed(e.error))
}

/// The files in a folder, in order; there is one at least.
pub(super) fn list(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let failed = |e| CliError::io(folder.display().to_string(), e);
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files: Vec<PathBuf> = paths.collect::<io::Result<_>>().map_err(failed)?;
    files.retain(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX));
    files.sort();
    if files.is_empty() {
        let text = "has no .safetensors file: name a folder that nkv ssd export wrote; of several \
                    ranks, each has one of its own below it";
        return Err(failed(io::Error::other(text)));
    }
    Ok(files)
}

/// What a file holds.
pub(super) struct Exported {
    pub key: Key,
    pub layout: u64,
    whole: Vec<u8>,
    at: (usize, usize),
}

impl Exported {
    pub fn bytes(&self) -> &[u8] {
        &self.whole[self.at.0..self.at.1]
    }
}

/// Reads one; the error says what is wrong with it.
pub(super) fn read(path: &Path) -> Result<Exported, String> {
    let whole = std::fs::read(path).map_err(|e| e.to_string())?;
    let shown = |e: safetensors::SafeTensorError| e.to_string();
    let (_, metadata) = SafeTensors::read_metadata(&whole).map_err(shown)?;
    let of = metadata.metadata().clone().unwrap_or_default();
    if of.contains_key("header_crc32c") {
        let why = "it is a record of the engine files: export its directory, and import that";
        return Err(why.to_string());
    }
    let named = |name: &str| of.get(name).ok_or(format!("its metadata has no {name}"));
    let key = unhex(named("key")?).ok_or("its key is not hexadecimal")?;
    let key = Key::new(&key).map_err(|e| e.to_string())?;
    let layout = named("layout")?.parse().map_err(|_| "its layout is no number")?;
    let sum = named("xxh3_128")?;
    let tensors = SafeTensors::deserialize(&whole).map_err(shown)?;
    if tensors.len() != 1 {
        return Err(format!("it has {} tensors, not one", tensors.len()));
    }
    let tensor = tensors.tensor(TENSOR).map_err(shown)?;
    if tensor.dtype() != Dtype::U8 {
        return Err(format!("its tensor is of {:?}, not of bytes (U8)", tensor.dtype()));
    }
    let payload = tensor.data();
    if *sum != format!("{:032x}", xxh3_128(payload)) {
        return Err("its bytes are not those that were exported".to_string());
    }
    // The only tensor ends the file.
    let at = (whole.len() - payload.len(), whole.len());
    Ok(Exported { key, layout, whole, at })
}
