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

/// Payload that stands inside its plans at once: an owner that ends one of them waits for that.
const TOGETHER_BYTES: u64 = 64 << 20;

/// An object and what will be it.
pub(super) type Whole<'a> = (Arc<PlanState>, &'a [u8]);

impl Client {
    /// Places and publishes them all; a result each, in their order.
    pub(super) fn place_wholes(&self, wholes: &[Whole<'_>]) -> Vec<Result<()>> {
        let same = |a: &Whole<'_>, b: &Whole<'_>| Arc::ptr_eq(&a.0.peer, &b.0.peer);
        let groups = wholes.chunk_by(same).flat_map(together);
        groups.flat_map(|group| group[0].0.peer.run_blocking(|| self.place_group(group))).collect()
    }

    /// Header, payload and READY of each as one chain [I4].
    fn place_group(&self, group: &[Whole<'_>]) -> Vec<Result<()>> {
        let now_ns = self.shared.env.clock.now_ns();
        let entered: Vec<Result<(Inside<'_>, Publication)>> =
            group.iter().map(|whole| enter(whole, now_ns)).collect();
        let going =
            || group.iter().zip(&entered).filter_map(|(w, e)| Some((w, &e.as_ref().ok()?.1)));
        let mut chains: Vec<_> = going().map(|((_, value), object)| object.whole(value)).collect();
        let tokens = going().map(|((plan, _), _)| plan.desc.token);
        let mut posts: Vec<_> =
            tokens.zip(&mut chains).map(|(token, ops)| Post { token, ops }).collect();
        let posted = match posts.first() {
            Some(_) => group[0].0.peer.verbs.post_many(&mut posts),
            None => Vec::new(),
        };
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
fn together<'a, 'b>(same: &'a [Whole<'b>]) -> impl Iterator<Item = &'a [Whole<'b>]> {
    let (mut bytes, ahead) = (0, same[0].0.peer.verbs.kind() == Kind::Tcp);
    same.chunk_by(move |a, b| {
        bytes += a.1.len() as u64;
        let on = ahead && bytes + b.1.len() as u64 <= TOGETHER_BYTES;
        bytes = if on { bytes } else { 0 };
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
