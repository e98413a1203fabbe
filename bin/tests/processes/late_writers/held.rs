//! A kernel writes the object of a plan while rank 0 is killed and started again.

use crate::cluster_process::{ProcessCluster, READY_LIMIT, until};
use crate::past_the_handle::own_verbs;
use nkv::message::PlanDesc;
use nkv::{Blocking, ClientConfig, ErrorKind, PutOptions, TransportChoice, WritePlan};
use nkv_pace::HANGS;
use nkv_store::layout::PUBLISH_OFF;
use nkv_store::object::ready;
use nkv_transport::verbs::{Op, Verbs};
use std::time::Duration;

const PAGE: [u8; 4096] = [7; 4096];

/// What a kernel does: the page, then READY, past the handle.
struct Kernel {
    verbs: Box<dyn Verbs>,
    desc: PlanDesc,
}

impl Kernel {
    fn of(plan: &WritePlan, client: &Blocking, job: &str) -> Self {
        let desc = plan.desc().unwrap().clone();
        let owner = desc.meta.at.incarnation;
        let verbs = own_verbs(client, job, TransportChoice::Shm, owner).unwrap();
        Self { verbs, desc }
    }

    fn publishes(&self) {
        let meta = &self.desc.meta;
        let offset = meta.object.extent.offset;
        self.verbs.post(self.desc.token, &mut [Op::Write { offset, src: &PAGE }]).unwrap();
        let word = ready(meta.at.epoch).to_le_bytes();
        let offset = meta.header_off + PUBLISH_OFF;
        self.verbs.post(self.desc.token, &mut [Op::Write { offset, src: &word }]).unwrap();
    }
}

/// Two ranks, and a plan of rank 1 that is held for a kernel of this process.
struct Scene {
    cluster: ProcessCluster,
    client: Blocking,
    plan: WritePlan,
    kernel: Kernel,
    runtime: tokio::runtime::Runtime,
}

impl Scene {
    fn new() -> Self {
        let cluster = ProcessCluster::start(2, |_| {});
        let client = cluster.connect_by(1, TransportChoice::Shm);
        let on_rank_1 = PutOptions::default().preferred_rank(1);
        client.put(b"before", b"stored", &on_rank_1).unwrap();
        let plan = client.open_for_write(b"k", 4096, &on_rank_1).unwrap();
        assert!(plan.announce().unwrap());
        let kernel = Kernel::of(&plan, &client, cluster.job());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (runtime, watched) =
            (runtime.unwrap(), plan.commit_when_published(client.client().for_another_runtime()));
        runtime.spawn(watched);
        Self { cluster, client, plan, kernel, runtime }
    }

    fn rank_0_starts_again(&mut self) {
        self.cluster.restart(0);
        self.cluster.wait_ready(READY_LIMIT);
    }

    fn ends_committed_and_read(self) {
        until(HANGS, "the kernel's object is committed", || self.plan.is_committed());
        self.ends_read();
    }

    fn ends_read(self) {
        let by_tcp = self.cluster.connect_by(0, TransportChoice::Tcp);
        until(HANGS, "the kernel's object is found", || match by_tcp.get(b"k") {
            Ok(read) => read[..] == PAGE,
            Err(e) if e.kind() == ErrorKind::NotReady => false,
            Err(e) => panic!("{e}"),
        });
        assert_eq!(by_tcp.get(b"before").unwrap(), b"stored"[..]);
        by_tcp.remove(b"k").unwrap();
        drop((self.plan, self.runtime));
    }
}

pub fn i10_a_rank_whose_plan_is_held_for_a_kernel_is_reported_to_a_new_master() {
    let mut scene = Scene::new();
    scene.cluster.kill9(0);
    scene.rank_0_starts_again();
    // All that needs the report of rank 1 goes on, while the kernel still runs.
    let other = scene.cluster.connect_by(0, TransportChoice::Tcp);
    until(HANGS, "unknown keys are answered", || {
        other.get(b"unknown").is_err_and(|e| e.kind() == ErrorKind::NotFound)
    });
    other.remove(b"before").unwrap();
    other.put(b"before", b"stored", &PutOptions::default()).unwrap();
    // Its key is being written, and its extent is not given away.
    let e = other.put(b"k", b"another", &PutOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotReady, "{e}");
    assert!(!scene.plan.is_committed());
    scene.kernel.publishes();
    scene.ends_committed_and_read();
}

pub fn i12_what_a_kernel_publishes_while_the_master_is_away_is_committed_when_there_is_one() {
    let mut scene = Scene::new();
    scene.cluster.kill9(0);
    scene.kernel.publishes();
    // Longer than a commit is repeated within one call.
    let one_call = Duration::from_millis(ClientConfig::default().call_timeout_ms);
    std::thread::sleep(2 * one_call);
    assert!(!scene.plan.is_committed());
    scene.rank_0_starts_again();
    scene.ends_committed_and_read();
}

pub fn i12_what_a_kernel_published_is_kept_if_its_handle_is_closed_while_the_master_is_away() {
    let mut scene = Scene::new();
    scene.cluster.kill9(0);
    scene.kernel.publishes();
    scene.client.close();
    scene.rank_0_starts_again();
    scene.ends_read();
}
