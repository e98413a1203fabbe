//! Times of one kind of operation at one size, and times of plain copies of the same bytes. It
//! keeps histograms, not samples, so its size does not depend on the length of the run.

use crate::report::OpRow;
use crate::stopwatch::now_ns;
use crate::timeline::Timeline;
use hdrhistogram::Histogram;

/// Longest time recorded: one minute, in nanoseconds. Longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;
/// Significant decimal digits of a percentile.
const DIGITS: u8 = 3;

/// Times of one operation at one size.
#[derive(Debug)]
pub(crate) struct OpTimes {
    /// What was measured: put, get, ...
    pub(crate) op: &'static str,
    /// Payload bytes of one operation; 0 if it moves none.
    pub(crate) bytes: u64,
    /// Nanoseconds of each operation.
    pub(crate) times: Histogram<u64>,
    total_ns: u64,
    /// Nanoseconds of each plain copy of the same bytes; empty where nothing is copied.
    pub(crate) copies: Histogram<u64>,
    /// Nanoseconds of each round trip over the network that was measured beside an operation.
    trips: Option<Histogram<u64>>,
    /// When the operations were done.
    pub(crate) done: Timeline,
}

impl OpTimes {
    /// An empty measurement; `bytes`: moved by one operation, 0 for operations that move none.
    pub(crate) fn new(op: &'static str, bytes: u64) -> Self {
        let done = Timeline::default();
        Self { op, bytes, times: histogram(), total_ns: 0, copies: histogram(), trips: None, done }
    }

    /// An empty measurement with a round trip beside each operation.
    pub(crate) fn beside_round_trips(op: &'static str, bytes: u64) -> Self {
        Self { trips: Some(histogram()), ..Self::new(op, bytes) }
    }

    /// Records one operation that ended now and took `ns`.
    pub(crate) fn record(&mut self, ns: u64) {
        self.record_batch(ns, 1);
    }

    /// Records `items` operations of one batch that ended now and took `ns` together; each counts
    /// with its share.
    pub(crate) fn record_batch(&mut self, ns: u64, items: u64) {
        if items == 0 {
            return;
        }
        record(&mut self.times, ns / items, items);
        self.total_ns += ns;
        self.done.add(now_ns(), items);
    }

    /// Records a plain copy of the same bytes that took `ns`.
    pub(crate) fn record_memcpy(&mut self, ns: u64) {
        record(&mut self.copies, ns, 1);
    }

    /// Records a round trip that took `ns`.
    pub(crate) fn record_round_trip(&mut self, ns: u64) {
        if let Some(trips) = &mut self.trips {
            record(trips, ns, 1);
        }
    }

    /// Adds what another client measured for the same operation.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in [(&mut self.times, &other.times), (&mut self.copies, &other.copies)] {
            // Both have the same bounds, so nothing can be out of range.
            let merged = mine.add(theirs);
            debug_assert!(merged.is_ok());
        }
        self.total_ns += other.total_ns;
        self.done.merge(&other.done);
    }

    /// Operations measured.
    pub(crate) fn count(&self) -> u64 {
        self.times.len()
    }

    /// Operations per second spent in them.
    pub(crate) fn per_s(&self) -> f64 {
        self.count() as f64 / (self.total_ns.max(1) as f64 / 1e9)
    }

    /// The row of the report; None if nothing was measured.
    pub(crate) fn row(&self) -> Option<OpRow> {
        if self.times.is_empty() {
            return None;
        }
        let p50 = self.times.value_at_quantile(0.5);
        let moved = self.bytes as f64 * self.count() as f64;
        let copy = self.copies.value_at_quantile(0.5);
        Some(OpRow {
            op: self.op,
            bytes: self.bytes,
            count: self.count(),
            p50_us: p50 as f64 / 1000.0,
            p99_us: self.times.value_at_quantile(0.99) as f64 / 1000.0,
            gb_per_s: if self.bytes == 0 { 0.0 } else { moved / self.total_ns.max(1) as f64 },
            vs_memcpy: (copy > 0).then(|| p50 as f64 / copy as f64),
            round_trips: self
                .trips
                .as_ref()
                .map(|trips| p50 as f64 / trips.value_at_quantile(0.5).max(1) as f64),
        })
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).unwrap_or_else(|_| {
        unreachable!("1 to {LONGEST_NS} ns with {DIGITS} digits are bounds a histogram takes")
    })
}

fn record(histogram: &mut Histogram<u64>, ns: u64, items: u64) {
    let recorded = histogram.record_n(ns.clamp(1, LONGEST_NS), items);
    debug_assert!(recorded.is_ok(), "clamped to the bounds");
}

#[cfg(test)]
mod tests {
    use super::OpTimes;

    #[test]
    fn a_row_has_percentiles_rate_and_the_ratio_of_medians() {
        let mut times = OpTimes::new("get", 1000);
        for ns in 1..=100 {
            times.record(ns * 1000);
            times.record_memcpy(25_000);
        }
        let row = times.row().unwrap();
        assert_eq!((row.op, row.bytes, row.count), ("get", 1000, 100));
        assert!((row.p50_us - 50.0).abs() < 0.1, "{}", row.p50_us);
        assert!((row.p99_us - 99.0).abs() < 0.2, "{}", row.p99_us);
        // 100 kB in 5.05 ms.
        assert!((row.gb_per_s - 0.0198).abs() < 0.0001, "{}", row.gb_per_s);
        assert!((row.vs_memcpy.unwrap() - 2.0).abs() < 0.01);
    }

    #[test]
    fn round_trips_are_the_ratio_of_medians() {
        let mut times = OpTimes::beside_round_trips("get", 0);
        for ns in [20_000, 30_000, 40_000] {
            times.record(ns);
            times.record_round_trip(10_000);
        }
        assert!((times.row().unwrap().round_trips.unwrap() - 3.0).abs() < 0.01);
    }

    #[test]
    fn a_batch_counts_each_of_its_items_with_its_share() {
        let mut times = OpTimes::new("get", 4096);
        times.record_batch(80_000, 8);
        times.record_batch(0, 0);
        let row = times.row().unwrap();
        assert_eq!(row.count, 8);
        assert!((row.p50_us - 10.0).abs() < 0.01);
        assert_eq!(row.vs_memcpy, None);
    }

    #[test]
    fn two_clients_add_up() {
        let (mut a, mut b) = (OpTimes::new("put", 10), OpTimes::new("put", 10));
        a.record(1000);
        b.record(3000);
        b.record_memcpy(1000);
        a.merge(&b);
        let row = a.row().unwrap();
        assert_eq!(row.count, 2);
        assert!((row.gb_per_s - 0.005).abs() < 1e-9);
        assert!(row.vs_memcpy.is_some());
    }

    #[test]
    fn nothing_measured_is_no_row() {
        assert!(OpTimes::new("get", 1).row().is_none());
    }
}
