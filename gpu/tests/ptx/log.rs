//! A device log into which several kernels put, and a poller that reads headers as the owner does.
//! All steps are taken by one thread, so a seed is one run.

use crate::triton::SHARED_BYTES;
use nkv_gpu::kernels::{LogPut, LogPutObject, LogPutResult, LogPutStatus};
use nkv_ptx::{Execution, Kernel, Launch};
use nkv_store::device_log::LogLayout;
use nkv_store::layout::{ObjHeader, epoch_of, low, state};
use nkv_store::object::ObjectDesc;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const UNIT: u64 = 4096;
const UNITS: u64 = 8;
const LOG_BYTES: u64 = UNIT * UNITS;
/// Segment offset of the payload.
const OFFSET: u64 = 0x10_0000;
/// Words behind the payload, which nobody may change.
const GUARD: u64 = 2 * UNIT / 8;
const WRITERS: usize = 3;
/// Objects of each writer in one launch: of one and of two units, so that claims cross the end.
const SIZES: [u64; 3] = [715, UNIT + 144, 400];
const PAGE: u32 = 256;
/// Launches that a writer makes for objects that did not fit.
const MAX_LAUNCHES: usize = 60;

/// What a run is made of.
pub struct Case<'a> {
    pub kernel: &'a Kernel,
    /// Threads of a block.
    pub block: u32,
    pub seed: u64,
    /// How often a claim above the limit reads it again.
    pub spins: u64,
}

/// Words of the control block, headers and payload of the log, shared by all.
struct Log {
    /// Limit and bump.
    control: [AtomicU64; 2],
    headers: Vec<AtomicU64>,
    payload: Vec<AtomicU64>,
    layout: LogLayout,
}

struct Writer {
    source: Vec<u64>,
    objects: Vec<LogPutObject>,
    results: Vec<LogPutResult>,
    launches: usize,
}

/// What the owner knows.
struct Poller {
    frontier: u64,
    accepted: BTreeSet<(u64, u64)>,
    skips: u64,
}

/// How often the less common paths were taken.
#[derive(Debug, Default)]
pub struct Counts {
    pub skips: u64,
    pub abandoned: u64,
    /// Launches for objects that an earlier launch did not store.
    pub again: u64,
}

fn source_word(key: u64, i: u64) -> u64 {
    (key << 32 | i).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

impl Log {
    fn new() -> Log {
        // Headers of another epoch and old payload, as after a lap.
        let words = |n: u64| (0..n).map(|i| AtomicU64::new(!i)).collect::<Vec<_>>();
        let headers = words(UNITS * 8);
        headers.iter().skip(5).step_by(8).for_each(|publish| publish.store(0, SeqCst));
        Log {
            control: [AtomicU64::new(LOG_BYTES), AtomicU64::new(0)],
            headers,
            payload: words(LOG_BYTES / 8 + 2 + GUARD),
            layout: LogLayout::new(OFFSET, LOG_BYTES, UNIT, 4096).unwrap(),
        }
    }

    fn payload(&self) -> u64 {
        (self.payload.as_ptr() as u64).next_multiple_of(16)
    }

    fn header(&self, slot: u32) -> ObjHeader {
        let at = slot as usize * 8;
        let word = |i: usize| self.headers[at + i].load(SeqCst);
        // The publish word first [I7].
        let publish = word(5);
        let [n_pages, page_size] = [word(1) as u32, (word(1) >> 32) as u32];
        ObjHeader {
            key_hash: word(0),
            n_pages,
            page_size,
            payload_base: word(2),
            bytes_total: word(3),
            key_check: word(4),
            publish,
            ..ObjHeader::default()
        }
    }
}

impl Writer {
    fn new(layout: &LogLayout, number: usize) -> Writer {
        let words: u64 = SIZES.iter().map(|size| size.div_ceil(16) * 2).sum();
        let mut writer = Writer {
            source: vec![0; words as usize + 2],
            objects: Vec::new(),
            results: Vec::new(),
            launches: 0,
        };
        let skew = (writer.source.as_ptr() as usize % 16) / 8;
        let mut at = skew;
        for (i, size) in SIZES.into_iter().enumerate() {
            let key = 1 + (number * SIZES.len() + i) as u64;
            for w in 0..size.div_ceil(8) {
                writer.source[at + w as usize] = source_word(key, w);
            }
            let object = ObjectDesc::at(0, size, PAGE);
            writer.objects.push(LogPutObject {
                src: &raw const writer.source[at] as u64,
                bytes: size,
                claim_bytes: layout.claim_bytes(size).unwrap(),
                key_hash: key,
                key_check: !key,
                n_pages: object.n_pages(),
                page_size: PAGE,
            });
            at += size.div_ceil(16) as usize * 2;
        }
        writer
    }

    fn launch(&mut self, log: &Log, case: &Case<'_>, number: usize) -> Launch {
        self.results = vec![LogPutResult::default(); self.objects.len()];
        self.launches += 1;
        let args = LogPut {
            objects: self.objects.as_ptr() as u64,
            count: self.objects.len() as u32,
            bump: log.control[1].as_ptr() as u64,
            limit: log.control[0].as_ptr() as u64,
            headers: log.headers.as_ptr() as u64,
            payload: log.payload(),
            offset: OFFSET,
            log_bytes: LOG_BYTES,
            spins: case.spins,
            results: self.results.as_ptr() as u64,
        };
        let mut args = args.args().to_vec();
        // Triton adds parameters that these kernels do not use.
        args.resize(case.kernel.params().len(), 0);
        Launch {
            grid: 2,
            block: case.block,
            shared_bytes: SHARED_BYTES,
            args,
            seed: case.seed * 1000 + (number * MAX_LAUNCHES + self.launches) as u64,
            drain: 20,
            max_instructions: 1 << 24,
            ..Launch::default()
        }
    }

    /// Keeps the objects that have to be put again. Returns claims given up.
    fn ended(&mut self) -> Result<Vec<(u64, u64)>, String> {
        let mut abandoned = Vec::new();
        let mut again = Vec::new();
        for (object, result) in self.objects.iter().zip(&self.results) {
            let at = &raw const *result;
            // SAFETY: the kernel that wrote it has ended.
            let result = unsafe { at.read_volatile() };
            let status = LogPutStatus::from_word(result.status).ok_or("no status")?;
            if status != LogPutStatus::Stored {
                again.push(*object);
            }
            if status == LogPutStatus::Waited {
                abandoned.push((result.position, object.claim_bytes));
            }
        }
        self.objects = again;
        Ok(abandoned)
    }
}

impl Poller {
    /// Takes the next claim if it is settled, and makes room behind it.
    fn poll(&mut self, log: &Log, abandoned: &[(u64, u64)]) -> Result<(), String> {
        let p = self.frontier;
        if let Some((_, n)) = abandoned.iter().find(|(at, _)| *at == p) {
            self.step(log, *n);
            return Ok(());
        }
        let (slot, epoch) = (log.layout.slot(p), log.layout.epoch(p).ok_or("no epoch")?);
        let header = log.header(slot);
        if epoch_of(header.publish) != epoch {
            return Ok(());
        }
        match low(header.publish) {
            state::READY => self.accept(log, p, &header),
            state::DEAD => {
                let n = header.bytes_total;
                let crosses = log.layout.is_claim(p, n) && log.layout.wraps(p, n);
                if !crosses || header.payload_base != log.layout.payload_off(p) {
                    return Err(format!("a skip of {n} bytes at {p}"));
                }
                self.skips += 1;
                self.step(log, n);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn accept(&mut self, log: &Log, p: u64, header: &ObjHeader) -> Result<(), String> {
        let key = header.key_hash;
        let size = SIZES[(key as usize).wrapping_sub(1) % SIZES.len()];
        let object = ObjectDesc::of_header(header);
        let right = header.key_check == !key
            && header.bytes_total == size
            && header.n_pages == object.n_pages()
            && header.page_size == PAGE
            && header.payload_base == log.layout.payload_off(p);
        if !right || !self.accepted.insert((key, p)) {
            return Err(format!("READY at {p} with the fields {header:?}"));
        }
        let start = log.payload() + p % LOG_BYTES;
        for i in 0..size {
            // SAFETY: inside the log's payload.
            let byte = unsafe { ((start + i) as *const u8).read_volatile() };
            if byte != source_word(key, i / 8).to_le_bytes()[(i % 8) as usize] {
                return Err(format!("READY at {p} before byte {i} of {size}"));
            }
        }
        let n = log.layout.claim_bytes(size).ok_or("too large")?;
        // Used up: what a later lap finds here is not its own.
        for i in 0..n / 8 {
            // SAFETY: inside the log's payload.
            unsafe { ((start + i * 8) as *mut u64).write_volatile(!0) };
        }
        self.step(log, n);
        Ok(())
    }

    fn step(&mut self, log: &Log, n: u64) {
        self.frontier += n;
        log.control[0].store(self.frontier + LOG_BYTES, SeqCst);
    }
}

/// Lets the writers put all their objects. The error says what was wrong.
pub fn run(case: &Case<'_>) -> Result<Counts, String> {
    let log = Log::new();
    let kernel = case.kernel;
    let mut writers: Vec<Writer> = (0..WRITERS).map(|i| Writer::new(&log.layout, i)).collect();
    let mut poller = Poller { frontier: 0, accepted: BTreeSet::new(), skips: 0 };
    let mut abandoned = Vec::new();
    let mut running: Vec<Option<Execution<'_>>> = Vec::new();
    for (i, writer) in writers.iter_mut().enumerate() {
        let launch = writer.launch(&log, case, i);
        running.push(Some(Execution::new(kernel, &launch).map_err(|e| e.to_string())?));
    }
    let mut rng = case.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
    while running.iter().any(Option::is_some) {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let i = (rng >> 33) as usize % WRITERS;
        if (rng >> 40) % 4 < 3 {
            poller.poll(&log, &abandoned)?;
        }
        let Some(execution) = running[i].as_mut() else { continue };
        // SAFETY: the kernels access the log and their writer's arrays, which live until they end.
        if unsafe { execution.step() }.map_err(|e| e.to_string())? {
            continue;
        }
        abandoned.extend(writers[i].ended()?);
        running[i] = None;
        if !writers[i].objects.is_empty() {
            if writers[i].launches == MAX_LAUNCHES {
                return Err("objects that never find room".to_owned());
            }
            let launch = writers[i].launch(&log, case, i);
            running[i] = Some(Execution::new(kernel, &launch).map_err(|e| e.to_string())?);
        }
    }
    for _ in 0..2 * UNITS {
        poller.poll(&log, &abandoned)?;
    }
    if poller.accepted.len() != WRITERS * SIZES.len() {
        return Err(format!("{} objects were accepted", poller.accepted.len()));
    }
    let mut guard = log.payload.iter().enumerate().skip((LOG_BYTES / 8 + 2) as usize);
    if guard.any(|(i, word)| word.load(SeqCst) != !(i as u64)) {
        return Err("a write behind the log".to_owned());
    }
    if poller.frontier != log.control[1].load(SeqCst) {
        return Err("a claim that nobody settled".to_owned());
    }
    let launches = writers.iter().map(|writer| writer.launches as u64 - 1).sum();
    Ok(Counts { skips: poller.skips, abandoned: abandoned.len() as u64, again: launches })
}
