//! Ranks whose payloads lie in a memory that the processor cannot address, as that of a GPU, while
//! the words before them can be loaded: every call does what it does in host memory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod embedding;

use embedding::log::{logged, with_log};
use embedding::{bytes, eventually, on};
use nkv_actors::machine::{
    AgentConfig, Connected, DataAgent, Machine, NewSegment, OsMachine, SegmentKind,
};
use nkv_actors::{
    Client, ClientConfig, Environment, ErrorKind, MemoryChoice, Node, NodeConfig, TransportChoice,
};
use nkv_store::memory::SplitMemory;
use nkv_store::testkit::Unaddressable;
use nkv_store::{AnonMemory, Memory, StoreError, Stripes};
use nkv_transport::TransportError;
use nkv_transport::wire::BoxFuture;
use nkv_transport::wire::auth::Credentials;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// This machine, with a device whose memory the CPU cannot address.
#[derive(Debug)]
struct WithDevice(OsMachine);

impl Machine for WithDevice {
    fn create(
        &self,
        kind: SegmentKind<'_>,
        bytes: u64,
        prefault: bool,
    ) -> Result<NewSegment, StoreError> {
        let SegmentKind::Device { payloads, .. } = kind else {
            return self.0.create(kind, bytes, prefault);
        };
        let control = Arc::new(AnonMemory::new(payloads)?);
        let device = Arc::new(Unaddressable(AnonMemory::new(bytes - payloads)?));
        Ok(NewSegment::private(Arc::new(SplitMemory::new(control, device).unwrap())))
    }
    fn boot_id(&self) -> u64 {
        self.0.boot_id()
    }
    fn pid(&self) -> u32 {
        self.0.pid()
    }
    fn attach(&self, file_name: &str) -> Result<Arc<dyn Memory>, StoreError> {
        self.0.attach(file_name)
    }
    fn prefault(&self, file_name: &str) {
        self.0.prefault(file_name);
    }
    fn rest(&self, pause: Duration) {
        self.0.rest(pause);
    }
    fn available(&self) -> u64 {
        self.0.available()
    }
    fn remove_socket(&self, path: &Path) {
        self.0.remove_socket(path);
    }
    fn serve(&self, what: AgentConfig) -> Result<Box<dyn DataAgent>, TransportError> {
        self.0.serve(what)
    }
    fn connect(
        &self,
        at: &str,
        incarnation: u64,
        credentials: &Credentials,
        stripes: Stripes,
    ) -> BoxFuture<'static, Result<Connected, TransportError>> {
        self.0.connect(at, incarnation, credentials, stripes)
    }
}

async fn rank(config: NodeConfig) -> Node {
    let machine = Arc::new(WithDevice(OsMachine));
    let mut env = Environment::of_this_process();
    env.machine = machine;
    let config = NodeConfig { memory: MemoryChoice::Cuda(0), ..config };
    let node = Node::start_in(env, config).await.unwrap();
    node.ready().await;
    node
}

async fn by_tcp(node: &Node) -> Client {
    let job = node.config().job.clone();
    let config = ClientConfig { job, transport: TransportChoice::Tcp, ..ClientConfig::default() };
    Client::connect(&node.info().control, config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_go_in_and_out_by_log_and_by_plan_here_and_over_tcp() {
    let node = rank(with_log("device")).await;
    let handles = [node.client(), by_tcp(&node).await];
    let (log, plan) = (logged(0), on(0).device_alloc(false));
    for size in [1, 4_096, 70_001, 900_000] {
        for (h, puts) in handles.iter().enumerate() {
            for (path, options) in [("log", &log), ("plan", &plan)] {
                let (key, value) = (format!("{path}/{h}/{size}"), bytes(size, h as u8));
                puts.put(key.as_bytes(), &value, options).await.unwrap();
                for gets in &handles {
                    assert_eq!(gets.get(key.as_bytes()).await.unwrap(), value, "{key}");
                    let mut into = vec![0; size];
                    assert_eq!(gets.get_into(key.as_bytes(), &mut into).await.unwrap(), size);
                    assert!(into == value, "{key}");
                }
                handles[1 - h].remove(key.as_bytes()).await.unwrap();
                let gone = puts.get(key.as_bytes()).await.unwrap_err();
                assert_eq!(gone.kind(), ErrorKind::NotFound, "{key}");
            }
        }
    }
    for handle in &handles {
        let counters = handle.write_counters();
        assert!(counters.by_log >= 4 && counters.by_plan >= 4, "{counters:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_says_that_the_bytes_cannot_be_borrowed() {
    let node = rank(with_log("device-view")).await;
    for handle in [node.client(), by_tcp(&node).await] {
        handle.put(b"viewed", &bytes(4_096, 3), &logged(0)).await.unwrap();
        let refused = handle.get_view(b"viewed").await.map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(refused.message().contains("get_into"), "{refused}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_outlives_a_lap_of_the_log() {
    let node = rank(with_log("device-lap")).await;
    let client = node.client();
    client.put(b"kept", &bytes(40_000, 9), &logged(0)).await.unwrap();
    // Two laps, at the owner's pace.
    let read = async || client.get(b"kept").await.unwrap() == bytes(40_000, 9);
    for i in 0..220u32 {
        assert!(read().await, "before {i}");
        // What finds the log full takes a plan.
        let stored = || node.status().owner.log_accepted + client.write_counters().by_plan;
        let before = stored();
        client.put(format!("passes/{i}").as_bytes(), &bytes(40_000, 1), &logged(0)).await.unwrap();
        eventually("it is stored", async || stored() > before).await;
    }
    assert!(node.status().owner.log_copies > 0);
    assert!(read().await);
    node.stop().await;
}
