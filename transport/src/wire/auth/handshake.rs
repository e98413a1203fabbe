//! The handshake as decisions on frames, without input or output. The plaintext frame is the
//! prologue of a Noise handshake keyed by what both ends share: no part of it can be changed,
//! repeated, or used for another job, port or channel. A node sends an unauthenticated peer nothing
//! on which passwords could be tested offline, and does no expensive computation before it has seen
//! that the peer knows the secret.

use super::credentials::{AuthKind, AuthMeans, Channel, Credentials};
use super::error::AuthError;
use super::frames::{
    ANSWER_MAGIC, AUTH_VERSION, Answer, FINISH_BYTES, NOISE_BYTES, OPENING_BYTES, OPENING_MAGIC,
    Opening, Prologue, Status, Text,
};
use super::noise::Noise;
use super::session::Session;
use nkv_store::Random;
use zerocopy::{FromBytes, IntoBytes};

/// Length in bytes of the magic, and of magic and version.
const MAGIC_BYTES: usize = 8;
pub(super) const VERSIONED_BYTES: usize = 12;

/// Checks a frame's first bytes as soon as they arrive: a peer with another protocol may never send
/// as many bytes as a frame has.
pub(super) fn check_first(bytes: &[u8], magic: u64) -> Result<(), AuthError> {
    let Some((first, rest)) = bytes.split_first_chunk::<MAGIC_BYTES>() else { return Ok(()) };
    if *first != magic.to_le_bytes() {
        return Err(AuthError::Foreign(format!("it begins with \"{}\"", first.escape_ascii())));
    }
    match rest.first_chunk().map(|v| u32::from_le_bytes(*v)) {
        Some(theirs) if theirs != AUTH_VERSION => Err(AuthError::Version { theirs }),
        _ => Ok(()),
    }
}

/// How many bytes to read next of a frame of `len` bytes, `got` of which have arrived.
pub(super) fn wanted(got: usize, len: usize) -> usize {
    let until = [MAGIC_BYTES, VERSIONED_BYTES, len].into_iter().find(|end| got < *end);
    until.map_or(0, |end| end.min(len) - got)
}

/// The client's end, before the node's answer.
pub(super) struct Prover {
    means: AuthMeans,
    job: String,
    noise: Option<Noise>,
}

/// The client's last frame, if there is one, after the node's answer.
pub(super) type Finish = Option<[u8; FINISH_BYTES]>;

impl Prover {
    pub(super) fn new(
        means: AuthMeans,
        channel: Channel,
        job: &str,
        random: &dyn Random,
    ) -> Result<(Self, Opening), AuthError> {
        let clear = Prologue {
            magic: OPENING_MAGIC.into(),
            version: AUTH_VERSION.into(),
            channel: (channel as u32).into(),
            means: (means.kind() as u32).into(),
            job: Text::new(job),
        };
        let begin = |secret| Noise::new(secret, job, &clear, random, |b| b.build_initiator());
        let mut noise = means.secret().map(begin).transpose()?;
        let first = noise.as_mut().map(Noise::write).transpose()?;
        let opening = Opening { clear, noise: first.unwrap_or([0; NOISE_BYTES]) };
        Ok((Self { means, job: job.to_string(), noise }, opening))
    }

    /// Checks the node's answer, with which the node must have proven itself.
    pub(super) fn answered(
        self,
        answer: &Answer,
        random: &dyn Random,
    ) -> Result<(Session, Finish), AuthError> {
        let needs = AuthKind::from_wire(answer.needs.get());
        let strange = AuthError::Foreign;
        match Status::from_wire(answer.status.get()) {
            Some(Status::Ok) => {}
            Some(Status::Job) => {
                let node = answer.text.shown();
                return Err(AuthError::Job { node, client: self.job });
            }
            Some(Status::AuthMeans) => {
                return Err(match needs {
                    Some(needs) => self.means.lacks(needs),
                    None => strange("it requires an unknown kind of proof".to_string()),
                });
            }
            // The node has the same means with another secret.
            Some(Status::Proof) => {
                let by_cookie = self.means.kind() == AuthKind::Cookie;
                return Err(if by_cookie {
                    AuthError::CookieDiffers
                } else {
                    AuthError::SecretDiffers
                });
            }
            Some(Status::Channel) => return Err(AuthError::Channel(answer.text.shown())),
            Some(Status::Busy) => return Err(AuthError::Busy(answer.text.shown())),
            other => {
                return Err(strange(format!("it answers the opening with {other:?}")));
            }
        }
        // The plaintext fields must be those of a node that continues the handshake.
        if needs != Some(self.means.kind()) || !answer.text.is("") {
            return Err(strange(format!("it requires {needs:?} of {:?}", self.means.kind())));
        }
        match (self.noise, &self.means) {
            (Some(mut noise), _) => {
                noise.read(&answer.noise).map_err(|_| AuthError::Impostor)?;
                let (session, finish) = noise.finish(random)?;
                Ok((session, Some(finish)))
            }
            (None, AuthMeans::Kernel) => Ok((Session::plain(), None)),
            // A node that admits a client without credentials has proven nothing itself.
            (None, _) => Err(AuthError::Impostor),
        }
    }
}

/// The node's end, to which bytes are passed as they arrive.
pub(crate) struct ServerHandshake {
    // What it requires, and for which channel.
    means: AuthMeans,
    channel: Channel,
    // Its job, and the source of its keys.
    credentials: Credentials,
    frame: Vec<u8>,
    // Present once the opening was answered.
    noise: Option<Noise>,
}

/// Outcome of some bytes.
#[derive(Debug)]
pub(crate) enum HandshakeStep {
    /// More bytes are needed.
    More,
    /// Send this; then more bytes are needed.
    Send(Vec<u8>),
    /// Finished, once this is sent.
    Over(Option<Vec<u8>>, Result<Session, AuthError>),
}

impl ServerHandshake {
    pub(super) fn new(means: AuthMeans, channel: Channel, credentials: Credentials) -> Self {
        Self { means, channel, credentials, frame: Vec::new(), noise: None }
    }

    /// An answer without a Noise message.
    pub(super) fn answer(&self, status: Status, text: &str) -> Answer {
        Answer {
            magic: ANSWER_MAGIC.into(),
            version: AUTH_VERSION.into(),
            status: (status as u32).into(),
            needs: (self.means.kind() as u32).into(),
            text: Text::new(text),
            noise: [0; NOISE_BYTES],
        }
    }

    fn opened(&mut self, opening: &Opening) -> Result<HandshakeStep, (Status, AuthError)> {
        let clear = &opening.clear;
        if clear.channel.get() != self.channel as u32 {
            let text = self.channel.not_the_other();
            return Err((Status::Channel, AuthError::Channel(text.to_string())));
        }
        let (job, random) = (self.credentials.job(), self.credentials.random());
        if !clear.job.is(job) {
            let (node, client) = (job.to_string(), clear.job.shown());
            return Err((Status::Job, AuthError::Job { node, client }));
        }
        let offers = AuthKind::from_wire(clear.means.get());
        let kind = self.means.kind();
        if offers != Some(kind) || kind == AuthKind::Nothing {
            return Err((Status::AuthMeans, AuthError::Denied(self.means.not_offered(offers))));
        }
        let welcome = self.answer(Status::Ok, "");
        let Some(secret) = self.means.secret() else {
            let answer = Some(welcome.as_bytes().to_vec());
            return Ok(HandshakeStep::Over(answer, Ok(Session::plain())));
        };
        let internal = |e| (Status::Busy, e);
        let mut noise =
            Noise::new(secret, job, clear, random, |b| b.build_responder()).map_err(internal)?;
        if noise.read(&opening.noise).is_err() {
            let why = "a wrong proof: another secret, or a changed opening";
            return Err((Status::Proof, AuthError::Denied(why)));
        }
        let answer = Answer { noise: noise.write().map_err(internal)?, ..welcome };
        // The client knows the secret, or replays the opening of a client that does.
        self.noise = Some(noise);
        Ok(HandshakeStep::Send(answer.as_bytes().to_vec()))
    }

    /// How many bytes to read next, at most: nothing that follows the handshake is read.
    pub(crate) fn wants(&self) -> usize {
        match self.noise {
            None => wanted(self.frame.len(), OPENING_BYTES),
            Some(_) => FINISH_BYTES - self.frame.len(),
        }
    }

    /// Bytes received of an incomplete frame.
    pub(crate) fn got(&self) -> usize {
        self.frame.len()
    }

    /// Whether its first message showed that the client knows the secret, or is a replay of such a
    /// message.
    pub(crate) fn has_shown(&self) -> bool {
        self.noise.is_some()
    }

    /// Processes bytes received, at most as many as were wanted.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> HandshakeStep {
        self.frame.extend_from_slice(bytes);
        if let Some(finish) = self.noise.is_some().then(|| self.frame.first_chunk()).flatten()
            && let Some(noise) = self.noise.take()
        {
            let session = noise.finished(finish);
            let why = "a wrong proof: a replayed handshake";
            return HandshakeStep::Over(None, session.map_err(|_| AuthError::Denied(why)));
        }
        if self.noise.is_some() {
            return HandshakeStep::More;
        }
        if let Err(why) = check_first(&self.frame, OPENING_MAGIC) {
            let status = match why {
                AuthError::Version { .. } => Status::Version,
                // A version that an older nkv recognises as a newer one.
                _ => Status::Foreign,
            };
            return self.over(status, why);
        }
        let Ok(opening) = Opening::read_from_bytes(&self.frame) else { return HandshakeStep::More };
        self.frame.clear();
        self.opened(&opening).unwrap_or_else(|(status, why)| self.over(status, why))
    }

    fn over(&self, status: Status, why: AuthError) -> HandshakeStep {
        let text = match &why {
            AuthError::Job { node, .. } => node.as_str(),
            AuthError::Channel(text) => text,
            _ => "",
        };
        HandshakeStep::Over(Some(self.answer(status, text).as_bytes().to_vec()), Err(why))
    }
}
