//! A client whose handle was closed while its owner did not run: what it sent last counts.

use super::{Bench, LIMIT, NEW, OLD, PRODUCER};
use crate::message::{
    AttachBy, ClientToOwner, ExportedMemory, MasterToOwner, OwnerToMaster, Welcome,
};
use crate::server::{SegmentRegistry, serve_attached};
use nkv_transport::wire::{BoxStream, MAX_FRAME_BYTES, Peer, UnixPeer, read_frame, write_frame};
use std::sync::Arc;

/// This process, as a client that maps the segment. It lives on, so its death proves nothing.
fn living_peer() -> Peer {
    let process: Arc<dyn nkv_transport::wire::Process> =
        Arc::new(super::pidfd(rustix::process::getpid()));
    let pid = std::process::id().cast_signed();
    Peer { unix: Some(UnixPeer { pid, uid: 0, process: Some(process) }), text: "test".to_string() }
}

#[tokio::test]
async fn i10_a_detach_counts_although_its_sender_takes_no_frame_any_more() {
    // The halves of a connection are polled alternately, so the outcome depends on how often.
    for frames_before in 0..2 {
        closes_after(frames_before).await;
    }
}

async fn closes_after(frames_before: usize) {
    let mut bench = Bench::new().await;
    let registry = SegmentRegistry::default();
    let (owner, tables) = (bench.owner.clone(), bench.tables.clone());
    let _here =
        registry.register(bench.incarnation, owner, tables, None, (ExportedMemory::Private, None));
    let endpoint = registry.get(bench.incarnation).unwrap();
    let (client, server) = tokio::io::duplex(1 << 16);
    let (mut client, server): (BoxStream, BoxStream) = (Box::new(client), Box::new(server));
    let serving = tokio::spawn(async move {
        let asked = (PRODUCER, AttachBy::Map);
        serve_attached(&endpoint, server, living_peer(), asked, 1).await
    });
    let mut buf = Vec::new();
    let welcome = read_frame(&mut client, &mut buf, MAX_FRAME_BYTES).await.unwrap();
    assert!(matches!(welcome, Some((_, Welcome::Attached { .. }))));
    for _ in 0..frames_before {
        let obeyed = ClientToOwner::TermObeyed { term: OLD, held: vec![] };
        write_frame(&mut client, &mut buf, 0, &obeyed).await.unwrap();
        tokio::task::yield_now().await;
    }
    // Nothing below waits for this thread's other tasks: when the connection is served again, it
    // has a frame to write, and the client has closed.
    bench.tables.attachments.new_term(NEW, 0);
    let detach = write_frame(&mut client, &mut buf, 0, &ClientToOwner::Detach);
    tokio::task::unconstrained(detach).await.unwrap();
    drop(client);
    let _ = serving.await.unwrap();
    bench.obeys(NEW).await;
    bench.receives(MasterToOwner::RequestReport { number: 9 }).await;
    let reported = bench.sent_to_master(|up| match up {
        OwnerToMaster::Report { number, .. } => Some(*number),
        _ => None,
    });
    assert_eq!(tokio::time::timeout(LIMIT, reported).await.unwrap(), 9);
}
