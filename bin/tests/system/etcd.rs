//! Ranks as processes elect their master with a key in a real etcd. Run by a step of its own of
//! `scripts/test`: it needs the program `etcd`.

use crate::cluster_process::{EXIT_LIMIT, clean_command, until};
use crate::election::{electing, master, takeovers};
use nkv::PutOptions;
use nkv_pace::HANGS;
use serde_json::{Value, json};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const REQUEST_LIMIT: Duration = Duration::from_secs(2);

struct Member {
    process: Child,
    client: u16,
    _data: TempDir,
}

impl Member {
    /// Whether it leads its cluster; None if it does not answer.
    fn leads(&self) -> Option<bool> {
        let url = format!("http://127.0.0.1:{}/v3/maintenance/status", self.client);
        let config = ureq::Agent::config_builder().timeout_global(Some(REQUEST_LIMIT));
        let agent: ureq::Agent = config.build().into();
        let answer = agent.post(&url).send_json(json!({})).ok()?.body_mut().read_json();
        let status: Value = answer.ok()?;
        let leader = status.get("leader")?.as_str()?;
        Some(leader == status.pointer("/header/member_id")?.as_str()?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A cluster of etcd in a process each.
struct EtcdCluster(Vec<Member>);

impl EtcdCluster {
    fn start(n: usize) -> Self {
        // Kept until all are chosen, so that they differ.
        let held: Vec<_> = (0..2 * n).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
        drop(held);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let peers: Vec<String> = (0..n).map(|i| format!("m{i}={}", url(ports[n + i]))).collect();
        let member = |i: usize| {
            let data = TempDir::new().unwrap();
            let (client, peer) = (url(ports[i]), url(ports[n + i]));
            let mut command = clean_command("etcd");
            command.args(["--name", &format!("m{i}"), "--log-level", "error", "--data-dir"]);
            command.arg(data.path());
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &peers.join(",")]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let process = command.spawn().expect("etcd: apt-get install etcd-server");
            Member { process, client: ports[i], _data: data }
        };
        let cluster = Self((0..n).map(member).collect());
        until(HANGS, "etcd has a leader", || cluster.leader().is_some());
        cluster
    }

    fn leader(&self) -> Option<usize> {
        self.0.iter().position(|member| member.leads() == Some(true))
    }

    /// As `--election` takes it.
    fn choice(&self) -> String {
        let at: Vec<String> = self.0.iter().map(|m| format!("127.0.0.1:{}", m.client)).collect();
        format!("etcd://{}", at.join(","))
    }
}

/// The times are printed, and judged by no test.
#[test]
fn i6_with_etcd_the_master_is_killed_for_good_under_load_and_nothing_acknowledged_is_lost() {
    let etcd = EtcdCluster::start(1);
    takeovers(&etcd.choice());
}

#[test]
fn etcd_loses_its_leader_and_then_nkv_its_master() {
    let mut etcd = EtcdCluster::start(3);
    let mut cluster = electing(&etcd.choice());
    let handle = cluster.connect(2);
    let (opts, first) = (PutOptions::default(), master(&handle));
    handle.put(b"before", b"kv bytes", &opts).unwrap();
    let leader = etcd.leader().expect("a leader");
    drop(etcd.0.remove(leader));
    // The job goes on without a leader of etcd.
    handle.put(b"between", b"kv bytes", &opts).unwrap();
    until(HANGS, "etcd has another leader", || etcd.leader().is_some());
    cluster.kill9(first);
    until(HANGS, "another master", || master(&handle) != first);
    until(HANGS, "a put", || handle.put(b"after", b"kv bytes", &opts).is_ok());
    let second = master(&handle);
    // Another rank than these two starts again, while rank 0 may be gone: it finds the job in etcd.
    let third = (0..3).find(|rank| ![first, second].contains(rank)).expect("three ranks");
    if first == 0 {
        cluster.kill9(third);
        cluster.begin(third);
        cluster.begin(first);
        cluster.are_ready();
    } else {
        cluster.restart(first);
    }
    cluster.wait_ready(EXIT_LIMIT);
    until(HANGS, "a master", || handle.get(b"after").is_ok() || handle.exists(&[b"x"]).is_ok());
    handle.close();
}

#[test]
fn without_etcd_a_job_goes_on_and_elects_nobody_until_it_is_back() {
    let etcd = EtcdCluster::start(1);
    let mut cluster = electing(&etcd.choice());
    let handle = cluster.connect(2);
    let first = master(&handle);
    drop(etcd);
    handle.put(b"k", b"kv bytes", &PutOptions::default()).unwrap();
    cluster.kill9(first);
    let lost = || handle.exists(&[b"absent"]).is_err();
    until(HANGS, "no master answers", lost);
    // Longer than ranks wait for a master that is gone.
    std::thread::sleep(Duration::from_secs(3));
    assert!(lost(), "a master was elected without etcd");
    handle.close();
}
