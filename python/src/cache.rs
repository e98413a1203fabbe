//! `Cache`: a rank in this process, or a handle of a running cluster. Every call releases the
//! interpreter while it waits and copies.

use crate::arguments;
use crate::batches::{Results, results};
use crate::buffers::{Memory, Registered};
use crate::devices::Part;
use crate::errors::{exception_of, not_started, of_kind};
use crate::handles::Handles;
use crate::kernel_access::KernelAccesses;
use crate::memory::{Bytes, View, ViewInDevice};
use crate::plan::Plan;
use crate::pool::Pool;
use crate::reports::{Location, location, locations};
use crate::tasks::{self, SIGNALS};
use nkv::message::Preferred;
use nkv::{
    Client, ClientConfig, ErrorKind, IfExists, Node, PoolOptions, PutOptions, Retention, Secret,
    TransportChoice,
};
use nkv_programs::endpoints;
use nkv_programs::node_settings::KEYS;
use nkv_programs::settings::{self, Given, Machine};
use nkv_programs::{launcher, open_files};
use nkv_store::clock::{BootClock, Clock};
use nkv_store::fork::OwnProcessOnly;
use nkv_store::op::{Source, Target};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long plans in flight may take to finish, and leaving the cluster after that.
const DRAIN: Duration = Duration::from_secs(5);
const STOP: Duration = Duration::from_secs(5);
/// A listed key: its bytes, the object's length, rank, and state.
type Row = (Vec<u8>, u64, u32, String);

/// A rank of this process.
struct Rank {
    node: Node,
    runtime: Runtime,
}

/// A handle of a cluster.
#[pyclass(frozen)]
pub(crate) struct Cache {
    pub(crate) handles: Arc<Handles>,
    /// None for a handle alone, and once closed.
    rank: Mutex<Option<OwnProcessOnly<Rank>>>,
    number: Option<u32>,
    /// The client of calls that run beside the interpreter.
    beside: OnceLock<Client>,
    /// Control words that kernels may access.
    accesses: Arc<KernelAccesses>,
}

impl Cache {
    fn of(client: Client, rank: Option<Rank>) -> Self {
        let number = rank.as_ref().map(|rank| rank.node.info().rank);
        Self {
            handles: Arc::new(Handles::of(client)),
            rank: Mutex::new(rank.map(OwnProcessOnly::new)),
            number,
            beside: OnceLock::new(),
            accesses: Arc::default(),
        }
    }

    pub(crate) fn beside(&self) -> &Client {
        self.beside.get_or_init(|| self.handles.client().for_another_runtime())
    }
}

/// How a client reaches memory: transport, limit of a request to the master, whether it puts into
/// device logs, whether it keeps what it reads from another host. See [`ClientConfig`].
type Access = (String, u64, bool, bool);

/// What a put asks for: where each replica goes, as texts, bytes per page (0: the cluster's),
/// whether it fails over a key that exists, replicas, stripes, its retention as a text, and its
/// group: a name for all keys, or a list with one, or None, for each.
pub(crate) type Wanted = (Vec<String>, u32, bool, u8, u8, String, Option<Py<PyAny>>);

pub(crate) fn options(
    py: Python<'_>,
    (at, page_bytes, fails, replicas, stripes, retention, group): Wanted,
    keys: &[&[u8]],
) -> PyResult<PutOptions> {
    let what = if fails { IfExists::Fail } else { IfExists::Keep };
    let retention: Retention =
        retention.parse().map_err(|e: nkv_store::StoreError| invalid(py, &e.to_string()))?;
    let at = at.iter().map(|text| text.parse::<Preferred>());
    let at = at.collect::<Result<Vec<_>, _>>().map_err(|error| exception_of(py, &error))?;
    let options = PutOptions::default().at(at).page_bytes(page_bytes);
    let options = options.if_exists(what).replicas(replicas).stripes(stripes).retention(retention);
    let Some(group) = group else { return Ok(options) };
    let grouped = match group.bind(py).cast::<PyList>() {
        Err(_) => options.group(arguments::key(group.bind(py))?),
        Ok(names) => {
            let names: Vec<_> = names.iter().collect();
            if names.len() != keys.len() {
                let text = format!("{} groups for {} keys", names.len(), keys.len());
                return Err(invalid(py, &text));
            }
            let named = keys.iter().zip(&names).filter(|(_, name)| !name.is_none());
            let named = named.map(|(key, name)| Ok((*key, arguments::key(name)?)));
            options.groups(named.collect::<PyResult<Vec<_>>>()?)
        }
    };
    grouped.map_err(|error| exception_of(py, &error))
}

fn invalid(py: Python<'_>, why: &str) -> PyErr {
    of_kind(py, ErrorKind::InvalidArgument, why)
}

#[pymethods]
impl Cache {
    /// Starts a rank in this process. `values`: settings by key, as texts; what is not among them
    /// comes from the environment, as for nkv-node.
    #[staticmethod]
    fn start(py: Python<'_>, values: HashMap<String, String>) -> PyResult<Cache> {
        let mut given = BTreeMap::new();
        for (key, value) in values {
            let Some(known) = KEYS.iter().find(|known| **known == key) else {
                let why = format!("no setting {key:?}; known are {}", KEYS.join(", "));
                return Err(PyTypeError::new_err(why));
            };
            given.insert(known.as_str(), value);
        }
        let given = Given { values: given, config: None, named: str::to_string };
        let resolved = launcher::environment()
            .and_then(|env| settings::resolve(&given, &env, Machine::measure()))
            .map_err(|why| invalid(py, &why))?;
        let files = open_files::of_rank(resolved.node.world_size);
        open_files::raise(files).map_err(|why| of_kind(py, ErrorKind::Unsupported, &why))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(resolved.threads)
            .thread_name("nkv-worker")
            .enable_all()
            .build()?;
        let node = tasks::wait(py, &runtime, Node::start(resolved.node))?
            .map_err(|error| not_started(py, &error))?;
        Ok(Cache::of(node.client(), Some(Rank { node, runtime })))
    }

    /// A handle of a running cluster, through the first node that reaches the master.
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        addresses: Vec<String>,
        job: String,
        secret_file: Option<String>,
        access: Access,
    ) -> PyResult<Cache> {
        let (transport, call_timeout_ms, device_alloc, cache_on_read) = access;
        let mut nodes = Vec::new();
        for address in &addresses {
            nodes.push(endpoints::endpoint(address).map_err(|why| invalid(py, &why))?);
        }
        if nodes.is_empty() {
            endpoints::check_port().map_err(|why| invalid(py, &why))?;
            nodes.push(endpoints::here());
        }
        let secret = Secret::find(secret_file.as_deref().map(Path::new));
        let config = ClientConfig {
            job,
            secret: secret.map_err(|e| invalid(py, &e.to_string()))?,
            transport: transport
                .parse::<TransportChoice>()
                .map_err(|error| exception_of(py, &error))?,
            call_timeout_ms,
            device_alloc,
            cache_on_read,
            ..ClientConfig::default()
        };
        let connecting = async move { endpoints::connect(&nodes, &config).await };
        let client = tasks::wait(py, tasks::runtime()?, connecting)?
            .map_err(|none| of_kind(py, none.kind(), &none.to_string()))?;
        Ok(Cache::of(client, None))
    }

    /// The number of the rank in this process, if there is one.
    #[getter]
    fn rank(&self) -> Option<u32> {
        self.number
    }

    /// Waits until every rank has joined, or, if the cluster answers without, for two TTLs: a rank
    /// may have come and gone meanwhile. False if it does not answer until the limit to join.
    fn wait_ready(&self, py: Python<'_>) -> PyResult<bool> {
        let limits =
            self.rank.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|rank| {
                let config = rank.node.config();
                (2 * config.ttl_ms, config.join_timeout_ms.max(2 * config.ttl_ms))
            });
        let Some((enough, most)) = limits else { return Ok(true) };
        let began = BootClock.now_ms();
        loop {
            let waited = BootClock.now_ms().saturating_sub(began);
            if let Ok(view) = self.handles.with(py, nkv::Blocking::membership) {
                let joined = view.nodes().count();
                if joined >= view.world_size as usize || (view.settled && waited >= enough) {
                    return Ok(true);
                }
            }
            if waited >= most {
                return Ok(false);
            }
            py.detach(|| std::thread::sleep(SIGNALS));
            py.check_signals()?;
        }
    }

    /// Leaves the cluster, if a rank runs here, and closes the handle.
    fn close(&self, py: Python<'_>) {
        let rank = self.rank.lock().unwrap_or_else(PoisonError::into_inner).take();
        let accesses = self.accesses.take();
        py.detach(|| {
            drop(accesses);
            self.handles.close();
            if let Some(rank) = rank {
                stop(rank);
            }
        });
    }

    /// Stores bytes, then `trailer`. `data`: an object with the buffer protocol, or a tuple of
    /// address and size; likewise below.
    fn put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
        trailer: &[u8],
        wanted: Wanted,
    ) -> PyResult<()> {
        let (key, data) = (arguments::key(key)?, Part::given(data, false)?);
        let options = options(py, wanted, &[key])?;
        self.handles.with(py, |handle| match (data.host(), trailer) {
            (Some(bytes), []) => handle.put(key, bytes, &options),
            (Some(bytes), trailer) => handle.put_parts(key, &[bytes, trailer], &options),
            (None, trailer) => {
                handle.put_sources(key, &[data.source(), Source::Host(trailer)], &options)
            }
        })
    }

    /// Bytes of an object, in a buffer of their own.
    fn get(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        let key = arguments::key(key)?;
        self.handles.with(py, |handle| handle.get(key)).map(Bytes::new)
    }

    /// The same, once it is READY: waits at most so long.
    fn get_when_ready(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        seconds: f64,
    ) -> PyResult<Bytes> {
        let (key, limit) = (arguments::key(key)?.to_vec(), duration(py, seconds)?);
        let client = self.beside().clone();
        // Beside the interpreter, so that a signal ends it.
        let waiting = async move { client.get_when_ready(&key, limit).await };
        let found = tasks::wait(py, tasks::runtime()?, waiting)?;
        found.map(Bytes::new).map_err(|error| exception_of(py, &error))
    }

    /// Reads an object into buffers, one after another; returns its length.
    fn get_into(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        parts: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let key = arguments::key(key)?;
        let mut parts = Part::all(&parts, true)?;
        Part::check_apart(&parts)?;
        let mut places: Vec<Target<'_>> = parts.iter_mut().map(Part::target).collect();
        self.handles.with(py, |handle| match &mut places[..] {
            [Target::Host(one)] => handle.get_into(key, one),
            places => handle.get_into_parts(key, places),
        })
    }

    /// An object in place: nothing is copied.
    fn view(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<View> {
        let key = arguments::key(key)?;
        self.handles.with(py, |handle| handle.get_view(key)).map(View::new)
    }

    /// The same in a GPU: address, bytes, and what keeps them in place.
    fn device_view(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<ViewInDevice> {
        let key = arguments::key(key)?;
        self.handles.with(py, |handle| handle.get_device_view(key)).map(ViewInDevice::new)
    }

    /// Registers memory with the RDMA devices of this handle, until the result is dropped.
    fn register(&self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<Registered> {
        let memory = Memory::given(memory, true)?;
        self.handles.with(py, |handle| {
            let fabric = handle.client().fabric()?;
            Registered::new(&*fabric, memory)
                .map_err(|e| nkv::Error::unsupported(format!("it cannot be registered: {e}")))
        })
    }

    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = arguments::key(key)?;
        self.handles.with(py, |handle| handle.remove(key))
    }

    fn remove_matching(&self, py: Python<'_>, pattern: &str) -> PyResult<(u64, u64)> {
        self.handles.with(py, |handle| handle.remove_matching(pattern)).map(counts)
    }

    fn remove_all(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.handles.with(py, nkv::Blocking::remove_all).map(counts)
    }

    /// Keys in order, from behind `after`: key, bytes, rank, state.
    fn list_keys(
        &self,
        py: Python<'_>,
        pattern: Option<&str>,
        after: Option<&[u8]>,
        limit: usize,
    ) -> PyResult<Vec<Row>> {
        let listed = self.handles.with(py, |handle| handle.list(pattern, after, limit))?;
        let row = |listed: nkv::message::Listed| {
            let state = format!("{:?}", listed.state).to_lowercase();
            (listed.key.to_vec(), listed.bytes_total, listed.rank, state)
        };
        Ok(listed.into_iter().map(row).collect())
    }

    fn location(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Location> {
        let key = arguments::key(key)?;
        self.handles.with(py, |handle| handle.get_location(key)).map(|at| location(&at))
    }

    /// Has keys have so many replicas. For each None, or its error.
    fn replicate<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        wanted: u8,
    ) -> PyResult<Results<'py>> {
        let keys = arguments::keys(&keys)?;
        let done = self.handles.with(py, |handle| Ok(handle.replicate(&keys, wanted)))?;
        results(py, done, |()| None::<usize>)
    }

    /// Has keys saved on disks: of the ranks that are named, or any. For each the ranks whose
    /// disks have it, or its error.
    fn save_to_disk<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
        disks: Vec<Option<u32>>,
    ) -> PyResult<Results<'py>> {
        let keys = arguments::keys(&keys)?;
        let done = self.handles.with(py, |handle| Ok(handle.save_to_disk(&keys, &disks)))?;
        results(py, done, |saved| saved.ranks)
    }

    /// Bytes of its value.
    fn size(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<u64> {
        let key = arguments::key(key)?;
        self.handles.with(py, |handle| handle.get_size(key))
    }

    /// Every place where the master knows it.
    fn replicas(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Vec<Location>> {
        let key = arguments::key(key)?;
        self.handles.with(py, |handle| handle.get_replicas(key)).map(|found| locations(&found))
    }

    fn open(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        bytes: u64,
        wanted: Wanted,
    ) -> PyResult<Plan> {
        let key = arguments::key(key)?;
        let options = options(py, wanted, &[key])?;
        let plan = self.handles.with(py, |handle| handle.open_for_write(key, bytes, &options))?;
        let accesses = self.accesses.clone();
        Plan::new(py, plan, (self.handles.clone(), accesses), self.beside().clone())
    }

    /// Whether READY is set for a key that may not be committed yet: one check, in mapped memory.
    fn is_published(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (key, client) = (arguments::key(key)?.to_vec(), self.beside().clone());
        let asking = async move {
            let mut ready = client.when_ready(&[&key], Duration::ZERO)?;
            Ok(ready.next_location().await.is_some_and(|(_, found)| found.is_ok()))
        };
        let found: nkv::Result<bool> = tasks::wait(py, tasks::runtime()?, asking)?;
        found.map_err(|error| exception_of(py, &error))
    }

    /// Publishes, if the writer has not, and commits the open plan of a key.
    fn commit(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = arguments::key(key)?;
        self.handles.with(py, |handle| handle.commit(key))
    }

    /// Figures of the cluster, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = self.handles.with(py, nkv::Blocking::stats)?;
        serde_json::to_string(&stats)
            .map_err(|error| of_kind(py, ErrorKind::Internal, &error.to_string()))
    }

    /// Members of the cluster and their segments, as JSON.
    fn membership(&self, py: Python<'_>) -> PyResult<String> {
        let view = self.handles.with(py, nkv::Blocking::membership)?;
        serde_json::to_string(&view)
            .map_err(|error| of_kind(py, ErrorKind::Internal, &error.to_string()))
    }

    fn evict_until_below(&self, py: Python<'_>, usage_ratio: f64) -> PyResult<()> {
        self.handles.with(py, |handle| handle.evict_until_below(usage_ratio))
    }

    /// The base of a rank's control words for kernels of the GPU that has its payloads. They stay
    /// registered with it as long as this cache.
    fn control_for_kernels(&self, py: Python<'_>, rank: u32) -> PyResult<u64> {
        let access = self.handles.with(py, |handle| handle.register_control(rank))?;
        let control = access.control();
        self.accesses.keep(access);
        Ok(control)
    }

    /// Attaches to the memory of a rank on this host. TTLs in seconds.
    fn pool(
        &self,
        py: Python<'_>,
        rank: Option<u32>,
        expected_bytes: Option<u64>,
        layout: String,
        ttls: (f64, f64),
    ) -> PyResult<Pool> {
        let (write_ttl, read_ttl) = (duration(py, ttls.0)?, duration(py, ttls.1)?);
        let options = PoolOptions { rank, expected_bytes, layout, write_ttl, read_ttl };
        let pool = self.handles.with(py, |handle| handle.attach_pool(options))?;
        Ok(Pool::new(pool, self.handles.clone()))
    }

    /// Segments that this process maps: rank, the bases of control words and of payloads, offset
    /// of the first payload byte, bytes.
    fn mapped(&self) -> Vec<(u32, u64, u64, u64, u64)> {
        let mapped = self.handles.client().mapped_segments();
        mapped.iter().map(|m| (m.rank, m.control, m.payload, m.payloads, m.bytes)).collect()
    }
}

/// A time limit in seconds.
pub(crate) fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    let limit = Duration::try_from_secs_f64(seconds).ok();
    // A day: beyond it a wait has no limit that anyone meant.
    let limit = limit.filter(|limit| *limit <= Duration::from_secs(86_400));
    limit.ok_or_else(|| invalid(py, &format!("a time of {seconds} s: 0 to 86,400 is expected")))
}

/// Ends a rank as nkv-node does on SIGTERM.
fn stop(rank: OwnProcessOnly<Rank>) {
    let Some(Rank { node, runtime }) = rank.into_inner() else { return };
    runtime.block_on(async {
        node.drain(DRAIN).await;
        // A node that does not leave in time is dropped, which unlinks its segment too.
        let _ = tokio::time::timeout(STOP, node.stop()).await;
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

impl Drop for Cache {
    fn drop(&mut self) {
        let rank = self.rank.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(rank) = rank {
            Python::attach(|py| py.detach(|| stop(rank)));
        }
    }
}

/// Keys that were in memory, and objects that disks held.
fn counts(removed: nkv::message::Removed) -> (u64, u64) {
    (removed.in_memory, removed.on_disk)
}
