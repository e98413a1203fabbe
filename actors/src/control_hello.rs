//! The first exchange on a connection to a node: connect, authenticate, send its purpose. What
//! follows depends on that purpose.

use crate::error::Error;
use crate::message::{Hello, MESSAGES_VERSION, Purpose, Refusal, Welcome};
use nkv_transport::wire::auth::{AuthError, Channel, Credentials, SecretError, prove};
use nkv_transport::wire::{
    Address, BoxStream, MAX_FRAME_BYTES, Net, WireError, read_frame, write_frame,
};
use std::io;

/// Why a hello failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelloError {
    /// Nobody listens there, or it cannot be reached.
    #[error("cannot connect to {0}: {1}")]
    NoListener(Address, io::Error),
    /// The port is a node's data port.
    #[error("hello to {0}: {1}")]
    OtherPort(Address, AuthError),
    /// This end has no credentials: its own secret or cookie file is at fault, not the node.
    #[error("{0}")]
    Unproven(SecretError),
    /// The connection broke, or the answer is invalid.
    #[error("hello to {0}: {1}")]
    Broke(Address, String),
}

impl From<HelloError> for Error {
    fn from(e: HelloError) -> Self {
        match e {
            HelloError::Unproven(_) => Self::invalid(e.to_string()),
            _ => Self::disconnected(e.to_string()),
        }
    }
}

/// Connects, authenticates and sends the hello; returns the stream and the answer. An
/// authentication failure that a retry cannot fix is returned as a refusal, as if the node had sent
/// it.
pub(crate) async fn hello(
    net: &dyn Net,
    address: &Address,
    credentials: &Credentials,
    purpose: Purpose,
) -> Result<(BoxStream, Welcome), HelloError> {
    let connecting = net.connect(address).await;
    let mut stream = connecting.map_err(|e| HelloError::NoListener(address.clone(), e))?;
    let broke = |why: String| HelloError::Broke(address.clone(), why);
    let job = credentials.job();
    let proven = async {
        let means = credentials.means(address)?;
        prove(&mut stream, means, Channel::Control, job, credentials.random()).await
    };
    let mut stream = match proven.await {
        Ok(session) => session.seal(stream),
        Err(AuthError::Job { node: ours, client: theirs }) => {
            return Ok((stream, Welcome::Refused { why: Refusal::Job { ours, theirs } }));
        }
        Err(AuthError::Secret(e)) => return Err(HelloError::Unproven(e)),
        Err(e @ AuthError::Channel(_)) => return Err(HelloError::OtherPort(address.clone(), e)),
        Err(e) if e.is_final() => {
            return Ok((stream, Welcome::Refused { why: Refusal::Untrusted(e.to_string()) }));
        }
        Err(e) => return Err(broke(e.to_string())),
    };
    let hello = Hello { version: MESSAGES_VERSION, job: job.to_string(), purpose };
    match exchange(&mut stream, &hello).await {
        Ok(Some(welcome)) => Ok((stream, welcome)),
        Ok(None) => Err(broke("closed without an answer".to_string())),
        Err(e) => Err(broke(e.to_string())),
    }
}

async fn exchange(stream: &mut BoxStream, hello: &Hello) -> Result<Option<Welcome>, WireError> {
    let mut buf = Vec::new();
    write_frame(stream, &mut buf, 0, hello).await?;
    let answer = read_frame::<_, Welcome>(stream, &mut buf, MAX_FRAME_BYTES).await?;
    Ok(answer.map(|(_, welcome)| welcome))
}
