//! What exists: each handle, range, stream and registration, until it is given back.

use crate::kernels::Function;
use crate::stream::{Event, Queued, Stream};
use crate::{Outcome, code};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Memory by handle.
pub struct Handle {
    pub fd: OwnedFd,
    pub bytes: usize,
}

/// What lies in a range of device addresses.
pub enum Kind {
    /// A reservation, and the memory mapped there, which can be accessed or not yet.
    Reserved { mapped: Option<OwnedFd>, accessible: bool },
    /// Memory of `cuMemAlloc`.
    Allocated { fd: OwnedFd },
    /// Memory of another process's `cuMemAlloc`.
    Opened,
}

/// A range of device addresses.
pub struct Range {
    pub bytes: usize,
    pub kind: Kind,
}

/// Everything.
#[derive(Default)]
pub struct State {
    pub contexts: u32,
    pub handles: HashMap<u64, Handle>,
    pub ranges: BTreeMap<u64, Range>,
    pub pinned: BTreeMap<u64, usize>,
    pub registered: BTreeMap<u64, usize>,
    pub streams: HashMap<u64, Arc<Stream>>,
    /// Of destroyed streams in which something may still run.
    pub ending: Vec<Queued>,
    pub events: HashMap<u64, Arc<Event>>,
    pub modules: HashMap<u64, Arc<nkv_ptx::Module>>,
    /// Of loaded modules.
    pub functions: HashMap<u64, Function>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

/// The state, for one thread at a time.
pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that no handle had before.
pub fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0x5000);
    LAST.fetch_add(0x10, Ordering::Relaxed)
}

/// `(start, length)` of the entry that contains an address.
fn around<T>(
    map: &BTreeMap<u64, T>,
    address: u64,
    bytes: impl Fn(&T) -> usize,
) -> Option<(u64, usize)> {
    let (start, found) = map.range(..=address).next_back()?;
    (address < start + bytes(found) as u64).then(|| (*start, bytes(found)))
}

impl State {
    /// The range that contains an address.
    pub fn range_of(&self, address: u64) -> Result<(u64, &Range), u32> {
        let found = around(&self.ranges, address, |range| range.bytes);
        let (start, _) = found.ok_or(code::INVALID_VALUE)?;
        Ok((start, &self.ranges[&start]))
    }

    /// Refuses what a device cannot access: it must lie in one range, mapped and accessible, or
    /// in host memory that is pinned or registered.
    pub fn check_device(&self, address: u64, bytes: usize) -> Outcome {
        let accessible = |range: &Range| match &range.kind {
            Kind::Reserved { mapped, accessible } => mapped.is_some() && *accessible,
            Kind::Allocated { .. } | Kind::Opened => true,
        };
        let device = self.range_of(address).ok().filter(|(_, range)| accessible(range));
        let within = device
            .map(|(start, range)| (start, range.bytes))
            .or_else(|| around(&self.pinned, address, |bytes| *bytes))
            .or_else(|| around(&self.registered, address, |bytes| *bytes));
        let fits = within.is_some_and(|(start, len)| {
            address.checked_add(bytes as u64).is_some_and(|end| end <= start + len as u64)
        });
        if fits { Ok(()) } else { Err(code::INVALID_VALUE) }
    }

    /// What is left, by kind.
    fn live(&self) -> [(&'static str, usize); 11] {
        let kinds = |wanted: fn(&Kind) -> bool| {
            self.ranges.values().filter(|range| wanted(&range.kind)).count()
        };
        [
            ("contexts", self.contexts as usize),
            ("handles", self.handles.len()),
            ("reservations", kinds(|kind| matches!(kind, Kind::Reserved { .. }))),
            ("mappings", kinds(|kind| matches!(kind, Kind::Reserved { mapped: Some(_), .. }))),
            ("allocations", kinds(|kind| matches!(kind, Kind::Allocated { .. }))),
            ("opened", kinds(|kind| matches!(kind, Kind::Opened))),
            ("pinned", self.pinned.len()),
            ("registered", self.registered.len()),
            ("streams", self.streams.len()),
            ("events", self.events.len()),
            ("modules", self.modules.len()),
        ]
    }
}

/// How many things of all kinds are left; not a call of CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn mock_live() -> u64 {
    state().live().iter().map(|(_, count)| *count as u64).sum()
}

/// Writes what is left to the file that MOCK_CUDA_LEAKS names.
extern "C" fn write_leaks() {
    if let Ok(path) = std::env::var("MOCK_CUDA_LEAKS") {
        let lines = state().live().map(|(kind, count)| format!("{kind} {count}\n"));
        // A file that cannot be written fails the test that reads it.
        let _ = std::fs::write(path, lines.concat());
    }
}

/// From now on the process's exit writes what is left.
pub fn report_at_exit() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function stays loaded, as a driver library is never unloaded.
        let _ = unsafe { libc::atexit(write_leaks) };
    });
}
