//! Where an outcome goes. Whether it can be written there is found out before the run, not after
//! it: the room is taken beside the file at once, and the file appears whole or not at all. A
//! device or a pipe is opened before the run and written to after it.

use crate::status::ended;
use anyhow::Context;
use nkv::exit;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// What can be written.
#[derive(Debug)]
pub(crate) struct Destination {
    option: &'static str,
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// Becomes the file; goes away by itself if the run ends without an outcome.
    Beside(NamedTempFile),
    /// What is there and is no file.
    There(File),
}

impl Destination {
    /// Makes sure that `path` can be written, which this option of the command line names.
    ///
    /// # Errors
    /// If it cannot.
    pub(crate) fn reserve(option: &'static str, path: &Path) -> anyhow::Result<Self> {
        let about = || format!("{option} {}", path.display());
        let wrong = |why: &str| Err(ended(exit::LOCAL, format!("{}: {why}", about())));
        // A link stays a link: what it points to is written.
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

    /// Puts the outcome there.
    ///
    /// # Errors
    /// If the disk is full, or the folder went away meanwhile.
    pub(crate) fn write(self, text: &str) -> anyhow::Result<()> {
        let about = || format!("{} {}", self.option, self.path.display());
        match self.target {
            Target::Beside(mut beside) => {
                beside.write_all(text.as_bytes()).with_context(about)?;
                beside.flush().with_context(about)?;
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
