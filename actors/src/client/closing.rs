//! Flushing and closing a handle: it sends the touches and keys not reported yet, and detaches from
//! every owner.

use super::{Client, holds_within};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Client {
    /// Sends the touches and keys noted so far, and returns when they have left this process. Those
    /// for dead ranks are lost.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("flush", async |cache| {
    /// cache.put(b"block/1", b"kv bytes", &PutOptions::default()).await?;
    /// cache.flush().await?;
    /// # Ok(())
    /// # });
    /// ```
    pub async fn flush(&self) -> Result<()> {
        self.check_usable()?;
        self.send_noted().await
    }

    async fn send_noted(&self) -> Result<()> {
        for peer in self.shared.peers.all().into_iter().filter(|p| p.is_alive()) {
            peer.send_names(usize::MAX);
            let sent = tokio::time::timeout(self.limit(), peer.send_touches(true)).await;
            let late = || Error::timeout(format!("rank {} did not accept touches", peer.rank));
            if let Err(e) = sent.map_err(|_| late())?
                && peer.is_alive()
            {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Commits what kernels have published, aborts all other open plans, flushes, and detaches from
    /// every owner. As soon as it begins, every call on this handle and its clones fails with
    /// Disconnected and reserves nothing. Views stay valid, and slots of pools stay in place.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/example.rs")); }
    /// # use nkv_actors::*;
    /// # example::on_one_rank("close", async |cache| {
    /// let own = cache.for_another_runtime();
    /// own.close().await;
    /// assert_eq!(own.get(b"block/1").await.unwrap_err().kind(), ErrorKind::Disconnected);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn close(&self) {
        if let Some(cache) = self.shared.read_cache.as_ref().filter(|_| self.shared.made.is_here())
        {
            cache.close();
        }
        self.shared.plans.shut();
        self.shared.closed.store(true, Ordering::Relaxed);
        if !self.end_open_plans().await {
            // A write is still in flight, so no owner may get a Detach, which says that none is.
            // The links stay open.
            tracing::warn!("closed with a write in flight; its space is held until it ends");
            return;
        }
        // Until the master was sent every abandoned plan, also of opens in flight: a later handle
        // may put the same keys at once.
        let shared = &self.shared;
        holds_within(self.limit(), || {
            // In this order: the plan granted last is given up before its open counts as finished.
            shared.plans.none_opening() && Arc::strong_count(&shared.abandoning) == 1
        })
        .await;
        if let Err(error) = self.send_noted().await {
            tracing::debug!(%error, "closing");
        }
        for peer in shared.peers.all() {
            if shared.plans.has_slots_at(peer.incarnation) {
                // Its owner gets the Detach once the last one is dropped.
                tracing::warn!(rank = peer.rank, "closed with slots to write: they stay in place");
                continue;
            }
            // `detach` marks the peer dead, so it may be among the former ones already: it is left
            // out.
            peer.detach(|| shared.peers.writes_on(peer.incarnation, Some(&peer))).await;
        }
        shared.peers.clear();
    }

    /// Number of plans of this handle that are open now.
    pub fn open_plans(&self) -> usize {
        self.shared.plans.len()
    }
}
