//! `ActorCell`: the only interface to actix. A role is written against [`Role`] and [`On`]; an
//! `ActorCell` catches its panics, lets the supervisor restart it and rebuilds it by [`Role::boot`]
//! from the durable state, which is kept outside it. Nothing else in the workspace may use actix
//! contexts.
//!
//! Why not actix's traits directly: a panic in a handler ends the actor, `do_send` ignores full and
//! closed mailboxes, and a mailbox loop never yields to other actors on its thread.

mod faults;
mod state;

pub use faults::{Crash, Freeze};
pub(crate) use state::STOOD_STILL_MS;
pub use state::{ActorStatus, ActorWatch, BEAT_MS, FROZEN_MS};

use crate::error::{Error, Result};
use crate::executor::Executor;
use actix::prelude::*;
use actix::{WeakAddr, dev::SendError};
use state::ActorCounters;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;

/// Messages a mailbox holds before senders wait.
pub const MAILBOX_MESSAGES: usize = 1024;
/// Messages that an actor handles before it yields to the other actors on its arbiter.
pub const MESSAGES_PER_YIELD: u32 = 128;
/// Panics within [`RESTART_WINDOW_MS`] after which a role is rebuilt; one more calls
/// `on_exhausted`, which ends the node.
pub const RESTART_BUDGET: u32 = 8;
/// Window of the restart budget.
pub const RESTART_WINDOW_MS: u64 = 60_000;
/// Pause before the second and later restarts in a window, multiplied by the panics in the window.
const RESTART_BACKOFF_MS: u64 = 5;
/// How long a sender sleeps between tries while a mailbox is full.
const FULL_RETRY_MS: u64 = 1;

/// A typed message with a typed reply. Its list is `message.rs`.
pub trait Message: Send + 'static {
    /// What the role answers.
    type Reply: Send + 'static;
}

/// An actor's behaviour: the only writer of its state.
pub trait Role: Sized + Unpin + 'static {
    /// State kept outside the actor, which survives it: headers, tables, links, configuration.
    type Durable: Clone + Send + Unpin + 'static;
    /// Name shown in `/status`.
    const NAME: &'static str;
    /// Builds the state from the durable state: at start and after every panic.
    fn boot(durable: &Self::Durable, ctx: &mut Context<'_, Self>) -> Self;
}

/// A role that answers a message. Synchronous: decide, apply, reply (now or later).
pub trait On<M: Message>: Role {
    /// Handles one message. If `reply` is dropped, the caller gets `Internal`.
    fn on(&mut self, message: M, reply: Reply<M::Reply>, ctx: &mut Context<'_, Self>);
}

/// The answer slot of one message; may be kept and used later.
pub struct Reply<T>(Option<oneshot::Sender<T>>, Option<Observer<T>>);

/// Sees an answer before it is sent.
type Observer<T> = Box<dyn FnOnce(&T) + Send>;

impl<T> std::fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reply").field(&self.0.is_some()).finish()
    }
}

impl<T> Reply<T> {
    /// Answers. Does nothing if the caller waits no longer.
    pub fn send(self, value: T) {
        if let Some(observe) = self.1 {
            observe(&value);
        }
        if let Some(tx) = self.0 {
            let _ = tx.send(value);
        }
    }

    /// The same reply; `observe` sees the answer before it is sent. Nothing if none is sent.
    pub fn observed(self, observe: impl FnOnce(&T) + Send + 'static) -> Self {
        Self(self.0, Some(Box::new(observe)))
    }

    /// False once the caller waits no longer.
    pub fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|tx| !tx.is_closed())
    }

    /// A reply that no caller waits for.
    pub fn nobody() -> Self {
        Self(None, None)
    }
}

/// What a handler may use besides its state: timers and asynchronous work, whose results come back
/// as messages.
pub struct Context<'a, R: Role> {
    weak: &'a WeakAddr<ActorCell<R>>,
    state: &'a Arc<ActorCounters>,
}

impl<R: Role> Context<'_, R> {
    /// Sends `message` to this role after `delay`. A timer is a message, and is dropped when the
    /// actor ends. While the mailbox is full it waits: a role that sets its next timer when this
    /// one arrives must not lose it.
    pub fn after<M: Message>(&self, delay: Duration, message: M)
    where
        R: On<M>,
    {
        self.work(async move {
            tokio::time::sleep(delay).await;
            message
        });
    }

    /// Runs async work beside the mailbox; its result comes back as a message.
    pub fn work<M: Message>(&self, work: impl Future<Output = M> + 'static)
    where
        R: On<M>,
    {
        let (weak, state) = (self.weak.clone(), self.state.clone());
        tokio::task::spawn_local(async move {
            let mut envelope = Envelope { message: work.await, reply: Reply::nobody() };
            // A result must not be lost when the mailbox is full: wait and send again.
            while let Some(addr) = weak.upgrade() {
                match addr.try_send(envelope) {
                    Ok(()) => {
                        state.sent();
                        return;
                    }
                    Err(SendError::Full(back)) => envelope = back,
                    Err(SendError::Closed(_)) => return,
                }
                drop(addr);
                tokio::time::sleep(Duration::from_millis(FULL_RETRY_MS)).await;
            }
        });
    }

    /// Runs blocking work on a thread beside the event loops; `then` turns its result into a
    /// message to this role.
    pub fn beside<T: Send + 'static, M: Message>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        then: impl FnOnce(Result<T>) -> M + 'static,
    ) where
        R: On<M>,
    {
        let executor = self.state.executor().clone();
        self.work(async move { then(executor.beside(work).await) });
    }
}

struct Envelope<M: Message> {
    message: M,
    reply: Reply<M::Reply>,
}

impl<M: Message> actix::Message for Envelope<M> {
    type Result = ();
}

/// A heartbeat, through the mailbox like any other message.
struct Heartbeat;

impl actix::Message for Heartbeat {
    type Result = ();
}

/// The wrapper that implements actix's traits for a role.
struct ActorCell<R: Role> {
    role: Option<R>,
    durable: R::Durable,
    state: Arc<ActorCounters>,
    weak: Option<WeakAddr<ActorCell<R>>>,
    turns: u32,
    window_start_ns: u64,
    window_panics: u32,
    on_exhausted: Arc<dyn Fn(&'static str) + Send + Sync>,
}

impl<R: Role> ActorCell<R> {
    fn boot(&mut self) {
        let Some(weak) = self.weak.clone() else {
            return;
        };
        let (durable, state) = (self.durable.clone(), self.state.clone());
        let built = catch_unwind(AssertUnwindSafe(|| {
            R::boot(&durable, &mut Context { weak: &weak, state: &state })
        }));
        match built {
            Ok(role) => self.role = Some(role),
            Err(p) => {
                self.state.panicked(format!("while booting: {}", panic_text(&*p)));
                if !self.spend_budget() {
                    (self.on_exhausted)(R::NAME);
                }
            }
        }
    }

    /// Counts a panic against the budget; true if the role may be rebuilt.
    fn spend_budget(&mut self) -> bool {
        let now = self.state.now_ns();
        if now.saturating_sub(self.window_start_ns) > RESTART_WINDOW_MS * 1_000_000 {
            self.window_start_ns = now;
            self.window_panics = 0;
        }
        self.window_panics += 1;
        self.window_panics <= RESTART_BUDGET
    }

    fn run<M>(
        &mut self,
        actix_ctx: &mut actix::Context<Self>,
        body: impl FnOnce(&mut R, &mut Context<'_, R>),
    ) {
        if self.role.is_none() {
            self.boot();
        }
        let (Some(role), Some(weak)) = (self.role.as_mut(), self.weak.as_ref()) else {
            return;
        };
        self.state.begin(std::any::type_name::<M>());
        let mut ctx = Context { weak, state: &self.state };
        let outcome = catch_unwind(AssertUnwindSafe(|| body(role, &mut ctx)));
        self.state.end();
        if let Err(p) = outcome {
            self.state.panicked(panic_text(&*p));
            self.role = None;
            actix_ctx.stop();
            return;
        }
        self.turns += 1;
        if self.turns.is_multiple_of(MESSAGES_PER_YIELD) {
            pause(actix_ctx, None);
        }
    }
}

/// Stops reading the mailbox for one scheduler turn, or for `delay`.
#[expect(clippy::disallowed_methods, reason = "the one place that may hold a mailbox")]
fn pause<R: Role>(actix_ctx: &mut actix::Context<ActorCell<R>>, delay: Option<Duration>) {
    let rest = async move {
        match delay {
            Some(d) => tokio::time::sleep(d).await,
            None => tokio::task::yield_now().await,
        }
    };
    actix_ctx.wait(actix::fut::wrap_future(rest));
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".to_string())
}

impl<R: Role> Actor for ActorCell<R> {
    type Context = actix::Context<Self>;

    fn started(&mut self, actix_ctx: &mut Self::Context) {
        self.weak = Some(actix_ctx.address().downgrade());
        // After a panic `restarting` has built the role already.
        if self.role.is_none() {
            self.boot();
        }
    }
}

impl<R: Role> Supervised for ActorCell<R> {
    fn restarting(&mut self, actix_ctx: &mut Self::Context) {
        self.state.restarts.fetch_add(1, Ordering::Relaxed);
        if !self.spend_budget() {
            (self.on_exhausted)(R::NAME);
        }
        if self.window_panics > 1 {
            let backoff = RESTART_BACKOFF_MS * u64::from(self.window_panics);
            pause(actix_ctx, Some(Duration::from_millis(backoff)));
        }
        self.boot();
    }
}

impl<R: Role + On<M>, M: Message> Handler<Envelope<M>> for ActorCell<R> {
    type Result = ();

    fn handle(&mut self, e: Envelope<M>, actix_ctx: &mut Self::Context) {
        self.run::<M>(actix_ctx, |role, ctx| role.on(e.message, e.reply, ctx));
    }
}

impl<R: Role> Handler<Heartbeat> for ActorCell<R> {
    type Result = ();

    fn handle(&mut self, _: Heartbeat, _: &mut Self::Context) {
        self.state.beat();
    }
}

/// Sends an actor its heartbeats for as long as it lives. A full mailbox needs none: either its
/// messages are handled, or the actor is frozen.
async fn beats<R: Role>(actor: WeakAddr<ActorCell<R>>) {
    while let Some(addr) = actor.upgrade() {
        let _ = addr.try_send(Heartbeat);
        drop(addr);
        tokio::time::sleep(Duration::from_millis(BEAT_MS)).await;
    }
}

/// The address of an actor: cheap to clone, never bypasses the mailbox's capacity.
pub struct ActorAddr<R: Role>(Arc<AddrInner<R>>);

struct AddrInner<R: Role> {
    // One actix Addr only: each clone would add a slot to the mailbox.
    addr: Addr<ActorCell<R>>,
    state: Arc<ActorCounters>,
}

impl<R: Role> Clone for ActorAddr<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R: Role> std::fmt::Debug for ActorAddr<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ActorAddr({})", R::NAME)
    }
}

impl<R: Role> ActorAddr<R> {
    /// Starts a role on an executor. `on_exhausted` is called when the restart budget is spent.
    /// `Internal` if the executor's thread has ended.
    pub async fn start(
        executor: &Executor,
        durable: R::Durable,
        on_exhausted: Arc<dyn Fn(&'static str) + Send + Sync>,
    ) -> Result<Self> {
        let state = Arc::new(ActorCounters::new(R::NAME, executor.clone()));
        let (tx, rx) = oneshot::channel();
        let cell_state = state.clone();
        executor.task(async move {
            let addr = Supervisor::start(move |actix_ctx: &mut actix::Context<ActorCell<R>>| {
                actix_ctx.set_mailbox_capacity(MAILBOX_MESSAGES);
                ActorCell {
                    role: None,
                    durable,
                    state: cell_state,
                    weak: None,
                    turns: 0,
                    window_start_ns: 0,
                    window_panics: 0,
                    on_exhausted,
                }
            });
            tokio::task::spawn_local(beats(addr.downgrade()));
            let _ = tx.send(addr);
        });
        let addr = rx
            .await
            .map_err(|_| Error::internal(format!("the thread of {} has ended", R::NAME)))?;
        Ok(Self(Arc::new(AddrInner { addr, state })))
    }

    /// Sends and waits for the reply, at most `limit` in all. `Timeout` after that, `Disconnected`
    /// if the actor has ended, `Internal` if it panicked.
    pub async fn call<M: Message>(&self, message: M, limit: Duration) -> Result<M::Reply>
    where
        R: On<M>,
    {
        let (tx, rx) = oneshot::channel();
        let work = async {
            self.send(message, Reply(Some(tx), None)).await?;
            rx.await
                .map_err(|_| Error::internal(format!("the {} actor failed on this call", R::NAME)))
        };
        let mut work = std::pin::pin!(work);
        // An actor on this thread has answered by the second poll, which needs no timer.
        for attempt in 0..2 {
            let polled = std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => Poll::Ready(None),
            });
            match polled.await {
                Some(done) => return done,
                None if attempt == 0 => a_turn_of_the_others().await,
                None => {}
            }
        }
        match tokio::time::timeout(limit, work).await {
            Ok(r) => r,
            Err(_) => Err(Error::timeout(format!(
                "the {} actor did not answer within {} ms ({} messages queued)",
                R::NAME,
                limit.as_millis(),
                self.0.state.snapshot().queue
            ))),
        }
    }

    /// Sends without waiting for an answer; waits only while the mailbox is full. `Disconnected` if
    /// the actor has ended.
    pub async fn push<M: Message>(&self, message: M) -> Result<()>
    where
        R: On<M>,
    {
        self.send(message, Reply::nobody()).await
    }

    async fn send<M: Message>(&self, message: M, reply: Reply<M::Reply>) -> Result<()>
    where
        R: On<M>,
    {
        let mut envelope = Envelope { message, reply };
        loop {
            match self.0.addr.try_send(envelope) {
                Ok(()) => {
                    self.0.state.sent();
                    return Ok(());
                }
                Err(SendError::Full(back)) => envelope = back,
                Err(SendError::Closed(_)) => return Err(closed::<R>()),
            }
            tokio::time::sleep(Duration::from_millis(FULL_RETRY_MS)).await;
        }
    }

    /// Sends without waiting. `NotReady` if the mailbox is full, `Disconnected` if the actor has
    /// ended.
    pub fn try_send<M: Message>(&self, message: M) -> Result<()>
    where
        R: On<M>,
    {
        match self.0.addr.try_send(Envelope { message, reply: Reply::nobody() }) {
            Ok(()) => {
                self.0.state.sent();
                Ok(())
            }
            Err(SendError::Full(_)) => Err(Error::not_ready(format!(
                "the {} actor's mailbox is full ({MAILBOX_MESSAGES} messages)",
                R::NAME
            ))),
            Err(SendError::Closed(_)) => Err(closed::<R>()),
        }
    }

    /// A handle that observes the actor without keeping it alive.
    pub fn watch(&self) -> ActorWatch {
        ActorWatch(self.0.state.clone())
    }

    /// The observable state.
    pub fn status(&self) -> ActorStatus {
        self.0.state.snapshot()
    }
}

/// Returns once the tasks that were ready on this thread have run. Unlike tokio's `yield_now` it
/// does not wait until sockets and timers are polled.
fn a_turn_of_the_others() -> impl Future<Output = ()> {
    let mut first = true;
    std::future::poll_fn(move |cx| {
        if !std::mem::take(&mut first) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

fn closed<R: Role>() -> Error {
    Error::disconnected(format!("the {} actor has ended with its node", R::NAME))
}
