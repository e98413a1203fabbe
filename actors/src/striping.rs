//! Striped objects: the bytes of one object at several ranks. Each stripe is an object of a key of
//! its own, which names the object and the put that wrote it. Under the object's key lies a
//! manifest, which is put last and names the stripes. No stripe is ever read under another key.

use crate::error::{Error, Result};
use nkv_store::object::ObjectDesc;
use nkv_store::{Key, KeyHasher, KeyId};

/// Keys that begin so are nkv's own.
const RESERVED: &[u8] = b"\0nkv/";
const STRIPE: &[u8] = b"\0nkv/stripe/";
/// A stripe's key: what it begins with, the object, the put, and the stripe's number.
const STRIPE_KEY_BYTES: usize = STRIPE.len() + 16 + 16 + 4;

const MAGIC: &[u8] = b"nkv striped object 1\n";
/// Bytes of a manifest: no usual size of a value, which would have to be compared with `MAGIC`.
pub(crate) const MANIFEST_BYTES: usize = MAGIC.len() + 16 + 8 + 8 + 16;
/// The same in every job: what a disk keeps is read by a later job, whose hasher may be another.
/// Two keys of one identity share nothing, since each put has a random number.
const IDENTITIES: KeyHasher = KeyHasher::new(*b"nkv: its stripes");
/// Stripes of one object, at most.
pub const MAX_STRIPES: u8 = 64;
/// Set in every put's number: a manifest has one page.
const LARGE_PAGES: u32 = 1 << 31;
/// Stripes begin at multiples of this in their object.
const STRIPE_ALIGN: u64 = 4096;

/// Checks a key under which a user puts an object: those that nkv keeps for itself are
/// `InvalidArgument`.
#[inline]
pub(crate) fn check_new(key: &[u8]) -> Result<()> {
    Key::check(key)?;
    if key.starts_with(RESERVED) {
        let text = "keys that begin with \\0nkv/ are reserved for nkv itself; use another key";
        return Err(Error::invalid(text).about(key));
    }
    Ok(())
}

/// The identity of an object in its stripes' keys.
pub(crate) fn object_of(key: &[u8]) -> KeyId {
    IDENTITIES.id(key)
}

/// Whether this is the key of a stripe.
pub(crate) fn is_stripe(key: &[u8]) -> bool {
    key.len() == STRIPE_KEY_BYTES && key.starts_with(STRIPE)
}

/// Of the key of a stripe: the object, and the number of the put.
pub(crate) fn stripe_of(key: &[u8]) -> Option<(KeyId, u32)> {
    let object = key.strip_prefix(STRIPE).filter(|_| is_stripe(key))?;
    let (hash, rest) = object.split_first_chunk()?;
    let (check, rest) = rest.split_first_chunk()?;
    let (put, _) = rest.split_first_chunk()?;
    let object = KeyId { hash: u64::from_le_bytes(*hash), check: u64::from_le_bytes(*check) };
    Some((object, u32::from_le_bytes(*put)))
}

/// The number of the put that wrote an object, if that may be a manifest. Its stripes' keys have
/// the same number.
pub(crate) fn put_of(manifest: &ObjectDesc) -> Option<u32> {
    let is_manifest = manifest.bytes_total == MANIFEST_BYTES as u64
        && manifest.page_bytes & LARGE_PAGES == LARGE_PAGES;
    is_manifest.then_some(manifest.page_bytes)
}

/// Of each stripe of a value but the last one, in at most so many stripes.
fn stripe_bytes(bytes_total: u64, stripes: u8) -> u64 {
    let even = bytes_total.div_ceil(u64::from(stripes.clamp(1, MAX_STRIPES)));
    even.next_multiple_of(STRIPE_ALIGN).max(STRIPE_ALIGN)
}

/// How many stripes a value has if it is cut into at most so many.
pub(crate) fn stripes_of(bytes_total: u64, stripes: u8) -> u8 {
    bytes_total.div_ceil(stripe_bytes(bytes_total, stripes)) as u8
}

/// Where the bytes of a striped object are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manifest {
    object: KeyId,
    /// Random: two puts never have stripes of one key. Its lowest 32 bits are the put's number.
    put: u128,
    pub(crate) bytes_total: u64,
    /// Of each stripe but the last one, which may be shorter.
    pub(crate) stripe_bytes: u64,
}

impl Manifest {
    /// For a value of so many bytes of this key in at most so many stripes.
    pub(crate) fn new(key: &[u8], put: u128, bytes_total: u64, stripes: u8) -> Self {
        let (object, put) = (object_of(key), put | u128::from(LARGE_PAGES));
        Self { object, put, bytes_total, stripe_bytes: stripe_bytes(bytes_total, stripes) }
    }

    /// The number of the put, which the manifest has as its bytes per page: so the master knows
    /// which stripes are its own, and a disk which manifest of a key it has.
    pub(crate) fn page_bytes(&self) -> u32 {
        self.put as u32
    }

    /// How many stripes there are.
    pub(crate) fn stripes(&self) -> usize {
        self.bytes_total.div_ceil(self.stripe_bytes) as usize
    }

    /// The keys of the stripes, in the order of their bytes.
    pub(crate) fn keys(&self) -> Vec<[u8; STRIPE_KEY_BYTES]> {
        let key = |n: usize| {
            let mut key = [0; STRIPE_KEY_BYTES];
            let (hash, check) = (self.object.hash.to_le_bytes(), self.object.check.to_le_bytes());
            let (put, n) = (self.put.to_le_bytes(), (n as u32).to_le_bytes());
            let parts: [&[u8]; 5] = [STRIPE, &hash, &check, &put, &n];
            key.copy_from_slice(&parts.concat());
            key
        };
        (0..self.stripes()).map(key).collect()
    }

    /// The manifest as it is stored.
    pub(crate) fn encode(&self) -> [u8; MANIFEST_BYTES] {
        let put = self.put.to_le_bytes();
        let (total, stripe) = (self.bytes_total.to_le_bytes(), self.stripe_bytes.to_le_bytes());
        let parts: [&[u8]; 5] = [MAGIC, &put, &total, &stripe, &self.tag()];
        let mut bytes = [0; MANIFEST_BYTES];
        bytes.copy_from_slice(&parts.concat());
        bytes
    }

    /// The manifest in the value of a key; None if that is a value like any other: its tag is not
    /// the one of this key and these numbers.
    pub(crate) fn decode(bytes: &[u8], key: &[u8]) -> Option<Self> {
        let fields = bytes.strip_prefix(MAGIC).filter(|_| bytes.len() == MANIFEST_BYTES)?;
        let (put, rest) = fields.split_first_chunk()?;
        let (total, rest) = rest.split_first_chunk()?;
        let (stripe, _) = rest.split_first_chunk()?;
        let put = u128::from_le_bytes(*put);
        let (bytes_total, stripe_bytes) = (u64::from_le_bytes(*total), u64::from_le_bytes(*stripe));
        let manifest = Self { object: object_of(key), put, bytes_total, stripe_bytes };
        let possible = stripe_bytes > 0
            && bytes_total.div_ceil(stripe_bytes) <= u64::from(MAX_STRIPES)
            && manifest.encode() == bytes;
        possible.then_some(manifest)
    }

    /// 128 bits that no value has by accident. One that is made on purpose can name stripes of its
    /// own key alone.
    fn tag(&self) -> [u8; 16] {
        let half = |n: u8| {
            let numbers = [self.object.hash, self.object.check, self.bytes_total];
            let numbers = numbers.map(u64::to_le_bytes);
            let (put, stripe) = (self.put.to_le_bytes(), self.stripe_bytes.to_le_bytes());
            let parts = [RESERVED, b"manifest/", &[n], numbers.as_flattened(), &put, &stripe];
            IDENTITIES.check(&parts.concat())
        };
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&half(0).to_le_bytes());
        tag[8..].copy_from_slice(&half(1).to_le_bytes());
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nkv_store::arena::Extent;
    use proptest::prelude::*;

    const KEY: &[u8] = b"block/1";

    #[test]
    fn keys_of_stripes_name_their_object_and_no_two_puts_share_one() {
        let [one, two] = [5, 6].map(|put| Manifest::new(KEY, put, 10_000, 2));
        let keys: Vec<_> = one.keys().into_iter().chain(two.keys()).collect();
        assert_eq!((one.stripes(), one.stripe_bytes, keys.len()), (2, 8192, 4));
        for (i, key) in keys.iter().enumerate() {
            assert!(is_stripe(key) && !keys[..i].contains(key));
            assert_eq!(stripe_of(key), Some((object_of(KEY), LARGE_PAGES | (5 + i as u32 / 2))));
            assert!(check_new(key).is_err());
            assert_eq!(stripe_of(&key[1..]), None);
            assert_eq!(stripe_of(&[&key[..], b"x"].concat()), None);
        }
        assert!(check_new(b"\0nkv").is_ok() && check_new(b"nkv/").is_ok());
    }

    #[test]
    fn i16_a_manifest_counts_only_under_its_key() {
        let manifest = Manifest::new(KEY, 5, 10_000, 2);
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes, KEY), Some(manifest));
        assert_eq!(Manifest::decode(&bytes, b"block/2"), None);
        assert_eq!(Manifest::decode(&bytes[..MANIFEST_BYTES - 1], KEY), None);
    }

    proptest! {
        #[test]
        fn i16_no_byte_of_a_manifest_can_change(
            at in 0..MANIFEST_BYTES, other in 1u8..=255, total in 1u64..1 << 40, n in 2u8..=64
        ) {
            let manifest = Manifest::new(KEY, 5, total, n);
            let mut bytes = manifest.encode();
            prop_assert_eq!(Manifest::decode(&bytes, KEY), Some(manifest));
            bytes[at] ^= other;
            prop_assert_eq!(Manifest::decode(&bytes, KEY), None);
        }

        #[test]
        fn stripes_are_as_many_as_asked_for_at_most_and_hold_all(
            total in 1u64..1 << 40, n in 0u8..=255
        ) {
            let manifest = Manifest::new(KEY, 5, total, n);
            let stripes = manifest.stripes() as u64;
            prop_assert!(stripes >= 1 && stripes <= u64::from(n.clamp(1, MAX_STRIPES)));
            prop_assert!((stripes - 1) * manifest.stripe_bytes < total);
            prop_assert!(stripes * manifest.stripe_bytes >= total);
            prop_assert_eq!(manifest.keys().len() as u64, stripes);
            prop_assert_eq!(u64::from(stripes_of(total, n)), stripes);
            let extent = Extent { offset: 0, len: 69 };
            let page_bytes = manifest.page_bytes();
            let stored = ObjectDesc { extent, bytes_total: 69, page_bytes };
            prop_assert_eq!((put_of(&stored), stored.n_pages()), (Some(page_bytes), 1));
        }
    }
}
