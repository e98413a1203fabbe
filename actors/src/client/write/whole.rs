//! Whole objects of one call: each as one chain of verbs into its own plan, those for one owner handed
//! to the transport together.

use super::super::Client;
use super::{publication, published};
use crate::error::{Error, Result};
use crate::plans::PlanState;
use nkv_store::object::Publication;
use nkv_transport::gate::Inside;
use nkv_transport::verbs::{Kind, Post};
use std::sync::Arc;

/// Most objects, and most payload, that stand inside their plans together: an owner that ends one of these
/// plans, or reports to a new master, waits for all of them. A larger object goes alone.
const TOGETHER: usize = 64;
const TOGETHER_BYTES: u64 = 8 << 20;

/// An object and what will be it.
pub(super) type Whole<'a> = (Arc<PlanState>, &'a [u8]);

impl Client {
    /// Places and publishes them all; a result each, in their order.
    pub(super) fn place_wholes(&self, wholes: &[Whole<'_>]) -> Vec<Result<()>> {
        let owner = |i: usize| wholes[i].0.desc.meta.at.incarnation;
        let mut order: Vec<usize> = (0..wholes.len()).collect();
        order.sort_by_key(|i| owner(*i));
        let mut results: Vec<Option<Result<()>>> = wholes.iter().map(|_| None).collect();
        for group in
            order.chunk_by(|a, b| owner(*a) == owner(*b)).flat_map(|of| together(wholes, of))
        {
            let members: Vec<_> = group.iter().map(|i| &wholes[*i]).collect();
            let placed = members[0].0.peer.run_blocking(|| self.place_group(&members));
            group.iter().zip(placed).for_each(|(i, result)| results[*i] = Some(result));
        }
        let unplaced = || Err(Error::internal("an object that nobody placed"));
        results.into_iter().map(|r| r.unwrap_or_else(unplaced)).collect()
    }

    /// Header, payload and READY of each as one chain [I4].
    fn place_group(&self, group: &[&Whole<'_>]) -> Vec<Result<()>> {
        let now_ns = self.shared.env.clock.now_ns();
        let entered: Vec<Result<(Inside<'_>, Publication)>> =
            group.iter().map(|whole| enter(whole, now_ns)).collect();
        let going =
            || group.iter().zip(&entered).filter_map(|(w, e)| Some((w, &e.as_ref().ok()?.1)));
        let mut chains: Vec<_> = going().map(|((_, value), object)| object.whole(value)).collect();
        let tokens = going().map(|((plan, _), _)| plan.desc.token);
        let mut posts: Vec<_> =
            tokens.zip(&mut chains).map(|(token, ops)| Post { token, ops }).collect();
        let posted = group[0].0.peer.verbs.post_many(&mut posts);
        let placed = posted.into_iter().zip(&chains).zip(going());
        let mut placed = placed
            .map(|((posted, ops), ((plan, _), object))| {
                posted?;
                published(object, ops, plan)
            })
            .collect::<Vec<_>>()
            .into_iter();
        let unposted = || Err(Error::internal("a batch that its transport did not answer"));
        entered
            .into_iter()
            .map(|e| e.and_then(|_| placed.next().unwrap_or_else(unposted)))
            .collect()
    }
}

/// Cuts the objects for one owner into what is posted together. Only where a message answers each is
/// anything gained by it.
fn together<'a>(wholes: &[Whole<'_>], same: &'a [usize]) -> impl Iterator<Item = &'a [usize]> {
    let bytes_of = |i: usize| wholes[i].1.len() as u64;
    let ahead = wholes[same[0]].0.peer.kind() == Kind::Tcp;
    let (mut objects, mut bytes) = (1, bytes_of(same[0]));
    same.chunk_by(move |_, next| {
        (objects, bytes) = (objects + 1, bytes + bytes_of(*next));
        let on = ahead && objects <= TOGETHER && bytes <= TOGETHER_BYTES;
        if !on {
            (objects, bytes) = (1, bytes_of(*next));
        }
        on
    })
}

fn enter<'a>((plan, value): &'a Whole<'_>, now_ns: u64) -> Result<(Inside<'a>, Publication)> {
    let inside = plan.enter(now_ns)?;
    let meta = &plan.desc.meta;
    if value.len() as u64 != meta.bytes_total || meta.bytes_total > plan.desc.extent_len {
        return Err(Error::internal(format!(
            "a plan of {} bytes in an extent of {} was granted for {} bytes of key {}",
            meta.bytes_total,
            plan.desc.extent_len,
            value.len(),
            plan.key
        )));
    }
    Ok((inside, publication(&plan.desc)))
}
