//! Sets the commit that the programs are built from. Without git, or outside this repository (a
//! packaged source), they show their version only; `NKV_COMMIT` sets the commit of such a build.
//!
//! A release build runs this again whenever HEAD moves or a source changes. Any other build runs it
//! only when another branch is checked out, since each run rebuilds all tests: its version says "or
//! later".

use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a commit that are shown.
const DIGITS: &str = "--short=12";
/// What a build is made of.
const SOURCES: [&str; 6] =
    ["../Cargo.lock", "../actors/src", ".", "../src", "../store/src", "../transport/src"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=NKV_COMMIT");
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let named = std::env::var("NKV_COMMIT").ok().filter(|c| is_commit(c));
    let (commit, how) = match named {
        Some(commit) => (commit, ""),
        None => of_git(release).unwrap_or_default(),
    };
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let shown = match (commit.is_empty(), release) {
        (true, true) => version,
        (true, false) => format!("{version} (debug build)"),
        (false, true) => format!("{version} ({commit}{how})"),
        (false, false) => format!("{version} ({commit}{how}, debug build)"),
    };
    println!("cargo::rustc-env=NKV_BUILD_VERSION={shown}");
    println!("cargo::rustc-env=NKV_BUILD_COMMIT={commit}");
}

fn is_commit(text: &str) -> bool {
    (7..=40).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The commit, and how the sources differ from it.
fn of_git(release: bool) -> Option<(String, &'static str)> {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?).join("..");
    let here = here.canonicalize().ok()?;
    // A source that was unpacked inside another repository is not of that one's commit.
    let top = PathBuf::from(git(&here, &["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    let commit =
        git(&here, &["rev-parse", DIGITS, "HEAD"]).filter(|c| top == here && is_commit(c))?;
    // Git writes ORIG_HEAD when a command other than commit moves a branch.
    let mut watched = vec!["HEAD".to_string(), "ORIG_HEAD".to_string()];
    if !release {
        watch(&here, &watched);
        return Some((commit, " or later"));
    }
    watched.extend(git(&here, &["symbolic-ref", "-q", "HEAD"]));
    watched.push("packed-refs".to_string());
    watch(&here, &watched);
    SOURCES.iter().for_each(|path| println!("cargo::rerun-if-changed={path}"));
    let changed = git(&here, &["status", "--porcelain", "--untracked-files=no"])?;
    Some((commit, if changed.is_empty() { "" } else { " and changes" }))
}

/// Watches those of git's files that exist: for a missing one cargo would run this on every build.
fn watch(here: &Path, names: &[String]) {
    for name in names {
        if let Some(path) = git(here, &["rev-parse", "--git-path", name]).map(|p| here.join(p))
            && path.exists()
        {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

/// Git's output; `None` if git is missing or fails.
fn git(here: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(here).args(args).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(text.trim().to_string())
}
