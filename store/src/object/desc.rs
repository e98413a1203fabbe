//! The one description of an object's bytes: in a header, in a plan, in a location, in a report.

use crate::arena::Extent;
use crate::layout::ObjHeader;
use serde::{Deserialize, Serialize};

/// Where an object's payload lies in its segment, and how it is cut into pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectDesc {
    /// Holds the payload, page 0 first. As a plan reserves it, in whole units; as read from a
    /// header, exactly the object's bytes.
    pub extent: Extent,
    /// Logical bytes.
    pub bytes_total: u64,
    /// Bytes per page.
    pub page_bytes: u32,
}

impl ObjectDesc {
    /// An object of `bytes_total` bytes at segment offset `payload_off`, whose reserved length is
    /// not known here.
    #[inline]
    pub fn at(payload_off: u64, bytes_total: u64, page_bytes: u32) -> Self {
        let extent = Extent { offset: payload_off, len: bytes_total };
        Self { extent, bytes_total, page_bytes }
    }

    /// What a header states.
    #[inline]
    pub fn of_header(h: &ObjHeader) -> Self {
        Self::at(h.payload_base, h.bytes_total, h.page_size)
    }

    /// Segment offset of page 0.
    #[inline]
    pub fn payload_off(&self) -> u64 {
        self.extent.offset
    }

    /// Number of pages, the last of which may be shorter. An empty object has none, nor has space
    /// that was given up: its pages have no size.
    #[inline]
    pub fn n_pages(&self) -> u32 {
        match self.page_bytes {
            0 => 0,
            page => self.bytes_total.div_ceil(u64::from(page)).try_into().unwrap_or(u32::MAX),
        }
    }
}
