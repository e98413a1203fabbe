//! Which bytes of a KV cache an object consists of.

mod shape;

#[cfg(test)]
mod tests;

pub use shape::{KvDims, KvLayout, KvShape, KvStrides};

/// One copy of `size` bytes. Both addresses are multiples of 16.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Address to copy to.
    pub dst: u64,
    /// Address to copy from.
    pub src: u64,
    /// Bytes.
    pub size: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 24);

/// Why no descriptors can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A dimension of the cache is 0.
    #[error("a cache with a dimension of 0")]
    Empty,
    /// Offsets do not fit into 64 bits.
    #[error("a cache whose addresses overflow")]
    Overflow,
    /// A page number that the cache does not have.
    #[error("page {page} of a cache of {pages}")]
    NoSuchPage {
        /// The page.
        page: u32,
        /// Pages of the cache.
        pages: u32,
    },
    /// A copy would begin at an address that is not a multiple of 16.
    #[error("bytes at {0:#x}, which is not a multiple of 16")]
    Unaligned(u64),
    /// More copies than one launch takes.
    #[error("more than {0} copies")]
    TooMany(usize),
}

/// Most descriptors of one list.
pub const MAX_DESCRIPTORS: usize = 1 << 24;

/// Copies between an object's bytes, which are contiguous, and a cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Descriptors {
    list: Vec<Descriptor>,
    bytes: u64,
}

/// Ranges of a cache in the order in which an object contains them; neighbours are merged.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    ranges: Vec<(u64, u64)>,
}

impl Ranges {
    fn push(&mut self, at: u64, size: u64) -> Result<(), LayoutError> {
        if let Some((start, length)) = self.ranges.last_mut()
            && *start + *length == at
        {
            *length += size;
        } else if self.ranges.len() == MAX_DESCRIPTORS {
            return Err(LayoutError::TooMany(MAX_DESCRIPTORS));
        } else {
            self.ranges.push((at, size));
        }
        Ok(())
    }
}

impl Descriptors {
    /// Copies that are given as they are.
    ///
    /// # Errors
    /// For addresses that are not multiples of 16, or overflow, and for too many.
    pub fn of(list: Vec<Descriptor>) -> Result<Descriptors, LayoutError> {
        let mut bytes = 0_u64;
        for Descriptor { dst, src, size } in &list {
            for at in [dst, src] {
                if !at.is_multiple_of(16) {
                    return Err(LayoutError::Unaligned(*at));
                }
                at.checked_add(*size).ok_or(LayoutError::Overflow)?;
            }
            bytes = bytes.checked_add(*size).ok_or(LayoutError::Overflow)?;
        }
        match list.len() > MAX_DESCRIPTORS {
            true => Err(LayoutError::TooMany(MAX_DESCRIPTORS)),
            false => Ok(Descriptors { list, bytes }),
        }
    }

    /// To copy pages of a cache into an object at `object`.
    pub fn gather(
        object: u64,
        cache: u64,
        shape: &KvShape,
        pages: &[u32],
    ) -> Result<Descriptors, LayoutError> {
        Self::make(object, cache, shape, pages, |object, cache, size| Descriptor {
            dst: object,
            src: cache,
            size,
        })
    }

    /// To copy an object at `object` into pages of a cache.
    pub fn scatter(
        object: u64,
        cache: u64,
        shape: &KvShape,
        pages: &[u32],
    ) -> Result<Descriptors, LayoutError> {
        Self::make(object, cache, shape, pages, |object, cache, size| Descriptor {
            dst: cache,
            src: object,
            size,
        })
    }

    fn make(
        object: u64,
        cache: u64,
        shape: &KvShape,
        pages: &[u32],
        copy: impl Fn(u64, u64, u64) -> Descriptor,
    ) -> Result<Descriptors, LayoutError> {
        let ranges = shape.ranges(pages)?.ranges;
        let mut list = Vec::with_capacity(ranges.len());
        let mut done = 0u64;
        for (offset, size) in ranges {
            let from = cache.checked_add(offset).ok_or(LayoutError::Overflow)?;
            let to = object.checked_add(done).ok_or(LayoutError::Overflow)?;
            from.checked_add(size).ok_or(LayoutError::Overflow)?;
            for at in [from, to] {
                if !at.is_multiple_of(16) {
                    return Err(LayoutError::Unaligned(at));
                }
            }
            list.push(copy(to, from, size));
            done = done.checked_add(size).ok_or(LayoutError::Overflow)?;
        }
        object.checked_add(done).ok_or(LayoutError::Overflow)?;
        Ok(Descriptors { list, bytes: done })
    }

    /// Cuts copies into pieces of `most` bytes at most, rounded down to a multiple of 16, so that
    /// the blocks of a launch have equal shares.
    pub fn split(&self, most: u64) -> Result<Descriptors, LayoutError> {
        let most = (most - most % 16).max(16);
        let mut list = Vec::with_capacity(self.list.len());
        for Descriptor { dst, src, size } in &self.list {
            if size.div_ceil(most) > (MAX_DESCRIPTORS - list.len()) as u64 {
                return Err(LayoutError::TooMany(MAX_DESCRIPTORS));
            }
            for at in (0..*size).step_by(most as usize) {
                let size = most.min(size - at);
                list.push(Descriptor { dst: dst + at, src: src + at, size });
            }
        }
        Ok(Descriptors { list, bytes: self.bytes })
    }

    /// Whether every size is a multiple of 16, as the bulk copy engine needs it.
    pub fn fits_bulk(&self) -> bool {
        self.list.iter().all(|copy| copy.size.is_multiple_of(16))
    }

    /// The copies.
    pub fn list(&self) -> &[Descriptor] {
        &self.list
    }

    /// Bytes of the object.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
