//! The link between a handle and one owner: touches, names and answers go out, orders to drop come
//! in. It lives on the place of the handle's Producer.

use crate::message::{ClientToOwner, OwnerToClient, PlanId};
use crate::plans::{Obeyed, OpenPlans};
use crate::race::race;
use nkv_transport::Alive;
use nkv_transport::wire::{BoxStream, MAX_FRAME_BYTES, read_frame, write_frame};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::ReadHalf;
use tokio::sync::{Notify, mpsc, oneshot};

/// What the link task sends.
pub(crate) enum Outgoing {
    /// A frame.
    Frame(ClientToOwner),
    /// Answers when everything before it is written.
    Flushed(oneshot::Sender<()>),
    /// A question about a plan, and who waits for the answer.
    Check(PlanId, oneshot::Sender<bool>),
}

/// Questions about plans that wait for their answer.
type Checks = Arc<Mutex<Vec<(PlanId, oneshot::Sender<bool>)>>>;

/// Moves frames both ways until the owner or the client goes, or `path`, of writes through devices;
/// returns why.
pub(super) async fn run_link(
    stream: BoxStream,
    mut rx: mpsc::Receiver<Outgoing>,
    tx: mpsc::WeakSender<Outgoing>,
    (plans, obeyed): (Arc<OpenPlans>, Arc<Obeyed>),
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
                    // Callers that gave up leave nothing behind.
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
    let moved = race(out, listen(reader, checks, tx, (plans, obeyed), path));
    race(moved, failed).await
}

/// Resolves when a way through devices fails: its link ends with it, which is what tells the owner.
fn until_dead(path: Option<&Alive>) -> impl Future<Output = String> + use<> {
    let news = path.map(|path| {
        let news = Arc::new(Notify::new());
        let notify = news.clone();
        path.on_death(move || notify.notify_one());
        news
    });
    async move {
        match news {
            Some(news) => news.notified().await,
            None => std::future::pending().await,
        }
        "its way through devices failed".to_string()
    }
}

/// Takes in what the owner says until it goes; returns why.
async fn listen(
    mut reader: ReadHalf<BoxStream>,
    checks: Checks,
    tx: mpsc::WeakSender<Outgoing>,
    (plans, obeyed): (Arc<OpenPlans>, Arc<Obeyed>),
    path: Option<Alive>,
) -> String {
    let mut buf = Vec::new();
    loop {
        match read_frame::<_, OwnerToClient>(&mut reader, &mut buf, MAX_FRAME_BYTES).await {
            Ok(Some((_, OwnerToClient::Drop(plan)))) => {
                plans.drop_plan(plan);
                let (plans, tx, path) = (plans.clone(), tx.clone(), path.clone());
                tokio::task::spawn_local(async move {
                    send_when(|| plans.is_drained(plan), ClientToOwner::Dropped(plan), tx, path)
                        .await;
                });
            }
            Ok(Some((_, OwnerToClient::Term(term)))) => {
                plans.obey(&obeyed, term);
                let (plans, obeyed, tx) = (plans.clone(), obeyed.clone(), tx.clone());
                let path = path.clone();
                tokio::task::spawn_local(async move {
                    let obeys = || plans.obeys(&obeyed, term);
                    send_when(obeys, ClientToOwner::TermObeyed(term), tx, path).await;
                });
            }
            Ok(Some((_, OwnerToClient::ClearBelow(below)))) => {
                let (obeyed, tx, path) = (obeyed.clone(), tx.clone(), path.clone());
                tokio::task::spawn_local(async move {
                    let clear = || obeyed.is_clear_below(below);
                    send_when(clear, ClientToOwner::ClearBelow(below), tx, path).await;
                });
            }
            Ok(Some((_, OwnerToClient::Plan { plan, open }))) => {
                let mut waiting = checks.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(i) = waiting.iter().position(|(p, _)| *p == plan) {
                    let _ = waiting.swap_remove(i).1.send(open);
                }
            }
            Ok(Some((_, OwnerToClient::Refused(why)))) => {
                return format!("the owner believes this process no more: {why}");
            }
            Ok(None) => return "closed by the owner".to_string(),
            Err(e) => return e.to_string(),
        }
    }
}

/// Says a word once no copy is in flight that it would deny. A copy is bounded by its
/// size, and so are the few that are made together. Of a way that failed meanwhile nothing is said:
/// what was sent through a device may arrive still, and the owner learns by the end of the link.
async fn send_when(
    out: impl Fn() -> bool,
    message: ClientToOwner,
    tx: mpsc::WeakSender<Outgoing>,
    path: Option<Alive>,
) {
    while !out() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if path.is_some_and(|path| !path.is_alive()) {
        return;
    }
    if let Some(tx) = tx.upgrade() {
        let _ = tx.send(Outgoing::Frame(message)).await;
    }
}
