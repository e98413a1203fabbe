//! The client's end of a data path: unconnected pairs, and their connection to the owner.

use super::Device;
use super::batch::{Batch, Path, limit_ns};
use super::lane::{Lane, RdmaCounters};
use super::pair::Pair;
use super::queue::Queue;
use super::verbs::RdmaVerbs;
use crate::error::TransportError;
use crate::fabric::{self, Answer, DataPath, Offer, SegmentBounds};
use crate::verbs::{Alive, Verbs};
use nkv_store::threads::all_at_once;
use std::sync::Arc;

/// One unconnected pair, and the rail of its device.
#[derive(Debug)]
pub(super) struct UnconnectedPair {
    pub(super) rail: u8,
    pub(super) device: Arc<Device>,
    pub(super) queue: Arc<Queue>,
    pub(super) pair: Pair,
}

/// All pairs of an offer.
#[derive(Debug)]
pub(super) struct Offering {
    pub(super) pairs: Vec<UnconnectedPair>,
}

impl fabric::Offering for Offering {
    fn offer(&self) -> Offer {
        Offer { pairs: self.pairs.iter().map(|u| u.pair.address(u.rail)).collect() }
    }

    fn connect(
        self: Box<Self>,
        answer: &Answer,
        segment: SegmentBounds,
        alive: Alive,
    ) -> Result<Arc<dyn Verbs>, TransportError> {
        Ok(Arc::new(self.join(answer, segment, alive)?))
    }
}

impl Offering {
    /// Connects each pair to the owner's pair, and tests it.
    pub(super) fn join(
        self,
        answer: &Answer,
        segment: SegmentBounds,
        alive: Alive,
    ) -> Result<RdmaVerbs, TransportError> {
        if answer.paths.len() != self.pairs.len() {
            return Err(TransportError::Protocol(format!(
                "{} pairs were offered and {} answered",
                self.pairs.len(),
                answer.paths.len()
            )));
        }
        let counters = Arc::new(RdmaCounters::default());
        let pairs: Vec<_> = self.pairs.into_iter().zip(&answer.paths).collect();
        // The kernel may need a second to resolve an address.
        let connected = all_at_once("nkv-connect", pairs, |(unconnected, path)| {
            let name = unconnected.device.name().to_string();
            let met = match path {
                Ok(path) => unconnected.meet(path, segment, &counters),
                Err(why) => Err(TransportError::Protocol(format!("at the owner: {why}"))),
            };
            (name, met)
        });
        let paths = in_use(tried(connected), answer.one_counts)?;
        Ok(RdmaVerbs::new(paths, segment.len, alive, counters))
    }
}

/// A path, and whether it ends at the device that counts.
type Found = Result<(bool, Arc<Path>), TransportError>;

impl UnconnectedPair {
    fn meet(self, path: &DataPath, segment: SegmentBounds, counters: &Arc<RdmaCounters>) -> Found {
        segment.check(&path.ranges)?;
        let Self { device, queue, pair, .. } = self;
        pair.connect(&path.pair)?;
        let lane = Lane::new(pair, queue, path.ranges.clone(), counters.clone());
        Ok((path.counts, Arc::new(Path::new(lane, device.staging.clone()))))
    }
}

/// The paths that work: all are tested at the same time.
fn tried(connected: Vec<(String, Found)>) -> Vec<(String, Found)> {
    let until_ns = limit_ns(0);
    let paths = connected.iter().map(|(_, found)| found.as_ref().ok());
    let sent: Vec<Option<Result<Batch<'_>, TransportError>>> =
        paths.map(|found| found.map(|(_, path)| path.begin_try(until_ns))).collect();
    let end = |sent: Option<Result<Batch<'_>, _>>| match sent {
        Some(sent) => sent.and_then(|mut batch| batch.finish()),
        None => Ok(()),
    };
    let ended: Vec<_> = sent.into_iter().map(end).collect();
    let both = |((name, found), ended): (_, Result<(), _>)| (name, ended.and(found));
    connected.into_iter().zip(ended).map(both).collect()
}

/// The working paths, with the one that can be the first in front: the path to the device that
/// counts, if there is such a device.
fn in_use(tried: Vec<(String, Found)>, one_counts: bool) -> Result<Vec<Arc<Path>>, TransportError> {
    let (mut paths, mut first, mut why) = (Vec::new(), None, None);
    for (device, found) in tried {
        match found {
            Ok((counts, path)) if first.is_none() && counts == one_counts => first = Some(path),
            Ok((_, path)) => paths.push(path),
            Err(error) => {
                tracing::warn!(device, %error, "its queue pair failed the test and is not used");
                why = why.or(Some(error));
            }
        }
    }
    let Some(first) = first else {
        let none = || {
            TransportError::Protocol("no pair reaches the owner's device that counts".to_string())
        };
        return Err(why.unwrap_or_else(none));
    };
    paths.insert(0, first);
    Ok(paths)
}
