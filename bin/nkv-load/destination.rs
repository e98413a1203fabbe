//! Where an outcome is written. That it can be written is checked before the run: a temporary file
//! is made beside the target at once and renamed afterwards, so the file appears whole or not at
//! all. A device or a pipe is opened before the run and written to after it.

use crate::status::ended;
use anyhow::Context;
use nkv_programs::exit;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// A destination that can be written.
#[derive(Debug)]
pub(crate) struct Destination {
    option: &'static str,
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// A temporary file to rename to the target; it is removed if the run ends without an outcome.
    Beside(NamedTempFile),
    /// An existing device or pipe.
    There(File),
}

impl Destination {
    /// Checks that `path`, the value of `option`, can be written.
    ///
    /// # Errors
    /// If it cannot.
    pub(crate) fn reserve(option: &'static str, path: &Path) -> anyhow::Result<Self> {
        let about = || format!("{option} {}", path.display());
        let wrong = |why: &str| Err(ended(exit::LOCAL, format!("{}: {why}", about())));
        // A symbolic link stays: its target is written.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        match path.metadata() {
            Ok(there) if there.is_dir() => return wrong("is a folder; name a file"),
            Ok(there) if !there.is_file() => {
                let file = OpenOptions::new().write(true).open(&path).with_context(about)?;
                return Ok(Self { option, path, target: Target::There(file) });
            }
            Ok(there) if there.permissions().readonly() => {
                return wrong("may not be overwritten");
            }
            _ => {}
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if path.file_name().is_none() {
            return wrong("names no file");
        }
        if !folder.is_dir() {
            return wrong(&format!("there is no folder {}", folder.display()));
        }
        let beside = Builder::new()
            .prefix(".nkv-load-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .with_context(about)?;
        Ok(Self { option, path, target: Target::Beside(beside) })
    }

    /// Writes the outcome.
    ///
    /// # Errors
    /// If the disk is full, or the folder was removed meanwhile.
    pub(crate) fn write(self, text: &str) -> anyhow::Result<()> {
        let about = || format!("{} {}", self.option, self.path.display());
        match self.target {
            Target::Beside(mut beside) => {
                beside.write_all(text.as_bytes()).with_context(about)?;
                beside.persist(&self.path).map_err(|e| e.error).with_context(about)?;
            }
            Target::There(mut file) => file.write_all(text.as_bytes()).with_context(about)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Destination;
    use std::path::Path;

    #[test]
    fn a_page_appears_whole_and_only_when_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.html");
        std::fs::write(&path, "old").unwrap();
        drop(Destination::reserve("--report", &path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        Destination::reserve("--report", &path).unwrap().write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_cannot_be_written_is_found_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/such/folder.html");
        for path in [missing.as_path(), dir.path(), Path::new("/")] {
            let error = Destination::reserve("--report", path).unwrap_err();
            assert!(error.to_string().starts_with("--report "), "{error}");
        }
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        Destination::reserve("--json", Path::new("/dev/null")).unwrap().write("{}").unwrap();
        assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
        let full = Destination::reserve("--json", Path::new("/dev/full")).unwrap();
        assert!(full.write("{}").unwrap_err().to_string().starts_with("--json /dev/full"));
    }

    #[test]
    fn what_a_link_points_to_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a.html"), dir.path().join("b.html"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        Destination::reserve("--report", &link).unwrap().write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert!(link.is_symlink());
    }
}
