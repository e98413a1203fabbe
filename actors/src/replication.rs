//! Replicas that the master wants of objects that this node holds. A thread (in a simulation a
//! task: nothing there may run beside it) reads each object in place and puts it at further ranks,
//! by plans; the master chooses the ranks. What fails is not tried again here: the master asks
//! again.

use crate::client::{Blocking, Client};
use crate::environment::{Environment, Platform};
use crate::error::Result;
use crate::message::KeyBytes;
use hashbrown::HashSet;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::log_limit::LogLimit;
use nkv_store::threads::spawn_named;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::Notify;

/// Objects that wait at most; further ones are left to the next question of the master.
const MOST_WAITING: usize = 4096;

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<KeyBytes>,
    known: HashSet<KeyBytes>,
    closing: bool,
}

/// See the file's first paragraph.
#[derive(Debug, Default)]
pub(crate) struct Replication {
    queue: Mutex<Queue>,
    changed: Condvar,
    // The same for a task.
    woken: Notify,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Replication {
    /// Needs a handle of the node, which there is only once it listens.
    pub fn start(self: &Arc<Self>, client: &Client, env: &Environment) -> Result<()> {
        if env.platform == Platform::Here {
            let (replication, client) = (self.clone(), client.for_another_runtime());
            env.machine.start_task(Box::pin(async move { replication.run_here(&client).await }));
            return Ok(());
        }
        let (replication, handle) = (self.clone(), client.blocking()?);
        let thread = spawn_named("nkv-replicate", move || replication.run(&handle))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects of this node that want further replicas.
    pub fn add(&self, list: Vec<KeyBytes>) {
        let mut queue = self.lock();
        for key in list {
            if queue.waiting.len() < MOST_WAITING && queue.known.insert(key.clone()) {
                queue.waiting.push_back(key);
            }
        }
        drop(queue);
        self.changed.notify_all();
        self.woken.notify_one();
    }

    /// Ends the thread after the object that it copies now.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.closing = true;
        queue.waiting.clear();
        drop(queue);
        self.changed.notify_all();
        self.woken.notify_one();
    }

    /// The same, and waits for the thread.
    pub async fn stop(&self) {
        self.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        match tokio::task::spawn_blocking(move || thread.join()).await {
            Ok(Ok(())) => {}
            _ => tracing::error!("the thread that makes replicas panicked: see the log"),
        }
    }

    fn next(&self) -> Option<KeyBytes> {
        let mut queue = self.lock();
        loop {
            if queue.closing {
                return None;
            }
            match queue.waiting.pop_front() {
                Some(key) => {
                    queue.known.remove(&key);
                    return Some(key);
                }
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    async fn run_here(&self, client: &Client) {
        loop {
            let key = {
                let mut queue = self.lock();
                if queue.closing {
                    return;
                }
                let key = queue.waiting.pop_front();
                key.inspect(|key| {
                    queue.known.remove(key);
                })
            };
            match key {
                Some(key) => {
                    if let Err(error) = client.add_replicas(&key).await {
                        tracing::info!(%error, "no replica was made");
                    }
                }
                None => self.woken.notified().await,
            }
        }
    }

    fn run(&self, handle: &Blocking) {
        let mut limit = LogLimit::default();
        while let Some(key) = self.next() {
            if let Err(error) = handle.add_replicas(&key)
                && limit.is_due((), BootClock.now_ms())
            {
                tracing::info!(%error, "no replica was made; logged once a minute");
            }
        }
    }
}
