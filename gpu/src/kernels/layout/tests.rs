//! Descriptors against a map of every byte, written with the formulas of the layouts.

use super::*;
use proptest::prelude::*;

const LAYOUTS: [KvLayout; 5] = [
    KvLayout::LayerFirst,
    KvLayout::PageFirst,
    KvLayout::PageFirstDirect,
    KvLayout::PagedNhd,
    KvLayout::PagedHnd,
];

/// Offset of element (kv, layer, page, token, head), as the engines index their arrays.
fn naive(layout: KvLayout, d: &KvDims, [kv, layer, page, token, head]: [u64; 5]) -> u64 {
    let (l, pages, t) = (u64::from(d.layers), u64::from(d.pages), u64::from(d.page_tokens));
    let (h, bytes) = (u64::from(d.heads), u64::from(d.head_bytes));
    let tokens = pages * t;
    let row = page * t + token;
    bytes
        * match layout {
            KvLayout::LayerFirst => ((kv * l + layer) * tokens + row) * h + head,
            KvLayout::PageFirst => ((kv * tokens + row) * l + layer) * h + head,
            KvLayout::PageFirstDirect => (((kv * pages + page) * l + layer) * t + token) * h + head,
            KvLayout::PagedNhd => (((layer * pages + page) * 2 + kv) * t + token) * h + head,
            KvLayout::PagedHnd => (((layer * pages + page) * 2 + kv) * h + head) * t + token,
        }
}

/// The order of one page's elements in an object.
fn order(layout: KvLayout, d: &KvDims, page: u64) -> Vec<[u64; 5]> {
    let mut all = Vec::new();
    for kv in 0..2 {
        for layer in 0..u64::from(d.layers) {
            for token in 0..u64::from(d.page_tokens) {
                for head in 0..u64::from(d.heads) {
                    all.push([kv, layer, page, token, head]);
                }
            }
        }
    }
    all.sort_by_key(|&[kv, layer, _, token, head]| match layout {
        KvLayout::LayerFirst | KvLayout::PageFirstDirect => [kv, layer, token, head],
        KvLayout::PageFirst => [kv, token, layer, head],
        KvLayout::PagedNhd => [layer, kv, token, head],
        KvLayout::PagedHnd => [layer, kv, head, token],
    });
    all
}

fn dims() -> impl Strategy<Value = KvDims> {
    (1u32..4, 1u32..5, 1u32..5, 1u32..4, 1u32..3).prop_map(
        |(layers, pages, page_tokens, heads, d)| KvDims {
            layers,
            pages,
            page_tokens,
            heads,
            head_bytes: d * 16,
        },
    )
}

fn shape(layout: KvLayout, dims: KvDims) -> KvShape {
    let strides = KvStrides::contiguous(layout, &dims).unwrap();
    KvShape::new(layout, dims, strides).unwrap()
}

proptest! {
    #[test]
    fn descriptors_are_the_map_of_elements(
        dims in dims(),
        which in 0usize..5,
        of in 0usize..5,
        picks in prop::collection::vec(any::<u32>(), 0..6),
    ) {
        let layout = LAYOUTS[which];
        let pages: Vec<u32> = picks.iter().map(|pick| pick % dims.pages).collect();
        // Strides of another layout: the order of an object's bytes does not depend on them.
        let cached = LAYOUTS[of];
        let strides = KvStrides::contiguous(cached, &dims).unwrap();
        let shape = KvShape::new(layout, dims, strides).unwrap();
        let (object, cache) = (1 << 40, 1 << 41);
        let made = Descriptors::gather(object, cache, &shape, &pages).unwrap();
        // Each 16 bytes of the object, in order, and where they come from.
        let mut got = Vec::new();
        for d in made.list() {
            got.extend((0..d.size / 16).map(|i| (d.dst + i * 16, d.src + i * 16)));
        }
        let mut want = Vec::new();
        for page in &pages {
            for element in order(layout, &dims, u64::from(*page)) {
                let from = cache + naive(cached, &dims, element);
                for i in 0..u64::from(dims.head_bytes) / 16 {
                    want.push((object + want.len() as u64 * 16, from + i * 16));
                }
            }
        }
        prop_assert_eq!(&got, &want);
        prop_assert_eq!(made.bytes(), want.len() as u64 * 16);
        prop_assert_eq!(made.bytes(), shape.page_bytes().unwrap() * pages.len() as u64);
        // Merged: no two neighbours continue each other.
        let apart = made.list().windows(2).all(|w| w[0].src + w[0].size != w[1].src);
        prop_assert!(apart);
        let back = Descriptors::scatter(object, cache, &shape, &pages).unwrap();
        let turned = back.list().iter().map(|d| Descriptor { dst: d.src, src: d.dst, ..*d });
        prop_assert_eq!(turned.collect::<Vec<_>>(), made.list());
    }

    #[test]
    fn gaps_between_heads_are_left_out(dims in dims(), which in 0usize..5, gap in 1u64..4) {
        let layout = LAYOUTS[which];
        let wide = KvDims { head_bytes: dims.head_bytes + 16 * gap as u32, ..dims };
        let strides = KvStrides::contiguous(layout, &wide).unwrap();
        let shape = KvShape::new(layout, dims, strides).unwrap();
        let made = Descriptors::gather(0, 0, &shape, &[0]).unwrap();
        let want: Vec<u64> =
            order(layout, &dims, 0).iter().map(|e| naive(layout, &wide, *e)).collect();
        prop_assert_eq!(made.list().iter().map(|d| d.src).collect::<Vec<_>>(), want);
        prop_assert!(made.list().iter().all(|d| d.size == u64::from(dims.head_bytes)));
    }
}

#[test]
fn a_page_of_a_paged_cache_is_one_copy_for_each_layer() {
    let dims = KvDims { layers: 4, pages: 9, page_tokens: 16, heads: 8, head_bytes: 256 };
    for (layout, copies) in [
        (KvLayout::PagedNhd, 4),
        (KvLayout::PagedHnd, 4),
        (KvLayout::PageFirstDirect, 2),
        (KvLayout::PageFirst, 2),
        (KvLayout::LayerFirst, 8),
    ] {
        let made = Descriptors::gather(0, 0, &shape(layout, dims), &[3]).unwrap();
        assert_eq!(made.list().len(), copies, "{layout:?}");
    }
}

#[test]
fn impossible_caches_are_refused() {
    let dims = KvDims { layers: 2, pages: 4, page_tokens: 4, heads: 2, head_bytes: 32 };
    let layout = KvLayout::PagedNhd;
    let strides = KvStrides::contiguous(layout, &dims).unwrap();
    let empty = KvDims { heads: 0, ..dims };
    assert_eq!(KvShape::new(layout, empty, strides), Err(LayoutError::Empty));
    let huge = KvStrides { page: u64::MAX / 2, ..strides };
    assert_eq!(KvShape::new(layout, dims, huge), Err(LayoutError::Overflow));
    let shape = shape(layout, dims);
    let make = |object, cache, pages: &[u32]| Descriptors::gather(object, cache, &shape, pages);
    assert_eq!(make(0, 0, &[4]), Err(LayoutError::NoSuchPage { page: 4, pages: 4 }));
    assert_eq!(make(0, 8, &[0]), Err(LayoutError::Unaligned(8)));
    assert_eq!(make(4, 0, &[0]), Err(LayoutError::Unaligned(4)));
    assert_eq!(make(0, u64::MAX - 15, &[3]), Err(LayoutError::Overflow));
    assert_eq!(make(u64::MAX - 15, 0, &[0]), Err(LayoutError::Overflow));
    let max = KvDims { layers: u32::MAX, pages: u32::MAX, ..dims };
    assert_eq!(KvStrides::contiguous(layout, &max), Err(LayoutError::Overflow));
}

#[test]
fn pieces_are_the_same_bytes() {
    let dims = KvDims { layers: 2, pages: 4, page_tokens: 4, heads: 2, head_bytes: 24 };
    let made = Descriptors::gather(0, 1 << 20, &shape(KvLayout::PageFirst, dims), &[1, 3]).unwrap();
    assert!(made.fits_bulk() && made.list().iter().all(|copy| copy.size == 384));
    for most in [0, 16, 31, 100, 384, u64::MAX] {
        let pieces = made.split(most).unwrap();
        assert_eq!(pieces.bytes(), made.bytes());
        assert!(pieces.list().iter().all(|copy| copy.size <= most.max(16)));
        let bytes = |all: &Descriptors| -> Vec<(u64, u64)> {
            let each = |d: &Descriptor| (d.dst..d.dst + d.size).zip(d.src..d.src + d.size);
            all.list().iter().flat_map(each).collect()
        };
        assert_eq!(bytes(&pieces), bytes(&made));
    }
    let one = KvDims { layers: 1, pages: 1, page_tokens: 1, heads: 1, head_bytes: 4 };
    let odd = Descriptors::gather(0, 0, &shape(KvLayout::PageFirst, one), &[0]).unwrap();
    assert!(!odd.fits_bulk());
    assert_eq!(odd.bytes(), 8);
}
