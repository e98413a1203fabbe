//! `--round-trips`: how many round trips over the network each operation takes, as its time divided
//! by that of a new tcp connection to the node, which is answered by the other host's kernel. Both
//! alternate, so a change of the network shows in both. Useful where a round trip takes longer than
//! the work at its ends: between hosts, not within one.

use crate::connection::{heap_takes, remote};
use crate::content::Stream;
use crate::flags::Flags;
use crate::latency::OpTimes;
use crate::report::Report;
use crate::stop::Stop;
use crate::stopwatch::{Deadline, timed};
use anyhow::Context;
use nkv::message::Existence;
use nkv::{Address, Blocking, Error, PutOptions};
use nkv_programs::endpoints::endpoint;
use nkv_programs::progress;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

const VALUE_BYTES: usize = 4 << 10;
/// Keys of each single operation, and of one batch.
const KEYS: usize = 100;
/// Batches of each kind.
const BATCHES: usize = 20;
/// Longest wait for a connection, and for the owners to serve what was put.
const CONNECTED: Duration = Duration::from_secs(5);
const SERVED: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Measures every operation.
///
/// # Errors
/// If the node cannot be reached, or what was put is not served.
pub(crate) fn run(flags: &Flags, stop: &Stop) -> anyhow::Result<Report> {
    let run = Run {
        writer: remote(flags)?,
        reader: remote(flags)?,
        node: socket_address(flags)?,
        id: nkv_store::random_u64(),
        stop,
    };
    heap_takes(&run.writer.membership()?, flags, (VALUE_BYTES as u64, "a value"))?;
    let mut report = Report::default();
    let done = run.measure(&mut report);
    if let Err(error) = run.remove_all() {
        let id = run.id;
        eprintln!("nkv-load: {error}; nkv rm --matching '^{id:016x}' removes the rest of this run");
    }
    run.reader.close();
    run.writer.close();
    done.map(|()| report)
}

fn socket_address(flags: &Flags) -> anyhow::Result<SocketAddr> {
    let all = flags.connect.as_deref().context("--connect HOST:PORT is missing")?;
    let first = all.split(',').next().unwrap_or(all);
    let Address::Tcp(address) = endpoint(first).map_err(anyhow::Error::msg)? else {
        anyhow::bail!("--connect {first} is a socket of this host, with no round trip to measure");
    };
    let mut found = address.to_socket_addrs().with_context(|| first.to_string())?;
    found.next().with_context(|| format!("--connect {first} has no address"))
}

struct Run<'a> {
    writer: Blocking,
    /// Has seen none of the locations.
    reader: Blocking,
    node: SocketAddr,
    /// First part of all keys.
    id: u64,
    stop: &'a Stop,
}

impl Run<'_> {
    fn keys(&self, kind: &str) -> Vec<Vec<u8>> {
        (0..KEYS).map(|i| format!("{:016x}/{kind}/{i}", self.id).into_bytes()).collect()
    }

    fn measure(&self, report: &mut Report) -> anyhow::Result<()> {
        let bar = progress::bar(8, "operations");
        let (by_log, by_plan) = (PutOptions::default(), PutOptions::default().device_alloc(false));
        // Both handles are attached to every owner before anything is measured.
        let warm = self.keys("warm");
        self.puts("put", &warm, &by_log)?;
        self.wait_served(&warm)?;
        self.gets("get", &warm, report)?;

        let [logged, planned] = [self.keys("log"), self.keys("plan")];
        let puts = self.puts("put", &logged, &by_log)?;
        report.measured(puts);
        bar.inc(1);
        let puts = self.puts("put by plan", &planned, &by_plan)?;
        report.measured(puts);
        bar.inc(1);
        let puts = self.batches_of_puts(&by_log)?;
        report.measured(puts);
        bar.inc(1);
        self.wait_served(&logged)?;
        for op in ["first get", "get again"] {
            let gets = self.gets(op, &logged, report)?;
            report.measured(gets);
            bar.inc(1);
        }
        let exists = self.checked("exists", 0, KEYS, |i| {
            self.reader.exists(&[&planned[i]]).map(|found| found == [Existence::Ready])
        })?;
        report.measured(exists);
        bar.inc(1);
        let keys: Vec<&[u8]> = logged.iter().map(Vec::as_slice).collect();
        let matched = self.checked("match_prefix of 100", 0, BATCHES, |_| {
            Ok(self.reader.match_prefix(&keys)?.len() == keys.len())
        })?;
        report.measured(matched);
        bar.inc(1);
        let mut rooms = vec![vec![0; VALUE_BYTES]; KEYS];
        let gets = self.checked("get of 100", KEYS * VALUE_BYTES, BATCHES, |_| {
            let rooms = rooms.iter_mut().map(Vec::as_mut_slice);
            let mut items: Vec<_> = keys.iter().copied().zip(rooms).collect();
            let read: Result<Vec<_>, _> =
                self.reader.get_many_into(&mut items).into_iter().collect();
            Ok(read?.len() == KEYS)
        })?;
        report.measured(gets);
        bar.finish_and_clear();
        Ok(())
    }

    fn puts(
        &self,
        op: &'static str,
        keys: &[Vec<u8>],
        opts: &PutOptions,
    ) -> anyhow::Result<OpTimes> {
        let mut value = vec![0; VALUE_BYTES];
        let mut times = OpTimes::beside_round_trips(op, VALUE_BYTES as u64);
        for key in keys {
            Stream::of(key, 0).fill(&mut value);
            if !self.one(&mut times, || self.writer.put(key, &value, opts))? {
                break;
            }
        }
        Ok(times)
    }

    fn batches_of_puts(&self, opts: &PutOptions) -> anyhow::Result<OpTimes> {
        let values: Vec<_> = (0..KEYS).map(|i| vec![i as u8; VALUE_BYTES]).collect();
        self.checked("put of 100", KEYS * VALUE_BYTES, BATCHES, |batch| {
            let keys = self.keys(&format!("batch{batch}"));
            let items: Vec<(&[u8], &[u8])> =
                keys.iter().zip(&values).map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
            let put: Result<Vec<()>, _> = self.writer.put_many(&items, opts).into_iter().collect();
            Ok(put?.len() == KEYS)
        })
    }

    fn gets(
        &self,
        op: &'static str,
        keys: &[Vec<u8>],
        report: &mut Report,
    ) -> anyhow::Result<OpTimes> {
        let mut value = vec![0; VALUE_BYTES];
        let mut times = OpTimes::beside_round_trips(op, VALUE_BYTES as u64);
        for key in keys {
            let mut read = 0;
            let get = || self.reader.get_into(key, &mut value).map(|n| read = n);
            if !self.one(&mut times, get)? {
                break;
            }
            report.tally.compared(key, Stream::of(key, 0).verify(&value, read, VALUE_BYTES));
        }
        Ok(times)
    }

    /// So many operations, by number, which must answer `true`.
    fn checked(
        &self,
        op: &'static str,
        bytes: usize,
        count: usize,
        mut each: impl FnMut(usize) -> Result<bool, Error>,
    ) -> anyhow::Result<OpTimes> {
        let mut times = OpTimes::beside_round_trips(op, bytes as u64);
        for number in 0..count {
            let mut right = false;
            if !self.one(&mut times, || each(number).map(|answer| right = answer))? {
                break;
            }
            anyhow::ensure!(right, "{op}: a key that was put is not there");
        }
        Ok(times)
    }

    /// Records one operation, and one round trip beside it. False: the run was interrupted.
    fn one(
        &self,
        times: &mut OpTimes,
        work: impl FnOnce() -> Result<(), Error>,
    ) -> anyhow::Result<bool> {
        if self.stop.asked() {
            return Ok(false);
        }
        let (done, ns) = timed(work);
        done.context(times.op)?;
        times.record(ns);
        let (connected, ns) = timed(|| TcpStream::connect_timeout(&self.node, CONNECTED));
        connected.with_context(|| format!("a connection to {}", self.node))?;
        times.record_round_trip(ns);
        Ok(true)
    }

    /// What was put is found by index once its owner has accepted it.
    fn wait_served(&self, keys: &[Vec<u8>]) -> anyhow::Result<()> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let deadline = Deadline::after(SERVED);
        while self.writer.match_prefix(&keys)?.len() < keys.len() && !self.stop.asked() {
            anyhow::ensure!(!deadline.passed(), "what was put is not served after {SERVED:?}");
            Deadline::after(POLL_INTERVAL).sleep(self.stop);
        }
        Ok(())
    }

    fn remove_all(&self) -> Result<(), Error> {
        self.writer.flush()?;
        self.writer.remove_matching(&format!("^{:016x}/", self.id)).map(drop)
    }
}
