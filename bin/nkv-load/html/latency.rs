//! Latency for the page: of every operation and size how often each time was taken, and its
//! percentiles; the same of the plain copies of the same bytes.

use crate::latency::OpTimes;
use hdrhistogram::Histogram;
use nkv_programs::sizes::show_bytes;
use serde::Serialize;

/// Bars of a distribution per factor of ten.
const BARS_PER_DECADE: f64 = 20.0;
/// Points of a percentile curve per factor of ten of the share above it.
const POINTS_PER_DECADE: u32 = 20;
/// Curves end at 99.999%: beyond, single outliers dominate.
const MOST_NINES: u32 = 5;

/// The times of a run, on common axes.
#[derive(Debug, Serialize)]
pub(super) struct Latency {
    /// Middle of each bar of a distribution, in microseconds.
    bars_us: Vec<f64>,
    /// Percentiles as their number of nines: 1 is 90%, 2 is 99%.
    nines: Vec<f64>,
    curves: Vec<Curves>,
}

#[derive(Debug, Serialize)]
struct Curves {
    op: &'static str,
    name: String,
    times: Curve,
    /// Of plain copies of the same bytes; absent where nothing is copied.
    copies: Option<Curve>,
}

#[derive(Debug, Serialize)]
struct Curve {
    /// Share of the operations in each bar.
    shares: Vec<f64>,
    /// Microseconds at each percentile; null where there are too few operations for it.
    at_nines_us: Vec<Option<f64>>,
}

impl Latency {
    /// None if nothing was measured.
    pub(super) fn of(times: &[OpTimes]) -> Option<Latency> {
        let all = || times.iter().flat_map(|t| [&t.times, &t.copies]).filter(|h| !h.is_empty());
        let least = all().map(Histogram::min).min()?.max(1) as f64;
        let most = all().map(Histogram::max).max()?.max(1) as f64;
        let bars = Bars { lo: (least.log10() * BARS_PER_DECADE).floor(), most: most.log10() };
        let nines: Vec<f64> = (0..=MOST_NINES * POINTS_PER_DECADE)
            .map(|point| f64::from(point) / f64::from(POINTS_PER_DECADE))
            .collect();
        let curve = |h: &Histogram<u64>| Curve {
            shares: bars.shares(h),
            at_nines_us: nines.iter().map(|n| at_nines_us(h, *n)).collect(),
        };
        let curves = times.iter().map(|t| Curves {
            op: t.op,
            name: name(t),
            times: curve(&t.times),
            copies: (!t.copies.is_empty()).then(|| curve(&t.copies)),
        });
        let curves = curves.collect();
        Some(Latency { bars_us: bars.middles_us(), nines, curves })
    }
}

fn name(times: &OpTimes) -> String {
    match times.bytes {
        0 => times.op.to_string(),
        bytes => format!("{} {}", times.op, show_bytes(bytes)),
    }
}

/// The bars of all distributions, equal on a logarithmic axis.
struct Bars {
    /// Number of the first: its start is 10^(lo / BARS_PER_DECADE) nanoseconds.
    lo: f64,
    /// Logarithm of the longest time.
    most: f64,
}

impl Bars {
    fn count(&self) -> usize {
        ((self.most * BARS_PER_DECADE).floor() - self.lo) as usize + 1
    }

    fn middles_us(&self) -> Vec<f64> {
        let middle = |bar: usize| (self.lo + bar as f64 + 0.5) / BARS_PER_DECADE;
        (0..self.count()).map(|bar| 10f64.powf(middle(bar)) / 1e3).collect()
    }

    fn shares(&self, times: &Histogram<u64>) -> Vec<f64> {
        let mut shares = vec![0.0; self.count()];
        for value in times.iter_recorded() {
            let at = (value.value_iterated_to().max(1) as f64).log10() * BARS_PER_DECADE - self.lo;
            let bar = (at.max(0.0) as usize).min(shares.len() - 1);
            shares[bar] += value.count_since_last_iteration() as f64 / times.len() as f64;
        }
        shares
    }
}

/// Microseconds at the percentile with this many nines, if there are operations above it.
fn at_nines_us(times: &Histogram<u64>, nines: f64) -> Option<f64> {
    let enough = nines <= (times.len().max(10) as f64).log10();
    enough.then(|| times.value_at_quantile(1.0 - 10f64.powf(-nines)) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::{Latency, at_nines_us};
    use crate::latency::OpTimes;

    #[test]
    fn every_operation_is_in_a_bar_and_percentiles_end_where_operations_do() {
        let mut times = OpTimes::new("get", 4096);
        [900, 1_000, 30_000, 30_000, 5_000_000].into_iter().for_each(|ns| times.record(ns));
        times.record_memcpy(80);
        let found = Latency::of(std::slice::from_ref(&times)).unwrap();
        let [curves] = &found.curves[..] else { panic!("{found:?}") };
        let copies = curves.copies.as_ref().unwrap();
        for curve in [&curves.times, copies] {
            let sum: f64 = curve.shares.iter().sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
            assert_eq!(curve.shares.len(), found.bars_us.len());
        }
        let tallest = (0..found.bars_us.len())
            .max_by(|a, b| curves.times.shares[*a].total_cmp(&curves.times.shares[*b]));
        let at = found.bars_us[tallest.unwrap()];
        assert!((at / 30.0 - 1.0).abs() < 0.13, "{at}: within one bar");
        assert!(at_nines_us(&times.times, 1.0).is_some());
        assert!(at_nines_us(&times.times, 1.1).is_none());
        assert_eq!(curves.name, "get 4 KiB");
        assert!(Latency::of(&[]).is_none());
    }
}
