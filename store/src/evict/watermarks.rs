//! When eviction starts and where it stops. Pure arithmetic over used and capacity.

use crate::error::StoreError;

/// Of a heap beside a log: what it loses by room that lies empty is little beside the log. And in
/// every heap of what goes before all others, which has the rest of the room.
const USUAL: (u32, u32) = (95, 85);
/// Room that a heap without a log keeps: for so many objects of the largest size lately, but at
/// least and at most so many percent of it.
const OBJECTS: u64 = 2;
const LEAST_PERCENT: u64 = 1;
const MOST_PERCENT: u64 = 15;

/// When a heap is evicted, as a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Watermarks {
    /// 95/85 beside a log. Without one the heap is the cache, and what lies empty is lost to it: it
    /// keeps room for two objects of the largest size lately, at least 1 % and at most 15 % of it.
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
            Watermarks::Auto if beside_log => USUAL,
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
    /// Those of what goes before all others.
    first: (u64, u64),
    /// Whether room is kept for the largest objects, and the bytes of these.
    follows: bool,
    largest: u64,
    /// Bytes put since.
    since: u64,
    /// Room that is kept besides, since what is free is in pieces; and bytes put since.
    in_pieces: u64,
    since_pieces: u64,
}

impl Marks {
    /// Of a heap of `capacity` bytes, with a log beside it or none.
    pub fn new(marks: Watermarks, capacity: u64, beside_log: bool) -> Self {
        let bytes = |(hi, lo): (u32, u32)| {
            (percent_of(capacity, hi.into()), percent_of(capacity, lo.into()))
        };
        let (hi, lo) = bytes(marks.percent(beside_log));
        let follows = marks == Watermarks::Auto && !beside_log;
        let first = if follows { bytes(USUAL) } else { (hi, lo) };
        let (largest, since, in_pieces, since_pieces) = (0, 0, 0, 0);
        Self { capacity, hi, lo, first, follows, largest, since, in_pieces, since_pieces }
    }

    /// An object of `bytes` was put. The largest one counts until as much was put as the heap
    /// holds.
    pub fn admitted(&mut self, bytes: u64) {
        self.since = self.since.saturating_add(bytes);
        self.since_pieces = self.since_pieces.saturating_add(bytes);
        if bytes >= self.largest || self.since > self.capacity {
            (self.largest, self.since) = (bytes, 0);
        }
        if self.since_pieces > self.capacity {
            self.in_pieces = 0;
        }
        self.keep_room();
    }

    /// An object found no room though more than its bytes are free: more is kept until as much was
    /// put as the heap holds.
    pub fn is_in_pieces(&mut self) {
        let more = self.in_pieces + percent_of(self.capacity, LEAST_PERCENT);
        (self.in_pieces, self.since_pieces) = (more.min(self.most_room()), 0);
        self.keep_room();
    }

    fn keep_room(&mut self) {
        if self.follows {
            let least = percent_of(self.capacity, LEAST_PERCENT);
            let room = self.largest.saturating_mul(OBJECTS).saturating_add(self.in_pieces);
            self.lo = self.capacity - room.clamp(least, self.most_room());
            self.hi = self.lo.max(self.first.0.min(self.capacity - least));
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

    /// Bytes at which eviction stops of what goes before all others, if it must start.
    pub fn target_of_first(&self, used: u64) -> Option<u64> {
        (used > self.first.0).then_some(self.first.1)
    }

    /// Bytes at which eviction stops where puts wait: one for `need` contiguous bytes, and all
    /// together for `all`, of which no more is made at a time than a heap ever keeps.
    pub fn target_for(&self, need: u64, all: u64) -> u64 {
        let room = need.max(all.min(self.most_room()));
        self.capacity.saturating_sub(room).min(self.lo)
    }

    /// The most that is ever kept free.
    pub fn most_room(&self) -> u64 {
        percent_of(self.capacity, MOST_PERCENT)
    }
}

fn percent_of(capacity: u64, percent: u64) -> u64 {
    (u128::from(capacity) * u128::from(percent) / 100) as u64
}
