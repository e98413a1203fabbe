//! When eviction starts and where it stops. Pure arithmetic over used and capacity.

use crate::error::StoreError;

/// Of a heap beside a log. What it loses by room that lies empty is little beside the log.
const BESIDE_A_LOG: Watermarks = Watermarks::Percent { hi: 95, lo: 85 };
/// Room that a heap without a log keeps: for so many objects of the largest size lately, but at
/// least and at most so many percent of it.
const OBJECTS: u64 = 2;
const LEAST_PERCENT: u64 = 1;
const MOST_PERCENT: u64 = 15;

/// When a heap is evicted, as a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Watermarks {
    /// 95/85 beside a log. Without one the heap is the cache, and what lies empty is lost to it: it
    /// keeps room for two objects, and at least 1 % of it.
    #[default]
    Auto,
    /// Eviction starts above `hi` percent of the capacity and stops at `lo` percent.
    Percent {
        /// 1 to 100.
        hi: u32,
        /// At most `hi`.
        lo: u32,
    },
}

impl Watermarks {
    /// Checks 0 < lo <= hi <= 100.
    pub fn validate(&self) -> Result<(), StoreError> {
        match *self {
            Watermarks::Percent { hi, lo } if lo == 0 || lo > hi || hi > 100 => {
                Err(StoreError::InvalidConfig(format!(
                    "watermarks {self} cannot work: give auto, or HI/LO in percent with 0 < LO <= \
                     HI <= 100, e.g. 95/85"
                )))
            }
            _ => Ok(()),
        }
    }

    /// The percentages of a heap that has a log beside it, or none: those that its control block
    /// names.
    pub fn percent(self, beside_log: bool) -> (u32, u32) {
        match self {
            Watermarks::Percent { hi, lo } => (hi, lo),
            Watermarks::Auto if beside_log => BESIDE_A_LOG.percent(true),
            Watermarks::Auto => {
                let most = 100 - LEAST_PERCENT as u32;
                (most, most)
            }
        }
    }
}

impl std::fmt::Display for Watermarks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Watermarks::Auto => f.write_str("auto"),
            Watermarks::Percent { hi, lo } => write!(f, "{hi}/{lo}"),
        }
    }
}

impl std::str::FromStr for Watermarks {
    type Err = StoreError;

    /// Reads "auto", or "HI/LO" in percent, and validates it.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        let parsed = match text.trim() {
            "auto" => Some(Watermarks::Auto),
            pair => pair.split_once('/').and_then(|(hi, lo)| {
                let (hi, lo) = (hi.trim().parse().ok()?, lo.trim().parse().ok()?);
                Some(Watermarks::Percent { hi, lo })
            }),
        };
        let Some(marks) = parsed else {
            return Err(StoreError::InvalidConfig(format!(
                "\"{}\" is not a pair of watermarks: give auto, or HI/LO in percent, e.g. 95/85",
                text.escape_debug()
            )));
        };
        marks.validate()?;
        Ok(marks)
    }
}

/// The watermarks of one heap, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    capacity: u64,
    hi: u64,
    lo: u64,
    /// Whether room is kept for the largest objects, and the bytes of these.
    follows: bool,
    largest: u64,
    /// Bytes admitted since.
    since: u64,
}

impl Marks {
    /// Of a heap of `capacity` bytes, with a log beside it or none.
    pub fn new(marks: Watermarks, capacity: u64, beside_log: bool) -> Self {
        let (hi, lo) = marks.percent(beside_log);
        Self {
            capacity,
            hi: percent_of(capacity, hi.into()),
            lo: percent_of(capacity, lo.into()),
            follows: marks == Watermarks::Auto && !beside_log,
            largest: 0,
            since: 0,
        }
    }

    /// An object of `bytes` was put. The largest one counts until as much was put as the heap
    /// holds.
    pub fn admitted(&mut self, bytes: u64) {
        self.since = self.since.saturating_add(bytes);
        if self.follows && (bytes >= self.largest || self.since > self.capacity) {
            (self.largest, self.since) = (bytes, 0);
            let least = percent_of(self.capacity, LEAST_PERCENT);
            let most = percent_of(self.capacity, MOST_PERCENT);
            let room = bytes.saturating_mul(OBJECTS).clamp(least, most);
            self.hi = self.capacity - room;
            self.lo = self.hi;
        }
    }

    /// True if eviction must start. Never where the high watermark is all: only a full arena then
    /// evicts.
    pub fn exceeded_by(&self, used: u64) -> bool {
        used > self.hi
    }

    /// Bytes at which eviction stops.
    pub fn target(&self) -> u64 {
        self.lo
    }
}

fn percent_of(capacity: u64, percent: u64) -> u64 {
    (u128::from(capacity) * u128::from(percent) / 100) as u64
}
