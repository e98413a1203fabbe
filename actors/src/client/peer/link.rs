//! The link between a handle and one owner: touches, names and answers go out, orders to drop come in.
//! It lives on the place of the handle's Producer.

use crate::message::{PlanId, ToClient, ToOwner};
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
    Frame(ToOwner),
    /// Answers when everything before it is written.
    Flushed(oneshot::Sender<()>),
    /// A question about a plan, and who waits for the answer.
    Check(PlanId, oneshot::Sender<bool>),
}

/// Questions about plans that wait for their answer.
type Checks = Arc<Mutex<Vec<(PlanId, oneshot::Sender<bool>)>>>;

/// Moves frames both ways until the owner or the client goes, or `way`, of writes through devices; returns
/// why.
pub(super) async fn run_link(
    stream: BoxStream,
    mut rx: mpsc::Receiver<Outgoing>,
    tx: mpsc::WeakSender<Outgoing>,
    (plans, obeyed): (Arc<OpenPlans>, Arc<Obeyed>),
    way: Option<Alive>,
) -> String {
    let (reader, mut writer) = tokio::io::split(stream);
    let checks: Checks = Arc::default();
    let asked = checks.clone();
    let failed = until_dead(way.as_ref());
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
                    ToOwner::CheckPlan(plan)
                }
            };
            let last = matches!(frame, ToOwner::Detach);
            if let Err(e) = write_frame(&mut writer, &mut buf, 0, &frame).await {
                return e.to_string();
            }
            if last {
                return "detached".to_string();
            }
        }
        match write_frame(&mut writer, &mut buf, 0, &ToOwner::Detach).await {
            Ok(()) => "the client ended".to_string(),
            Err(e) => e.to_string(),
        }
    };
    let moved = race(out, listen(reader, checks, tx, (plans, obeyed), way));
    race(moved, failed).await
}

/// Resolves when a way through devices fails: its link ends with it, which is what tells the owner.
fn until_dead(way: Option<&Alive>) -> impl Future<Output = String> + use<> {
    let news = way.map(|way| {
        let news = Arc::new(Notify::new());
        let tell = news.clone();
        way.on_death(move || tell.notify_one());
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
    way: Option<Alive>,
) -> String {
    let mut buf = Vec::new();
    loop {
        match read_frame::<_, ToClient>(&mut reader, &mut buf, MAX_FRAME_BYTES).await {
            Ok(Some((_, ToClient::Drop(plan)))) => {
                plans.drop_plan(plan);
                let (plans, tx, way) = (plans.clone(), tx.clone(), way.clone());
                tokio::task::spawn_local(async move {
                    say_when(|| plans.is_out(plan), ToOwner::Dropped(plan), tx, way).await;
                });
            }
            Ok(Some((_, ToClient::Term(term)))) => {
                plans.obey(&obeyed, term);
                let (plans, obeyed, tx) = (plans.clone(), obeyed.clone(), tx.clone());
                let way = way.clone();
                tokio::task::spawn_local(async move {
                    let obeys = || plans.obeys(&obeyed, term);
                    say_when(obeys, ToOwner::TermObeyed(term), tx, way).await;
                });
            }
            Ok(Some((_, ToClient::ClearBelow(below)))) => {
                let (obeyed, tx, way) = (obeyed.clone(), tx.clone(), way.clone());
                tokio::task::spawn_local(async move {
                    let clear = || obeyed.is_clear_below(below);
                    say_when(clear, ToOwner::ClearBelow(below), tx, way).await;
                });
            }
            Ok(Some((_, ToClient::Plan { plan, open }))) => {
                let mut waiting = checks.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(i) = waiting.iter().position(|(p, _)| *p == plan) {
                    let _ = waiting.swap_remove(i).1.send(open);
                }
            }
            Ok(Some((_, ToClient::Refused(why)))) => {
                return format!("the owner believes this process no more: {why}");
            }
            Ok(None) => return "closed by the owner".to_string(),
            Err(e) => return e.to_string(),
        }
    }
}

/// Says a word once no copy is in flight that it would deny. A copy is bounded by its
/// size, and so are the few that are made together. Of a way that failed meanwhile nothing is said: what
/// was sent through a device may arrive still, and the owner learns by the end of the link.
async fn say_when(
    out: impl Fn() -> bool,
    word: ToOwner,
    tx: mpsc::WeakSender<Outgoing>,
    way: Option<Alive>,
) {
    while !out() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if way.is_some_and(|way| !way.is_alive()) {
        return;
    }
    if let Some(tx) = tx.upgrade() {
        let _ = tx.send(Outgoing::Frame(word)).await;
    }
}
