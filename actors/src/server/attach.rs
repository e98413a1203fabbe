//! One attached process: the owner's side of its connection. It gets the frames that end plans, and
//! its answers, touches and keys go to the Owner.

use super::refuse;
use super::registry::SegmentEndpoint;
use crate::message::{AttachBy, ClientToOwner, OwnerToClient, Refusal, Welcome};
use crate::owner::FromClient;
use crate::owner::attachments::{ATTACH_QUEUE, AttachId, Route};
use crate::owner::log::Drain;
use crate::owner::names::{NamesSent, SenderId};
use crate::race::{race, read_and_write};
use nkv_transport::fabric::{Answer, RemoteAccess};
use nkv_transport::wire::{BoxStream, Peer, WireError, read_frame, write_frame};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, Semaphore, mpsc};

/// Largest frame from an attached client: the most touches that it keeps fit.
const MAX_TO_OWNER_BYTES: usize = 2 << 20;
/// Questions about plans that one attached client may have open; further ones wait.
const MAX_CHECKS: usize = 64;

/// The log token of an attachment; ends with it.
struct LogToken<'a> {
    endpoint: &'a SegmentEndpoint,
    token: Option<u64>,
}

impl Drop for LogToken<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.endpoint.tables.log_producers.end(token);
            // The owner settles the open claims; if its mailbox is full, its timer does.
            let _ = self.endpoint.owner.try_send(Drain);
        }
    }
}

/// An entry of the producers that are asked for key strings; ends with its connection.
struct NameSender<'a> {
    endpoint: &'a SegmentEndpoint,
    id: SenderId,
}

impl Drop for NameSender<'_> {
    fn drop(&mut self) {
        self.endpoint.tables.name_senders.remove(self.id);
    }
}

/// RDMA access of a client. `sever` also ends the client's link, so that the client notices at
/// once.
#[derive(Debug)]
struct SeverableAccess {
    served: Arc<dyn RemoteAccess>,
    severed: Notify,
}

impl RemoteAccess for SeverableAccess {
    fn sever(&self) {
        self.served.sever();
        self.severed.notify_one();
    }

    fn is_severed(&self) -> bool {
        self.served.is_severed()
    }

    fn pairs(&self) -> &[u32] {
        self.served.pairs()
    }
}

/// RDMA access that is severed when its attachment ends.
struct SeverOnDrop(Arc<SeverableAccess>);

impl SeverOnDrop {
    fn new(served: Arc<dyn RemoteAccess>, producer: u64) -> Self {
        tracing::debug!(producer, pairs = ?served.pairs(), "writes through devices");
        Self(Arc::new(SeverableAccess { served, severed: Notify::new() }))
    }

    async fn severed(access: Option<&Self>) -> Result<(), WireError> {
        match access {
            Some(Self(access)) => access.severed.notified().await,
            None => std::future::pending().await,
        }
        Ok(())
    }
}

impl Drop for SeverOnDrop {
    fn drop(&mut self) {
        self.0.sever();
    }
}

/// Makes the owner's end of an RDMA data path. The answer, or the reason for none, goes to the
/// client.
async fn through_devices(
    endpoint: &SegmentEndpoint,
    producer: u64,
    by: &AttachBy,
) -> (Option<SeverOnDrop>, Option<std::result::Result<Answer, String>>) {
    let AttachBy::Fabric(offer) = by else { return (None, None) };
    let Some(exported) = endpoint.exported.clone() else {
        let why =
            "this rank's memory is not registered with any device; nkv doctor on its host says why";
        return (None, Some(Err(why.to_string())));
    };
    let offer = offer.clone();
    // Not on the thread of actors: the kernel may take a second to resolve the other end's address.
    match tokio::task::spawn_blocking(move || exported.accept(&offer)).await {
        Ok(Ok((served, answer))) => (Some(SeverOnDrop::new(served, producer)), Some(Ok(answer))),
        Ok(Err(e)) => (None, Some(Err(e.to_string()))),
        Err(e) => (None, Some(Err(format!("accepting failed: {e}")))),
    }
}

/// Serves one attached process until its connection ends.
pub(crate) async fn serve_attached(
    endpoint: &SegmentEndpoint,
    mut stream: BoxStream,
    peer: Peer,
    (producer, by): (u64, AttachBy),
    token: u64,
) -> Result<(), WireError> {
    let attachments = &endpoint.tables.attachments;
    let (tx, rx) = mpsc::channel(ATTACH_QUEUE);
    let process = peer.unix.and_then(|u| u.process);
    let proof = match (&by, process) {
        (AttachBy::Map, None) => {
            return refuse(&mut stream, Refusal::NoProof { peer: peer.text }).await;
        }
        (AttachBy::Map, process) => process,
        _ => None,
    };
    let (severing, fabric) = through_devices(endpoint, producer, &by).await;
    let route = match (&proof, &severing) {
        (Some(process), _) => Some(Route::Process { tx: tx.clone(), process: process.clone() }),
        (_, Some(access)) => Some(Route::Fabric { tx: tx.clone(), served: access.0.clone() }),
        _ => None,
    };
    // Registered before the welcome: the client is notified of every plan that ends from now on.
    let id = route.map(|route| attachments.add(producer, route));
    let pins = id.zip(proof).and_then(|(id, proof)| endpoint.tables.pins.give(id, Some(proof)));
    let log_token = (by == AttachBy::Agent).then_some(token);
    let log_token = log_token.and_then(|t| endpoint.tables.log_producers.give(t));
    let _rights = LogToken { endpoint, token: log_token };
    let names = NameSender { endpoint, id: endpoint.tables.name_senders.add(tx.clone()) };
    let mut buf = Vec::new();
    // Read after the route is registered: a later term is sent to it.
    let term = endpoint.tables.term();
    let welcome = Welcome::Attached { term, pins, log_token, fabric };
    if let Err(e) = write_frame(&mut stream, &mut buf, 0, &welcome).await {
        // A client writes only after the welcome. Its RDMA access is severed before its route is
        // removed.
        drop(severing);
        if let Some(id) = id {
            attachments.take_back(id);
            endpoint.tables.pins.take_back(id);
        }
        return Err(e);
    }
    let (mut reader, mut writer) = tokio::io::split(stream);
    let out = async {
        let ended = write_to_client(&mut writer, rx).await;
        // Before the rest is read: a later attachment of this producer then answers for this one.
        // Not for a path through devices, which must be severed first.
        if let (Err(_), Some(id), None) = (&ended, id, &severing) {
            attachments.cut(id);
        }
        ended
    };
    let inn = read_from_client(endpoint, &mut reader, (producer, log_token, names.id), id, &tx);
    // A Detach that arrived is obeyed, also if its sender closed before a frame to it was written.
    let moved = read_and_write(inn, out);
    let ended = race(moved, SeverOnDrop::severed(severing.as_ref())).await;
    drop(severing);
    if let Some(id) = id {
        attachments.cut(id);
    }
    ended
}

async fn read_from_client<R: AsyncRead + Unpin>(
    endpoint: &SegmentEndpoint,
    reader: &mut R,
    (producer, token, names): (u64, Option<u64>, SenderId),
    id: Option<AttachId>,
    tx: &mpsc::Sender<OwnerToClient>,
) -> Result<(), WireError> {
    let mut buf = Vec::new();
    let checks = Arc::new(Semaphore::new(MAX_CHECKS));
    while let Some((_, m)) =
        read_frame::<_, ClientToOwner>(reader, &mut buf, MAX_TO_OWNER_BYTES).await?
    {
        if let Err(e) = m.check(endpoint.tables.layout()) {
            // The client gets the reason, and the frame has no effect [I19].
            let _ = tx.try_send(OwnerToClient::Refused(e.message().to_string()));
            let why = e.message().to_string();
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why).into());
        }
        match m {
            ClientToOwner::CheckPlan(plan) => {
                // In a task of its own: a Dropped must not wait behind it.
                let (tables, tx) = (endpoint.tables.clone(), tx.clone());
                let slot = checks.clone().acquire_owned().await;
                tokio::task::spawn_local(async move {
                    let open = tables.wait_open(plan).await;
                    let _ = tx.send(OwnerToClient::Plan { plan, open }).await;
                    drop(slot);
                });
            }
            ClientToOwner::Detach => {
                if let Some(id) = id {
                    endpoint.tables.attachments.detach(id);
                    endpoint.tables.pins.take_back(id);
                }
                return Ok(());
            }
            // With a token: only its own claims, and only those it has not written to.
            ClientToOwner::Abandoned(claim)
                if token
                    .is_some_and(|t| !endpoint.tables.log_producers.abandon(t, claim.into())) => {}
            // Behind the keys that were sent before it.
            ClientToOwner::NamesSent(round) => {
                if let Err(error) = endpoint.owner.push(NamesSent(names, round)).await {
                    tracing::debug!(%error, "that a client sent its keys was lost");
                }
            }
            frame => {
                let m = FromClient { from: id.map(|id| (id, producer)), frame };
                if let Err(error) = endpoint.owner.push(m).await {
                    tracing::debug!(%error, "an attached client's frame was lost");
                }
            }
        }
    }
    Ok(())
}

async fn write_to_client<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut rx: mpsc::Receiver<OwnerToClient>,
) -> Result<(), WireError> {
    let mut buf = Vec::new();
    while let Some(frame) = rx.recv().await {
        write_frame(writer, &mut buf, 0, &frame).await?;
    }
    Ok(())
}
