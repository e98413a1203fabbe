//! The node's gatekeeper: every connection passes it before a byte of it means anything [I20]. It
//! counts and reports who was turned away, with a bound on the lines, and knows nothing of what
//! lies behind.

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

/// Demands of every connection what the job shares.
#[derive(Debug)]
pub struct Guard {
    credentials: Credentials,
    refusals: Refusals,
}

impl Guard {
    /// Admits who has the same credentials as this node.
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, refusals: Refusals::default() }
    }

    /// This node's own, for its connections to others of the job.
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

    /// Lets a control connection in, within `limit`, or says why not; then it must be closed. Calls
    /// `shown` once it has shown that it knows the secret, or repeats one who does.
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
                // The kernel named both users when it connected.
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

    /// The node's end of a data connection's handshake, for whoever moves its bytes; how it ends
    /// must be noted if it is not well.
    pub(crate) fn entrance(&self) -> Result<ServerHandshake, AuthError> {
        Ok(ServerHandshake::new(self.verifier(self.on_tcp()?, Channel::Data)))
    }

    /// The first frame of a node that has no room for a data connection. Proves nothing.
    pub fn busy(&self, why: &str) -> Vec<u8> {
        let means = AuthMeans::Nothing(String::new());
        self.verifier(means, Channel::Data).answer(Status::Busy, why).as_bytes().to_vec()
    }

    /// A connection that was let in carried what its peer did not say, or one gave way to another.
    pub fn refuse(&self, from: &str, why: &str) {
        self.refusals.add(from, &why);
    }

    /// A connection was not let in; true if that counts as a refusal.
    pub(crate) fn note(&self, from: &str, why: &AuthError) -> bool {
        // Somebody looked whether anything listens here.
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

/// Which of these, by number, is closed for another: the oldest that has not shown that it knows
/// the secret. The oldest that has shown it, where these are more: what it showed may be overheard
/// and repeated, and who came just now must have time to show it, too.
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
        // As many repeated openings as one likes leave half of the places to who comes next.
        assert_eq!(shown(&[2, 3, 4, 5]), Some(2));
        assert_eq!(next_to_evict(std::iter::empty()), None);
    }
}
