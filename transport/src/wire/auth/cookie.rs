//! The cookie of a job: 32 random bytes in a file that only its user can read, in place of a secret
//! between processes of one user on one host. Nodes create it and share a lock on it. The last node
//! to end removes it; a node whose file was removed by somebody else puts it back; files left by
//! killed nodes are reused or removed by the next node. Nothing here follows a link or trusts a
//! folder that other users could have created.

use super::error::SecretError;
use super::secret::{OTHERS, Secret};
use nkv_store::fork::ProcessMark;
use nkv_store::shm::job_part;
use nkv_store::{OsRandom, Random};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of a cookie.
const COOKIE_BYTES: usize = 32;
/// Mode of a cookie file, and of the folder created for it.
const COOKIE_MODE: Mode = Mode::from_raw_mode(0o600);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o700);
/// Mode bits that a system folder for cookies must not have: others could put files into it.
const OTHERS_WRITE: u32 = 0o022;
/// How often, with a pause each time, to retry a cookie that other nodes are just removing.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);
/// Number of candidate folders of this user below /tmp: another user can have created the first
/// ones.
const OWN_FOLDERS: usize = 8;
/// Most entries of a folder that are checked for files of killed nodes.
const MAX_SWEPT: usize = 4096;

/// A job's cookie file, held while a node of the job lives.
#[derive(Debug)]
pub struct CookieFile {
    secret: Secret,
    folders: CookieFolders,
    name: String,
    held: Mutex<Held>,
    made: ProcessMark,
}

/// The current file, which may be replaced.
#[derive(Debug)]
struct Held {
    folder: OwnedFd,
    path: PathBuf,
    // Has the shared lock.
    file: OwnedFd,
    over: bool,
}

/// A folder that can hold cookies.
struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

/// Candidate folders, best first: this user's runtime folder, as named by the environment and by
/// the system's convention, then some below /tmp. The choice must not depend on whether a process
/// was started by a login, a timer or `sudo`: hence all of them, in one order.
#[derive(Debug, Clone)]
struct CookieFolders {
    runtime: Vec<PathBuf>,
    own: Vec<PathBuf>,
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn cookie_folders() -> CookieFolders {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let named = named.filter(|p| p.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{}", me()));
    let mut runtime: Vec<PathBuf> = named.into_iter().collect();
    if !runtime.contains(&usual) {
        runtime.push(usual);
    }
    let first = format!("/tmp/nkv-{}", me());
    let next = (1..OWN_FOLDERS).map(|n| PathBuf::from(format!("{first}.{n}")));
    let own = std::iter::once(PathBuf::from(&first)).chain(next).collect();
    CookieFolders { runtime, own }
}

fn file_name(job: &str) -> String {
    format!("nkv-{}.cookie", job_part(job))
}

/// The cookie of a job, if there is one.
pub(super) fn find(job: &str) -> Result<Option<Secret>, SecretError> {
    find_in(&cookie_folders(), job)
}

/// Error text for a missing cookie.
pub(super) fn nowhere(job: &str) -> String {
    let all = cookie_folders();
    let folders = all.runtime.iter().chain(all.own.first());
    let folders: Vec<String> = folders.map(|p| p.display().to_string()).collect();
    format!("no {} was found in {}", file_name(job), folders.join(" or "))
}

fn find_in(folders: &CookieFolders, job: &str) -> Result<Option<Secret>, SecretError> {
    let name = file_name(job);
    for folder in folders.folders(false)? {
        if let Some((_, secret)) = folder.open(&name)? {
            return Ok(Some(secret));
        }
    }
    Ok(None)
}

impl CookieFolders {
    /// Logs a warning for each runtime folder that is skipped because others may write to it.
    fn warn_unusable(&self) {
        for path in &self.runtime {
            if let Err(why @ SecretError::Mode { .. }) = Folder::open_at(path, OTHERS_WRITE) {
                tracing::warn!(%why, "no cookie is kept in this runtime folder");
            }
        }
    }

    /// The existing folders that belong to this user; with `make`, one below /tmp is created if
    /// there is none. Folders of other users are skipped; an error only if no folder is left.
    fn folders(&self, make: bool) -> Result<Vec<Folder>, SecretError> {
        // A runtime folder of another user (`sudo` keeps the variable) is not an error; it is
        // skipped.
        let usable = |path: &PathBuf| Folder::open_at(path, OTHERS_WRITE).ok().flatten();
        let mut found: Vec<Folder> = self.runtime.iter().filter_map(usable).collect();
        let mut refused = Vec::new();
        for path in &self.own {
            if make && found.is_empty() {
                match rustix::fs::mkdir(path, FOLDER_MODE) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => refused.push(SecretError::io(path)(e)),
                }
            }
            match Folder::open_at(path, OTHERS) {
                Ok(folder) => found.extend(folder),
                // Anybody can create a folder there.
                Err(why) => refused.push(why),
            }
        }
        match refused.len() {
            0 => Ok(found),
            _ if !found.is_empty() => Ok(found),
            1 => Err(refused.remove(0)),
            _ => Err(SecretError::NoFolder(refused.iter().map(SecretError::to_string).collect())),
        }
    }
}

impl Folder {
    /// The folder if it exists; an error if it belongs to another user or gives others a
    /// `forbidden` mode bit.
    fn open_at(path: &Path, forbidden: u32) -> Result<Option<Self>, SecretError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let why = "is not a folder of this user: remove it".to_string();
                return Err(SecretError::Kind { path: path.to_path_buf(), why });
            }
            Err(e) => return Err(SecretError::io(path)(e)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(SecretError::io(path))?;
        check(path, &stat, forbidden)?;
        Ok(Some(Self { fd, path: path.to_path_buf() }))
    }

    /// Opens a cookie in it, checks it and reads it.
    fn open(&self, name: &str) -> Result<Option<(OwnedFd, Secret)>, SecretError> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let wrong = |why: &str| SecretError::Kind { path: path.clone(), why: why.to_string() };
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(wrong("is a link: remove it")),
            Err(e) => return Err(SecretError::io(&path)(e)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(SecretError::io(&path))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(wrong("is not a file: remove it"));
        }
        check(&path, &stat, OTHERS)?;
        let file = File::from(fd);
        let mut bytes = Vec::new();
        (&file)
            .take(COOKIE_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(SecretError::io(&path))?;
        if bytes.len() != COOKIE_BYTES {
            return Err(wrong(
                "is damaged: remove it; the job's nodes put it back within seconds, and the next \
                 to start makes one",
            ));
        }
        let secret = Secret::new(&bytes, &path.display().to_string())?;
        Ok(Some((file.into(), secret)))
    }

    /// Creates a cookie there, with a new secret if none is given; if another process was faster,
    /// its cookie stays.
    fn make(&self, name: &str, secret: Option<&Secret>) -> Result<(), SecretError> {
        let path = self.path.join(name);
        let unique = format!(".{name}.{:016x}", nkv_store::random_u64());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, &unique, flags, COOKIE_MODE)
            .map_err(SecretError::io(&path))?;
        let made = fill(fd, &path, secret).and_then(|()| {
            let linked = rustix::fs::linkat(&self.fd, &unique, &self.fd, name, AtFlags::empty());
            match linked {
                // The file is complete when it gets its name.
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(e) => Err(SecretError::io(&path)(e)),
            }
        });
        // If this fails, a file with a name that no process reads remains.
        let _ = rustix::fs::unlinkat(&self.fd, &unique, AtFlags::empty());
        made
    }

    /// Removes the cookies of jobs whose nodes were all killed: no process holds a share of their
    /// locks. A node that has just created one and has no share yet creates it again.
    fn sweep(&self, own: &str) -> usize {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.fd) else { return 0 };
        let names = entries.take(MAX_SWEPT).flatten();
        let names = names.filter_map(|e| e.file_name().to_str().ok().map(str::to_string));
        let cookies = names.filter(|n| n.starts_with("nkv-") && n.ends_with(".cookie") && n != own);
        cookies.filter(|name| self.sweep_one(name)).count()
    }

    fn sweep_one(&self, name: &str) -> bool {
        // Files that are not cookies of this user are skipped.
        let Ok(Some((file, _))) = self.open(name) else { return false };
        remove_if_alone(&file, &self.fd, name) == Some(true)
    }
}

fn fill(fd: OwnedFd, path: &Path, secret: Option<&Secret>) -> Result<(), SecretError> {
    let mut bytes = [0; COOKIE_BYTES];
    match secret {
        Some(secret) => bytes.copy_from_slice(secret.first_bytes()),
        None => OsRandom.fill(&mut bytes).map_err(SecretError::io(path))?,
    }
    // The umask may have removed mode bits.
    rustix::fs::fchmod(&fd, COOKIE_MODE).map_err(SecretError::io(path))?;
    File::from(fd).write_all(&bytes).map_err(SecretError::io(path))
}

/// Checks owner and mode of the open file, not of what has the name by now.
fn check(path: &Path, stat: &Stat, forbidden: u32) -> Result<(), SecretError> {
    if stat.st_uid != me() {
        let path = path.to_path_buf();
        return Err(SecretError::Owner { path, owner: stat.st_uid, me: me() });
    }
    let mode = stat.st_mode & 0o777;
    if mode & forbidden != 0 {
        let folder = FileType::from_raw_mode(stat.st_mode).is_dir();
        let wanted = if folder { FOLDER_MODE } else { COOKIE_MODE }.as_raw_mode();
        return Err(SecretError::Mode { path: path.to_path_buf(), mode, wanted });
    }
    Ok(())
}

impl CookieFile {
    /// Holds the job's cookie, created if there is none. Blocks for about a second at most.
    pub fn hold(job: &str) -> Result<Self, SecretError> {
        let folders = cookie_folders();
        folders.warn_unusable();
        Self::hold_at(&folders, job)
    }

    /// As [`Self::hold`], in a folder given by the caller, to which only its user may have access.
    pub fn hold_in(folder: &Path, job: &str) -> Result<Self, SecretError> {
        Self::hold_at(&CookieFolders { runtime: Vec::new(), own: vec![folder.to_path_buf()] }, job)
    }

    fn hold_at(folders: &CookieFolders, job: &str) -> Result<Self, SecretError> {
        let name = file_name(job);
        let (held, secret) = Held::find_or_make(folders, &name, None)?;
        Ok(Self {
            secret,
            folders: folders.clone(),
            name,
            held: Mutex::new(held),
            made: ProcessMark::here(),
        })
    }

    /// The cookie's bytes, used as a secret.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.held().path.clone()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the cookie back if it was removed, for example by a cleaner of /tmp or at the end of a
    /// login session: this process still has its content. Returns its new path if it was missing.
    ///
    /// # Errors
    /// If it cannot be put back, or a node started meanwhile has created another one and holds it.
    pub fn put_back(&self) -> Result<Option<PathBuf>, SecretError> {
        let mut held = self.held();
        if held.over || !self.made.is_here() || held.is_at_its_path() {
            return Ok(None);
        }
        for _ in 0..TRIES {
            let (again, found) = Held::find_or_make(&self.folders, &self.name, Some(&self.secret))?;
            if found == self.secret {
                *held = again;
                return Ok(Some(held.path.clone()));
            }
            // Created by a node that was killed since: it is not needed.
            if remove_if_alone(&again.file, &again.folder, &self.name).is_none() {
                let why = "was created again by a node that started after this job's was removed: \
                           end that node, and this one puts its own back";
                return Err(SecretError::Kind { path: again.path, why: why.to_string() });
            }
        }
        let why = format!("was created again by others {TRIES} times");
        Err(SecretError::Kind { path: held.path.clone(), why })
    }

    /// Drops this holder's share; the last holder removes the file. The secret stays usable. Also
    /// done when the value is dropped.
    pub fn let_go(&self) {
        // A forked child shares its parent's lock: it would release the parent's share.
        if !self.made.is_here() {
            return;
        }
        let mut held = self.held();
        held.over = true;
        // If another node has a share, that node removes the file.
        remove_if_alone(&held.file, &held.folder, &self.name);
    }
}

/// Removes the file unless it lost its name; none if another process has a share of its lock.
fn remove_if_alone(file: &OwnedFd, folder: &OwnedFd, name: &str) -> Option<bool> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let named = has_name(file, folder, name);
    Some(named && rustix::fs::unlinkat(folder, name, AtFlags::empty()).is_ok())
}

impl Held {
    /// The cookie of that name with a share of its lock, in any of the folders; if there is none,
    /// it is created from `secret`, or with a new one.
    fn find_or_make(
        folders: &CookieFolders,
        name: &str,
        secret: Option<&Secret>,
    ) -> Result<(Self, Secret), SecretError> {
        for _ in 0..TRIES {
            let mut folders = folders.folders(true)?;
            for (number, folder) in folders.iter().enumerate() {
                let Some((file, found)) = folder.open(name)? else {
                    continue;
                };
                if locked(&file, folder, name)? {
                    // Only at a start: a node that puts its own cookie back may find another node's
                    // for a while.
                    let folders_to_sweep = folders.iter().filter(|_| secret.is_none());
                    let swept: usize = folders_to_sweep.map(|folder| folder.sweep(name)).sum();
                    if swept > 0 {
                        tracing::info!(swept, "removed cookies that killed nodes left");
                    }
                    let Folder { fd, path } = folders.swap_remove(number);
                    let path = path.join(name);
                    return Ok((Self { folder: fd, path, file, over: false }, found));
                }
                // Its last holder is removing it.
                std::thread::sleep(PAUSE);
                break;
            }
            match folders.first() {
                Some(first) => first.make(name, secret)?,
                None => return Err(SecretError::NoFolder(Vec::new())),
            }
        }
        let why = format!("was in use by others for {} ms", TRIES as u128 * PAUSE.as_millis());
        Err(SecretError::Kind { path: PathBuf::from(name), why })
    }

    /// Whether its path still names this file: its folder may be gone as well.
    fn is_at_its_path(&self) -> bool {
        let named = rustix::fs::lstat(&self.path);
        matches!((named, rustix::fs::fstat(&self.file)), (Ok(n), Ok(o)) if is_same(&n, &o))
    }
}

fn is_same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// Takes a share of the lock; false if the file has lost its name or is about to lose it.
fn locked(file: &OwnedFd, folder: &Folder, name: &str) -> Result<bool, SecretError> {
    let path = folder.path.join(name);
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(false),
        Err(e) => return Err(SecretError::io(&path)(e)),
    }
    Ok(has_name(file, &folder.fd, name))
}

/// True if the open file is the one that has the name.
fn has_name(file: &impl AsFd, folder: &OwnedFd, name: &str) -> bool {
    let named = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let opened = rustix::fs::fstat(file);
    matches!((named, opened), (Ok(n), Ok(o)) if is_same(&n, &o))
}

impl Drop for CookieFile {
    fn drop(&mut self) {
        self.let_go();
    }
}

#[cfg(test)]
mod tests;
