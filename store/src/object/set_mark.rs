//! What the header of an object says of its replicas, if its producer put it into several logs at
//! once. It lies where other objects have their number of pages, which nobody reads: it follows
//! from the bytes.

/// Tells a mark from a number of pages.
const IS_MARK: u32 = 1 << 31;
/// The low bits: replicas asked for, less one. The others are random.
const WANTED_BITS: u32 = 3;
const WANTED: u32 = (1 << WANTED_BITS) - 1;

/// The mark of the replicas of one put, the same in each of their headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetMark(u32);

impl SetMark {
    /// Of an object that is alone.
    pub const NONE: Self = Self(0);
    /// The highest number of pages that is written: a higher one might be taken for a mark.
    pub const MOST_PAGES: u32 = IS_MARK - 1;
    /// Most replicas of one put.
    pub const MOST: u8 = WANTED as u8 + 1;

    /// Of a put of so many replicas, 2 to [`SetMark::MOST`]; of any other number, none.
    pub fn new(random: u64, wanted: u8) -> Self {
        match wanted {
            2..=Self::MOST => {
                Self(IS_MARK | (random as u32) << WANTED_BITS | u32::from(wanted - 1))
            }
            _ => Self::NONE,
        }
    }

    /// What a header or a request has; anything that is no mark is none.
    #[inline]
    pub fn of_word(word: u32) -> Self {
        let is_mark = word & IS_MARK != 0 && word & WANTED != 0;
        Self(if is_mark { word } else { 0 })
    }

    /// As a header or a request has it; 0: none.
    #[inline]
    pub fn word(self) -> u32 {
        self.0
    }

    /// Whether the object is alone.
    #[inline]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// How many replicas the put asked for; 0: the object is alone.
    pub fn wanted(self) -> u8 {
        if self.is_none() { 0 } else { (self.0 & WANTED) as u8 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::SetMark;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_mark_has_its_number_and_differs_by_its_random_bits(
            (random, other, wanted) in (any::<u64>(), any::<u64>(), 2..=SetMark::MOST),
        ) {
            let mark = SetMark::new(random, wanted);
            prop_assert_eq!(mark.wanted(), wanted);
            prop_assert_eq!(SetMark::of_word(mark.word()), mark);
            let same = (random ^ other) << 36 == 0;
            prop_assert_eq!(SetMark::new(other, wanted) == mark, same);
        }

        #[test]
        fn a_number_of_pages_is_no_mark(pages in 0..1u32 << 31) {
            prop_assert!(SetMark::of_word(pages).is_none());
        }

        #[test]
        fn no_word_asks_for_more_than_may_be(word in any::<u32>()) {
            let mark = SetMark::of_word(word);
            prop_assert!(mark.is_none() || (2..=SetMark::MOST).contains(&mark.wanted()));
        }
    }

    #[test]
    fn one_replica_or_too_many_have_none() {
        for wanted in [0, 1, SetMark::MOST + 1, u8::MAX] {
            assert!(SetMark::new(7, wanted).is_none());
        }
    }
}
