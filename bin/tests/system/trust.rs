//! Who may connect to real ranks [I20]: with a secret, without one, from another user, and with
//! what was overheard. Whoever is refused gets the reason, is counted, and disturbs nobody.

use crate::cluster_process::{
    EXIT_LIMIT, Ended, ProcessCluster, clean_command, cookie, new_job, node_command, run_to_end,
    until,
};
use nkv::{Address, Blocking, ClientConfig, PutOptions, Secret, TransportChoice};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::threads::spawn_named;
use nkv_transport::wire::auth::{ANSWER_BYTES, FINISH_BYTES, OPENING_BYTES};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const RIGHT: &str = "the secret of this test";
const WRONG: &str = "the secret of that test";
const LIMIT: Duration = nkv_pace::HANGS;
const SMALL: &str = "1MiB";
/// Most log lines about refusals per second.
const LINES_PER_SECOND: u64 = 8;

fn with_secret(ranks: u32) -> ProcessCluster {
    let cluster = ProcessCluster::start(ranks, |command| {
        command.env("NKV_SECRET", RIGHT);
    });
    assert!(!cookie(cluster.job()).exists(), "a secret needs no cookie");
    cluster
}

fn client(cluster: &ProcessCluster, rank: u32, transport: TransportChoice) -> Blocking {
    let secret = Some(Secret::new(RIGHT.as_bytes(), "test").unwrap());
    let job = cluster.job().to_string();
    let config = ClientConfig { job, transport, secret, ..ClientConfig::default() };
    Blocking::connect(&cluster.address(rank), config).unwrap()
}

/// `nkv` through rank 0, with and without a secret.
fn nkv(cluster: &ProcessCluster, secret: Option<&str>, args: &[&str]) -> Ended {
    let mut command = cluster.cli(0, args);
    command.envs(secret.map(|s| ("NKV_SECRET", s)));
    run_to_end(command, LIMIT)
}

fn refused_so_far(cluster: &ProcessCluster, rank: u32) -> u64 {
    let (code, status) = cluster.get(rank, "/status");
    assert_eq!(code, 200);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let found = ["/auth_refused", "/node/auth_refused"].map(|p| status.pointer(p).cloned());
    found.into_iter().flatten().next().and_then(|v| v.as_u64()).expect("a count in /status")
}

/// Puts and gets without a pause, each checked, until dropped or stopped.
struct Healthy {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Healthy {
    fn start(cluster: &ProcessCluster) -> Self {
        let handle = client(cluster, 1, TransportChoice::Tcp);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = spawn_named("healthy", move || {
            let mut rounds = 0u64;
            while !stopped.load(Ordering::Relaxed) {
                let (key, value) = (format!("healthy/{rounds}"), rounds.to_le_bytes());
                handle.put(key.as_bytes(), &value, &PutOptions::default()).unwrap();
                assert_eq!(handle.get(key.as_bytes()).unwrap(), &value[..]);
                rounds += 1;
            }
            handle.close();
            rounds
        });
        Self { stop, thread: thread.unwrap() }
    }

    fn goes_on_well(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.join().expect("never disturbed") > 0);
    }
}

#[test]
fn i20_only_who_knows_the_secret_is_served_and_the_others_are_told_why() {
    let cluster = with_secret(2);
    let healthy = Healthy::start(&cluster);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{RIGHT}\n")).unwrap();
    let path = file.path().to_str().unwrap();

    let put = nkv(&cluster, Some(RIGHT), &["put", "k", path]);
    assert_eq!(put.code, 0, "{}", put.stderr);
    let exists = nkv(&cluster, None, &["exists", "k", "--secret-file", path]);
    assert_eq!((exists.code, exists.stdout.as_str()), (0, "k: ready\n"), "{}", exists.stderr);
    assert_eq!(refused_so_far(&cluster, 0), 0);

    let unix = format!("unix://{}", cluster.node(0).unix());
    for (number, (secret, connect, expected)) in [
        (Some(WRONG), cluster.node(0).control(), "differs from the job's"),
        (None, cluster.node(0).control(), "set NKV_SECRET"),
        (Some(WRONG), &unix, "differs from the job's"),
        (None, &unix, "set NKV_SECRET"),
    ]
    .into_iter()
    .enumerate()
    {
        let ended = nkv(&cluster, secret, &["--connect", connect, "get", "k"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (5, ""), "{}", ended.stderr);
        assert!(ended.sentence().contains(expected), "{}", ended.stderr);
        assert_eq!(refused_so_far(&cluster, 0), number as u64 + 1);
    }
    let short = nkv(&cluster, Some("hunter2"), &["status"]);
    assert_eq!(short.code, 2, "{}", short.stderr);
    assert!(short.sentence().contains("at least 16"), "{}", short.stderr);

    // The data port, by its first bytes alone and as a client of the control port.
    let data = nkv(&cluster, Some(RIGHT), &["--connect", cluster.node(0).data(), "get", "k"]);
    assert!(data.sentence().contains("this is a data port"), "{}", data.stderr);
    assert!(cluster.get(0, "/metrics").1.contains("nkv_auth_refused_total{rank=\"0\"} 5"));
    healthy.goes_on_well();

    let sent = cluster.node(0).stderr() + &cluster.node(0).stdout() + &cluster.get(0, "/status").1;
    assert!(sent.contains("refused a connection") && sent.contains("the job's secret"), "{sent}");
    assert!(!sent.contains(RIGHT) && !sent.contains(WRONG), "{sent}");
    let command_line = std::fs::read(format!("/proc/{}/cmdline", cluster.node(0).pid())).unwrap();
    assert!(!String::from_utf8_lossy(&command_line).contains(RIGHT));
}

#[test]
fn i20_a_rank_with_another_secret_ends_at_once_and_the_cluster_does_not_mind() {
    let cluster = with_secret(2);
    for (secret, expected) in [(Some(WRONG), "differs from the job's"), (None, "set NKV_SECRET")] {
        let mut command = cluster.command(1);
        command.args(["--heap-bytes", SMALL]).envs(secret.map(|s| ("NKV_SECRET", s)));
        let ended = run_to_end(command, LIMIT);
        assert_eq!(ended.code, 5, "{}", ended.stderr);
        assert!(ended.sentence().contains(expected), "{}", ended.stderr);
    }
    assert!(refused_so_far(&cluster, 0) >= 2);
    assert_eq!(cluster.get(1, "/readyz").0, 200);
    let handle = client(&cluster, 0, TransportChoice::Auto);
    handle.put(b"k", b"v", &PutOptions::default()).unwrap();
    assert_eq!(handle.get(b"k").unwrap(), &b"v"[..]);
}

/// Bytes of a real client's whole connection to the control port, which it makes through us.
fn overhear(cluster: &ProcessCluster) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let node = cluster.node(0).control().to_string();
    let between = spawn_named("between", move || {
        let (mut from_client, _) = listener.accept().unwrap();
        let mut to_node = TcpStream::connect(node).unwrap();
        let (mut back, mut forth) =
            (to_node.try_clone().unwrap(), from_client.try_clone().unwrap());
        let answers = spawn_named("answers", move || {
            let _ = std::io::copy(&mut back, &mut forth);
        });
        let (mut sent, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = from_client.read(&mut piece) {
            sent.extend_from_slice(&piece[..n]);
            to_node.write_all(&piece[..n]).unwrap();
        }
        let _ = to_node.shutdown(Shutdown::Both);
        answers.unwrap().join().unwrap();
        sent
    })
    .unwrap();
    let status = nkv(cluster, Some(RIGHT), &["--connect", &at, "status"]);
    assert_eq!(status.code, 0, "{}", status.stderr);
    between.join().unwrap()
}

/// Sends all bytes and reads until the node closes the connection.
fn send_all(mut stream: impl Read + Write, sent: &[u8]) -> Vec<u8> {
    // The node may close the connection at any byte.
    let _ = stream.write_all(sent);
    let mut heard = Vec::new();
    if let Err(e) = stream.read_to_end(&mut heard) {
        assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "not closed: {e}");
    }
    heard
}

fn dial(to: &str) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

#[test]
fn i20_an_overheard_handshake_opens_no_door_of_the_cluster() {
    let cluster = with_secret(2);
    let healthy = Healthy::start(&cluster);
    let sent = overhear(&cluster);
    assert!(sent.len() > OPENING_BYTES + FINISH_BYTES, "a hello follows the handshake");
    assert!(!sent.windows(6).any(|w| w == b"status"), "and can be read by nobody between");
    let answer_len = ANSWER_BYTES;
    // The node it was made for, over each of its ports, and the other one, which has the same
    // secret.
    let ports = [cluster.node(0).control(), cluster.node(1).control()];
    for port in ports {
        assert_eq!(send_all(dial(port), &sent).len(), answer_len, "an answer and no more");
    }
    let unix = UnixStream::connect(cluster.node(0).unix()).unwrap();
    unix.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(send_all(unix, &sent).len(), answer_len);
    for rank in 0..2 {
        let heard = send_all(dial(cluster.node(rank).data()), &sent);
        assert_eq!(heard.len(), ANSWER_BYTES, "made for another channel");
    }
    until(LIMIT, "every one was counted", || {
        (refused_so_far(&cluster, 0), refused_so_far(&cluster, 1)) == (3, 2)
    });
    assert!(cluster.node(0).stderr().contains("replayed handshake"));
    healthy.goes_on_well();
}

#[test]
fn i20_a_flood_of_strangers_fills_no_log_and_disturbs_nobody() {
    const PEERS: u64 = 300;
    let cluster = with_secret(2);
    let healthy = Healthy::start(&cluster);
    let start = BootClock.now_ms();
    let noise: [&[u8]; 4] =
        [b"GET / HTTP/1.1\r\n\r\n", b"nkvtcp-h", &[0; 64], b"nkv-auth but not it"];
    for peer in 0..PEERS {
        let port = if peer % 2 == 0 { cluster.node(0).control() } else { cluster.node(0).data() };
        let stream = dial(port);
        (&stream).write_all(noise[peer as usize % noise.len()]).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        send_all(stream, &[]);
    }
    // And some that connect and send nothing, until the node closes them.
    let mut silent: Vec<TcpStream> = (0..20).map(|_| dial(cluster.node(0).control())).collect();
    healthy.goes_on_well();
    for stream in &mut silent {
        let _ = stream.read(&mut [0; 1]);
    }
    until(LIMIT, "every one was counted", || refused_so_far(&cluster, 0) == PEERS + 20);
    let seconds = (BootClock.now_ms() - start) / 1_000 + 2;
    let lines = cluster.node(0).stderr().matches("refused a connection").count() as u64;
    assert!((1..=seconds * LINES_PER_SECOND).contains(&lines), "{lines} lines in {seconds} s");
}

#[test]
fn i20_without_a_secret_a_cookie_lets_in_this_user_on_this_host_and_nobody_else() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let cookie = cookie(cluster.job());
    let meta = std::fs::symlink_metadata(&cookie).unwrap();
    assert_eq!((meta.permissions().mode() & 0o777, meta.len()), (0o600, 32));
    assert_eq!(meta.uid(), rustix::process::geteuid().as_raw());
    let folder = cookie.parent().unwrap().metadata().unwrap();
    assert_eq!(folder.permissions().mode() & 0o022, 0);

    let handle = cluster.connect_by(0, TransportChoice::Tcp);
    handle.put(b"k", b"v", &PutOptions::default()).unwrap();
    assert_eq!(handle.get(b"k").unwrap(), &b"v"[..]);
    handle.close();
    assert_eq!(nkv(&cluster, None, &["exists", "k"]).code, 0);
    let unix = format!("unix://{}", cluster.node(1).unix());
    assert_eq!(nkv(&cluster, None, &["--connect", &unix, "exists", "k"]).code, 0);

    let unasked = nkv(&cluster, Some(RIGHT), &["exists", "k"]);
    assert_eq!(unasked.code, 5);
    assert!(unasked.sentence().contains("started without one"), "{}", unasked.stderr);
    let heard = send_all(dial(cluster.node(0).control()), b"nkv-auth");
    assert!(heard.is_empty(), "half an opening, and nothing but the limit ends it");
    nobody_else(&cluster);

    // A cookie that other users could have read or written is refused.
    std::fs::set_permissions(&cookie, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = nkv(&cluster, None, &["exists", "k"]);
    assert_eq!(open.code, 5);
    assert!(open.sentence().contains("mode 644") && open.sentence().contains("chmod 600"));
    std::fs::set_permissions(&cookie, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(nkv(&cluster, None, &["exists", "k"]).code, 0);

    all_end(&mut cluster);
    assert!(!cookie.exists(), "the last rank takes it away");
}

/// Root can also start a client as another user.
fn nobody_else(cluster: &ProcessCluster) {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // The build folder may be unreadable for other users.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("nkv");
    std::fs::copy(env!("CARGO_BIN_EXE_nkv"), &program).unwrap();
    let unix = format!("unix://{}", cluster.node(0).unix());
    for (connect, code, expected) in [
        (cluster.node(0).control(), 5, "processes of its own user on its own host"),
        (&unix, 4, "Permission denied"),
    ] {
        let mut command: Command = clean_command(program.to_str().unwrap());
        command.args(["--job", cluster.job(), "--connect", connect, "exists", "k"]);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        let ended = run_to_end(command, LIMIT);
        assert_eq!(ended.code, code, "{}", ended.stderr);
        assert!(ended.sentence().contains(expected), "{}", ended.stderr);
    }
}

#[test]
fn i20_a_cookie_outlives_the_death_of_any_rank() {
    let mut cluster = ProcessCluster::start(2, |command| {
        command.args(["--ttl-ms", "1000"]);
    });
    let (cookie, before) = (cookie(cluster.job()), std::fs::read(cookie(cluster.job())).unwrap());
    cluster.kill9(0);
    assert_eq!(std::fs::read(&cookie).unwrap(), before);
    cluster.restart(0);
    cluster.wait_ready(LIMIT);
    cluster.kill9(1);
    cluster.restart(1);
    cluster.wait_ready(LIMIT);
    assert_eq!(std::fs::read(&cookie).unwrap(), before);
    let handle = cluster.connect_by(1, TransportChoice::Tcp);
    handle.put(b"k", b"v", &PutOptions::default()).unwrap();
    handle.close();
    all_end(&mut cluster);
    assert!(!cookie.exists());
}

#[test]
fn i20_a_cookie_that_somebody_removes_is_put_back_by_a_living_rank() {
    let mut cluster = ProcessCluster::start(2, |_| {});
    let (cookie, before) = (cookie(cluster.job()), std::fs::read(cookie(cluster.job())).unwrap());
    std::fs::remove_file(&cookie).unwrap();
    until(LIMIT, "the cookie is back", || std::fs::read(&cookie).is_ok_and(|b| b == before));
    let handle = cluster.connect_by(1, TransportChoice::Tcp);
    handle.put(b"k", b"v", &PutOptions::default()).unwrap();
    handle.close();
    all_end(&mut cluster);
    assert!(!cookie.exists(), "the last rank takes it away");
}

fn all_end(cluster: &mut ProcessCluster) {
    for rank in [1, 0] {
        cluster.term(rank);
        assert_eq!(cluster.wait_exit(rank, EXIT_LIMIT).code, 0);
    }
}

/// An address of this host that others could reach, if it has one. Nothing is sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_loopback() && !own.is_unspecified()).then_some(own)
}

#[test]
fn i20_listening_beyond_loopback_without_a_secret_is_refused_with_2() {
    let own = own_address().map_or_else(|| "192.0.2.1".to_string(), |a| a.to_string());
    for listen in [own.as_str(), "0.0.0.0", "::", "fe80::1"] {
        let job = new_job();
        let mut command = node_command(&job);
        command.args(["--heap-bytes", SMALL, "--listen", listen]);
        let ended = run_to_end(command, LIMIT);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{}", ended.stderr);
        assert!(!cookie(&job).exists());
        if listen == own {
            let sentence = ended.sentence();
            assert!(
                sentence.contains("NKV_SECRET") && sentence.contains("--secret-file"),
                "{sentence}"
            );
            assert!(sentence.contains(listen), "{sentence}");
        }
    }
    for (secret, expected) in [("", "0 bytes"), ("fifteen bytes..", "at least 16")] {
        let mut command = node_command(&new_job());
        command.args(["--heap-bytes", SMALL]).env("NKV_SECRET", secret);
        let ended = run_to_end(command, LIMIT);
        assert_eq!(ended.code, 2, "{}", ended.stderr);
        assert!(ended.sentence().contains(expected), "{}", ended.stderr);
    }
}

#[test]
fn i20_with_a_secret_ranks_meet_at_an_address_that_others_reach() {
    let Some(own) = own_address() else {
        eprintln!("this host has no address but loopback: there is nothing to listen on");
        return;
    };
    let cluster = ProcessCluster::start(2, move |command| {
        command.env("NKV_SECRET", RIGHT).args(["--listen", &own.to_string()]);
        command.args(["--master-addr", &own.to_string(), "--memory", "private"]);
    });
    let to: Address = cluster.address(0);
    assert!(to.to_string().contains(&own.to_string()));
    let handle = client(&cluster, 0, TransportChoice::Tcp);
    handle.put(b"k", b"v", &PutOptions::default()).unwrap();
    assert_eq!(handle.get(b"k").unwrap(), &b"v"[..]);
    handle.close();
    let none = nkv(&cluster, None, &["get", "k"]);
    assert_eq!(none.code, 5);
    assert!(none.sentence().contains("set NKV_SECRET"), "{}", none.stderr);
}
