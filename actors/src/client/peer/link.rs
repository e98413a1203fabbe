//! The link between a handle and one owner: touches, keys and answers go out, orders to drop plans
//! come in. It runs on the executor of the handle's Producer.

use crate::attachment::ProducerGates;
use crate::client::log_names::NAMES_PER_FRAME;
use crate::message::{ClientToOwner, OwnerToClient, PlanId, Term};
use crate::race::race;
use nkv_transport::Alive;
use nkv_transport::wire::{BoxStream, MAX_FRAME_BYTES, read_frame, write_frame};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::ReadHalf;
use tokio::sync::{Notify, mpsc, oneshot};

/// Longest pause between two looks whether an acknowledgement is true.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// What the link task has to do.
pub(crate) enum Outgoing {
    /// Send a frame.
    Frame(ClientToOwner),
    /// Signal when everything before it is written.
    Flushed(oneshot::Sender<()>),
    /// Ask whether a plan is open, and send the answer here.
    Check(PlanId, oneshot::Sender<bool>),
}

/// Questions about plans without an answer yet.
type Checks = Arc<Mutex<Vec<(PlanId, oneshot::Sender<bool>)>>>;

/// Moves frames both ways until the owner or the client ends the link, or `path`, an RDMA data
/// path, fails; returns why.
pub(super) async fn run_link(
    stream: BoxStream,
    mut rx: mpsc::Receiver<Outgoing>,
    tx: mpsc::WeakSender<Outgoing>,
    gates: Arc<dyn ProducerGates>,
    path: Option<Alive>,
) -> String {
    let (reader, mut writer) = tokio::io::split(stream);
    let checks: Checks = Arc::default();
    let asked = checks.clone();
    let failed = until_dead(path.as_ref());
    let out = async {
        let mut buf = Vec::new();
        while let Some(o) = rx.recv().await {
            let frame = match o {
                Outgoing::Frame(f) => f,
                Outgoing::Flushed(done) => {
                    let _ = done.send(());
                    continue;
                }
                Outgoing::Check(plan, answer) => {
                    let mut waiting = asked.lock().unwrap_or_else(PoisonError::into_inner);
                    // Entries of callers that gave up are removed.
                    waiting.retain(|(_, answer)| !answer.is_closed());
                    waiting.push((plan, answer));
                    drop(waiting);
                    ClientToOwner::CheckPlan(plan)
                }
            };
            let last = matches!(frame, ClientToOwner::Detach);
            if let Err(e) = write_frame(&mut writer, &mut buf, 0, &frame).await {
                return e.to_string();
            }
            if last {
                return "detached".to_string();
            }
        }
        match write_frame(&mut writer, &mut buf, 0, &ClientToOwner::Detach).await {
            Ok(()) => "the client ended".to_string(),
            Err(e) => e.to_string(),
        }
    };
    let moved = race(out, listen(reader, checks, tx, gates, path));
    race(moved, failed).await
}

/// Resolves when an RDMA data path fails. The link then ends too, which notifies the owner.
fn until_dead(path: Option<&Alive>) -> impl Future<Output = String> + use<> {
    let news = Arc::new(Notify::new());
    if let Some(path) = path {
        let notify = news.clone();
        path.on_death(move || notify.notify_one());
    }
    async move {
        news.notified().await;
        "its RDMA data path failed".to_string()
    }
}

/// Handles the owner's frames until the link ends; returns why.
async fn listen(
    mut reader: ReadHalf<BoxStream>,
    checks: Checks,
    tx: mpsc::WeakSender<Outgoing>,
    gates: Arc<dyn ProducerGates>,
    path: Option<Alive>,
) -> String {
    let mut buf = Vec::new();
    // Owners ask again each second: what waits already is not started twice.
    let waiting_for: Rc<RefCell<Vec<Promise>>> = Rc::default();
    let acknowledge = |promise: Promise| {
        if waiting_for.borrow().contains(&promise) {
            return;
        }
        waiting_for.borrow_mut().push(promise);
        let sending = send_when_true(gates.clone(), promise, tx.clone(), path.clone());
        let waiting_for = waiting_for.clone();
        tokio::task::spawn_local(async move {
            sending.await;
            waiting_for.borrow_mut().retain(|other| *other != promise);
        });
    };
    loop {
        match read_frame::<_, OwnerToClient>(&mut reader, &mut buf, MAX_FRAME_BYTES).await {
            Ok(Some((_, OwnerToClient::Drop(plan)))) => {
                gates.drop_plan(plan);
                acknowledge(Promise::Drops(plan));
            }
            Ok(Some((_, OwnerToClient::Term(term)))) => {
                gates.obey(term);
                acknowledge(Promise::Obeys(term));
            }
            Ok(Some((_, OwnerToClient::ClearBelow(below)))) => {
                acknowledge(Promise::ClearBelow(below));
            }
            Ok(Some((_, OwnerToClient::SendNames(round)))) => {
                tokio::task::spawn_local(send_names(gates.clone(), round, tx.clone()));
            }
            Ok(Some((_, OwnerToClient::Plan { plan, open }))) => {
                let mut waiting = checks.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(i) = waiting.iter().position(|(p, _)| *p == plan) {
                    let _ = waiting.swap_remove(i).1.send(open);
                }
            }
            Ok(Some((_, OwnerToClient::Refused(why)))) => {
                return format!("the owner refused a frame of this process: {why}");
            }
            Ok(None) => return "closed by the owner".to_string(),
            Err(e) => return e.to_string(),
        }
    }
}

/// Sends the keys that the owner does not have yet, then that these were all.
async fn send_names(gates: Arc<dyn ProducerGates>, round: u64, tx: mpsc::WeakSender<Outgoing>) {
    let Some(tx) = tx.upgrade() else { return };
    // Those of later puts are not asked for: a flood would never end.
    let mut left = gates.names_noted();
    while left > 0 {
        // First the place in the queue: what is taken must neither wait outside nor be lost.
        let Ok(place) = tx.reserve().await else { return };
        let names = gates.take_names(left.min(NAMES_PER_FRAME));
        if names.is_empty() {
            break;
        }
        left = left.saturating_sub(names.len());
        place.send(Outgoing::Frame(ClientToOwner::KeysReported(names)));
    }
    let _ = tx.send(Outgoing::Frame(ClientToOwner::NamesSent(round))).await;
}

/// What the owner is promised, once no write is in flight that would contradict it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    Drops(PlanId),
    Obeys(Term),
    ClearBelow(u64),
}

impl Promise {
    /// Its message, if it is true.
    fn message(self, gates: &dyn ProducerGates) -> Option<ClientToOwner> {
        match self {
            Self::Drops(plan) => gates.is_drained(plan).then_some(ClientToOwner::Dropped(plan)),
            Self::Obeys(term) => {
                gates.obeys(term).map(|held| ClientToOwner::TermObeyed { term, held })
            }
            Self::ClearBelow(below) => {
                gates.is_clear_below(below).then_some(ClientToOwner::ClearBelow(below))
            }
        }
    }
}

/// Sends a promise once it is true. The wait is bounded by the size of the few writes in flight,
/// and by the time that plans are held for kernels. Sends nothing if the data path has failed:
/// posted RDMA writes may still land, and the end of the link notifies the owner.
async fn send_when_true(
    gates: Arc<dyn ProducerGates>,
    promise: Promise,
    tx: mpsc::WeakSender<Outgoing>,
    path: Option<Alive>,
) {
    let mut pause = Duration::from_millis(1);
    let message = loop {
        if let Some(message) = promise.message(&*gates) {
            break message;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    if path.is_some_and(|path| !path.is_alive()) {
        return;
    }
    if let Some(tx) = tx.upgrade() {
        let _ = tx.send(Outgoing::Frame(message)).await;
    }
}
