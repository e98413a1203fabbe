//! The directories in which ranks keep objects on SSD, while those ranks do not run: checks,
//! repairs, and objects out of them and into them as safetensors files.

mod tensor_file;

use crate::cli_error::CliError;
use crate::flags::Flags;
use crate::keys::shown;
use crate::output;
use clap::Subcommand;
use indicatif::ProgressBar;
use nkv_programs::{exit, progress};
use nkv_ssd::directory::DESCRIPTION;
use nkv_ssd::offline::{self, Access};
use nkv_ssd::{Engine, Found, Object, Payload, Saved, SsdError, WallClock};
use nkv_store::{AnonMemory, Key, Memory};
use serde::Serialize;
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Keys read from disk at a time.
const KEYS_AT_ONCE: usize = 256;
/// Damaged objects, and files, that a report names.
const MOST_NAMED: usize = 20;

/// What to do with a directory. DIR is that of one rank, or the one that was given as --ssd-dir:
/// then it is done for each rank below it.
#[derive(Debug, Subcommand)]
pub(crate) enum SsdCommand {
    /// Reads every object and compares its checksums; removes nothing. Exit status 1 if one is
    /// damaged
    Check {
        /// The directory
        dir: PathBuf,
    },
    /// The same, and removes what is damaged
    Repair {
        /// The directory
        dir: PathBuf,
    },
    /// Writes every object as a safetensors file. Exit status 1 if one is damaged
    Export {
        /// The directory
        dir: PathBuf,
        /// Folder for the files; it is made if it is not there
        into: PathBuf,
    },
    /// Saves what was exported; the directory must be one that a rank made
    Import {
        /// The directory of one rank
        dir: PathBuf,
        /// Folder with the files
        from: PathBuf,
    },
}

/// What was found or done in one directory.
#[derive(Debug, Default, Serialize)]
struct Report {
    directory: PathBuf,
    /// Whole objects, or those that were exported or imported.
    objects: u64,
    /// Their bytes.
    bytes: u64,
    damaged: u64,
    /// Some of their keys; of those whose header is damaged none is known.
    damaged_keys: Vec<String>,
    /// Damaged pages of the journal, 1 if it is missing: nobody knows what they told of.
    journal_pages_damaged: u64,
    /// Removed by a repair.
    removed: u64,
    /// Files that an import did not save, because their keys were there already.
    there_already: u64,
    /// Files that it did not save for another reason.
    refused: u64,
    /// Some of them, and why.
    refused_files: Vec<String>,
}

impl Report {
    fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), ..Self::default() }
    }

    fn damage(&mut self, key: &Key) {
        self.damaged += 1;
        if self.damaged_keys.len() < MOST_NAMED {
            self.damaged_keys.push(shown(key.as_bytes()));
        }
    }

    fn refuse(&mut self, file: &Path, why: &str) {
        self.refused += 1;
        if self.refused_files.len() < MOST_NAMED {
            self.refused_files.push(format!("{}: {why}", file.display()));
        }
    }

    fn text(&self, what: &str) -> String {
        let (dir, objects, bytes) = (self.directory.display(), self.objects, self.bytes);
        let mut text = format!("{dir}: {objects} objects, {bytes} bytes {what}");
        for (count, what) in [
            (self.damaged, "damaged"),
            (self.journal_pages_damaged, "pages of the journal damaged or missing"),
            (self.removed, "removed"),
            (self.there_already, "there already"),
            (self.refused, "not imported"),
        ] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text.push('\n');
        self.damaged_keys.iter().for_each(|key| text += &format!("  damaged: {key}\n"));
        self.refused_files.iter().for_each(|file| text += &format!("  not imported: {file}\n"));
        text
    }
}

#[expect(clippy::disallowed_methods, reason = "a time to live counts days, over restarts")]
fn wall_clock() -> WallClock {
    Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

fn failed(dir: &Path, error: SsdError) -> CliError {
    let error = match error {
        SsdError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    };
    CliError::io(dir.display().to_string(), error)
}

/// The directories of ranks: this one, or those below it.
fn directories(dir: &Path) -> Vec<PathBuf> {
    let is_one = |dir: &PathBuf| dir.join(DESCRIPTION).is_file();
    let below = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut below: Vec<PathBuf> = below.filter(is_one).collect();
    below.sort();
    match is_one(&dir.to_owned()) || below.is_empty() {
        true => vec![dir.to_owned()],
        false => below,
    }
}

/// Memory for one object.
#[derive(Default)]
struct Buffer(Option<AnonMemory>);

impl Buffer {
    fn of(&mut self, bytes: u64) -> Result<&mut AnonMemory, CliError> {
        let kept = self.0.take().filter(|kept| kept.len() >= bytes);
        let len = bytes.max(1).next_multiple_of(1 << 20);
        let made = kept.map_or_else(|| AnonMemory::new(len), Ok);
        let made = made.map_err(|e| CliError::io("memory", io::Error::other(e.to_string())))?;
        Ok(self.0.insert(made))
    }
}

/// A directory, and a buffer for one object of it.
struct Opened {
    dir: PathBuf,
    engine: Box<dyn Engine>,
    buffer: Buffer,
}

impl Opened {
    fn open(dir: &Path, access: Access) -> Result<Self, CliError> {
        let engine = offline::open(dir, access, wall_clock()).map_err(|e| failed(dir, e))?;
        Ok(Self { dir: dir.to_owned(), engine, buffer: Buffer::default() })
    }

    /// Objects that the directory has, with those that were dropped when it was opened.
    fn objects(&self) -> u64 {
        let stats = self.engine.stats();
        stats.objects + stats.stale_index_cleaned
    }

    fn failed(&self, error: SsdError) -> CliError {
        failed(&self.dir, error)
    }

    /// Every key whose header can be read, with what is there.
    fn each(
        &mut self,
        bar: &ProgressBar,
        mut work: impl FnMut(&mut Self, &Key, Found) -> Result<(), CliError>,
    ) -> Result<u64, CliError> {
        let (mut from, mut listed) = (Some(0), 0);
        while let Some(at) = from {
            let keys = self.engine.keys(at, KEYS_AT_ONCE).map_err(|e| self.failed(e))?;
            for key in keys.0 {
                listed += 1;
                bar.inc(1);
                if let Some(found) = self.engine.find(&key) {
                    work(self, &key, found)?;
                }
            }
            from = keys.1;
        }
        Ok(listed)
    }

    /// Reads an object without dropping it; false if it is damaged.
    fn read(&mut self, key: &Key, found: Found) -> Result<bool, CliError> {
        let memory: &AnonMemory = self.buffer.of(found.len)?;
        let into = Payload { memory, offset: 0, len: found.len };
        match self.engine.verify(key, into) {
            Ok(_) => Ok(true),
            Err(_) => Ok(false),
        }
    }
}

impl SsdCommand {
    /// Runs it; returns the exit status.
    pub(crate) fn run(&self, flags: &Flags) -> Result<u8, CliError> {
        let (reports, what) = match self {
            Self::Check { dir } => (for_each(dir, Access::Read, check)?, "are whole"),
            Self::Repair { dir } => (for_each(dir, Access::Change, repair)?, "are whole"),
            Self::Export { dir, into } => {
                let several = directories(dir).len() > 1;
                let work = |opened: &mut Opened, bar: &ProgressBar| {
                    // Two disks may have objects of one key.
                    let name = opened.dir.file_name().filter(|_| several);
                    export(opened, bar, &name.map_or(into.clone(), |name| into.join(name)))
                };
                (for_each(dir, Access::Read, work)?, "were exported")
            }
            Self::Import { dir, from } => (vec![import(dir, from)?], "were imported"),
        };
        let text = || reports.iter().map(|report| report.text(what)).collect();
        output::show(flags.json, &json!({ "directories": reports }), text)?;
        let repaired = matches!(self, Self::Repair { .. });
        let faulty = |report: &Report| {
            let damaged = report.damaged > 0 || report.journal_pages_damaged > 0;
            report.refused > 0 || damaged && !repaired
        };
        Ok(if reports.iter().any(faulty) { exit::ABSENT } else { exit::DONE })
    }
}

fn for_each(
    dir: &Path,
    access: Access,
    work: impl Fn(&mut Opened, &ProgressBar) -> Result<Report, CliError>,
) -> Result<Vec<Report>, CliError> {
    let each = directories(dir).into_iter().map(|dir| {
        let mut opened = Opened::open(&dir, access)?;
        let bar = progress::bar(opened.engine.stats().objects, "objects");
        let report = work(&mut opened, &bar)?;
        bar.finish_and_clear();
        Ok(report)
    });
    each.collect()
}

fn report_of(opened: &Opened) -> Report {
    let journal_pages_damaged = opened.engine.stats().journal_pages_damaged;
    Report { journal_pages_damaged, ..Report::of(&opened.dir) }
}

fn check(opened: &mut Opened, bar: &ProgressBar) -> Result<Report, CliError> {
    let (mut report, all) = (report_of(opened), opened.objects());
    let listed = opened.each(bar, |opened, key, found| {
        match opened.read(key, found)? {
            true => (report.objects, report.bytes) = (report.objects + 1, report.bytes + found.len),
            false => report.damage(key),
        }
        Ok(())
    })?;
    // The headers of the others cannot be read.
    report.damaged += all.saturating_sub(listed);
    Ok(report)
}

fn repair(opened: &mut Opened, bar: &ProgressBar) -> Result<Report, CliError> {
    let before = opened.objects();
    let mut report = check(opened, bar)?;
    if report.damaged > 0 {
        opened.engine.validate().map_err(|e| opened.failed(e))?;
        let again = ProgressBar::hidden();
        opened.each(&again, |opened, key, found| {
            let memory: &AnonMemory = opened.buffer.of(found.len)?;
            let into = Payload { memory, offset: 0, len: found.len };
            // It drops what is damaged.
            let _ = opened.engine.load(key, into);
            Ok(())
        })?;
        opened.engine.sync().map_err(|e| opened.failed(e))?;
    }
    report.removed = before - opened.engine.stats().objects;
    Ok(report)
}

fn export(opened: &mut Opened, bar: &ProgressBar, into: &Path) -> Result<Report, CliError> {
    let shown = || into.display().to_string();
    std::fs::create_dir_all(into).map_err(|e| CliError::io(shown(), e))?;
    if into.join(DESCRIPTION).exists() {
        let why = "is the SSD directory of a rank: name a folder for the files";
        return Err(CliError::io(shown(), io::Error::other(why)));
    }
    let (mut report, all) = (report_of(opened), opened.objects());
    let listed = opened.each(bar, |opened, key, found| {
        if !opened.read(key, found)? {
            report.damage(key);
            return Ok(());
        }
        let bytes = opened.buffer.of(found.len)?.bytes(found.len as usize);
        tensor_file::write(into, key, found.layout, bytes)?;
        (report.objects, report.bytes) = (report.objects + 1, report.bytes + found.len);
        Ok(())
    })?;
    report.damaged += all.saturating_sub(listed);
    Ok(report)
}

fn import(dir: &Path, from: &Path) -> Result<Report, CliError> {
    let files = tensor_file::list(from)?;
    let mut opened = Opened::open(dir, Access::Change)?;
    let mut report = report_of(&opened);
    let bar = progress::bar(files.len() as u64, "files");
    for file in files {
        bar.inc(1);
        let read = match tensor_file::read(&file) {
            Ok(read) => read,
            Err(why) => {
                report.refuse(&file, &why);
                continue;
            }
        };
        let len = read.bytes().len() as u64;
        let there = opened.engine.find(&read.key);
        if there.is_some_and(|there| there != Found { len, layout: read.layout }) {
            // A save would remove both: nobody could tell which one is right.
            report.refuse(&file, "its key is there with another length or page size");
            continue;
        }
        let memory = opened.buffer.of(len)?;
        memory.write(0, read.bytes()).map_err(|e| failed(dir, e.into()))?;
        let payload = Payload { memory: &*memory, offset: 0, len };
        let object = Object { key: &read.key, layout: read.layout, payload };
        match opened.engine.save(&[object]).pop() {
            Some(Saved::Saved) => {
                (report.objects, report.bytes) = (report.objects + 1, report.bytes + len)
            }
            Some(Saved::Dedup) => report.there_already += 1,
            Some(Saved::Error(error)) => report.refuse(&file, &error.to_string()),
            Some(Saved::Collision) => report.refuse(&file, "another object has its key"),
            Some(Saved::Busy) | None => report.refuse(&file, "its key is being saved"),
        }
    }
    bar.finish_and_clear();
    opened.engine.maintain().and_then(|()| opened.engine.sync()).map_err(|e| failed(dir, e))?;
    Ok(report)
}
