//! Client programs: processes that own no memory, connect, work, and end by themselves or are
//! killed.

use super::ranks::pause_process;
use super::{Cluster, ProcessJob};
use crate::net::ip_of;
use crate::plan::{JOB, PORT, secret};
use crate::process::{Pid, Process};
use crate::workload;
use nkv::{Address, Client, ClientConfig, TransportChoice};
use std::rc::Rc;
use std::time::Duration;

/// Pause between attempts to reach the cluster.
const CONNECT_AGAIN: Duration = Duration::from_millis(100);
/// Pauses that the last copies of what was read are given.
const LAST_COPIES: u32 = 50;
/// Milliseconds until a program that ended is started again.
const RESTART_MS: (u64, u64) = (1, 500);

impl Cluster {
    /// Starts a client program that has no process.
    pub(super) fn start_client(self: &Rc<Self>, client: usize) {
        let host = self.clients.borrow()[client].host;
        let process = self.process_on(host);
        self.clients.borrow_mut()[client].process = Some(process.clone());
        self.trace.note("client-starts", format!("{client} as process {}", process.pid));
        let (cluster, home) = (self.clone(), process.clone());
        process.spawn(async move { cluster.run_client(client, home).await });
    }

    async fn run_client(self: Rc<Self>, client: usize, process: Rc<Process>) {
        let mut dice = self.fork();
        let transport = match dice.permille(250) {
            true => TransportChoice::Tcp,
            false => TransportChoice::Auto,
        };
        let handle = self.connect(&process, transport).await;
        let tasks = (0..self.plan.workers).map(|_| {
            let work = workload::work(self.clone(), handle.clone(), dice.fork(), Some(process.pid));
            tokio::task::spawn_local(work)
        });
        for task in tasks.collect::<Vec<_>>() {
            // A panic of a task has been printed, and fails the run.
            if let Err(e) = task.await {
                std::panic::resume_unwind(e.into_panic());
            }
        }
        // What was read may still be put at this host's rank.
        let pauses = if self.plan.config(0).cache_on_read { LAST_COPIES } else { 0 };
        for _ in 0..pauses {
            if handle.open_plans() == 0 {
                break;
            }
            tokio::time::sleep(CONNECT_AGAIN).await;
        }
        let open = handle.open_plans();
        if open > 0 {
            self.ledger.wrong(format!("a handle that nobody uses any more has {open} open plans"));
        }
        if dice.permille(700) {
            handle.close().await;
        }
        self.coverage.borrow_mut().of_reads(&handle.read_counters());
        self.coverage.borrow_mut().of_writes(&handle.write_counters());
        self.coverage.borrow_mut().of_slow_path("handle", handle.slow_path_counters().all());
        drop(handle);
        let _ = self.jobs.send(ProcessJob::ClientEnded(client, process.pid));
    }

    async fn connect(&self, process: &Process, transport: TransportChoice) -> Client {
        let config = self.plan.config(0);
        let at = Address::Tcp(format!("{}:{PORT}", ip_of(self.plan.ranks[0])));
        loop {
            let config = ClientConfig {
                job: JOB.to_string(),
                transport,
                call_timeout_ms: config.call_timeout_ms,
                secret: Some(secret()),
                cache_on_read: config.cache_on_read,
                ..ClientConfig::default()
            };
            let env = self.environment(process, false);
            match Client::connect_in(env, &at, config).await {
                Ok(client) => return client,
                Err(e) => self.trace.note("connect", e.kind()),
            }
            tokio::time::sleep(CONNECT_AGAIN).await;
        }
    }

    /// The process has ended: the program is started again, unless the run is ending.
    pub(super) fn client_ended(self: &Rc<Self>, client: usize, pid: Pid) {
        let ours = |p: &Rc<Process>| p.pid == pid;
        if self.clients.borrow()[client].process.as_ref().is_some_and(ours) {
            self.kill_client(client, false);
        }
    }

    /// SIGKILL. False if there is no process.
    pub fn kill_client(self: &Rc<Self>, client: usize, lossy: bool) -> bool {
        let Some(process) = self.clients.borrow_mut()[client].process.take() else { return false };
        self.kill(&process, lossy);
        let pause = self.dice.borrow_mut().ms(RESTART_MS.0, RESTART_MS.1);
        let cluster = self.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(pause).await;
            let idle = cluster.clients.borrow()[client].process.is_none();
            if idle && !cluster.closing.get() {
                cluster.start_client(client);
            }
        });
        true
    }

    /// The program that has this process.
    pub fn client_of(&self, pid: Pid) -> Option<usize> {
        let has = |c: &super::ClientProgram| c.process.as_ref().is_some_and(|p| p.pid == pid);
        self.clients.borrow().iter().position(has)
    }

    /// SIGSTOP, and SIGCONT after a while. False if there is no process.
    pub fn pause_client(&self, client: usize, pause: Duration) -> bool {
        let process = self.clients.borrow()[client].process.clone();
        process.is_some_and(|p| pause_process(p, pause))
    }

    /// Client programs that are running.
    pub fn clients_running(&self) -> usize {
        self.clients.borrow().iter().filter(|c| c.process.is_some()).count()
    }
}
