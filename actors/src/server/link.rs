//! The master's side of a rank's link: sends messages to the owner, and receives its messages. A
//! message that is not urgent is delayed a moment: a busy master then sends many in one system
//! call, and wakes the owner once.

use super::{
    ACTOR_LIMIT, BEATS_PER_LEASE, BEATS_PER_TTL, LONGEST_BEAT, MAX_TO_MASTER_BYTES, Server, refuse,
};
use crate::actor::ActorAddr;
use crate::current_master::LocalMaster;
use crate::master::{DOWNLINK_FRAMES, FromRank, Join, Joined, LinkDown, LinkId, Master};
use crate::message::{MasterToOwner, OwnerToMaster, Refusal, SegmentId, Settings, Welcome};
use crate::race::read_and_write;
use nkv_store::clock::Clock;
use nkv_transport::wire::{
    BoxStream, WireError, encode_frame, read_frame, write_encoded, write_frame,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// How long messages may be delayed. Finer timers cost more than they save here.
const LINGER: Duration = Duration::from_millis(1);
/// Bytes after which messages are written without waiting for more.
const LINGER_BYTES: usize = 64 << 10;

impl Server {
    pub(super) async fn rank(
        self: Arc<Self>,
        mut stream: BoxStream,
        here: LocalMaster,
        join: impl FnOnce(mpsc::Sender<MasterToOwner>) -> Join,
    ) -> Result<(), WireError> {
        let master = &here.actor;
        let (tx, rx) = mpsc::channel(DOWNLINK_FRAMES);
        let join = join(tx);
        let (segment_id, incarnation) = (join.info.id(), join.info.incarnation);
        let confirm = !join.own;
        let joined = match master.call(join, ACTOR_LIMIT).await {
            Ok(Ok(joined)) => joined,
            Ok(Err(why)) => return refuse(&mut stream, why).await,
            // The master was restarted under this call: the rank may try again.
            Err(e) => return refuse(&mut stream, Refusal::Later(e.to_string())).await,
        };
        let link = joined.link;
        let ended = async {
            let settings = joined.settings.clone();
            let stamp_ms = self.clock.now_ms();
            let welcome = Welcome::Rank { term: joined.term, settings, confirm, stamp_ms };
            write_frame(&mut stream, &mut Vec::new(), 0, &welcome).await?;
            let (mut reader, mut writer) = tokio::io::split(stream);
            let down = write_to_owner(&mut writer, rx, &joined, &*self.clock);
            let up = read_from_owner(&mut reader, master, (segment_id, incarnation, link));
            self.master.while_here(&here, read_and_write(up, down)).await
        }
        .await;
        let _ = master.push(LinkDown { segment_id, link }).await;
        ended
    }
}

/// Between two heartbeats of the master.
fn beat_of(settings: &Settings) -> Duration {
    let beat = match settings.master_lease_ms {
        0 => settings.ttl_ms / BEATS_PER_TTL,
        lease => lease / BEATS_PER_LEASE,
    };
    Duration::from_millis(beat.max(1)).min(LONGEST_BEAT)
}

async fn write_to_owner<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut rx: mpsc::Receiver<MasterToOwner>,
    joined: &Joined,
    clock: &dyn Clock,
) -> Result<(), WireError> {
    let beat = beat_of(&joined.settings);
    let mut buf = Vec::new();
    let mut beaten_ms = clock.now_ms();
    loop {
        // Also among other messages: only a heartbeat has a stamp.
        let now = clock.now_ms();
        if now >= beaten_ms + beat.as_millis() as u64 {
            let stamp_ms = now;
            write_frame(writer, &mut buf, 0, &MasterToOwner::Heartbeat { stamp_ms }).await?;
            beaten_ms = now;
        }
        match tokio::time::timeout(beat, rx.recv()).await {
            Ok(Some(first)) => {
                let _ = tokio::time::timeout(LINGER, joined.urgent.notified()).await;
                encode_frame(&mut buf, 0, &first)?;
            }
            Ok(None) => return Ok(()),
            Err(_) => continue,
        }
        let mut frames = 1;
        while buf.len() < LINGER_BYTES
            && let Ok(next) = rx.try_recv()
        {
            encode_frame(&mut buf, 0, &next)?;
            frames += 1;
        }
        write_encoded(writer, &mut buf).await?;
        joined.written.fetch_add(frames, Ordering::Release);
    }
}

async fn read_from_owner<R: AsyncRead + Unpin>(
    reader: &mut R,
    master: &ActorAddr<Master>,
    (segment_id, incarnation, link): (SegmentId, u64, LinkId),
) -> Result<(), WireError> {
    let mut buf = Vec::new();
    while let Some((_, up)) =
        read_frame::<_, OwnerToMaster>(reader, &mut buf, MAX_TO_MASTER_BYTES).await?
    {
        // The master answers a Leave by closing the link.
        let sent = master.push(FromRank { segment_id, incarnation, link, up }).await;
        if sent.is_err() {
            break;
        }
    }
    Ok(())
}
