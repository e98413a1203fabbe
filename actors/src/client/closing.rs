//! The last words of a handle: what it noted and was not told yet, and goodbye to every owner.

use super::Client;
use crate::error::{Error, Result};

impl Client {
    /// Returns when every touch noted so far has left this process (lost ones of dead ranks aside).
    pub async fn flush(&self) -> Result<()> {
        for peer in self.shared.peers.all().into_iter().filter(|p| p.is_alive()) {
            peer.send_names(usize::MAX);
            let told = tokio::time::timeout(self.limit(), peer.send_touches(true)).await;
            match told
                .map_err(|_| Error::timeout(format!("rank {} takes no touches", peer.rank)))?
            {
                Err(e) if peer.is_alive() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Flushes and says goodbye to every owner. Open plans are aborted first.
    pub async fn close(&self) {
        if !self.abort_open_plans().await {
            // A copy is still in flight: no owner may be told that nothing is. Their links stay.
            tracing::warn!("closed with a write in flight; its space is held until it ends");
            return;
        }
        if let Err(error) = self.flush().await {
            tracing::debug!(%error, "closing");
        }
        for peer in self.shared.peers.all() {
            peer.detach(|| self.shared.peers.writes_on(peer.incarnation)).await;
        }
        self.shared.peers.clear();
    }

    /// Plans of this handle that are open now.
    pub fn open_plans(&self) -> usize {
        self.shared.plans.len()
    }
}
