//! Client threads. The data plane's verbs block the thread that posts them, and the rest of the
//! cluster runs meanwhile: that is what the protocol must tolerate. So every client task of a
//! simulation runs on a stack of its own, and a verb that waits suspends that stack, in the middle
//! of its call, until its virtual time has come. This module makes no choices.

use crate::process::Pid;
use generator::{Generator, Gn};
use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Words of a stack: debug builds have large frames. Untouched pages cost nothing.
const STACK_WORDS: usize = 128 << 10;

thread_local! {
    // The client that runs on a stack now.
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
    // The work of the stack that starts next: it is not `Send`, and a stack takes only `Send`
    // values.
    static STARTING: RefCell<Option<Work>> = const { RefCell::new(None) };
}

type Work = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Clone)]
struct Running {
    waker: Waker,
    // Incarnations that it read from since it was last asked.
    read: Rc<RefCell<Vec<u64>>>,
    program: Option<Pid>,
}

/// A future that is polled on a stack of its own. Dropped while suspended, its stack is unwound.
pub struct StackfulFuture<T: 'static> {
    stack: Generator<'static, (), ()>,
    work: Option<Work>,
    read: Rc<RefCell<Vec<u64>>>,
    program: Option<Pid>,
    result: Rc<RefCell<Option<T>>>,
}

fn running() -> Option<Running> {
    RUNNING.with_borrow(Clone::clone)
}

impl<T> StackfulFuture<T> {
    pub fn new(work: impl Future<Output = T> + 'static) -> Self {
        let result = Rc::new(RefCell::new(None));
        let answer = result.clone();
        let work = async move {
            let value = work.await;
            *answer.borrow_mut() = Some(value);
        };
        let mut stack = Gn::<()>::new_opt(STACK_WORDS, || {
            if let Some(work) = STARTING.take() {
                wait(work);
            }
        });
        // Marks it as one that may be suspended from any depth. Nothing is ever read there.
        stack.set_local_data(NonNull::dangling().as_ptr());
        Self { stack, work: Some(Box::pin(work)), read: Rc::default(), program: None, result }
    }

    /// Marks it as part of this client program, which can be killed without its memory.
    pub fn of(self, program: Option<Pid>) -> Self {
        Self { program, ..self }
    }
}

impl<T> Future for StackfulFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let now =
            Running { waker: cx.waker().clone(), read: self.read.clone(), program: self.program };
        if let Some(work) = self.work.take() {
            STARTING.set(Some(work));
        }
        let before = RUNNING.replace(Some(now));
        self.stack.resume();
        RUNNING.set(before);
        if let Some(panic) = self.stack.get_panic_data() {
            std::panic::resume_unwind(panic);
        }
        match self.result.borrow_mut().take() {
            Some(value) => Poll::Ready(value),
            None => Poll::Pending,
        }
    }
}

/// True on a client's stack.
pub fn is_client() -> bool {
    RUNNING.with_borrow(Option::is_some)
}

/// The client program that runs now, if it is one.
pub fn program() -> Option<Pid> {
    running().and_then(|now| now.program)
}

/// Blocks this client until `work` is done. Only on a client's stack.
pub fn wait<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        let now = running().expect("a blocking verb outside a client's stack");
        if let Poll::Ready(value) = work.as_mut().poll(&mut Context::from_waker(&now.waker)) {
            return value;
        }
        generator::co_yield_with(());
    }
}

/// Delays this client's thread.
pub fn rest(pause: Duration) {
    wait(tokio::time::sleep(pause));
}

/// Notes that this client reads from an incarnation.
pub fn reads_from(incarnation: u64) {
    if let Some(now) = running() {
        let mut read = now.read.borrow_mut();
        if !read.contains(&incarnation) {
            read.push(incarnation);
        }
    }
}

/// The incarnations that this client read from since it was asked last.
pub fn read_from() -> Vec<u64> {
    running().map(|now| now.read.take()).unwrap_or_default()
}
