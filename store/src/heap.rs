//! Divides a segment into regions. Formatting writes the control block and arms every heap slot.
//! Opening validates everything it reads, since another process wrote those bytes.

use crate::arena::ArenaUnit;
use crate::arming::arm;
use crate::device_log::MIN_LOG_UNITS;
use crate::error::StoreError;
use crate::evict::Watermarks;
use crate::incarnation::{boot_id, random_u64};
use crate::layout::{
    AtomicDomain, CTL_BYTES, EXT_OFF, HEADER_BYTES, HeapCtl, HeapExt, LAYOUT_VERSION, MAGIC,
    PAYLOAD_ALIGN, REGIONS, Region, RegionKind,
};
use crate::memory::{HostMemory, Memory};
use crate::segment_layout::{MAX_ARENA_BYTES, MAX_QUARANTINE_MS, SegmentLayout};
use crate::{index, pins};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The first epoch of every heap slot.
pub const FIRST_EPOCH: u32 = 1;

/// Configuration of a segment. Sizes in bytes; headers, index and pins are added to `arena_bytes`
/// and `log_bytes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeapConfig {
    /// Payload bytes of the arena, rounded up to `arena_unit`.
    pub arena_bytes: u64,
    /// Payload bytes of the device log, rounded up to its 4 KiB units; 0 for a segment without one.
    pub log_bytes: u64,
    /// Rank that contributes the segment.
    pub rank: u32,
    /// Segment id within its rank.
    pub segment_id: u64,
    /// Random, never 0 [I3].
    pub incarnation: u64,
    /// Boot id of the host's kernel.
    pub boot_id: u64,
    /// Quarantine in milliseconds [I8].
    pub quarantine_ms: u32,
    /// When eviction starts and ends.
    pub watermarks: Watermarks,
    /// Which device executes the atomic operations on claims in the device log [I1].
    pub atomic_domain: AtomicDomain,
    /// Unit of the extents in the arena, whose bytes are rounded up to it.
    pub arena_unit: ArenaUnit,
}

impl Default for HeapConfig {
    /// 64 MiB without a log, 50 ms, a new random incarnation on this host's boot.
    fn default() -> Self {
        Self {
            arena_bytes: 64 << 20,
            log_bytes: 0,
            rank: 0,
            segment_id: 0,
            incarnation: random_u64(),
            boot_id: boot_id(),
            quarantine_ms: 50,
            watermarks: Watermarks::Auto,
            atomic_domain: AtomicDomain::Cpu,
            arena_unit: ArenaUnit::default(),
        }
    }
}

impl HeapConfig {
    /// Checks every field; the error names the setting to change and the values it can have.
    pub fn validate(&self) -> Result<(), StoreError> {
        let refuse = |text: String| Err(StoreError::InvalidConfig(text));
        if self.arena_bytes == 0 || self.arena_bytes > MAX_ARENA_BYTES {
            return refuse(format!(
                "a heap of {} bytes cannot be made: give 1 to {MAX_ARENA_BYTES} bytes a segment",
                self.arena_bytes
            ));
        }
        let payloads = self.arena_bytes.saturating_add(self.log_bytes);
        if self.log_bytes > 0 && self.log_units() < MIN_LOG_UNITS || payloads > MAX_ARENA_BYTES {
            return refuse(format!(
                "a device log of {} bytes cannot be made: give at least {} bytes, and at most \
                 {MAX_ARENA_BYTES} together with the {} of the heap",
                self.log_bytes,
                MIN_LOG_UNITS * PAYLOAD_ALIGN,
                self.arena_bytes
            ));
        }
        if self.incarnation == 0 {
            return refuse("incarnation 0 means none: use a random one".to_string());
        }
        if self.quarantine_ms == 0 || self.quarantine_ms > MAX_QUARANTINE_MS {
            return refuse(format!(
                "a quarantine of {} ms cannot work: give 1 to {MAX_QUARANTINE_MS} ms",
                self.quarantine_ms
            ));
        }
        self.watermarks.validate()
    }

    fn log_units(&self) -> u64 {
        self.log_bytes.div_ceil(PAYLOAD_ALIGN)
    }

    fn arena_units(&self) -> u64 {
        self.arena_bytes.div_ceil(self.arena_unit.bytes())
    }

    /// Header slots: one per 4 KiB unit of the log, then one per unit of the arena.
    pub fn slots(&self) -> u32 {
        u32::try_from(self.log_units() + self.arena_units()).unwrap_or(u32::MAX)
    }

    /// Length of the whole segment: control block, headers, index, pins, log, arena.
    pub fn segment_bytes(&self) -> u64 {
        let arena = self.regions()[RegionKind::Arena as usize];
        arena.offset + arena.len
    }

    /// Where the payloads begin, or the claim word among them: all before is control words.
    pub fn control_bytes(&self) -> u64 {
        self.regions()[RegionKind::Log as usize].offset - self.claim_page()
    }

    /// Bytes before the log for the claim word, if kernels claim.
    fn claim_page(&self) -> u64 {
        let by_gpu = self.atomic_domain == AtomicDomain::Gpu && self.log_bytes > 0;
        u64::from(by_gpu) * PAYLOAD_ALIGN
    }

    /// The regions in order, each on its own memory pages; an absent one has length 0.
    fn regions(&self) -> [Region; REGIONS] {
        let slots = u64::from(self.slots());
        let mut regions = [Region::default(); REGIONS];
        let mut next = 0u64;
        for (kind, len) in [
            (RegionKind::Ctl, CTL_BYTES),
            (RegionKind::Headers, slots * HEADER_BYTES),
            (RegionKind::Index, index::region_bytes(slots)),
            (RegionKind::Pins, pins::REGION_BYTES),
            (RegionKind::Log, self.log_units() * PAYLOAD_ALIGN),
            (RegionKind::Arena, self.arena_units() * self.arena_unit.bytes()),
        ] {
            if kind == RegionKind::Log {
                // The arena follows at once, on a unit of its own.
                let before = self.claim_page() + len;
                next = (next + before).next_multiple_of(self.arena_unit.bytes()) - len;
            }
            regions[kind as usize] = Region { offset: next, len };
            next += len.next_multiple_of(PAYLOAD_ALIGN);
        }
        regions
    }
}

/// Which segment it is: of which rank, in which of its lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentIdentity {
    /// Rank that contributes it.
    pub rank: u32,
    /// Segment id within its rank.
    pub segment_id: u64,
    /// Random, new for every life of the segment [I3].
    pub incarnation: u64,
    /// Boot id of the kernel it was made under.
    pub boot_id: u64,
}

/// A formatted segment. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Heap {
    memory: Arc<dyn Memory>,
    layout: SegmentLayout,
    identity: SegmentIdentity,
}

impl Heap {
    /// Writes the control block and arms every heap slot at epoch 1 (log slots begin at epoch 0,
    /// which no claim has). Writes the magic last, so that a segment that is only partly formatted
    /// is never opened. The memory must have at least `segment_bytes()` bytes.
    pub fn format(memory: Arc<dyn Memory>, config: &HeapConfig) -> Result<Heap, StoreError> {
        config.validate()?;
        let (ctl, ext) = control_block(config);
        StoreError::check_bounds("format", 0, ext.segment_bytes, memory.len())?;
        memory.store(EXT_OFF, 0)?;
        memory.write(0, ctl.as_bytes())?;
        memory.write(EXT_OFF + 8, &ext.as_bytes()[8..])?;
        for slot in ext.log_slots..config.slots() {
            let at = CTL_BYTES + u64::from(slot) * HEADER_BYTES;
            arm(memory.as_ref(), at, FIRST_EPOCH)?;
        }
        if config.claim_page() > 0 {
            // Memory of a GPU is not zero when it is allocated.
            memory.store(config.control_bytes(), 0)?;
        }
        memory.store(EXT_OFF, MAGIC)?;
        Heap::open(memory)
    }

    /// Reads and checks the control block; any inconsistency is `BadSegment`.
    pub fn open(memory: Arc<dyn Memory>) -> Result<Heap, StoreError> {
        if memory.len() < CTL_BYTES {
            return Err(bad(format!("{} bytes are too few for a control block", memory.len())));
        }
        if memory.load(EXT_OFF)? != MAGIC {
            return Err(bad("it has no magic: not formatted yet, or not a segment".to_string()));
        }
        let (mut ctl, mut ext) = (HeapCtl::default(), HeapExt::default());
        memory.read(0, ctl.as_mut_bytes())?;
        memory.read(EXT_OFF, ext.as_mut_bytes())?;
        let (layout, identity) = check(&ctl, &ext, memory.len())?;
        Ok(Heap { memory, layout, identity })
    }

    /// The segment's memory.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// The memory as the CPU sees it, if it can access all that precedes the payloads.
    pub fn host_control(&self) -> Option<HostMemory> {
        let host = HostMemory::of(self.memory.clone())?;
        (host.words().len() >= self.layout.device_part().offset).then_some(host)
    }

    /// Where things lie in it.
    pub fn layout(&self) -> &SegmentLayout {
        &self.layout
    }

    /// Which segment it is.
    pub fn identity(&self) -> &SegmentIdentity {
        &self.identity
    }
}

fn bad(text: String) -> StoreError {
    StoreError::BadSegment(text)
}

fn control_block(config: &HeapConfig) -> (HeapCtl, HeapExt) {
    let regions = config.regions();
    let (water_hi, water_lo) = config.watermarks.percent(config.log_bytes > 0);
    let ctl = HeapCtl {
        heap_base: regions[RegionKind::Arena as usize].offset,
        // The whole log is claimable, and nothing is claimed.
        heap_limit: regions[RegionKind::Log as usize].len,
        hdr_base: regions[RegionKind::Headers as usize].offset,
        hdr_count: config.slots(),
        water_hi,
        water_lo,
        ..HeapCtl::default()
    };
    let ext = HeapExt {
        magic: MAGIC,
        layout_version: LAYOUT_VERSION,
        atomic_domain: config.atomic_domain as u32,
        segment_id: config.segment_id,
        incarnation: config.incarnation,
        boot_id: config.boot_id,
        quarantine_ms: config.quarantine_ms,
        log_unit: PAYLOAD_ALIGN as u32,
        segment_bytes: config.segment_bytes(),
        rank: config.rank,
        // At most `slots`, which is a u32.
        log_slots: config.log_units() as u32,
        regions,
        arena_unit: config.arena_unit.into(),
        ..HeapExt::default()
    };
    (ctl, ext)
}

/// Checks every field from which an address is computed against the length of the memory.
fn check(
    ctl: &HeapCtl,
    ext: &HeapExt,
    memory_len: u64,
) -> Result<(SegmentLayout, SegmentIdentity), StoreError> {
    if ext.layout_version != LAYOUT_VERSION {
        return Err(bad(format!(
            "its layout has version {}, this program {LAYOUT_VERSION}: use the same build on \
             every rank",
            ext.layout_version
        )));
    }
    if ext.segment_bytes > memory_len {
        return Err(bad(format!("it claims {} bytes, {memory_len} are mapped", ext.segment_bytes)));
    }
    let water = Watermarks::Percent { hi: ctl.water_hi, lo: ctl.water_lo };
    water.validate().map_err(|e| bad(e.to_string()))?;
    let number = ext.atomic_domain;
    let atomic_domain = AtomicDomain::ALL
        .into_iter()
        .find(|domain| *domain as u32 == number)
        .ok_or_else(|| bad(format!("an atomic domain {number} is not known to this program")))?;
    let region = |kind: RegionKind| ext.regions[kind as usize];
    let layout = SegmentLayout {
        segment_bytes: ext.segment_bytes,
        slots: ctl.hdr_count,
        log_slots: ext.log_slots,
        header_base: ctl.hdr_base,
        index: region(RegionKind::Index),
        pins: region(RegionKind::Pins),
        log: region(RegionKind::Log),
        arena: region(RegionKind::Arena),
        arena_unit: ArenaUnit::try_from(ext.arena_unit).map_err(|e| bad(e.to_string()))?,
        quarantine_ms: ext.quarantine_ms,
        atomic_domain,
    };
    let unit = u64::from(ext.log_unit);
    let agree = ctl.heap_base == layout.arena.offset && unit == PAYLOAD_ALIGN;
    if !agree || layout.regions() != ext.regions {
        return Err(bad("its control block and its region table disagree".to_string()));
    }
    layout.check()?;
    if ext.incarnation == 0 {
        return Err(bad("it has incarnation 0, which means none".to_string()));
    }
    let identity = SegmentIdentity {
        rank: ext.rank,
        segment_id: ext.segment_id,
        incarnation: ext.incarnation,
        boot_id: ext.boot_id,
    };
    Ok((layout, identity))
}

#[cfg(test)]
mod tests;
