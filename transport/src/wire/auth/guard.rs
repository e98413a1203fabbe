//! The node's guard: authenticates every connection before any of its bytes is processed [I20]. It
//! counts and logs refused connections, with a limit on the lines, and does not process what
//! follows the handshake.

use super::credentials::{AuthMeans, Channel, Credentials};
use super::error::{AuthError, SecretError};
use super::exchange::verify;
use super::frames::Status;
use super::handshake::{ServerHandshake, Verifier};
use super::refusals::Refusals;
use super::session::Session;
use crate::wire::Peer;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use zerocopy::IntoBytes;

/// Requires the job's credentials on every connection.
#[derive(Debug)]
pub struct Guard {
    credentials: Credentials,
    refusals: Refusals,
}

impl Guard {
    /// Admits clients that have the same credentials as this node.
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, refusals: Refusals::default() }
    }

    /// This node's credentials, for its connections to other nodes of the job.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Connections turned away so far: no proof, a wrong one, or no handshake at all.
    pub fn refused(&self) -> u64 {
        self.refusals.count()
    }

    fn verifier(&self, means: AuthMeans, channel: Channel) -> Verifier {
        Verifier { means, channel, credentials: self.credentials.clone() }
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
            verify(stream, ServerHandshake::new(self.verifier(means, Channel::Control)), shown)
                .await
        };
        let outcome = tokio::time::timeout(limit, work).await;
        let outcome = outcome.unwrap_or(Err(AuthError::Late(limit.as_millis() as u64)));
        self.noted(outcome, &peer.text)
    }

    /// The node's end of a data connection's handshake; the caller transfers its bytes, and must
    /// report a failure with [`Guard::note`].
    pub(crate) fn entrance(&self) -> Result<ServerHandshake, AuthError> {
        Ok(ServerHandshake::new(self.verifier(self.on_tcp()?, Channel::Data)))
    }

    /// The first frame of a node without a free data connection. Not authenticated.
    pub fn busy(&self, why: &str) -> Vec<u8> {
        let means = AuthMeans::Nothing(String::new());
        self.verifier(means, Channel::Data).answer(Status::Busy, why).as_bytes().to_vec()
    }

    /// Logs that an authenticated connection received a wrong tag, or that one was closed for
    /// another.
    pub fn refuse(&self, from: &str, why: &str) {
        self.refusals.add(from, &why);
    }

    /// Logs that a connection was not authenticated; true if that counts as a refusal.
    pub(crate) fn note(&self, from: &str, why: &AuthError) -> bool {
        // A client that only tested whether something listens here.
        let counts = !matches!(why, AuthError::Closed(0));
        if counts {
            self.refusals.add(from, why);
        }
        counts
    }

    fn noted(&self, outcome: Result<Session, AuthError>, from: &str) -> Result<Session, AuthError> {
        outcome.inspect_err(|why| {
            self.note(from, why);
        })
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
    use super::next_to_evict;

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
}
