//! Reliable connected queue pairs: created, connected to one other pair, and severed, after which
//! neither end does anything more through it [I10].

use super::context::{Context, Gid, Limits};
use super::error::{check, made};
use super::queue::Queue;
use super::region::Domain;
use crate::error::TransportError;
use crate::fabric::PairAddress;
use rdma_sys as sys;
use rdma_sys::{ibv_access_flags as flag, ibv_qp_attr_mask as mask, ibv_qp_state as state};
use std::ptr::NonNull;
use std::sync::Arc;

/// Work requests that one pair can hold.
pub(super) const REQUESTS: u32 = 512;
/// Ranges of local memory in one request.
const RANGES: u32 = 1;
/// Bytes sent inside the request itself, if the device permits so many.
const INLINE_BYTES: u32 = 256;
/// Reads and atomics in flight, if both ends permit so many.
const MAX_READS: u8 = 16;
/// 4.096 µs << 15 = 134 ms until a packet is sent again. Shorter than a pause of a busy host, it
/// makes requests that are only late arrive twice, and Soft-RoCE does not always answer those with
/// the right bytes (docs/notes/0024-2026-11-23-late-packets.md). Seven tries are over before
/// `lane::LIMIT` [I18].
const ACK_TIMEOUT: u8 = 15;
/// Not 7: Soft-RoCE then retries without end.
const RETRIES: u8 = 6;
const HOP_LIMIT: u8 = 64;

/// One port of a device, with its address.
#[derive(Debug, Clone)]
pub(super) struct PortAddress {
    pub(super) port: u8,
    pub(super) lid: u16,
    pub(super) mtu_bytes: u32,
    pub(super) gid: Gid,
    pub(super) limits: Limits,
}

/// A queue pair. Severed when dropped.
#[derive(Debug)]
pub(super) struct Pair {
    raw: NonNull<sys::ibv_qp>,
    port: PortAddress,
    serial: u32,
    /// Bytes that fit into a request itself.
    pub(super) inline_bytes: u32,
    /// Number of requests that it holds.
    pub(super) requests: u32,
    // Fields are dropped in this order: the pair before what it uses.
    _queue: Arc<Queue>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs allows any thread to use a pair; posts are serialised by whoever holds it.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.context().is_here() {
            return;
        }
        // SAFETY: made by `Pair::new`. After this the device neither sends nor executes anything
        // for it.
        let errno = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        if errno == 0 {
            return;
        }
        tracing::error!(device = self.context().name(), errno, "ibv_destroy_qp");
        // A pair in state RESET does nothing either. A pair that cannot be ended must not count as
        // fenced.
        let mut attr = no_attributes();
        attr.qp_state = state::IBV_QPS_RESET;
        if let Err(error) = self.modify(&mut attr, mask::IBV_QP_STATE) {
            tracing::error!(%error, "a queue pair cannot be destroyed: the process aborts");
            std::process::abort();
        }
    }
}

impl Pair {
    /// An unconnected pair. `served`: the other end reads and writes here.
    pub(super) fn new(
        domain: &Arc<Domain>,
        queue: &Arc<Queue>,
        port: &PortAddress,
        served: bool,
    ) -> Result<Self, TransportError> {
        let create = |inline| Self::create(domain, queue, port, (served, inline));
        // Devices differ in the inline size they accept: try smaller ones.
        let pair = create(INLINE_BYTES).or_else(|_| create(64)).or_else(|_| create(0))?;
        pair.initialise(served)?;
        Ok(pair)
    }

    fn create(
        domain: &Arc<Domain>,
        queue: &Arc<Queue>,
        port: &PortAddress,
        (served, inline): (bool, u32),
    ) -> Result<Self, TransportError> {
        // SAFETY: a structure of plain numbers and pointers, all of which may be zero.
        let mut init: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        init.send_cq = queue.raw();
        init.recv_cq = queue.raw();
        init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        // A served pair posts nothing.
        init.cap.max_send_wr = if served { 1 } else { REQUESTS.min(port.limits.requests) };
        init.cap.max_recv_wr = 1;
        init.cap.max_send_sge = RANGES;
        init.cap.max_recv_sge = 1;
        init.cap.max_inline_data = if served { 0 } else { inline };
        // SAFETY: domain and queue live, and `init` is valid for the call.
        let raw = unsafe { sys::ibv_create_qp(domain.raw(), &raw mut init) };
        let raw = made("ibv_create_qp", domain.context().name(), raw)?;
        let serial = (nkv_store::random_u64() & 0xff_ffff) as u32;
        let (port, inline_bytes) = (port.clone(), init.cap.max_inline_data);
        let requests = init.cap.max_send_wr;
        let (_queue, domain) = (queue.clone(), domain.clone());
        Ok(Self { raw, port, serial, inline_bytes, requests, _queue, domain })
    }

    fn context(&self) -> &Context {
        self.domain.context()
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: it lives until it is dropped.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// The address that the other end needs to connect to it.
    pub(super) fn address(&self, rail: u8) -> PairAddress {
        PairAddress {
            rail,
            gid: self.port.gid.raw,
            lid: self.port.lid,
            number: self.number(),
            serial: self.serial,
            mtu_bytes: self.port.mtu_bytes,
            reads_in: self.port.limits.reads_in,
            reads_out: self.port.limits.reads_out,
        }
    }

    fn modify(
        &self,
        attr: &mut sys::ibv_qp_attr,
        what: sys::ibv_qp_attr_mask,
    ) -> Result<(), TransportError> {
        // SAFETY: the pair lives, and `attr` is valid for the call.
        let errno = unsafe { sys::ibv_modify_qp(self.raw(), attr, what.0 as i32) };
        let to = attr.qp_state;
        let target =
            || format!("a pair of {} at {}, to state {to}", self.context().name(), self.port.gid);
        check("ibv_modify_qp", target, errno)
    }

    fn initialise(&self, served: bool) -> Result<(), TransportError> {
        let mut attr = no_attributes();
        attr.qp_state = state::IBV_QPS_INIT;
        attr.pkey_index = 0;
        attr.port_num = self.port.port;
        if served {
            attr.qp_access_flags = (flag::IBV_ACCESS_REMOTE_READ
                | flag::IBV_ACCESS_REMOTE_WRITE
                | flag::IBV_ACCESS_REMOTE_ATOMIC)
                .0;
        }
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, what)
    }

    /// From here on requests of `peer` are executed.
    pub(super) fn accept(&self, peer: &PairAddress) -> Result<(), TransportError> {
        let mut attr = no_attributes();
        attr.qp_state = state::IBV_QPS_RTR;
        attr.path_mtu = self.port.mtu_bytes.min(peer.mtu_bytes).clamp(256, 4096).ilog2() - 7;
        attr.dest_qp_num = peer.number & 0xff_ffff;
        attr.rq_psn = peer.serial & 0xff_ffff;
        attr.max_dest_rd_atomic = self.port.limits.reads_in.clamp(1, MAX_READS);
        attr.min_rnr_timer = 12;
        attr.ah_attr.is_global = u8::from(self.port.lid == 0);
        attr.ah_attr.grh.dgid.raw = peer.gid;
        attr.ah_attr.grh.sgid_index = self.port.gid.index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
        attr.ah_attr.dlid = peer.lid;
        attr.ah_attr.port_num = self.port.port;
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, what)
    }

    /// From here on it may send to `peer`, which must have accepted it.
    pub(super) fn connect(&self, peer: &PairAddress) -> Result<(), TransportError> {
        self.accept(peer)?;
        let mut attr = no_attributes();
        attr.qp_state = state::IBV_QPS_RTS;
        attr.timeout = ACK_TIMEOUT;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RETRIES;
        attr.sq_psn = self.serial;
        // Requests beyond the other end's limit would fail there.
        attr.max_rd_atomic = self.port.limits.reads_out.min(peer.reads_in).clamp(1, MAX_READS);
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, what)
    }
}

fn no_attributes() -> sys::ibv_qp_attr {
    // SAFETY: a structure of plain numbers, all of which may be zero.
    unsafe { std::mem::zeroed() }
}
