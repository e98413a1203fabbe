//! In which order ranks get the further replicas of an object: hosts and racks without one first.

use super::{RackPath, Site};
use std::collections::BTreeSet;

/// Of ranks in a placement's order, first those of hosts and racks that have no replica yet, one of
/// each; then one of each other host that has none; then the others. `taken`: where replicas are.
pub fn apart<'a, T>(taken: impl Iterator<Item = Site<'a>>, ranks: Vec<(T, Site<'a>)>) -> Vec<T> {
    let (mut hosts, mut racks): (BTreeSet<u64>, BTreeSet<&RackPath>) =
        taken.map(|site| (site.boot_id, site.rack)).unzip();
    let (alone, rest): (Vec<_>, Vec<_>) = ranks.into_iter().partition(|(_, site)| {
        let new = !racks.contains(site.rack) && !hosts.contains(&site.boot_id);
        new && racks.insert(site.rack) && hosts.insert(site.boot_id)
    });
    let (others, shared): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|(_, site)| hosts.insert(site.boot_id));
    alone.into_iter().chain(others).chain(shared).map(|(rank, _)| rank).collect()
}
