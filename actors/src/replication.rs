//! Replicas that the master wants of objects that this node holds. A thread (in a simulation a
//! task: nothing there may run beside it) reads each object in place and puts it at further ranks,
//! by plans; the master chooses the ranks. What fails is not tried again here: the master asks
//! again.

use crate::client::{Blocking, Client};
use crate::environment::{Environment, Platform};
use crate::error::Result;
use crate::message::KeyBytes;
use crate::work_queue::WorkQueue;
use hashbrown::HashSet;
use nkv_store::clock::{BootClock, Clock};
use nkv_store::log_limit::LogLimit;
use nkv_store::threads::spawn_named;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Objects that wait at most; further ones are left to the next question of the master.
const MOST_WAITING: usize = 4096;

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct Replication {
    queue: WorkQueue<KeyBytes>,
    waiting: Mutex<HashSet<KeyBytes>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Default for Replication {
    fn default() -> Self {
        let queue = WorkQueue::new(MOST_WAITING);
        Self { queue, waiting: Mutex::default(), thread: Mutex::default() }
    }
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

    fn waiting(&self) -> MutexGuard<'_, HashSet<KeyBytes>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects of this node that want further replicas.
    pub fn add(&self, list: Vec<KeyBytes>) {
        let mut waiting = self.waiting();
        for key in list {
            if !waiting.contains(&key) && self.queue.push(key.clone()) {
                waiting.insert(key);
            }
        }
    }

    /// Ends the thread after the object that it copies now.
    pub fn close(&self) {
        self.queue.close();
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

    async fn run_here(&self, client: &Client) {
        while let Some(key) = self.queue.next().await {
            self.waiting().remove(&key);
            if let Err(error) = client.add_replicas(&key).await {
                tracing::info!(%error, "no replica was made");
            }
        }
    }

    fn run(&self, handle: &Blocking) {
        let mut limit = LogLimit::default();
        while let Some(key) = self.queue.next_blocking() {
            self.waiting().remove(&key);
            if let Err(error) = handle.add_replicas(&key)
                && limit.is_due((), BootClock.now_ms())
            {
                tracing::info!(%error, "no replica was made; logged once a minute");
            }
        }
    }
}
