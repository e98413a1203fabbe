//! In which order ranks get the further replicas of an object: hosts and racks without one first.

use super::RackPath;
use std::collections::BTreeSet;

/// Where a rank is: the boot id of its host, and its rack.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The first 8 bytes of the kernel's boot id.
    pub host: u64,
    /// Its rack.
    pub rack: &'a RackPath,
}

/// Of ranks in a placement's order, first those of hosts and racks that have no replica yet, one of
/// each; then one of each other host that has none; then the others.
pub fn apart<'a, T>(taken: impl Iterator<Item = Place<'a>>, ranks: Vec<(T, Place<'a>)>) -> Vec<T> {
    let (mut hosts, mut racks): (BTreeSet<u64>, BTreeSet<&RackPath>) =
        taken.map(|place| (place.host, place.rack)).unzip();
    let (alone, rest): (Vec<_>, Vec<_>) = ranks.into_iter().partition(|(_, place)| {
        let new = !racks.contains(place.rack) && !hosts.contains(&place.host);
        new && racks.insert(place.rack) && hosts.insert(place.host)
    });
    let (others, shared): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|(_, place)| hosts.insert(place.host));
    alone.into_iter().chain(others).chain(shared).map(|(rank, _)| rank).collect()
}
