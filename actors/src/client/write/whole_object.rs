//! Writes the whole objects of one call: each as one chain of verbs into its own plan. The chains
//! for one owner are posted to the transport together.

use super::super::{Client, continued, filled};
use super::commit::published;
use super::publication;
use crate::client::peer::Peer;
use crate::client::plans::PlanState;
use crate::error::{Error, Result};
use nkv_store::clock::Clock;
use nkv_store::object::Publication;
use nkv_transport::TransportError;
use nkv_transport::gate::InFlight;
use nkv_transport::verbs::{Post, PostObserver};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The plan of an object, and its value.
pub(super) type WholeObject<'a> = (Arc<PlanState>, &'a [u8]);

/// The objects of one owner, by their numbers in the call, and their results.
#[derive(Default)]
struct OfOwner {
    objects: Vec<usize>,
    placed: Vec<Result<()>>,
}

impl Client {
    /// Writes and publishes all of them, side by side where owners are on other hosts; one result
    /// per object, in order.
    pub(super) fn place_wholes(&self, wholes: &[WholeObject<'_>]) -> Vec<Result<()>> {
        let mut by_owner: BTreeMap<u64, (Arc<Peer>, OfOwner)> = BTreeMap::new();
        for (i, (plan, _)) in wholes.iter().enumerate() {
            let of_owner = || (plan.peer.clone(), OfOwner::default());
            let part = by_owner.entry(plan.desc.meta.at.incarnation).or_insert_with(of_owner);
            part.1.objects.push(i);
        }
        let mut parts: Vec<_> = by_owner.into_values().collect();
        self.at_owners(&mut parts, |_, part| {
            let members: Vec<_> = part.objects.iter().map(|i| &wholes[*i]).collect();
            part.placed = self.place_group(&members);
        });
        let mut results = vec![None; wholes.len()];
        for (_, part) in parts {
            part.objects.iter().zip(part.placed).for_each(|(i, done)| results[*i] = Some(done));
        }
        filled(results, Vec::new())
    }

    /// Writes header, payload and READY of each object as one chain [I4]. All are for one owner.
    fn place_group(&self, group: &[&WholeObject<'_>]) -> Vec<Result<()>> {
        let objects: Vec<Result<Publication>> = group.iter().map(|whole| fitting(whole)).collect();
        let going: Vec<_> =
            group.iter().zip(&objects).filter_map(|(w, o)| Some((*w, o.as_ref().ok()?))).collect();
        let mut chains: Vec<_> = going.iter().map(|((_, value), o)| o.whole(value)).collect();
        let tokens = going.iter().map(|((plan, _), _)| plan.desc.token);
        let mut posts: Vec<_> =
            tokens.zip(&mut chains).map(|(token, ops)| Post { token, ops }).collect();
        let mut gates = InFlightGates {
            plans: going.iter().map(|((plan, _), _)| (&**plan, None, None)).collect(),
            clock: &*self.shared.env.clock,
        };
        let posted = group[0].0.peer.verbs.post_many(&mut posts, &mut gates);
        let refused = gates.plans.into_iter().map(|(.., refused)| refused);
        let placed = posted.into_iter().zip(refused).zip(&chains).zip(&going);
        let placed = placed.map(|(((posted, refused), ops), ((plan, _), object))| {
            refused.map_or(Ok(()), Err)?;
            posted.map_err(|e| Error::from(e).at_rank(plan.peer.rank))?;
            published(object, ops, plan)
        });
        let placed = placed.collect();
        continued(objects, placed)
    }
}

/// The gates of plans whose objects are posted together. A gate is entered when its object is
/// submitted, and left when the object is complete or nothing more of it will be sent. An owner
/// that ends one plan does not wait for the objects posted after it.
struct InFlightGates<'a> {
    // Each with its gate, once that is entered, or why it was refused.
    plans: Vec<(&'a PlanState, Option<InFlight<'a>>, Option<Error>)>,
    clock: &'a dyn Clock,
}

impl PostObserver for InFlightGates<'_> {
    fn on_submit(&mut self, index: usize) -> std::result::Result<(), TransportError> {
        let (plan, in_flight, refused) = &mut self.plans[index];
        match plan.enter(self.clock.now_ns()) {
            Ok(entered) => {
                *in_flight = Some(entered);
                Ok(())
            }
            Err(error) => {
                let text = error.to_string();
                *refused = Some(error);
                Err(TransportError::Refused(text))
            }
        }
    }

    fn on_complete(&mut self, index: usize) {
        self.plans[index].1 = None;
    }
}

/// The writes of a plan; Internal if the plan was granted for another size.
fn fitting((plan, value): &WholeObject<'_>) -> Result<Publication> {
    let object = &plan.desc.meta.object;
    if value.len() as u64 != object.bytes_total || object.bytes_total > object.extent.len {
        return Err(Error::internal(format!(
            "a plan of {} bytes in an extent of {} was granted for {} bytes of key {}",
            object.bytes_total,
            object.extent.len,
            value.len(),
            plan.key
        )));
    }
    Ok(publication(&plan.desc))
}
