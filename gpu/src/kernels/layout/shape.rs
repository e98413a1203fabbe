//! The layouts of engines' caches: dimensions, strides, and the order of an object's bytes.

use super::{LayoutError, Ranges};

/// How a cache of keys and values is laid out, outermost dimension first. L: layers, H: heads, D:
/// bytes of one head of one token. The 2 is keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvLayout {
    /// (2, L, tokens, H, D): SGLang's `layer_first`.
    LayerFirst,
    /// (2, tokens, L, H, D): SGLang's `page_first`.
    PageFirst,
    /// (2, pages, L, page, H, D): SGLang's `page_first_direct`.
    PageFirstDirect,
    /// (L, pages, 2, page, H, D): FlashInfer's NHD. With other strides vLLM's.
    PagedNhd,
    /// (L, pages, 2, H, page, D): FlashInfer's HND. With other strides vLLM's.
    PagedHnd,
}

/// The dimensions of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvDims {
    /// Layers.
    pub layers: u32,
    /// Pages.
    pub pages: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Heads.
    pub heads: u32,
    /// Bytes of one head of one token.
    pub head_bytes: u32,
}

/// Bytes between neighbours of each dimension. Those of one head are contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvStrides {
    /// Between keys and values.
    pub kv: u64,
    /// Between layers.
    pub layer: u64,
    /// Between pages.
    pub page: u64,
    /// Between tokens of a page.
    pub token: u64,
    /// Between heads.
    pub head: u64,
}

/// A cache: layout, dimensions and strides. An object contains its pages one after the other. One
/// page is in the order of the layout's dimensions without that of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    layout: KvLayout,
    dims: KvDims,
    strides: KvStrides,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    Kv,
    Layer,
    Page,
    Token,
    Head,
}

impl KvLayout {
    /// Dimensions outside D, outermost first. Tokens of layouts without pages are page and token.
    fn axes(self) -> [Axis; 5] {
        match self {
            KvLayout::LayerFirst => [Axis::Kv, Axis::Layer, Axis::Page, Axis::Token, Axis::Head],
            KvLayout::PageFirst => [Axis::Kv, Axis::Page, Axis::Token, Axis::Layer, Axis::Head],
            KvLayout::PageFirstDirect => {
                [Axis::Kv, Axis::Page, Axis::Layer, Axis::Token, Axis::Head]
            }
            KvLayout::PagedNhd => [Axis::Layer, Axis::Page, Axis::Kv, Axis::Token, Axis::Head],
            KvLayout::PagedHnd => [Axis::Layer, Axis::Page, Axis::Kv, Axis::Head, Axis::Token],
        }
    }
}

impl KvDims {
    fn count(&self, axis: Axis) -> u64 {
        match axis {
            Axis::Kv => 2,
            Axis::Layer => self.layers.into(),
            Axis::Page => self.pages.into(),
            Axis::Token => self.page_tokens.into(),
            Axis::Head => self.heads.into(),
        }
    }
}

impl KvStrides {
    /// Those of a cache without gaps.
    pub fn contiguous(layout: KvLayout, dims: &KvDims) -> Result<KvStrides, LayoutError> {
        let mut strides = KvStrides { kv: 0, layer: 0, page: 0, token: 0, head: 0 };
        let mut size = u64::from(dims.head_bytes);
        for axis in layout.axes().into_iter().rev() {
            *strides.of_mut(axis) = size;
            size = size.checked_mul(dims.count(axis)).ok_or(LayoutError::Overflow)?;
        }
        Ok(strides)
    }

    fn of_mut(&mut self, axis: Axis) -> &mut u64 {
        match axis {
            Axis::Kv => &mut self.kv,
            Axis::Layer => &mut self.layer,
            Axis::Page => &mut self.page,
            Axis::Token => &mut self.token,
            Axis::Head => &mut self.head,
        }
    }

    fn of(mut self, axis: Axis) -> u64 {
        *self.of_mut(axis)
    }
}

impl KvShape {
    /// A cache. The strides may leave gaps; that dimensions do not overlap is not checked.
    pub fn new(layout: KvLayout, dims: KvDims, strides: KvStrides) -> Result<KvShape, LayoutError> {
        if dims.head_bytes == 0 || layout.axes().iter().any(|axis| dims.count(*axis) == 0) {
            return Err(LayoutError::Empty);
        }
        let mut end = u64::from(dims.head_bytes);
        for axis in layout.axes() {
            let reach = strides.of(axis).checked_mul(dims.count(axis) - 1);
            end = reach.and_then(|r| end.checked_add(r)).ok_or(LayoutError::Overflow)?;
        }
        Ok(KvShape { layout, dims, strides })
    }

    /// Bytes of one page in an object: keys and values of all layers.
    pub fn page_bytes(&self) -> Result<u64, LayoutError> {
        let axes = self.layout.axes().into_iter().filter(|axis| *axis != Axis::Page);
        let mut counts = axes.map(|axis| self.dims.count(axis));
        let bytes = u64::from(self.dims.head_bytes);
        counts.try_fold(bytes, u64::checked_mul).ok_or(LayoutError::Overflow)
    }

    /// Offsets and lengths in the cache of the pages' bytes, in an object's order.
    pub(super) fn ranges(&self, pages: &[u32]) -> Result<Ranges, LayoutError> {
        // Inner dimensions without gaps are one run of bytes.
        let mut run = u64::from(self.dims.head_bytes);
        let mut outer: Vec<(u64, u64)> = Vec::new();
        for axis in self.layout.axes().into_iter().rev().filter(|axis| *axis != Axis::Page) {
            let (count, stride) = (self.dims.count(axis), self.strides.of(axis));
            if count == 1 {
                continue;
            }
            if outer.is_empty() && stride == run {
                run *= count;
            } else {
                outer.push((count, stride));
            }
        }
        outer.reverse();
        let mut ranges = Ranges::default();
        for page in pages {
            if *page >= self.dims.pages {
                return Err(LayoutError::NoSuchPage { page: *page, pages: self.dims.pages });
            }
            walk(&outer, u64::from(*page) * self.strides.page, run, &mut ranges)?;
        }
        Ok(ranges)
    }
}

fn walk(outer: &[(u64, u64)], at: u64, run: u64, ranges: &mut Ranges) -> Result<(), LayoutError> {
    let Some(((count, stride), inner)) = outer.split_first() else {
        return ranges.push(at, run);
    };
    for i in 0..*count {
        walk(inner, at + i * stride, run, ranges)?;
    }
    Ok(())
}
