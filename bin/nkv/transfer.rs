//! Values between the local file system and memory. A value is read whole, up to a bound. A file is
//! written under a temporary name and renamed, so that a failure leaves the old file as it was. A
//! signal that ends the program removes the temporary file.

use crate::cli_error::CliError;
use crate::signals::Signals;
use nkv_programs::sizes::show_bytes;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Shells add this to a signal's number.
const SIGNAL_BASE: i32 = 128;
/// Mode of a new file, before the user's umask.
const NEW_FILE_MODE: u32 = 0o666;
/// Most symbolic links followed to a file that is not there yet: as many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Reads a file, or stdin for `-`. At most `limit` bytes: the cluster's largest heap.
pub(crate) fn read(file: &Path, limit: u64) -> Result<Vec<u8>, CliError> {
    if file == Path::new("-") {
        nkv_programs::streams::check_stdin().map_err(|e| CliError::io("stdin", e))?;
        return read_up_to(io::stdin().lock(), Path::new("stdin"), limit);
    }
    let named = |e| CliError::io(file.display().to_string(), e);
    let opened = File::open(file).map_err(named)?;
    let metadata = opened.metadata().map_err(named)?;
    if metadata.is_file() && metadata.len() > limit {
        return Err(too_large(file, limit));
    }
    read_up_to(opened, file, limit)
}

fn read_up_to(from: impl Read, name: &Path, limit: u64) -> Result<Vec<u8>, CliError> {
    let mut value = Vec::new();
    from.take(limit.saturating_add(1))
        .read_to_end(&mut value)
        .map_err(|e| CliError::io(name.display().to_string(), e))?;
    if value.len() as u64 > limit {
        return Err(too_large(name, limit));
    }
    Ok(value)
}

fn too_large(name: &Path, limit: u64) -> CliError {
    CliError::too_large(format!(
        "{} is larger than what a rank can take for this put, {limit} bytes ({}): cut it over the \
         ranks by --stripes, or start ranks with a larger --heap-bytes; what takes a plan (all but \
         a plain put with --if-exists keep) has the part of it that --log-bytes leaves",
        name.display(),
        show_bytes(limit)
    ))
}

/// Writes a file, whole or not at all.
pub(crate) fn write(path: &Path, value: &[u8]) -> Result<(), CliError> {
    let named = |e| CliError::io(path.display().to_string(), e);
    let target = resolved(path);
    match target.metadata() {
        // A device or a pipe cannot be replaced by a rename: it is written to directly.
        Ok(there) if !there.is_file() => {
            let mut out = OpenOptions::new().write(true).open(&target).map_err(named)?;
            out.write_all(value).map_err(named)
        }
        there => replace(&target, value, there.ok().map(|m| m.permissions())).map_err(named),
    }
}

/// The file that a symbolic link points at, whether it exists or not; `path` itself if it is no
/// link.
fn resolved(path: &Path) -> PathBuf {
    let mut at = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        if let Ok(there) = at.canonicalize() {
            return there;
        }
        let Ok(next) = at.read_link() else { break };
        at = at.parent().map_or_else(|| next.clone(), |folder| folder.join(&next));
    }
    at
}

/// The temporary file's name, while there is one.
static BESIDE: Mutex<Option<PathBuf>> = Mutex::new(None);

fn beside() -> MutexGuard<'static, Option<PathBuf>> {
    BESIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn replace(target: &Path, value: &[u8], mode: Option<Permissions>) -> io::Result<()> {
    let folder = match target.parent() {
        Some(folder) if folder != Path::new("") => folder.to_path_buf(),
        _ => PathBuf::from("."),
    };
    leave_nothing_at_a_signal()?;
    // Locked while the file is made, and while it is renamed: the signal thread waits meanwhile.
    let mut name = beside();
    // Opened by hand: tempfile's own error would name the temporary file, which means nothing to
    // the user.
    let mut file = tempfile::Builder::new().prefix(".nkv-get.").make_in(folder, |path| {
        OpenOptions::new().write(true).create_new(true).mode(NEW_FILE_MODE).open(path)
    })?;
    *name = Some(file.path().to_path_buf());
    drop(name);
    let written = file.as_file_mut().write_all(value);
    let moded = written.and_then(|()| match mode {
        Some(mode) => file.as_file().set_permissions(mode),
        None => Ok(()),
    });
    let mut name = beside();
    *name = None;
    // Dropping the file removes it.
    moded.and_then(|()| file.persist(target).map(drop).map_err(|e| e.error))
}

/// From here on a signal that ends this process removes the temporary file first.
fn leave_nothing_at_a_signal() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _inside = runtime.enter();
        Signals::new()?
    };
    let wait = move || {
        let number = runtime.block_on(signals.any());
        if let Some(name) = beside().as_ref() {
            let _ = std::fs::remove_file(name);
        }
        std::process::exit(SIGNAL_BASE + number);
    };
    nkv_store::threads::spawn_named("nkv-signals", wait).map(drop).map_err(io::Error::other)
}

/// From here on a write past the limit of file sizes (`ulimit -f`) is an error and does not end the
/// process.
pub(crate) fn survive_file_limit(runtime: &Runtime) {
    let _inside = runtime.enter();
    // tokio's handler stays for the life of the process. If it cannot be set, SIGXFSZ still ends
    // it.
    let _ = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()));
}

#[cfg(test)]
mod tests {
    use super::{read, read_up_to, write};
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn names_in(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_value_up_to_the_limit_is_read_and_one_above_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, [7; 100]).unwrap();
        assert_eq!(read(&file, 100).unwrap(), [7; 100]);
        let error = read(&file, 99).unwrap_err().to_string();
        assert!(error.contains("--heap-bytes") && error.contains("99 bytes"), "{error}");
        // A stream's size is known only by reading it.
        assert_eq!(read_up_to(&[7; 100][..], Path::new("stdin"), 100).unwrap().len(), 100);
        assert!(read_up_to(&[7; 101][..], Path::new("stdin"), 100).is_err());
        assert!(read(&folder.path().join("none"), 1).is_err());
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        write(&file, b"one").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let mut reader = std::fs::File::open(&file).unwrap();
        write(&file, b"two").unwrap();
        // A process that had the old file open still reads the old bytes: it was not overwritten.
        let mut old = String::new();
        reader.read_to_string(&mut old).unwrap();
        assert_eq!(old, "one");
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(names_in(folder.path()), ["f"]);
    }

    #[test]
    fn through_a_link_its_target_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("f"), folder.path().join("l"));
        std::fs::write(&file, b"old").unwrap();
        symlink(&file, &link).unwrap();
        write(&link, b"new").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }

    #[test]
    fn through_a_link_to_nothing_yet_its_target_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("f"), folder.path().join("l"));
        symlink("f", folder.path().join("m")).unwrap();
        symlink("m", &link).unwrap();
        write(&link, b"new").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }

    #[test]
    fn a_device_is_written_to_not_replaced() {
        write(Path::new("/dev/null"), b"gone").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_that_names_the_file() {
        let error = write(Path::new("/nowhere/f"), b"x").unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/f: "), "{error}");
        assert!(!error.contains(".nkv-get.") && error.contains("No such file"), "{error}");
    }
}
