//! The handshake as decisions over frames, without any input or output. Both ends prove what they
//! share over all bytes of both first frames, so over both nonces, the job, the channel and what was
//! demanded: no part can be replayed, reflected or changed on the way. The client proves first: a
//! stranger gets nothing from a node that it could try passwords on.

use super::credentials::{Channel, Means, MeansKind};
use super::error::AuthError;
use super::frames::{
    AUTH_VERSION, CHALLENGE_MAGIC, Challenge, NONCE_BYTES, OPENING_MAGIC, Opening, PROOF_MAGIC,
    Proof, Status, Text, VERDICT_MAGIC, Verdict,
};
use super::secret::{MAC_BYTES, Secret};
use hmac::Mac;
use nkv_store::Random;
use zerocopy::IntoBytes;

/// What the client's proof is of, besides the frames.
const CLIENT_LABEL: &[u8; 16] = b"nkv-auth client\0";
/// What the node's proof is of: another label, so that no proof fits the other end.
const SERVER_LABEL: &[u8; 16] = b"nkv-auth server\0";

fn nonce(random: &dyn Random) -> Result<[u8; NONCE_BYTES], AuthError> {
    let mut nonce = [0; NONCE_BYTES];
    random.fill(&mut nonce).map_err(|e| AuthError::Random(e.to_string()))?;
    Ok(nonce)
}

fn version(theirs: u32) -> Result<(), AuthError> {
    if theirs == AUTH_VERSION { Ok(()) } else { Err(AuthError::Version { theirs }) }
}

/// The client's end, before the challenge.
pub(super) struct Prover {
    opening: Opening,
    means: Means,
    job: String,
}

/// The client's end, after it sent its proof.
pub(super) struct Proved {
    prover: Prover,
    challenge: Challenge,
    proof: Proof,
    secret: Secret,
}

/// What a challenge asks for.
pub(super) enum Asked {
    /// Nothing: the handshake is over.
    Nothing,
    /// A proof, to be sent.
    Proof(Box<Proved>),
}

impl Prover {
    pub(super) fn new(
        means: Means,
        channel: Channel,
        job: &str,
        random: &dyn Random,
    ) -> Result<Self, AuthError> {
        let opening = Opening {
            magic: OPENING_MAGIC.into(),
            version: AUTH_VERSION.into(),
            channel: channel.number().into(),
            means: means.kind().number().into(),
            job: Text::new(job),
            nonce: nonce(random)?,
        };
        Ok(Self { opening, means, job: job.to_string() })
    }

    pub(super) fn opening(&self) -> &[u8] {
        self.opening.as_bytes()
    }

    /// Decides over the node's answer.
    pub(super) fn challenged(self, challenge: Challenge) -> Result<Asked, AuthError> {
        version(challenge.version.get())?;
        let needs = MeansKind::from_number(challenge.needs.get());
        let strange = |what: String| AuthError::Foreign(what);
        match Status::from_wire(challenge.status.get()) {
            Some(Status::Ok) => {}
            Some(Status::Job) => {
                let node = challenge.text.shown();
                return Err(AuthError::Job { node, client: self.job });
            }
            Some(Status::Means) => {
                return Err(match needs {
                    Some(needs) => self.means.lacks(needs),
                    None => strange("it demands what this release does not know".to_string()),
                });
            }
            Some(Status::Channel) => return Err(AuthError::Channel(challenge.text.shown())),
            Some(Status::Busy) => return Err(AuthError::Busy(challenge.text.shown())),
            other => return Err(strange(format!("it answers the opening with {other:?}"))),
        }
        // Only what was offered may be demanded: nobody talks this end into proving less.
        if needs != Some(self.means.kind()) {
            return Err(strange(format!("it demands {needs:?} of {:?}", self.means.kind())));
        }
        let secret = match &self.means {
            Means::Nothing(_) => return Ok(Asked::Nothing),
            Means::Cookie(secret) | Means::Secret(secret) => secret.clone(),
        };
        let parts = [&CLIENT_LABEL[..], self.opening.as_bytes(), challenge.as_bytes()];
        let mac = secret.mac(&parts).finalize().into_bytes().into();
        let proof = Proof { magic: PROOF_MAGIC.into(), version: AUTH_VERSION.into(), mac };
        Ok(Asked::Proof(Box::new(Proved { prover: self, challenge, proof, secret })))
    }
}

impl Proved {
    pub(super) fn proof(&self) -> &[u8] {
        self.proof.as_bytes()
    }

    /// Decides over the node's last word: it must prove itself, too.
    pub(super) fn judged(self, verdict: &Verdict) -> Result<(), AuthError> {
        version(verdict.version.get())?;
        match Status::from_wire(verdict.status.get()) {
            Some(Status::Ok) => {}
            Some(Status::Proof) => return Err(self.prover.means.differs()),
            other => {
                return Err(AuthError::Foreign(format!("it answers the proof with {other:?}")));
            }
        }
        let (opening, challenge) = (self.prover.opening.as_bytes(), self.challenge.as_bytes());
        let parts = [&SERVER_LABEL[..], opening, challenge, self.proof.as_bytes()];
        let right = self.secret.mac(&parts).verify_slice(&verdict.mac);
        right.map_err(|_| AuthError::Impostor)
    }
}

/// The node's end, before the opening.
pub(super) struct Verifier<'a> {
    pub means: Means,
    pub channel: Channel,
    pub job: &'a str,
    /// Where its nonce comes from.
    pub random: &'a dyn Random,
}

/// The node's end, after it sent its challenge.
pub(super) struct Challenged {
    opening: Opening,
    challenge: Challenge,
    secret: Secret,
}

/// What an opening led to.
pub(super) enum Opened {
    /// Welcome: nothing has to be proven here. The challenge says so.
    Welcome(Challenge),
    /// The challenge, and what waits for the proof.
    Challenged(Challenge, Box<Challenged>),
    /// The challenge that says no, and why.
    Refused(Challenge, AuthError),
}

impl Verifier<'_> {
    /// A first answer that says no.
    pub(super) fn no(&self, status: Status, text: &str) -> Challenge {
        Challenge {
            magic: CHALLENGE_MAGIC.into(),
            version: AUTH_VERSION.into(),
            status: (status as u32).into(),
            needs: self.means.kind().number().into(),
            text: Text::new(text),
            nonce: [0; NONCE_BYTES],
        }
    }

    /// Decides over the client's first word.
    pub(super) fn opened(self, opening: Opening) -> Result<Opened, AuthError> {
        let refused = |status, text: &str, why| Ok(Opened::Refused(self.no(status, text), why));
        if opening.version.get() != AUTH_VERSION {
            let theirs = opening.version.get();
            return refused(Status::Version, "", AuthError::Version { theirs });
        }
        if opening.channel.get() != self.channel.number() {
            let text = self.channel.not_the_other();
            return refused(Status::Channel, text, AuthError::Channel(text.to_string()));
        }
        if !opening.job.is(self.job) {
            let (node, client) = (self.job.to_string(), opening.job.shown());
            return refused(Status::Job, self.job, AuthError::Job { node, client });
        }
        let offers = MeansKind::from_number(opening.means.get());
        let secret = match (&self.means, offers) {
            (Means::Nothing(_), Some(MeansKind::Nothing)) => {
                return Ok(Opened::Welcome(self.no(Status::Ok, "")));
            }
            (Means::Cookie(secret), Some(MeansKind::Cookie)) => secret.clone(),
            (Means::Secret(secret), Some(MeansKind::Secret)) => secret.clone(),
            (_, offers) => {
                let why = AuthError::Denied(self.means.not_offered(offers));
                return refused(Status::Means, "", why);
            }
        };
        let challenge = Challenge { nonce: nonce(self.random)?, ..self.no(Status::Ok, "") };
        Ok(Opened::Challenged(challenge, Box::new(Challenged { opening, challenge, secret })))
    }
}

impl Challenged {
    /// Decides over the client's proof; the verdict is to be sent either way.
    pub(super) fn proved(self, proof: &Proof) -> (Verdict, Result<(), AuthError>) {
        let verdict = |status: Status, mac| Verdict {
            magic: VERDICT_MAGIC.into(),
            version: AUTH_VERSION.into(),
            status: (status as u32).into(),
            mac,
        };
        let (opening, challenge) = (self.opening.as_bytes(), self.challenge.as_bytes());
        let parts = [&CLIENT_LABEL[..], opening, challenge];
        // Constant in time, whatever the proof is.
        if self.secret.mac(&parts).verify_slice(&proof.mac).is_err()
            || proof.version.get() != AUTH_VERSION
        {
            let why = AuthError::Denied("a wrong proof: another secret, or a replayed handshake");
            return (verdict(Status::Proof, [0; MAC_BYTES]), Err(why));
        }
        let parts = [&SERVER_LABEL[..], opening, challenge, proof.as_bytes()];
        (verdict(Status::Ok, self.secret.mac(&parts).finalize().into_bytes().into()), Ok(()))
    }
}
