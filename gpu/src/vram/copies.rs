//! Copies of many ranges at once: one call for each, one call for all, or a kernel. Which is the
//! fastest depends on their number, their sizes and the driver, so it is measured once, and kept in
//! a table.

use super::lane::Lane;
use super::scratch::Scratch;
use crate::driver::{Device, DriverError};
use crate::kernels::{Descriptor, Descriptors, Kernels, LaunchOptions};
use nkv_store::clock::{BootClock, Clock};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Where copies go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Between memory of devices.
    OnDevice,
    /// To registered or pinned memory of the host.
    ToHost,
    /// From there.
    FromHost,
}

/// How many ranges are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMethod {
    /// `cuMemcpyAsync` for each.
    Each,
    /// `cuMemcpyBatchAsync` for all.
    Batch,
    /// `nkv_gather_publish`, without publishing.
    Kernel,
}

const METHODS: [CopyMethod; 3] = [CopyMethod::Each, CopyMethod::Batch, CopyMethod::Kernel];
const DIRECTIONS: [Direction; 3] = [Direction::OnDevice, Direction::ToHost, Direction::FromHost];
/// What is measured: numbers of ranges, and bytes of each. A copy belongs to the last that it
/// reaches, or to the first.
const COUNTS: [usize; 3] = [4, 32, 256];
const SIZES: [u64; 3] = [4 << 10, 32 << 10, 256 << 10];
/// Each is timed so often, and the shortest time counts.
const ROUNDS: usize = 3;
/// A method that took longer is not tried with more bytes.
const TOO_LONG_NS: u64 = 20_000_000;
/// Multiprocessors that a kernel takes at most: a model may run beside it.
const MULTIPROCESSORS: u32 = 16;

/// The method for each number of ranges, and then for each size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Table([[CopyMethod; SIZES.len()]; COUNTS.len()]);

/// Copies of one device.
#[derive(Debug)]
pub struct Copies {
    tables: [OnceLock<Table>; DIRECTIONS.len()],
    kernels: OnceLock<Option<Arc<Kernels>>>,
    always: Option<CopyMethod>,
}

impl Copies {
    /// Nothing is measured yet. `always`: the method, instead of a table.
    pub fn new(always: Option<CopyMethod>) -> Self {
        Self { tables: Default::default(), kernels: OnceLock::new(), always }
    }

    /// Copies, and waits for the end.
    pub fn run(
        &self,
        lane: &Lane,
        direction: Direction,
        list: Vec<Descriptor>,
    ) -> Result<(), DriverError> {
        let method = match list.len() {
            0 | 1 => CopyMethod::Each,
            _ => self.method(lane, direction, &list),
        };
        self.run_by(method, lane, list)
    }

    fn run_by(
        &self,
        method: CopyMethod,
        lane: &Lane,
        list: Vec<Descriptor>,
    ) -> Result<(), DriverError> {
        match method {
            CopyMethod::Each => lane.copy_each(&list),
            CopyMethod::Batch => lane.copy_batch(&list),
            CopyMethod::Kernel => {
                let (Some(kernels), Ok(copies)) =
                    (self.kernels(lane.device()), Descriptors::of(list.clone()))
                else {
                    return lane.copy_each(&list);
                };
                let there = lane.device().attributes().multiprocessors;
                let most = u32::try_from(there).unwrap_or(1).clamp(1, MULTIPROCESSORS);
                let options = LaunchOptions { multiprocessors: Some(most), threads: None };
                // SAFETY: the caller of the lane ensures that the ranges stay mapped until the copy
                // has ended, which is waited for.
                unsafe { kernels.copy(&lane.launch_stream(), options, &copies)? }.wait()?;
                Ok(())
            }
        }
    }

    /// None where the device, or its driver, is too old for them.
    fn kernels(&self, device: &Arc<Device>) -> Option<&Arc<Kernels>> {
        let load = || Kernels::load(device).inspect_err(|e| tracing::debug!("{e}")).ok();
        self.kernels.get_or_init(load).as_ref()
    }

    /// Whether a method can be used at all. A kernel reaches host memory by the CPU's addresses
    /// only where the device says so.
    fn can(&self, method: CopyMethod, lane: &Lane, direction: Direction) -> bool {
        match method {
            CopyMethod::Each => true,
            CopyMethod::Batch => lane.has_batch(),
            CopyMethod::Kernel => {
                let attributes = lane.device().attributes();
                let reaches = direction == Direction::OnDevice || attributes.same_host_pointers;
                reaches && self.kernels(lane.device()).is_some()
            }
        }
    }

    fn method(&self, lane: &Lane, direction: Direction, list: &[Descriptor]) -> CopyMethod {
        if let Some(always) = self.always.filter(|method| self.can(*method, lane, direction)) {
            return always;
        }
        let table = self.tables[direction as usize].get_or_init(|| self.measure(lane, direction));
        let bytes: u64 = list.iter().map(|copy| copy.size).sum();
        table.method(list.len(), bytes / list.len().max(1) as u64)
    }

    /// Times each method with each number and size of ranges.
    fn measure(&self, lane: &Lane, direction: Direction) -> Table {
        let best = self.timed(lane, direction).unwrap_or_else(|e| {
            tracing::warn!("copies of many ranges are not measured: {e}");
            Table([[CopyMethod::Each; SIZES.len()]; COUNTS.len()])
        });
        tracing::debug!(?direction, %best, "copies of many ranges");
        best
    }

    fn timed(&self, lane: &Lane, direction: Direction) -> Result<Table, DriverError> {
        let scratch = Scratch::new(lane.device(), direction)?;
        let mut best = [[(CopyMethod::Each, u64::MAX); SIZES.len()]; COUNTS.len()];
        let mut shapes: Vec<(usize, usize)> = Vec::new();
        (0..COUNTS.len()).for_each(|n| shapes.extend((0..SIZES.len()).map(|size| (n, size))));
        shapes.sort_by_key(|(n, size)| COUNTS[*n] as u64 * SIZES[*size]);
        for method in METHODS.into_iter().filter(|method| self.can(*method, lane, direction)) {
            for (n, size) in &shapes {
                let list = scratch.ranges(COUNTS[*n], SIZES[*size]);
                let took = self.shortest(method, lane, &list)?;
                let known = &mut best[*n][*size];
                if took < known.1 {
                    *known = (method, took);
                }
                if took > TOO_LONG_NS {
                    break;
                }
            }
        }
        Ok(Table(best.map(|of_count| of_count.map(|(method, _)| method))))
    }

    fn shortest(
        &self,
        method: CopyMethod,
        lane: &Lane,
        list: &[Descriptor],
    ) -> Result<u64, DriverError> {
        let mut shortest = u64::MAX;
        for _ in 0..ROUNDS {
            let began = BootClock.now_ns();
            self.run_by(method, lane, list.to_vec())?;
            shortest = shortest.min(BootClock.now_ns().saturating_sub(began));
            if shortest > TOO_LONG_NS {
                break;
            }
        }
        Ok(shortest)
    }
}

impl Table {
    fn method(&self, count: usize, size: u64) -> CopyMethod {
        let at = COUNTS.iter().rposition(|from| count >= *from).unwrap_or(0);
        self.0[at][SIZES.iter().rposition(|from| size >= *from).unwrap_or(0)]
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, of_count) in COUNTS.iter().zip(&self.0) {
            for (size, method) in SIZES.iter().zip(of_count) {
                write!(f, "{count} of {} KiB: {method:?}; ", size >> 10)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_belongs_to_the_last_number_and_size_that_it_reaches() {
        use CopyMethod::{Batch, Each, Kernel};
        let table = Table([[Each, Batch, Kernel], [Batch, Kernel, Each], [Kernel, Each, Batch]]);
        for (count, size, method) in [
            (2, 1, Each),
            (31, 4 << 10, Each),
            (4, (256 << 10) - 1, Batch),
            (32, 1 << 30, Each),
            (255, 32 << 10, Kernel),
            (10_000, 0, Kernel),
            (256, 256 << 10, Batch),
        ] {
            assert_eq!(table.method(count, size), method, "{count} of {size}");
        }
    }
}
