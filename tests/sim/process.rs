//! One simulated process: a set of tasks that is run, stopped or killed as a whole. Killing it
//! drops every task wherever it waits, and with them everything that the process had except its
//! shared memory.

use crate::time::HostClock;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::task::LocalSet;

/// Number of a process, never used twice in a run.
pub type Pid = u32;

/// Whether a process lives, as a pidfd shows for a real one.
#[derive(Debug)]
pub struct Liveness(AtomicBool);

impl nkv_transport::wire::Process for Liveness {
    fn is_alive(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// See the file's first paragraph.
pub struct Process {
    pub pid: Pid,
    pub host: usize,
    pub clock: Arc<HostClock>,
    pub life: Arc<Liveness>,
    tasks: RefCell<Option<LocalSet>>,
    still: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Process {
    /// A process without tasks yet. Call inside the run's own `LocalSet`.
    pub fn start(pid: Pid, host: usize, clock: Arc<HostClock>) -> Rc<Self> {
        let process = Rc::new(Self {
            pid,
            host,
            clock,
            life: Arc::new(Liveness(AtomicBool::new(true))),
            tasks: RefCell::new(Some(LocalSet::new())),
            still: Cell::new(false),
            waker: RefCell::default(),
        });
        tokio::task::spawn_local(Running(process.clone()));
        process
    }

    /// Adds a task; nothing happens if the process is dead.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        if let Some(tasks) = self.tasks.borrow().as_ref() {
            tasks.spawn_local(task);
        }
        self.wake();
    }

    pub fn is_alive(&self) -> bool {
        nkv_transport::wire::Process::is_alive(&*self.life)
    }

    /// Runs no task of it until [`Process::go_on`].
    pub fn stand_still(&self) {
        self.still.set(true);
    }

    pub fn go_on(&self) {
        self.still.set(false);
        self.wake();
    }

    /// Ends it now. Not to be called by one of its own tasks.
    pub fn kill(&self) {
        self.life.0.store(false, Ordering::SeqCst);
        let tasks = self.tasks.borrow_mut().take();
        drop(tasks);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// The task of the run that runs the tasks of a process.
struct Running(Rc<Process>);

impl Future for Running {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let process = &self.0;
        *process.waker.borrow_mut() = Some(cx.waker().clone());
        if process.still.get() {
            return Poll::Pending;
        }
        // Borrowed, so that no task of it can end its own process.
        let mut tasks = process.tasks.borrow_mut();
        let Some(set) = tasks.as_mut() else { return Poll::Ready(()) };
        let _named = tracing::info_span!("process", pid = process.pid).entered();
        // A process without tasks stays alive: tasks are added from outside.
        let _ = Pin::new(set).poll(cx);
        Poll::Pending
    }
}
