//! Segments between real processes. A process cannot see its own lock, so the test program starts
//! itself: the child runs only `child_process`, which acts by its role.

use super::*;
use crate::memory::Memory;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const BYTES: u64 = 3 * 4096 + 100;
const ROLE: &str = "NKV_STORE_TEST_ROLE";
const DIR: &str = "NKV_STORE_TEST_DIR";
/// Prefix of every line that a child prints for its parent.
const CHILD_LINE: &str = "child says: ";
/// Time after which a child ends by itself.
const CHILD_SECONDS: u32 = 60;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(SHM_DIR).unwrap()
}

fn name(rank: u32) -> SegmentName {
    SegmentName { job: "test".to_string(), rank, incarnation: crate::random_u64() }
}

struct Role {
    child: Child,
    stdin: ChildStdin,
    out: BufReader<ChildStdout>,
}

impl Role {
    fn start(role: &str, dir: &Path) -> Role {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shm::tests::child_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Role { child, stdin, out }
    }

    /// The next line of the child; the end of its output is a failure.
    fn next_line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the child ended silently");
            if let Some((_, line)) = line.split_once(CHILD_LINE) {
                return line.trim_end().to_string();
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the child by closing its standard input.
    fn finish(self) {
        let Role { mut child, stdin, mut out } = self;
        drop(stdin);
        // Read to the end: the test program prints more, and its output must not block.
        out.read_to_end(&mut Vec::new()).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// Names that another process removes as stale.
fn swept_by_another(dir: &Path) -> Vec<String> {
    let mut role = Role::start("sweep", dir);
    let line = role.next_line();
    role.finish();
    line.split_whitespace().map(str::to_string).collect()
}

#[test]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let dir = PathBuf::from(std::env::var(DIR).unwrap());
    // SAFETY: plain system call; SIGALRM's default action ends a child left behind.
    unsafe { libc::alarm(CHILD_SECONDS) };
    let mut held = None;
    match role.as_str() {
        "hold" | "hold and fork" => {
            let made = create_in(&dir, &name(1), BYTES, Allocation::NOW).unwrap();
            made.write(4096, b"from the child").unwrap();
            let forked = if role == "hold" { 0 } else { fork_idle() };
            println!("{CHILD_LINE}{} {forked}", made.file_name());
            held = Some(made);
        }
        "sweep" => println!("{CHILD_LINE}{}", remove_stale_in(&dir).join(" ")),
        other => panic!("no role {other}"),
    }
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(held);
}

/// A child that has all descriptors of this process and does nothing.
fn fork_idle() -> i32 {
    // SAFETY: the child makes only async-signal-safe calls until it is killed.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: as above; alarms are not inherited, so it sets its own.
            unsafe {
                libc::alarm(CHILD_SECONDS);
                libc::close(0);
                libc::close(1);
                libc::pause();
            }
        },
        pid => pid,
    }
}

#[test]
fn another_process_reads_what_one_wrote() {
    let dir = folder();
    let mut role = Role::start("hold", dir.path());
    let line = role.next_line();
    let file_name = line.split(' ').next().unwrap();
    let m = attach_in(dir.path(), file_name, true).unwrap();
    let mut text = [0; 14];
    m.read(4096, &mut text).unwrap();
    assert_eq!((&text, m.len()), (b"from the child", BYTES));
    assert_eq!(m.export(), Export::Shm { name: file_name.to_string() });
    role.finish();
    assert!(attach_in(dir.path(), "nkv.test.9.0", false).is_err());
    m.read(4096, &mut text).unwrap();
    assert!(!dir.path().join(file_name).exists(), "its maker ended and removed it");
}

#[test]
fn a_segment_in_use_is_never_removed_and_a_dead_processs_is() {
    let dir = folder();
    let mut role = Role::start("hold", dir.path());
    let line = role.next_line();
    let file_name = line.split(' ').next().unwrap().to_string();
    let socket = dir.path().join(format!("{file_name}.sock"));
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(remove_stale_in(dir.path()), Vec::<String>::new());
    assert!(socket.exists() && dir.path().join(&file_name).exists());
    role.kill();
    assert_eq!(remove_stale_in(dir.path()), [file_name.clone(), format!("{file_name}.sock")]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "its lock went as well");
    drop(listener);
}

#[test]
fn a_forked_child_does_not_keep_the_lock_of_its_dead_parent() {
    let dir = folder();
    let mut role = Role::start("hold and fork", dir.path());
    let line = role.next_line();
    let (file_name, forked) = line.split_once(' ').unwrap();
    let forked: i32 = forked.parse().unwrap();
    assert!(swept_by_another(dir.path()).is_empty());
    role.kill();
    // SAFETY: signal 0 only asks whether the process lives.
    assert_eq!(unsafe { libc::kill(forked, 0) }, 0);
    assert_eq!(swept_by_another(dir.path()), [file_name]);
    // SAFETY: our own grandchild, which ends itself otherwise.
    unsafe { libc::kill(forked, libc::SIGKILL) };
}

#[test]
fn our_own_segment_keeps_its_lock_whatever_we_do_with_its_name() {
    let dir = folder();
    let made = create_in(dir.path(), &name(0), BYTES, Allocation::LATER).unwrap();
    let again = attach_in(dir.path(), made.file_name(), false).unwrap();
    again.write(100, b"same bytes").unwrap();
    let mut seen = [0; 10];
    made.read(100, &mut seen).unwrap();
    assert_eq!((&seen, again.host_base()), (b"same bytes", made.host_base()));
    drop(again);
    // As a program that embeds the library would.
    drop(std::fs::File::open(dir.path().join(made.file_name())).unwrap());
    assert!(remove_stale_in(dir.path()).is_empty());
    assert!(swept_by_another(dir.path()).is_empty(), "the lock was lost");
    let path = dir.path().join(made.file_name());
    assert!(path.exists());
    drop(made);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "name and lock are removed");
}

#[test]
fn attaches_of_one_name_share_one_mapping() {
    let dir = folder();
    let mut role = Role::start("hold", dir.path());
    let line = role.next_line();
    let file_name = line.split(' ').next().unwrap();
    let a = attach_in(dir.path(), file_name, false).unwrap();
    let b = attach_in(dir.path(), file_name, true).unwrap();
    assert_eq!(a.host_base(), b.host_base());
    drop(a);
    b.write(0, b"still mapped").unwrap();
    role.finish();
}

#[test]
fn a_mapping_is_not_inherited_by_forked_children() {
    let dir = folder();
    let made = create_in(dir.path(), &name(0), BYTES, Allocation::LATER).unwrap();
    let at = format!("{:x}-", made.host_base().unwrap().as_ptr() as usize);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&at));
    let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
    assert!(flags.split(' ').any(|flag| flag == "dc"), "{flags}");
}

#[test]
fn a_segment_is_zero_private_to_its_user_and_has_its_size() {
    let dir = folder();
    let made = create_in(dir.path(), &name(0), BYTES, Allocation::NOW).unwrap();
    let meta = std::fs::metadata(dir.path().join(made.file_name())).unwrap();
    assert_eq!((meta.permissions().mode() & 0o7777, meta.len()), (0o600, BYTES));
    let mut bytes = vec![1; BYTES as usize];
    made.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&b| b == 0));
    assert!(made.read(BYTES, &mut [0]).is_err());
}

#[test]
fn a_name_taken_and_sizes_that_cannot_be_are_refused() {
    let dir = folder();
    let name = name(0);
    let made = create_in(dir.path(), &name, BYTES, Allocation::LATER).unwrap();
    let second = create_in(dir.path(), &name, BYTES, Allocation::LATER);
    assert!(matches!(second, Err(StoreError::InUse(_))), "{second:?}");
    assert!(dir.path().join(made.file_name()).exists());
    assert!(swept_by_another(dir.path()).is_empty(), "the lock was lost");
    let none = create_in(dir.path(), &name, 0, Allocation::LATER);
    assert!(matches!(none, Err(StoreError::InvalidConfig(_))), "{none:?}");
    let huge = create_in(dir.path(), &name, 1 << 50, Allocation::NOW);
    assert!(matches!(huge, Err(StoreError::NotEnoughMemory(_))), "{huge:?}");
}

mod names;
mod sealing;
