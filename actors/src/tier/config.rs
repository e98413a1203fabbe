//! The settings of the SSD tier, and the engine that they ask for.

use nkv_ssd::files::FilesOptions;
use nkv_ssd::slab::SlabOptions;
use nkv_ssd::{Disk, Durability, Engine, FilesEngine, SlabEngine, SsdError, Storage, WallClock};
use nkv_store::layout::PAYLOAD_ALIGN;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds of a day.
pub const DAY_S: u64 = 86_400;
/// Longest time to live, and the default.
pub const MAX_TTL_DAYS: u64 = 3650;
/// See [`MAX_TTL_DAYS`].
pub const DEFAULT_TTL_DAYS: u64 = 7;
/// Least and greatest capacity in bytes.
pub const MIN_BYTES: u64 = 64 << 20;
/// See [`MIN_BYTES`].
pub const MAX_BYTES: u64 = 1 << 50;
/// Longest slab, and how many slabs there are at least.
const MAX_SLAB_BYTES: u64 = 1 << 30;
const LEAST_SLABS: u64 = 4;

/// Which objects are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SsdPolicy {
    /// Those that are evicted from memory.
    #[default]
    EvictOnly,
    /// All, soon after they were put.
    WriteThrough,
}

/// How objects lie on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SsdEngine {
    /// In a few large files.
    #[default]
    Slab,
    /// A safetensors file for each.
    Files,
}

/// Settings of the SSD tier of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SsdConfig {
    /// The directory, made if it is not there. A rank uses `rank-N` below it, so that ranks of one
    /// host may be given the same one.
    pub dir: PathBuf,
    /// Bytes that objects may take there.
    pub bytes: u64,
    /// Which objects are saved.
    pub policy: SsdPolicy,
    /// When a save counts as done.
    pub durability: Durability,
    /// Objects that nobody used for this many seconds are removed.
    pub ttl_s: u64,
    /// How they lie there.
    pub engine: SsdEngine,
}

impl SsdConfig {
    /// A directory with the defaults for all else.
    ///
    /// ```
    /// use nkv_actors::{NodeConfig, tier::SsdConfig};
    ///
    /// let ssd = Some(SsdConfig::new("/nvme/nkv", 100 << 30));
    /// let config = NodeConfig { ssd, ..NodeConfig::default() };
    /// ```
    pub fn new(dir: impl Into<PathBuf>, bytes: u64) -> Self {
        Self {
            dir: dir.into(),
            bytes,
            policy: SsdPolicy::default(),
            durability: Durability::default(),
            ttl_s: DEFAULT_TTL_DAYS * DAY_S,
            engine: SsdEngine::default(),
        }
    }

    /// The first setting that cannot work, with its allowed values.
    pub(crate) fn fault(&self) -> Option<String> {
        if !(MIN_BYTES..=MAX_BYTES).contains(&self.bytes) {
            let text =
                format!("the SSD tier has {MIN_BYTES} to {MAX_BYTES} bytes, not {}", self.bytes);
            return Some(text);
        }
        let most = MAX_TTL_DAYS * DAY_S;
        if !(1..=most).contains(&self.ttl_s) {
            return Some(format!("ttl_s of the SSD tier is 1 to {most}, not {}", self.ttl_s));
        }
        None
    }
}

#[expect(clippy::disallowed_methods, reason = "a time to live counts days, over restarts")]
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(super) fn open_engine(config: &SsdConfig) -> Result<Arc<dyn Engine>, SsdError> {
    let storage: Arc<dyn Storage> = Arc::new(Disk::open(&config.dir)?);
    let clock: WallClock = Arc::new(now_s);
    let (capacity_bytes, durability, ttl_s) = (config.bytes, config.durability, config.ttl_s);
    Ok(match config.engine {
        SsdEngine::Slab => {
            let whole = |bytes: u64| bytes - bytes % PAYLOAD_ALIGN;
            let slab_bytes = whole((capacity_bytes / LEAST_SLABS).min(MAX_SLAB_BYTES));
            let capacity_bytes = whole(capacity_bytes);
            let options = SlabOptions { capacity_bytes, slab_bytes, durability, ttl_s, clock };
            Arc::new(SlabEngine::open(storage, options)?)
        }
        SsdEngine::Files => {
            let options = FilesOptions { capacity_bytes, durability, ttl_s, clock };
            Arc::new(FilesEngine::open(storage, options)?)
        }
    })
}
