//! Where a page goes. Whether it can be written there is found out before the run, not after it:
//! the room is taken beside the file at once, and the file appears whole or not at all.

use anyhow::{Context, ensure};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// A file that can be written.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    /// Becomes the file; goes away by itself if the run ends without a page.
    beside: NamedTempFile,
}

impl Destination {
    /// Makes sure that `path` can be written.
    ///
    /// # Errors
    /// If it cannot, or is something other than a file.
    pub(crate) fn reserve(path: &Path) -> anyhow::Result<Self> {
        let about = || format!("--report {}", path.display());
        // A link stays a link: what it points to is written.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        if let Ok(there) = path.metadata() {
            ensure!(there.is_file(), "{}: is there and is no file; name another", about());
            ensure!(!there.permissions().readonly(), "{}: may not be overwritten", about());
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        ensure!(path.file_name().is_some(), "{}: names no file", about());
        ensure!(folder.is_dir(), "{}: there is no folder {}", about(), folder.display());
        let beside = Builder::new()
            .prefix(".nkv-load-report-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .with_context(about)?;
        Ok(Self { path, beside })
    }

    /// Puts the page there.
    ///
    /// # Errors
    /// If the disk is full, or the folder went away meanwhile.
    pub(crate) fn write(mut self, page: &str) -> anyhow::Result<()> {
        let about = || format!("--report {}", self.path.display());
        self.beside.write_all(page.as_bytes()).with_context(about)?;
        self.beside.flush().with_context(about)?;
        self.beside.persist(&self.path).with_context(about)?;
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
        drop(Destination::reserve(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        Destination::reserve(&path).unwrap().write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_cannot_be_written_is_found_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/such/folder.html");
        for path in [missing.as_path(), dir.path(), Path::new("/dev/null"), Path::new("/")] {
            let error = Destination::reserve(path).unwrap_err();
            assert!(error.to_string().starts_with("--report "), "{error}");
        }
    }

    #[test]
    fn what_a_link_points_to_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a.html"), dir.path().join("b.html"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        Destination::reserve(&link).unwrap().write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert!(link.is_symlink());
    }
}
