//! How operations are cut at the borders of registered ranges.

use super::*;
use proptest::prelude::*;

/// Ranges of these lengths, each elsewhere and under a key of its own.
fn ranges(lengths: &[u64]) -> Vec<RemoteRange> {
    let mut end = 0;
    let each = (0..).zip(lengths).map(|(key, len)| {
        let range = RemoteRange {
            offset: end,
            len: len * 8,
            address: (u64::from(key) + 1) << 40,
            key,
            access: Access::Words,
        };
        end += range.len;
        range
    });
    each.collect()
}

/// The spans of an operation, as its requests are made.
fn spans(ranges: &[RemoteRange], offset: u64, len: usize) -> Result<Vec<RemoteSpan>, String> {
    let (mut at, mut spans) = (0, Vec::new());
    while at < len {
        let span = span_in(ranges, offset + at as u64, len - at).map_err(|e| e.to_string())?;
        assert!(span.len > 0, "it would go on for ever");
        at += span.len;
        spans.push(span);
    }
    Ok(spans)
}

proptest! {
    #[test]
    fn an_operation_over_borders_becomes_one_request_in_each_range_and_no_byte_is_lost(
        lengths in prop::collection::vec(1..64u64, 1..6),
        from in 0..2_000u64,
        len in 0..2_000usize,
    ) {
        let ranges = ranges(&lengths);
        let whole: u64 = ranges.iter().map(|r| r.len).sum();
        let cut = spans(&ranges, from, len);
        if from + len as u64 > whole {
            prop_assert!(len == 0 || cut.is_err(), "past the last range");
            return Ok(());
        }
        let cut = cut.unwrap();
        let (mut at, mut last) = (from, None);
        for span in &cut {
            let range = ranges[span.key as usize];
            // Each byte goes to the address that its range has for it, under that range's key.
            prop_assert_eq!(span.address - range.address, at - range.offset);
            prop_assert!(at + span.len as u64 <= range.offset + range.len);
            prop_assert!(last != Some(span.key), "two requests for one range");
            last = Some(span.key);
            at += span.len as u64;
        }
        prop_assert_eq!(at, from + len as u64);
    }
}
