//! Devices of this host: their list, their capabilities, and their addresses (GIDs). An open device
//! closes with its last user.

use super::error::{check, made};
use crate::error::TransportError;
use nkv_store::fork::ProcessMark;
use rdma_sys as sys;
use rdma_sys::ibv_port_state::IBV_PORT_ACTIVE as ACTIVE;
use std::ffi::CStr;
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::sync::{Arc, Once};

/// Most entries of a port's GID table that are read.
const MAX_GIDS: i32 = 256;

/// Kind of a GID, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GidKind {
    /// RoCE v2 over IPv4.
    RoceV2Ipv4,
    /// RoCE v2 over IPv6, routable.
    RoceV2,
    /// RoCE v2 over a link-local address.
    RoceV2Local,
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: one Ethernet segment only.
    RoceV1,
}

impl std::fmt::Display for GidKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RoceV2Ipv4 => "RoCE v2, IPv4",
            Self::RoceV2 => "RoCE v2, IPv6",
            Self::RoceV2Local => "RoCE v2, link-local",
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
        })
    }
}

/// One address of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// Index in the port's table.
    pub index: u8,
    /// The address.
    pub raw: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
}

impl std::fmt::Display for Gid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = Ipv6Addr::from(self.raw);
        match address.to_ipv4_mapped() {
            Some(v4) => write!(f, "{v4} (GID {}, {})", self.index, self.kind),
            None => write!(f, "{address} (GID {}, {})", self.index, self.kind),
        }
    }
}

/// A port, as of the time of the query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Number, from 1.
    pub number: u8,
    /// Whether it carries traffic.
    pub active: bool,
    /// Largest payload of one packet in bytes.
    pub mtu_bytes: u32,
    /// Address within an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Its addresses, the preferred first.
    pub gids: Vec<Gid>,
}

/// Capabilities of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most queue pairs.
    pub pairs: u32,
    /// Most work requests in one queue.
    pub requests: u32,
    /// Most bytes of one registration.
    pub region_bytes: u64,
    /// Reads and atomics in flight towards it on one pair, at most.
    pub reads_in: u8,
    /// Reads and atomics in flight from it on one pair, at most.
    pub reads_out: u8,
    /// Whether it has fetch-and-add and compare-and-swap.
    pub atomics: bool,
    /// Number of ports.
    pub ports: u8,
}

/// An open device.
#[derive(Debug)]
pub(super) struct Context {
    raw: NonNull<sys::ibv_context>,
    name: String,
    made: ProcessMark,
}

// SAFETY: libibverbs allows any thread to use an open device, and several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by `Context::open`, and whatever was made of it holds an Arc and is gone.
        self.end("ibv_close_device", || unsafe { sys::ibv_close_device(self.raw.as_ptr()) });
    }
}

/// The list of devices; freed when dropped.
struct List {
    raw: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl List {
    fn read() -> Result<Self, TransportError> {
        static FORKS: Once = Once::new();
        // Before anything is registered: a child of this process must not take over its pages.
        // Kernels from 5.12 on handle this themselves, and then this does nothing.
        FORKS.call_once(|| {
            // SAFETY: no arguments; called once, before any other call that registers.
            let errno = unsafe { sys::ibv_fork_init() };
            if errno != 0 {
                tracing::debug!(errno, "ibv_fork_init");
            }
        });
        let mut len = 0;
        // SAFETY: `len` is valid for the call.
        let raw = unsafe { sys::ibv_get_device_list(&raw mut len) };
        let raw = made("ibv_get_device_list", "this host", raw)?;
        Ok(Self { raw, len: usize::try_from(len).unwrap_or(0) })
    }

    /// Names and devices; valid as long as the list.
    fn each(&self) -> impl Iterator<Item = (String, *mut sys::ibv_device)> {
        (0..self.len).map(|i| {
            // SAFETY: the list has `len` entries, and names are strings that end with a zero.
            unsafe {
                let device = *self.raw.as_ptr().add(i);
                let name = CStr::from_ptr(sys::ibv_get_device_name(device));
                (name.to_string_lossy().into_owned(), device)
            }
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from `ibv_get_device_list`; devices opened from it stay open.
        unsafe { sys::ibv_free_device_list(self.raw.as_ptr()) };
    }
}

/// The devices of this host.
pub(super) fn names() -> Result<Vec<String>, TransportError> {
    Ok(List::read()?.each().map(|(name, _)| name).collect())
}

impl Context {
    /// False in a forked child: what was made of the device belongs to the parent, and ending it in
    /// the child would end it for both.
    pub(super) fn is_here(&self) -> bool {
        self.made.is_here()
    }

    /// Ends something made of the device by a call that returns an errno.
    pub(super) fn end(&self, call: &str, end: impl FnOnce() -> i32) {
        let errno = if self.is_here() { end() } else { 0 };
        if errno != 0 {
            tracing::debug!(device = self.name, errno, "{call}");
        }
    }

    pub(super) fn open(name: &str) -> Result<Arc<Self>, TransportError> {
        let list = List::read()?;
        let found = list.each().find(|(n, _)| n == name);
        let Some((_, device)) = found else {
            let there: Vec<String> = list.each().map(|(n, _)| n).collect();
            return Err(TransportError::Protocol(format!(
                "there is no RDMA device {name}; there are {there:?}"
            )));
        };
        // SAFETY: the device is of a list that lives.
        let raw = made("ibv_open_device", name, unsafe { sys::ibv_open_device(device) })?;
        Ok(Arc::new(Self { raw, name: name.to_string(), made: ProcessMark::here() }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn limits(&self) -> Result<Limits, TransportError> {
        // SAFETY: a structure of plain numbers, all of which may be zero.
        let mut attr: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open and `attr` valid for the call.
        let errno = unsafe { sys::ibv_query_device(self.raw(), &raw mut attr) };
        check("ibv_query_device", || self.name.clone(), errno)?;
        let number = |n: i32| u32::try_from(n).unwrap_or(0);
        let reads = |n: i32| u8::try_from(n.clamp(0, 128)).unwrap_or(0);
        Ok(Limits {
            pairs: number(attr.max_qp),
            requests: number(attr.max_qp_wr),
            region_bytes: attr.max_mr_size,
            reads_in: reads(attr.max_qp_rd_atom),
            reads_out: reads(attr.max_qp_init_rd_atom),
            atomics: attr.atomic_cap != sys::ibv_atomic_cap::IBV_ATOMIC_NONE,
            ports: attr.phys_port_cnt,
        })
    }

    /// A port without its addresses, which need one call per entry of the table.
    fn port_state(&self, number: u8) -> Result<sys::ibv_port_attr, TransportError> {
        let target = || format!("port {number} of {}", self.name);
        // SAFETY: a structure of plain numbers, all of which may be zero.
        let mut attr: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open and `attr` valid for the call.
        let errno = unsafe { sys::ibv_query_port(self.raw(), number, &raw mut attr) };
        check("ibv_query_port", target, errno)?;
        Ok(attr)
    }

    /// Whether a port carries traffic now.
    pub(super) fn is_active(&self, number: u8) -> bool {
        self.port_state(number).is_ok_and(|attr| attr.state == ACTIVE)
    }

    pub(super) fn port(&self, number: u8) -> Result<Port, TransportError> {
        let attr = self.port_state(number)?;
        let mut gids: Vec<Gid> = (0..attr.gid_tbl_len.min(MAX_GIDS))
            .filter_map(|i| self.gid(number, u8::try_from(i).ok()?))
            .collect();
        gids.sort_by_key(|g| (g.kind, g.index));
        Ok(Port {
            number,
            active: attr.state == ACTIVE,
            mtu_bytes: 128 << attr.active_mtu,
            lid: attr.lid,
            gids,
        })
    }

    /// An entry of the GID table, if it is in use.
    fn gid(&self, port: u8, index: u8) -> Option<Gid> {
        // SAFETY: a structure of plain numbers, all of which may be zero.
        let mut entry: sys::ibv_gid_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open and `entry` valid for the call.
        let errno = unsafe {
            sys::ibv_query_gid_ex(self.raw(), port.into(), index.into(), &raw mut entry, 0)
        };
        if errno != 0 {
            return None;
        }
        // SAFETY: any bytes are a GID.
        let raw = unsafe { entry.gid.raw };
        let address = Ipv6Addr::from(raw);
        if address.is_unspecified() {
            return None;
        }
        // As `enum ibv_gid_type` numbers them.
        let kind = match entry.gid_type {
            0 => GidKind::InfiniBand,
            1 => GidKind::RoceV1,
            _ if address.to_ipv4_mapped().is_some() => GidKind::RoceV2Ipv4,
            _ if address.is_unicast_link_local() => GidKind::RoceV2Local,
            _ => GidKind::RoceV2,
        };
        Some(Gid { index, raw, kind })
    }
}
