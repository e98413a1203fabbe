//! How long an evictor keeps an object. The owner's word of the object's header has it, above LIVE:
//! so it outlives the actors, and who reads a header knows it.

use crate::error::StoreError;
use crate::layout::{flag, low};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const KIND_SHIFT: u32 = 1;
const KIND_MASK: u32 = 0b111;
const SECONDS_SHIFT: u32 = 8;
const SECONDS_MASK: u32 = 0xff_ffff;
/// Bits that no retention has.
const UNUSED: u32 = flag::LIVE | !(KIND_MASK << KIND_SHIFT | SECONDS_MASK << SECONDS_SHIFT);

const USUAL: u32 = 0;
const EVICT_FIRST: u32 = 1;
const SOFT_PIN: u32 = 2;
const HARD_PIN: u32 = 3;
const EXTRA: u32 = 4;
const UNTIL_READ: u32 = 5;
const LAST_OF_BATCH: u32 = 6;

/// What the evictor of a rank does with an object when it needs room. None of these outlives a
/// removal, or the loss of the rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum Retention {
    /// Evicted in its turn.
    #[default]
    Usual,
    /// Evicted before all others.
    EvictFirst,
    /// Evicted only where nothing else is left, until so much time has passed since its last use,
    /// in whole seconds.
    SoftPin(Duration),
    /// Never evicted.
    HardPin,
    /// Evicted before all others: a replica besides those that were asked for. No put asks for it.
    Extra,
    /// Evicted in its turn, and removed so much time after its first read, in whole seconds.
    UntilRead(Duration),
    /// Usual, and the last object of a batch, which the policy `prefix` may evict first. `put_many`
    /// says so where it puts by plans.
    LastOfBatch,
}

impl Retention {
    /// The longest time: 194 days.
    pub const LONGEST: Duration = Duration::from_secs(SECONDS_MASK as u64);

    /// As it travels and lies in a header. A time of less than a second is one.
    pub fn bits(self) -> u32 {
        let seconds = |ttl: Duration| ttl.min(Self::LONGEST).as_secs().max(1) as u32;
        let (kind, seconds) = match self {
            Self::Usual => (USUAL, 0),
            Self::EvictFirst => (EVICT_FIRST, 0),
            Self::SoftPin(ttl) => (SOFT_PIN, seconds(ttl)),
            Self::HardPin => (HARD_PIN, 0),
            Self::Extra => (EXTRA, 0),
            Self::UntilRead(ttl) => (UNTIL_READ, seconds(ttl)),
            Self::LastOfBatch => (LAST_OF_BATCH, 0),
        };
        kind << KIND_SHIFT | seconds << SECONDS_SHIFT
    }

    /// What came in a message.
    ///
    /// # Errors
    /// `InvalidConfig` if no retention has these bits.
    pub fn from_bits(bits: u32) -> Result<Self, StoreError> {
        let (kind, seconds) = (bits >> KIND_SHIFT & KIND_MASK, bits >> SECONDS_SHIFT);
        let timed = matches!(kind, SOFT_PIN | UNTIL_READ);
        if bits & UNUSED != 0 || kind > LAST_OF_BATCH || timed != (seconds > 0) {
            return Err(StoreError::InvalidConfig(format!("no retention is {bits:#x}")));
        }
        let ttl = Duration::from_secs(seconds.into());
        Ok(match kind {
            EVICT_FIRST => Self::EvictFirst,
            SOFT_PIN => Self::SoftPin(ttl),
            HARD_PIN => Self::HardPin,
            EXTRA => Self::Extra,
            UNTIL_READ => Self::UntilRead(ttl),
            LAST_OF_BATCH => Self::LastOfBatch,
            _ => Self::Usual,
        })
    }

    /// Whether it is evicted before all others.
    pub fn goes_first(self) -> bool {
        matches!(self, Self::EvictFirst | Self::Extra)
    }

    /// Whether it is evicted in its turn, and nothing else.
    pub fn is_usual(self) -> bool {
        matches!(self, Self::Usual | Self::LastOfBatch)
    }

    /// That of an object whose owner's word this is.
    pub fn of_word(owner: u64) -> Self {
        Self::from_bits(low(owner) & !flag::LIVE).unwrap_or_default()
    }
}

impl std::fmt::Display for Retention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usual => write!(f, "usual"),
            Self::EvictFirst => write!(f, "evict-first"),
            Self::SoftPin(ttl) => write!(f, "soft-pin:{}", ttl.as_secs()),
            Self::HardPin => write!(f, "hard-pin"),
            Self::Extra => write!(f, "extra"),
            Self::UntilRead(ttl) => write!(f, "until-read:{}", ttl.as_secs()),
            Self::LastOfBatch => write!(f, "last-of-batch"),
        }
    }
}

/// As it is shown; what no put may ask for is none.
impl std::str::FromStr for Retention {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let (name, seconds) = text.split_once(':').map_or((text, None), |(n, s)| (n, Some(s)));
        let ttl = seconds.and_then(|s| s.parse().ok()).map(Duration::from_secs);
        let ttl = ttl.filter(|ttl| (1..=Self::LONGEST.as_secs()).contains(&ttl.as_secs()));
        match (name, seconds, ttl) {
            ("usual", None, _) => Ok(Self::Usual),
            ("last-of-batch", None, _) => Ok(Self::LastOfBatch),
            ("evict-first", None, _) => Ok(Self::EvictFirst),
            ("hard-pin", None, _) => Ok(Self::HardPin),
            ("soft-pin", _, Some(ttl)) => Ok(Self::SoftPin(ttl)),
            ("until-read", _, Some(ttl)) => Ok(Self::UntilRead(ttl)),
            _ => Err(StoreError::InvalidConfig(format!(
                "retention {text:?}: usual, evict-first, hard-pin, soft-pin:SECONDS or \
                 until-read:SECONDS is expected, with 1 to {} seconds",
                Self::LONGEST.as_secs()
            ))),
        }
    }
}

impl TryFrom<u32> for Retention {
    type Error = StoreError;

    fn try_from(bits: u32) -> Result<Self, StoreError> {
        Self::from_bits(bits)
    }
}

impl From<Retention> for u32 {
    fn from(retention: Retention) -> u32 {
        retention.bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::word;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_refused_or_come_back_as_they_were(bits: u32, epoch: u32) {
            let Ok(retention) = Retention::from_bits(bits) else { return Ok(()) };
            prop_assert_eq!(retention.bits(), bits);
            prop_assert_eq!(Retention::of_word(word(bits | flag::LIVE, epoch)), retention);
            let shown = retention.to_string().parse::<Retention>().ok();
            prop_assert_eq!(shown, Some(retention).filter(|r| *r != Retention::Extra));
        }

        #[test]
        fn a_time_comes_back_in_whole_seconds(seconds in 1..SECONDS_MASK, ms in 0..1000u64) {
            let ttl = Duration::from_millis(u64::from(seconds) * 1000 + ms);
            let whole = Duration::from_secs(seconds.into());
            for of in [Retention::SoftPin, Retention::UntilRead] {
                prop_assert_eq!(Retention::from_bits(of(ttl).bits()).ok(), Some(of(whole)));
            }
        }
    }

    #[test]
    fn each_retention_has_bits_of_its_own_and_none_has_live() {
        let soft = |seconds| Retention::SoftPin(Duration::from_secs(seconds));
        let (usual, first) = (Retention::Usual, Retention::EvictFirst);
        let (hard, extra) = (Retention::HardPin, Retention::Extra);
        let read = Retention::UntilRead(Duration::from_secs(1));
        for retention in
            [usual, first, soft(1), soft(1 << 23), hard, extra, read, Retention::LastOfBatch]
        {
            assert_eq!(Retention::from_bits(retention.bits()).ok(), Some(retention));
            assert_eq!(retention.bits() & flag::LIVE, 0);
        }
        assert_eq!(Retention::default().bits(), 0);
        assert_eq!(soft(1 << 40).bits(), Retention::SoftPin(Retention::LONGEST).bits());
        assert_eq!(Retention::SoftPin(Duration::ZERO).bits(), soft(1).bits());
        for wrong in ["", "extra", "soft-pin", "soft-pin:0", "usual:1", "until-read:16777216"] {
            assert!(wrong.parse::<Retention>().is_err(), "{wrong}");
        }
        for wrong in
            [flag::LIVE, 0b1010, 0b1110, 0b10000, SOFT_PIN << 1, HARD_PIN << 1 | 1 << 8, 1 << 8]
        {
            assert!(Retention::from_bits(wrong).is_err(), "{wrong:#b}");
        }
    }
}
