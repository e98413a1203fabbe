//! The node's guard: authenticates every connection before any of its bytes is processed [I20]. It
//! counts and logs refused connections, with a limit on the lines, and does not process what
//! follows the handshake.

use super::credentials::{AuthMeans, Channel, Credentials};
use super::error::{AuthError, SecretError};
use super::exchange::verify;
use super::frames::Status;
use super::handshake::ServerHandshake;
use super::session::Session;
use crate::wire::Peer;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::log_lines::LogLines;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use zerocopy::IntoBytes;

/// Requires the job's credentials on every connection.
#[derive(Debug)]
pub struct Guard {
    credentials: Credentials,
    refused: AtomicU64,
    lines: LogLines,
}

impl Guard {
    /// Admits clients that have the same credentials as this node.
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, refused: AtomicU64::new(0), lines: LogLines::default() }
    }

    /// This node's credentials, for its connections to other nodes of the job.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Connections turned away so far: no proof, a wrong one, or no handshake at all.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn handshake(&self, means: AuthMeans, channel: Channel) -> ServerHandshake {
        ServerHandshake::new(means, channel, self.credentials.clone())
    }

    fn on_tcp(&self) -> Result<AuthMeans, AuthError> {
        match self.credentials.on_tcp()? {
            // Only a process without a node has none: it admits nobody.
            AuthMeans::Nothing(_) => {
                Err(SecretError::Ambiguous("this node has no cookie".into()).into())
            }
            means => Ok(means),
        }
    }

    /// Authenticates a control connection within `limit`, or returns why not; the caller must then
    /// close it. Calls `shown` once the peer has shown that it knows the secret, or has replayed a
    /// message of one that does.
    pub async fn admit<S>(
        &self,
        stream: &mut S,
        peer: &Peer,
        limit: Duration,
        shown: &dyn Fn(),
    ) -> Result<Session, AuthError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let work = async {
            let means = match &peer.unix {
                // The kernel identified both users when the peer connected.
                Some(_) => self.credentials.on_unix_socket(),
                None => self.on_tcp()?,
            };
            verify(stream, self.handshake(means, Channel::Control), shown).await
        };
        let outcome = tokio::time::timeout(limit, work).await;
        let outcome = outcome.unwrap_or(Err(AuthError::Late(limit.as_millis() as u64)));
        outcome.inspect_err(|why| {
            self.note(&peer.text, why);
        })
    }

    /// The node's end of a data connection's handshake; the caller transfers its bytes, and must
    /// report a failure with [`Guard::note`].
    pub(crate) fn entrance(&self) -> Result<ServerHandshake, AuthError> {
        Ok(self.handshake(self.on_tcp()?, Channel::Data))
    }

    /// The first frame of a node without a free data connection. Not authenticated.
    pub fn busy(&self, why: &str) -> Vec<u8> {
        let means = AuthMeans::Nothing(String::new());
        self.handshake(means, Channel::Data).answer(Status::Busy, why).as_bytes().to_vec()
    }

    /// Counts a refused connection, such as an authenticated one that received a wrong tag or one
    /// that was closed for another. Logs it within a limit, so that a peer that keeps trying cannot
    /// fill the disk.
    pub fn refuse(&self, from: &str, why: impl Display) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        match self.lines.next(BootClock.now_ms()) {
            Some(0) => tracing::warn!(%from, %why, "refused a connection"),
            Some(before) => {
                tracing::warn!(%from, %why, before, "refused a connection, and others before it");
            }
            None => {}
        }
    }

    /// Logs that a connection was not authenticated; true if that counts as a refusal.
    pub(crate) fn note(&self, from: &str, why: &AuthError) -> bool {
        // A client that only tested whether something listens here.
        let counts = !matches!(why, AuthError::Closed(0));
        if counts {
            self.refuse(from, why);
        }
        counts
    }
}

/// Selects, by number, the connection to close for a new one: the oldest that has not shown that it
/// knows the secret. If more have shown it, the oldest of those: what it showed may be a replay of
/// an overheard message, and a new peer needs time to show it, too.
pub fn next_to_evict(by_age: impl Iterator<Item = (u64, bool)>) -> Option<u64> {
    let (mut count, mut oldest) = ([0usize; 2], [None; 2]);
    for (number, has_shown) in by_age {
        let kind = usize::from(has_shown);
        count[kind] += 1;
        oldest[kind] = oldest[kind].or(Some(number));
    }
    oldest[usize::from(count[1] > count[0])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i20_who_has_shown_nothing_gives_way_first_unless_they_are_fewer() {
        let shown = |list: &[u64]| {
            let list = list.to_vec();
            next_to_evict((1..=6).map(|n| (n, list.contains(&n))))
        };
        assert_eq!(shown(&[]), Some(1));
        assert_eq!(shown(&[1, 2]), Some(3));
        assert_eq!(shown(&[1, 2, 4]), Some(3));
        // Any number of replayed openings leaves half of the places to new peers.
        assert_eq!(shown(&[2, 3, 4, 5]), Some(2));
        assert_eq!(next_to_evict(std::iter::empty()), None);
    }

    #[test]
    fn i20_a_flood_of_refusals_is_counted_one_by_one() {
        let guard = Guard::new(Credentials::of_client("a job", None));
        (0..100).for_each(|_| guard.refuse("a test", "a reason"));
        assert_eq!(guard.refused(), 100);
    }
}
