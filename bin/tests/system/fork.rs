//! A child made by fork has its parent's handle, but neither its memory nor its connections nor its
//! threads: every call fails at once with an error that says so, and the parent's handle still
//! works.
#![expect(unsafe_code, reason = "a fork is what is tested")]

use crate::cluster_process::ProcessCluster;
use nkv::{
    Blocking, Client, ClientConfig, Error, ErrorKind, Node, NodeConfig, PutOptions, TransportChoice,
};
use std::path::PathBuf;

/// Runs `work` in a forked child; returns the text of its error.
fn in_child(work: impl FnOnce() -> Option<Error>) -> String {
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    // SAFETY: the child runs `work`, which takes no lock that another thread may have held at the
    // fork (that is what is tested), writes one line and ends by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let text = work().map_or("no error".to_string(), |e| format!("{:?}: {e}", e.kind()));
        let _ = rustix::io::write(&write, text.as_bytes());
        // SAFETY: ends this process without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    drop(write);
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
    let mut text = vec![0; 4096];
    let n = rustix::io::read(&read, &mut text).expect("the child's word");
    String::from_utf8_lossy(&text[..n]).into_owned()
}

fn refused(what: &str, work: impl FnOnce() -> Option<Error>) {
    let text = in_child(work);
    assert!(text.starts_with(&format!("{:?}: ", ErrorKind::Disconnected)), "{what}: {text}");
    assert!(text.contains("forked") && text.contains("connect again"), "{what}: {text}");
}

#[test]
fn a_forked_child_that_uses_its_parents_handle_gets_an_error() {
    let cluster = ProcessCluster::start(1, |_| ());
    let opts = PutOptions::default();
    for transport in [TransportChoice::Shm, TransportChoice::Tcp] {
        let client: Blocking = cluster.connect_by(0, transport);
        let key = format!("k/{transport}");
        let key = key.as_bytes();
        client.put(key, b"value", &opts).unwrap();
        assert_eq!(client.get(key).unwrap(), &b"value"[..]);
        refused("get", || client.get(key).err());
        refused("get_into", || client.get_into(key, &mut [0; 5]).err());
        refused("put", || client.put(b"new", b"x", &opts).err());
        refused("put_many", || client.put_many(&[(b"new", b"x")], &opts).pop()?.err());
        refused("exists", || client.exists(&[key]).err());
        refused("remove", || client.remove(key).err());
        refused("get_view", || client.get_view(key).err());
        refused("get_location", || client.get_location(key).err());
        refused("open_for_write", || client.open_for_write(b"o", 5, &opts).err());
        refused("stats", || client.stats().err());
        refused("flush", || client.flush().err());
        // A child that drops its handles and ends does not affect its parent.
        let text = in_child(|| {
            client.close();
            None
        });
        assert_eq!(text, "no error");
        assert_eq!(client.get(key).unwrap(), &b"value"[..], "the parent goes on");
        client.put(b"after", b"y", &opts).unwrap();
        client.remove(b"after").unwrap();
    }
}

#[test]
fn i9_a_view_in_a_forked_child_panics_with_a_reason_and_its_parents_pin_stays() {
    let cluster = ProcessCluster::start(1, |_| ());
    let client = cluster.connect_by(0, TransportChoice::Shm);
    client.put(b"k", b"value", &PutOptions::default()).unwrap();
    let view = client.get_view(b"k").unwrap();
    let text = in_child(|| {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| view.len()));
        let why = result.err()?.downcast::<String>().ok()?;
        Some(Error::internal(*why))
    });
    assert!(text.contains("forked"), "{text}");
    assert_eq!(&view[..], b"value");
}

fn files_of(job: &str) -> Vec<PathBuf> {
    let prefix = format!("nkv.{job}.");
    let all = std::fs::read_dir("/dev/shm").expect("a folder").filter_map(|e| Some(e.ok()?.path()));
    let named =
        |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix));
    let mut all: Vec<_> = all.filter(named).collect();
    all.sort();
    all
}

/// Forks a child that drops everything and ends by `exit`, like a program that does not know of
/// nkv.
fn child_that_ends(work: impl FnOnce()) {
    // SAFETY: as in `in_child`; the child ends by `exit`, with whatever is registered to run then.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // If it does not end by itself, SIGALRM ends it and the test fails. SAFETY: a timer of this
        // process.
        unsafe { libc::alarm(CHILD_LIMIT_S) };
        work();
        // SAFETY: ends this process.
        unsafe { libc::exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child hung, or died: {status:#x}");
}

/// A child that has not ended by then hangs.
const CHILD_LIMIT_S: u32 = 60;

#[test]
fn a_child_forked_from_an_embedded_node_leaves_its_parent_whole() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let job = format!("forked-{}", std::process::id());
    let config = NodeConfig { job: job.clone(), heap_bytes: 8 << 20, ..NodeConfig::default() };
    let node = runtime.block_on(Node::start(config)).unwrap();
    let opts = PutOptions::default();
    let by = |transport| {
        let config = ClientConfig { job: job.clone(), transport, ..ClientConfig::default() };
        runtime.block_on(Client::connect(&node.info().control, config)).unwrap()
    };
    let (mapped, remote) = (by(TransportChoice::Shm), by(TransportChoice::Tcp));
    let blocking = remote.blocking().unwrap();
    for (client, key) in [(&mapped, b"mapped"), (&remote, b"remote")] {
        runtime.block_on(client.put(key, b"value", &opts)).unwrap();
    }
    blocking.put(b"k", b"value", &opts).unwrap();
    let view = runtime.block_on(mapped.get_view(b"k")).unwrap();
    let files = files_of(&job);
    assert!(files.len() >= 2, "a segment and a socket: {files:?}");
    let parts = (view, blocking, mapped, remote, node);
    let mut parts = Some(parts);
    child_that_ends(|| drop(parts.take()));
    let (view, blocking, mapped, remote, node) = parts.unwrap();
    assert_eq!(files_of(&job), files, "names of the parent's are gone");
    assert_eq!(&view[..], b"value");
    assert_eq!(blocking.get(b"k").unwrap(), &b"value"[..]);
    for client in [&mapped, &remote] {
        runtime.block_on(client.put(b"after", b"y", &opts)).unwrap();
        assert_eq!(runtime.block_on(client.get(b"after")).unwrap(), &b"y"[..]);
        runtime.block_on(client.remove(b"after")).unwrap();
    }
    // Later clients still find the cookie, the ports and the agent.
    let config = ClientConfig {
        job: job.clone(),
        transport: TransportChoice::Tcp,
        ..ClientConfig::default()
    };
    let late = runtime.block_on(Client::connect(&node.info().control, config)).unwrap();
    assert_eq!(runtime.block_on(late.get(b"k")).unwrap(), &b"value"[..]);
    drop(view);
    runtime.block_on(node.stop());
    assert_eq!(files_of(&job), Vec::<PathBuf>::new(), "and the parent removes its own");
}
