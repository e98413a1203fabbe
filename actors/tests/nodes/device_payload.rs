//! Ranks whose payloads lie in a memory that the processor cannot address, as that of a GPU, while
//! the words before them can be loaded: every call does what it does in host memory.
#![expect(unsafe_code, reason = "a double of RDMA devices has a method whose caller promises much")]

use crate::embedding::log::{logged, with_log};
use crate::embedding::machine::TestMachine;
use crate::embedding::{bytes, eventually, on};
use nkv_actors::{
    Client, ClientConfig, Environment, ErrorKind, MemoryChoice, Node, NodeConfig, StartError,
    TransportChoice,
};
use nkv_store::Memory;
use nkv_transport::TransportError;
use nkv_transport::fabric::{
    Answer, Exported, Fabric, FabricConfig, Offer, Offering, Part, RegisteredRange, RemoteAccess,
};
use std::ptr::NonNull;
use std::sync::Arc;

/// RDMA devices that register host memory alone.
#[derive(Debug)]
struct HostMemoryOnly;

impl Fabric for HostMemoryOnly {
    fn describe(&self) -> String {
        "a device".to_string()
    }
    fn export(
        &self,
        memory: Arc<dyn Memory>,
        _: &[Part],
        _: bool,
    ) -> Result<Arc<dyn Exported>, TransportError> {
        match memory.payload() {
            None => Ok(Arc::new(Self)),
            Some(_) => Err(TransportError::Protocol("VRAM cannot be registered".to_string())),
        }
    }
    fn offer(&self) -> Result<Box<dyn Offering>, TransportError> {
        Err(TransportError::Protocol("it offers nothing".to_string()))
    }
    unsafe fn register_range(
        &self,
        _: NonNull<u8>,
        _: usize,
    ) -> Result<RegisteredRange, TransportError> {
        Ok(RegisteredRange::new(Box::new(())))
    }
}

impl Exported for HostMemoryOnly {
    fn accept(&self, _: &Offer) -> Result<(Arc<dyn RemoteAccess>, Answer), TransportError> {
        Err(TransportError::Protocol("it serves nobody".to_string()))
    }
}

async fn start(fabric: Option<Arc<dyn Fabric>>, config: NodeConfig) -> Result<Node, StartError> {
    let mut env = Environment::of_this_process();
    env.machine = Arc::new(TestMachine { fabric, ..TestMachine::default() });
    let node = Node::start_in(env, config).await?;
    node.ready().await;
    Ok(node)
}

async fn rank(config: NodeConfig) -> Node {
    start(None, NodeConfig { memory: MemoryChoice::Cuda(0), ..config }).await.unwrap()
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

/// Starts a rank whose RDMA devices refuse VRAM, named or not.
async fn refused(memory: MemoryChoice, named: bool) -> Result<Node, StartError> {
    let devices = if named { vec!["a device".to_string()] } else { Vec::new() };
    let fabric = Some(FabricConfig { devices, ..FabricConfig::default() });
    let config = NodeConfig { memory, fabric, ..with_log("device-refused") };
    start(Some(Arc::new(HostMemoryOnly)), config).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vram_that_rdma_devices_refuse_is_served_by_tcp_unless_they_were_named() {
    let node = refused(MemoryChoice::Cuda(0), false).await.unwrap();
    assert_eq!(node.info().fabric, None);
    let client = by_tcp(&node).await;
    client.put(b"key", &bytes(70_000, 1), &logged(0)).await.unwrap();
    assert_eq!(client.get(b"key").await.unwrap(), bytes(70_000, 1));
    node.stop().await;
    let error = refused(MemoryChoice::Cuda(0), true).await.unwrap_err().to_string();
    assert!(error.starts_with("RDMA: ") && error.ends_with("VRAM cannot be registered"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_takes_dram_where_the_named_devices_refuse_vram_and_vram_where_none_are_named() {
    for (named, shared) in [(true, true), (false, false)] {
        let node = refused(MemoryChoice::Auto(0), named).await.unwrap();
        let info = node.info();
        assert_eq!(info.memory.name().is_some(), shared, "{:?}", info.memory);
        assert_eq!(info.fabric.is_some(), shared, "{:?}", info.fabric);
        node.client().put(b"key", &bytes(4_096, 1), &logged(0)).await.unwrap();
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_in_host_memory_is_pinned_or_the_rank_does_not_start() {
    let pinned = |memory| NodeConfig { memory, pool_pinned: Some(0), ..with_log("device-pinned") };
    let error = start(None, pinned(MemoryChoice::Shm)).await.unwrap_err().to_string();
    assert!(error.contains("--pool-pinned: ") && error.contains("has no GPU"), "{error}");
    // Its payloads lie in a device, which needs no pinning.
    let node = start(None, pinned(MemoryChoice::Auto(0))).await.unwrap();
    assert_eq!(node.status().pinned, None);
    node.stop().await;
}
