use super::*;
use proptest::prelude::*;

#[test]
fn what_is_asked_for_by_name_or_number_is_particular() {
    let any = FabricConfig { pairs: 2, ..FabricConfig::default() };
    assert!(!any.is_particular());
    assert!(FabricConfig { devices: vec!["rxe0".into()], ..any.clone() }.is_particular());
    assert!(FabricConfig { gid_index: Some(0), ..any }.is_particular());
}

const BOUNDS: SegmentBounds = SegmentBounds { len: 1 << 20, payloads: 64 << 10 };

fn range(offset: u64, len: u64, access: Access) -> RemoteRange {
    RemoteRange { offset, len, address: (1 << 40) + offset, key: 7, access }
}

/// Those of an owner: read, words, read, payload.
fn honest(payload: Access) -> Vec<RemoteRange> {
    let border = BOUNDS.payloads;
    vec![
        range(0, 4096, Access::Read),
        range(4096, 32 << 10, Access::Words),
        range(4096 + (32 << 10), border - 4096 - (32 << 10), Access::Read),
        range(border, 64 << 10, payload),
        range(border + (64 << 10), BOUNDS.len - border - (64 << 10), Access::Payload),
    ]
}

#[test]
fn ranges_of_both_sides_of_the_border_are_taken() {
    for payload in [Access::Payload, Access::PayloadReadBack] {
        BOUNDS.check(&honest(payload)).unwrap();
    }
}

#[test]
fn i19_ranges_that_cannot_be_a_segment_are_refused() {
    type Lie = fn(&mut Vec<RemoteRange>);
    let lies: [(&str, Lie); 14] = [
        ("none", |r| r.clear()),
        ("the last is missing", |r| r.truncate(3)),
        ("one too many", |r| r.push(range(BOUNDS.len, 8, Access::Payload))),
        ("more than there can be", |r| {
            let last = r.pop().unwrap();
            r.extend((0..8).map(|i| {
                let len = last.len / 8;
                range(last.offset + i * len, len, last.access)
            }));
        }),
        ("out of order", |r| r.swap(0, 1)),
        ("a gap", |r| r[1].offset += 8),
        ("empty", |r| r.insert(1, range(4096, 0, Access::Read))),
        ("odd length", |r| r[4].len -= 1),
        ("odd address", |r| r[2].address += 4),
        ("its address overflows", |r| r[4].address = u64::MAX - 7),
        ("its length overflows", |r| r[4].len = u64::MAX - 7),
        ("headers are payload", |r| r[1].access = Access::PayloadReadBack),
        ("payload is words", |r| r[3].access = Access::Words),
        ("over the border", |r| {
            r[2].len += 8;
            r[3] = range(r[3].offset + 8, r[3].len - 8, Access::Payload);
        }),
    ];
    for (name, lie) in lies {
        let mut ranges = honest(Access::Payload);
        lie(&mut ranges);
        let refused = BOUNDS.check(&ranges).expect_err(name).to_string();
        assert!(refused.contains("1048576") && refused.contains("65536"), "{name}: {refused}");
    }
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![
        Just(Access::Read),
        Just(Access::Count),
        Just(Access::Words),
        Just(Access::Payload),
        Just(Access::PayloadReadBack),
    ]
}

/// One field of one range that is another: the range, the field, its value.
fn change() -> impl Strategy<Value = (usize, u8, u64, Access)> {
    let number = prop_oneof![
        0..16u64,
        Just(BOUNDS.payloads),
        Just(BOUNDS.payloads - 8),
        Just(BOUNDS.len),
        any::<u64>()
    ];
    (0..5usize, 0..4u8, number, access())
}

proptest! {
    /// What is taken covers each byte once, with a right of its side of the border.
    #[test]
    fn i19_whatever_is_taken_is_a_segment(
        changes in prop::collection::vec(change(), 0..3),
        cut in prop::option::of(0..5usize),
    ) {
        let mut ranges = honest(Access::PayloadReadBack);
        if let Some(at) = cut {
            let whole = ranges[at];
            ranges[at].len = whole.len / 16 * 8;
            let (offset, len) = (whole.offset + ranges[at].len, whole.len - ranges[at].len);
            ranges.insert(at + 1, range(offset, len, whole.access));
        }
        for (at, field, value, access) in &changes {
            match field {
                0 => ranges[*at].offset = *value,
                1 => ranges[*at].len = *value,
                2 => ranges[*at].address = *value,
                _ => ranges[*at].access = *access,
            }
        }
        let taken = BOUNDS.check(&ranges).is_ok();
        prop_assert!(taken || !changes.is_empty());
        if taken {
            let whole: u128 = ranges.iter().map(|r| u128::from(r.len)).sum();
            prop_assert_eq!(whole, u128::from(BOUNDS.len));
            for r in &ranges {
                let (begin, end) = (r.offset, r.offset + r.len);
                prop_assert!(end <= BOUNDS.payloads || begin >= BOUNDS.payloads);
                prop_assert_eq!(r.access.is_payload(), begin >= BOUNDS.payloads);
                prop_assert!(r.address.checked_add(r.len).is_some());
            }
        }
    }
}
