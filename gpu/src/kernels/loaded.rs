//! The kernels of a device: each has a call that checks its arguments, chooses a grid and queues
//! it.

use super::check::{self, LogAddresses, Reach};
use super::launch::{DONE, LIST, Launch, LaunchOptions, LaunchStream, Order, RESULT, UNUSED};
use super::parts::Module;
use super::pool::LaunchPool;
use super::{
    BULK_SHARED_BYTES, Descriptor, Descriptors, GATHER_BULK, GATHER_PUBLISH, GatherPublish,
    LOG_PUT, LogPut, LogPutObject, LogPutResult, LogPutStatus, MAX_BLOCK, MAX_GRID, PTX_SM80,
    PTX_SM90, ScatterResult, WAIT_SCATTER, WaitScatter,
};
use crate::driver::{Device, DriverError};
use crate::vram::Span;
use std::sync::Arc;

/// A piece of a copy that one block makes at a time, at least and at most.
const LEAST_PIECE: u64 = 16 << 10;
const MOST_PIECE: u64 = 1 << 20;
/// The oldest compute capability that the kernels are compiled for.
const OLDEST: (i32, i32) = (8, 0);
const WITH_BULK: (i32, i32) = (9, 0);

/// What `nkv_gather_publish` and `nkv_gather_bulk` publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish {
    /// Address of the publish word.
    pub word: u64,
    /// What it must be: (WRITING, epoch).
    pub expect: u64,
    /// What it becomes: (READY, epoch).
    pub ready: u64,
}

impl Publish {
    /// A word of the launch itself, which is 0 and stays so.
    pub(super) const NOTHING: Publish = Publish { word: 0, expect: 0, ready: 0 };
}

/// Which object `nkv_wait_scatter` waits for. Fields as in [`WaitScatter`].
#[expect(missing_docs, reason = "each is described there")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub header: u64,
    pub key_hash: u64,
    pub key_check: u64,
    pub epoch: u32,
    pub payload_base: u64,
    pub bytes: u64,
    pub spins: u64,
}

/// What became of an object that a launch was to put into a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPutOutcome {
    /// Whether it is stored, and if not, why.
    pub status: LogPutStatus,
    /// Position of its last claim; meaningful if `Stored` or `Waited`.
    pub position: u64,
}

/// The kernels, compiled for one device.
#[derive(Debug)]
pub struct Kernels {
    // Dropped first: it waits for launches that nobody waited for.
    pub(super) pool: LaunchPool,
    pub(super) module: Module,
}

impl Kernels {
    /// Compiles the kernels for a device: those with the bulk copy engine where it has one.
    ///
    /// # Errors
    /// With what the driver's compiler reports.
    pub fn load(device: &Arc<Device>) -> Result<Arc<Self>, DriverError> {
        let (attributes, ordinal) = (device.attributes(), device.ordinal());
        let (major, minor) = attributes.capability;
        if attributes.capability < OLDEST {
            return Err(DriverError::Invalid(format!(
                "GPU {ordinal} ({}) has compute capability {major}.{minor}, and the kernels need \
                 {}.{}: use an A100 or later",
                attributes.name, OLDEST.0, OLDEST.1
            )));
        }
        let bulk = attributes.capability >= WITH_BULK;
        Self::load_ptx(device, if bulk { PTX_SM90 } else { PTX_SM80 })
    }

    /// Compiles other text of the same kernels.
    ///
    /// # Errors
    /// As [`Kernels::load`], and if a kernel is missing.
    pub fn load_ptx(device: &Arc<Device>, ptx: &str) -> Result<Arc<Self>, DriverError> {
        let module = Module::load(device, ptx)?;
        let pool = LaunchPool::new(device)?;
        Ok(Arc::new(Self { pool, module }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        self.module.device()
    }

    /// Whether it has `nkv_gather_bulk`.
    pub fn has_bulk(&self) -> bool {
        self.module.function(GATHER_BULK).is_some()
    }

    /// Queues `nkv_gather_publish`. Its result is what the publish word was; READY was set if that
    /// is `expect`.
    ///
    /// # Errors
    /// For arguments that cannot be, and those of the driver.
    ///
    /// # Safety
    /// The ranges and the publish word are mapped for the device until the launch has ended, and
    /// the header belongs to the caller: fields and WRITING are written [I4].
    pub unsafe fn gather_publish(
        self: &Arc<Self>,
        stream: &LaunchStream,
        options: LaunchOptions,
        publish: Publish,
        copies: &Descriptors,
        reach: &Reach<'_>,
    ) -> Result<Launch<u64>, DriverError> {
        let (grid, block) = self.grid(GATHER_PUBLISH, options, 2)?;
        // SAFETY: by this function's contract.
        unsafe { self.gather((GATHER_PUBLISH, grid, block, 0), stream, publish, copies, reach) }
    }

    /// Queues `nkv_gather_bulk`, as [`Kernels::gather_publish`]. Sizes must be multiples of 16.
    ///
    /// # Errors
    /// As there, and if the device has no bulk copy engine.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn gather_bulk(
        self: &Arc<Self>,
        stream: &LaunchStream,
        options: LaunchOptions,
        publish: Publish,
        copies: &Descriptors,
        reach: &Reach<'_>,
    ) -> Result<Launch<u64>, DriverError> {
        let (grid, _) = self.grid(GATHER_BULK, options, 2)?;
        let shape = (GATHER_BULK, grid, 1, BULK_SHARED_BYTES);
        // SAFETY: by this function's contract.
        unsafe { self.gather(shape, stream, publish, copies, reach) }
    }

    unsafe fn gather(
        self: &Arc<Self>,
        (kernel, most, block, shared): (&'static str, u32, u32, u32),
        stream: &LaunchStream,
        publish: Publish,
        copies: &Descriptors,
        reach: &Reach<'_>,
    ) -> Result<Launch<u64>, DriverError> {
        if publish != Publish::NOTHING {
            check::word(kernel, "publish word", publish.word)?;
        }
        check::copies(kernel, copies, reach)?;
        let (copies, grid) = shares(kernel, copies, most)?;
        let list = bytes_of(copies.list());
        let about = format!("for {} copies of {} bytes", copies.list().len(), copies.bytes());
        let order = Order { kernel, grid, block, shared, list: &list, results: 0, about };
        let Publish { word, expect, ready } = publish;
        let count = copies.list().len() as u32;
        let args = |at: u64| {
            let (descriptors, done, found) = (at + LIST, at + DONE, at + RESULT);
            let publish = if word == 0 { at + UNUSED } else { word };
            GatherPublish { descriptors, count, done, publish, expect, ready, found }
                .args()
                .to_vec()
        };
        // SAFETY: by this function's contract; the rest lies in the launch's memory.
        unsafe { self.launch(stream, order, args, |words| Ok(word_at(words, 0))) }
    }

    /// Queues `nkv_wait_scatter`.
    ///
    /// # Errors
    /// For arguments that cannot be, and those of the driver.
    ///
    /// # Safety
    /// The ranges and the header are mapped for the device until the launch has ended, and no one
    /// uses the ranges that are written.
    pub unsafe fn wait_scatter(
        self: &Arc<Self>,
        stream: &LaunchStream,
        options: LaunchOptions,
        wanted: Wanted,
        copies: &Descriptors,
        reach: &Reach<'_>,
    ) -> Result<Launch<ScatterResult>, DriverError> {
        let kernel = WAIT_SCATTER;
        check::word(kernel, "header", wanted.header)?;
        check::copies(kernel, copies, reach)?;
        // One block for each multiprocessor: blocks that wait leave place for the writer's.
        let (most, block) = self.grid(kernel, options, 1)?;
        let (copies, grid) = shares(kernel, copies, most)?;
        let list = bytes_of(copies.list());
        let about = format!("for {} copies of {} bytes", copies.list().len(), copies.bytes());
        let order = Order { kernel, grid, block, shared: 0, list: &list, results: 0, about };
        let count = copies.list().len() as u32;
        let Wanted { header, key_hash, key_check, epoch, payload_base, bytes, spins } = wanted;
        let args = |at: u64| {
            let (descriptors, done, result) = (at + LIST, at + DONE, at + RESULT);
            WaitScatter {
                header,
                key_hash,
                key_check,
                epoch,
                payload_base,
                bytes,
                spins,
                descriptors,
                count,
                done,
                result,
            }
            .args()
            .to_vec()
        };
        let decode = |words: &[u8]| {
            let word = word_at(words, 0);
            ScatterResult::from_word(word).ok_or_else(|| wrote(WAIT_SCATTER, word))
        };
        // SAFETY: by this function's contract; the rest lies in the launch's memory.
        unsafe { self.launch(stream, order, args, decode) }
    }

    /// Queues `nkv_log_put`. `spins`: how often a claim above the limit reads it again at most.
    ///
    /// # Errors
    /// For arguments that cannot be, and those of the driver.
    ///
    /// # Safety
    /// The log and the ranges are mapped for the device until the launch has ended, the atomic
    /// domain of the log is the device, and the process is entered in its table of open claims
    /// [I1] [I14].
    pub unsafe fn log_put(
        self: &Arc<Self>,
        stream: &LaunchStream,
        options: LaunchOptions,
        log: &LogAddresses,
        spins: u64,
        objects: &[LogPutObject],
        read: &[Span],
    ) -> Result<Launch<Vec<LogPutOutcome>>, DriverError> {
        let kernel = LOG_PUT;
        check::log(kernel, log)?;
        check::objects(kernel, log, objects, read)?;
        let (most, block) = self.grid(kernel, options, 1)?;
        let (n, bytes) = (objects.len(), objects.iter().map(|o| o.bytes).sum::<u64>());
        let list = bytes_of_objects(objects);
        let order = Order {
            kernel,
            grid: most.min(n as u32),
            block,
            shared: 0,
            list: &list,
            results: n * size_of::<LogPutResult>(),
            about: format!("for {n} objects of {bytes} bytes in all"),
        };
        let LogAddresses { bump, limit, headers, payload, offset, log_bytes } = *log;
        let args = |at: u64| {
            let (objects, results) = (at + LIST, at + LIST + list.len() as u64);
            let count = n as u32;
            LogPut {
                objects,
                count,
                bump,
                limit,
                headers,
                payload,
                offset,
                log_bytes,
                spins,
                results,
            }
            .args()
            .to_vec()
        };
        let decode = move |words: &[u8]| {
            let outcome = |at| {
                let (position, status) = (word_at(words, 2 * at), word_at(words, 2 * at + 1));
                let known = LogPutStatus::from_word(status).ok_or_else(|| wrote(LOG_PUT, status));
                known.map(|status| LogPutOutcome { status, position })
            };
            (0..n).map(outcome).collect()
        };
        // SAFETY: by this function's contract; the rest lies in the launch's memory.
        unsafe { self.launch(stream, order, args, decode) }
    }

    /// Most blocks, and threads of each. With all multiprocessors each may get `usual` blocks.
    fn grid(
        &self,
        kernel: &str,
        options: LaunchOptions,
        usual: u32,
    ) -> Result<(u32, u32), DriverError> {
        let there = u32::try_from(self.device().attributes().multiprocessors).unwrap_or(1).max(1);
        let blocks = match options.multiprocessors {
            None => there.saturating_mul(usual),
            Some(wanted) if (1..=there).contains(&wanted) => wanted,
            Some(wanted) => {
                let why =
                    format!("{wanted} multiprocessors, and this GPU has {there}: 1 to {there}");
                return check::refuse(kernel, &why);
            }
        };
        let threads = options.threads.unwrap_or(MAX_BLOCK);
        if !(1..=MAX_BLOCK).contains(&threads) {
            let why = format!("{threads} threads of a block: give 1 to {MAX_BLOCK}");
            return check::refuse(kernel, &why);
        }
        Ok((blocks.min(MAX_GRID), threads))
    }
}

/// Cuts copies so that `most` blocks have equal shares; and how many blocks have one.
fn shares(
    kernel: &str,
    copies: &Descriptors,
    most: u32,
) -> Result<(Descriptors, u32), DriverError> {
    let piece = (copies.bytes() / u64::from(most)).clamp(LEAST_PIECE, MOST_PIECE);
    let cut = copies.split(piece).or_else(|e| check::refuse(kernel, &e.to_string()))?;
    let blocks = u32::try_from(cut.list().len()).unwrap_or(most).clamp(1, most);
    Ok((cut, blocks))
}

fn wrote(kernel: &str, word: u64) -> DriverError {
    DriverError::Invalid(format!(
        "{kernel} ended with the result {word}, which is none: report it with the driver's version"
    ))
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at * 8..at * 8 + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}

fn bytes_of(list: &[Descriptor]) -> Vec<u8> {
    let words = list.iter().flat_map(|copy| [copy.dst, copy.src, copy.size]);
    words.flat_map(u64::to_ne_bytes).collect()
}

fn bytes_of_objects(list: &[LogPutObject]) -> Vec<u8> {
    let words = list.iter().flat_map(|o| {
        let pages = u64::from(o.page_size) << 32 | u64::from(o.n_pages);
        [o.src, o.bytes, o.claim_bytes, o.key_hash, o.key_check, pages]
    });
    words.flat_map(u64::to_ne_bytes).collect()
}
