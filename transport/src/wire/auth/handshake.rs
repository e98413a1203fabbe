//! The handshake as decisions over frames, without any input or output. The clear frame is the
//! prologue of a Noise handshake under what both ends share: no part of it can be changed, moved to
//! another job, port or channel, or repeated. An unauthenticated peer gets nothing from a node that
//! it could try passwords on, and the node computes nothing dear before it has seen that the secret
//! is known.

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

/// What a magic takes, and with the version.
const MAGIC_BYTES: usize = 8;
pub(super) const VERSIONED_BYTES: usize = 12;
/// What is shown of bytes that are no frame.
const SHOWN_BYTES: usize = 8;

/// Decides over a frame's first bytes as soon as they are there: one who speaks something else may
/// never send as many as a frame has.
pub(super) fn check_first(bytes: &[u8], magic: u64) -> Result<(), AuthError> {
    let Some((first, rest)) = bytes.split_first_chunk::<MAGIC_BYTES>() else { return Ok(()) };
    if *first != magic.to_le_bytes() {
        let shown = first[..SHOWN_BYTES].escape_ascii();
        return Err(AuthError::Foreign(format!("it begins with \"{shown}\"")));
    }
    match rest.first_chunk().map(|v| u32::from_le_bytes(*v)) {
        Some(theirs) if theirs != AUTH_VERSION => Err(AuthError::Version { theirs }),
        _ => Ok(()),
    }
}

/// How many bytes to read next of a frame of `len`, `got` of which are there.
pub(super) fn wanted(got: usize, len: usize) -> usize {
    let until = [MAGIC_BYTES, VERSIONED_BYTES, len].into_iter().find(|end| got < *end);
    until.map_or(0, |end| end.min(len) - got)
}

/// The client's end, before the answer.
pub(super) struct Prover {
    means: AuthMeans,
    job: String,
    noise: Option<Noise>,
}

/// The client's end, after the answer: what is still to be sent.
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
            channel: channel.number().into(),
            means: means.kind().number().into(),
            job: Text::new(job),
        };
        let begun = means.secret().map(|secret| Noise::client(secret, job, &clear, random));
        let (noise, first) = begun.transpose()?.unzip();
        let opening = Opening { clear, noise: first.unwrap_or([0; NOISE_BYTES]) };
        Ok((Self { means, job: job.to_string(), noise }, opening))
    }

    /// Decides over the node's answer: it must have proven itself with it.
    pub(super) fn answered(
        self,
        answer: &Answer,
        random: &dyn Random,
    ) -> Result<(Session, Finish), AuthError> {
        let needs = AuthKind::from_number(answer.needs.get());
        let strange = |what: String| AuthError::Foreign(what);
        match Status::from_wire(answer.status.get()) {
            Some(Status::Ok) => {}
            Some(Status::Job) => {
                let node = answer.text.shown();
                return Err(AuthError::Job { node, client: self.job });
            }
            Some(Status::AuthMeans) => {
                return Err(match needs {
                    Some(needs) => self.means.lacks(needs),
                    None => strange("it demands what this release does not know".to_string()),
                });
            }
            Some(Status::Proof) => return Err(self.means.differs()),
            Some(Status::Channel) => return Err(AuthError::Channel(answer.text.shown())),
            Some(Status::Busy) => return Err(AuthError::Busy(answer.text.shown())),
            other => return Err(strange(format!("it answers the opening with {other:?}"))),
        }
        // What was said in the clear must be what a node says that goes on.
        if needs != Some(self.means.kind()) || !answer.text.is("") {
            return Err(strange(format!("it demands {needs:?} of {:?}", self.means.kind())));
        }
        match (self.noise, &self.means) {
            (Some(mut noise), _) => {
                noise.read(&answer.noise).map_err(|_| AuthError::Impostor)?;
                let (session, finish) = noise.finish(random)?;
                Ok((session, Some(finish)))
            }
            (None, AuthMeans::Kernel) => Ok((Session::plain(), None)),
            // Whoever lets in an end that can prove nothing has proven nothing either.
            (None, _) => Err(AuthError::Impostor),
        }
    }
}

/// What the node's end demands, and of whom.
pub(super) struct Verifier {
    pub means: AuthMeans,
    pub channel: Channel,
    /// Its job, and where its keys come from.
    pub credentials: Credentials,
}

/// What an opening led to.
enum Opened {
    /// Nothing has to be proven here.
    Welcome,
    /// The client knows the secret, or repeats one who does.
    Proven(Box<Answer>, Noise),
}

impl Verifier {
    /// An answer without a key.
    pub(super) fn answer(&self, status: Status, text: &str) -> Answer {
        Answer {
            magic: ANSWER_MAGIC.into(),
            version: AUTH_VERSION.into(),
            status: (status as u32).into(),
            needs: self.means.kind().number().into(),
            text: Text::new(text),
            noise: [0; NOISE_BYTES],
        }
    }

    fn opened(&self, opening: &Opening) -> Result<Opened, (Status, AuthError)> {
        let clear = &opening.clear;
        if clear.channel.get() != self.channel.number() {
            let text = self.channel.not_the_other();
            return Err((Status::Channel, AuthError::Channel(text.to_string())));
        }
        let (job, random) = (self.credentials.job(), self.credentials.random());
        if !clear.job.is(job) {
            let (node, client) = (job.to_string(), clear.job.shown());
            return Err((Status::Job, AuthError::Job { node, client }));
        }
        let offers = AuthKind::from_number(clear.means.get());
        let kind = self.means.kind();
        if offers != Some(kind) || kind == AuthKind::Nothing {
            return Err((Status::AuthMeans, AuthError::Denied(self.means.not_offered(offers))));
        }
        let Some(secret) = self.means.secret() else { return Ok(Opened::Welcome) };
        let internal = |e| (Status::Busy, e);
        let mut noise = Noise::node(secret, job, clear, random).map_err(internal)?;
        if noise.read(&opening.noise).is_err() {
            let why = "a wrong proof: another secret, or a changed opening";
            return Err((Status::Proof, AuthError::Denied(why)));
        }
        let message = noise.write().map_err(internal)?;
        Ok(Opened::Proven(
            Box::new(Answer { noise: message, ..self.answer(Status::Ok, "") }),
            noise,
        ))
    }
}

/// The node's end, fed with bytes as they come.
pub(crate) struct ServerHandshake {
    verifier: Verifier,
    frame: Vec<u8>,
    // Once the opening was answered.
    noise: Option<Noise>,
}

/// What some bytes led to.
#[derive(Debug)]
pub(crate) enum HandshakeStep {
    /// Nothing yet: more are needed.
    More,
    /// This is to be sent, and more is needed.
    Send(Vec<u8>),
    /// It is over, once this is sent.
    Over(Option<Vec<u8>>, Result<Session, AuthError>),
}

impl ServerHandshake {
    pub(super) fn new(verifier: Verifier) -> Self {
        Self { verifier, frame: Vec::new(), noise: None }
    }

    /// How many bytes to read next, at most: none of what follows the handshake is taken.
    pub(crate) fn wants(&self) -> usize {
        match self.noise {
            None => wanted(self.frame.len(), OPENING_BYTES),
            Some(_) => FINISH_BYTES - self.frame.len(),
        }
    }

    /// Bytes of the frame that is not whole.
    pub(crate) fn got(&self) -> usize {
        self.frame.len()
    }

    /// Whether its first message showed that the client knows the secret, or repeats one who does.
    pub(crate) fn has_shown(&self) -> bool {
        self.noise.is_some()
    }

    /// Some bytes came, no more than were wanted.
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
                // An older nkv at least sees that this is a newer one.
                _ => Status::Foreign,
            };
            return self.over(status, why);
        }
        let Ok(opening) = Opening::read_from_bytes(&self.frame) else { return HandshakeStep::More };
        self.frame.clear();
        match self.verifier.opened(&opening) {
            Ok(Opened::Welcome) => {
                let answer = self.verifier.answer(Status::Ok, "");
                HandshakeStep::Over(Some(answer.as_bytes().to_vec()), Ok(Session::plain()))
            }
            Ok(Opened::Proven(answer, noise)) => {
                self.noise = Some(noise);
                HandshakeStep::Send(answer.as_bytes().to_vec())
            }
            Err((status, why)) => self.over(status, why),
        }
    }

    fn over(&self, status: Status, why: AuthError) -> HandshakeStep {
        let text = match &why {
            AuthError::Job { node, .. } => node.as_str(),
            AuthError::Channel(text) => text,
            _ => "",
        };
        HandshakeStep::Over(Some(self.verifier.answer(status, text).as_bytes().to_vec()), Err(why))
    }
}
