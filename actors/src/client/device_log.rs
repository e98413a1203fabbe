//! Puts by kernels of this process into a log whose claim word lies in VRAM. A launch is entered in
//! the table of open claims before it begins and leaves it after its end [I14]; then the owner is
//! sent the keys of what is stored, and the claims that were given up. Kernels of others may use
//! the addresses under the same rules.

use super::Client;
use super::log_names::KeyNote;
use super::peer::{Peer, beside_driver};
use super::peer_log::PeerLog;
use crate::error::{Error, Result};
use crate::message::{Abandoned, ExportedMemory};
use crate::striping::check_new;
use nkv_gpu::driver::{Device, Driver, DriverError};
use nkv_gpu::kernels::{
    Kernels, Launch, LaunchOptions, LaunchStream, LogAddresses, LogMemory, LogPutObject,
    LogPutOutcome, LogPutStatus, Source,
};
use nkv_store::device_log::LaunchClaims;
use nkv_store::key::key_hash;
use nkv_store::object::{ObjectDesc, SetMark};
use nkv_store::{Key, StoreError};
use std::sync::Arc;

/// How often a claim above the limit reads it: some 20 ms where each takes a microsecond.
const LIMIT_SPINS: u64 = 20_000;

/// The log of one rank as kernels of this process put into it; cheap to clone. Make one and keep
/// it: the first of a rank registers the segment's control words with the GPU and compiles kernels.
#[derive(Debug, Clone)]
pub struct DeviceLog {
    client: Client,
    peer: Arc<Peer>,
    kernels: Arc<Kernels>,
    memory: Arc<LogMemory>,
}

/// One object for [`DeviceLog::put`].
#[derive(Debug, Clone, Copy)]
pub struct DevicePut<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Address of its bytes on the GPU, a multiple of 16.
    pub address: u64,
    /// Its bytes, at most a quarter of the log.
    pub bytes: u64,
}

/// A launch that puts. Dropped, it is waited for.
#[derive(Debug)]
#[must_use = "its outcomes say which objects are stored"]
pub struct DevicePuts {
    log: DeviceLog,
    launch: Option<Launch<Vec<LogPutOutcome>>>,
    claims: Option<DeviceClaims>,
    /// Keys, and bytes claimed.
    objects: Vec<(Key, u64)>,
}

/// While one lives, the handle does not detach.
#[derive(Debug)]
struct Inside(Arc<Peer>);

impl Inside {
    fn new(peer: &Arc<Peer>) -> Option<Self> {
        let log = peer.open_log()?;
        log.gate.acquire().then(|| Self(peer.clone()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(log) = &self.0.log {
            log.gate.release();
        }
    }
}

/// The entry of a launch in this process's table of open claims. While one is not left, the handle
/// does not detach, which would say that nothing is open [I14]. Dropped, it stays for good: whether
/// the kernel has ended is not known.
#[derive(Debug)]
pub struct DeviceClaims(Option<(LaunchClaims, Inside)>);

impl DeviceClaims {
    /// The launch has ended, and nothing of it is on its way.
    pub fn leave(mut self) {
        if let Some((claims, inside)) = self.0.take() {
            claims.leave();
            drop(inside);
        }
    }
}

impl Drop for DeviceClaims {
    fn drop(&mut self) {
        if let Some((claims, inside)) = self.0.take() {
            drop(claims);
            std::mem::forget(inside);
        }
    }
}

fn of_driver(e: DriverError) -> Error {
    Error::from(StoreError::from(e))
}

impl Client {
    /// The log of a rank, for puts by kernels. Its node runs with `--atomic-domain gpu`, and this
    /// process maps its payloads.
    ///
    /// # Errors
    /// `Unsupported` if the rank has no such log, or this process does not map it.
    pub async fn device_log(&self, rank: u32) -> Result<DeviceLog> {
        self.check_usable()?;
        let incarnation = match self.shared.first_with_log(rank) {
            Some(known) => Some(known),
            None => self.membership().await.ok().and_then(|_| self.shared.first_with_log(rank)),
        };
        let lacks = || {
            Error::unsupported(format!(
                "rank {rank} has no log in which kernels put: start its node with --memory cuda \
                 and --atomic-domain gpu"
            ))
        };
        let incarnation = incarnation.ok_or_else(lacks)?;
        let info = self.rank_info(incarnation).await?;
        let ExportedMemory::Device { uuid, .. } = info.memory else { return Err(lacks()) };
        if !info.layout.claims_by_gpu() {
            return Err(lacks());
        }
        let (client, peer) = (self.clone(), self.peer(incarnation).await?);
        beside_driver(move || Ok(DeviceLog::of(client, peer, uuid))).await?
    }
}

impl DeviceLog {
    fn of(client: Client, peer: Arc<Peer>, uuid: [u8; 16]) -> Result<Self> {
        let mapped = peer.reader.as_ref().zip(peer.log.as_ref());
        let (reader, log) = mapped.ok_or_else(|| {
            let kind = peer.kind();
            Error::unsupported(format!(
                "this process reaches rank {} by {kind} and does not map its payloads: run it on \
                 the rank's host with its GPU visible, and without --transport tcp",
                peer.rank
            ))
        })?;
        let device = Device::of_uuid(&Driver::open().map_err(of_driver)?, uuid);
        let device = device.map_err(of_driver)?;
        let memory = LogMemory::new(&device, reader.memory().memory().clone(), &log.layout);
        let memory = Arc::new(memory.map_err(of_driver)?);
        let kernels = Kernels::load(&device).map_err(of_driver)?;
        Ok(Self { client, peer, kernels, memory })
    }

    /// The kernels, and by them the GPU.
    pub fn kernels(&self) -> &Arc<Kernels> {
        &self.kernels
    }

    /// What `nkv_log_put` needs, valid in this process as long as this value lives.
    pub fn addresses(&self) -> &LogAddresses {
        self.memory.addresses()
    }

    /// An object as `nkv_log_put` takes it.
    ///
    /// # Errors
    /// For a key that cannot be, and an object that is larger than a quarter of the log.
    pub fn object(&self, put: &DevicePut<'_>) -> Result<LogPutObject> {
        check_new(put.key)?;
        let page_size = self.client.shared.settings.page_bytes;
        let claim_bytes = self.log()?.layout.claim_bytes(put.bytes).ok_or_else(|| {
            let most = self.addresses().log_bytes / 4;
            Error::invalid(format!(
                "an object of {} bytes, and the log takes {most} at most: put it by a plan",
                put.bytes
            ))
        })?;
        Ok(LogPutObject {
            src: put.address,
            bytes: put.bytes,
            claim_bytes,
            key_hash: key_hash(put.key),
            key_check: self.peer.hasher.check(put.key),
            n_pages: ObjectDesc::at(0, put.bytes, page_size).n_pages().min(SetMark::MOST_PAGES),
            page_size,
        })
    }

    fn log(&self) -> Result<&PeerLog> {
        let rank = self.peer.rank;
        let draining = || Error::not_ready(format!("rank {rank} drains and takes no puts"));
        self.peer.open_log().filter(|_| self.peer.is_alive()).ok_or_else(draining)
    }

    /// The entry in this process's table of open claims that a launch must have from before it
    /// begins until after its end. For kernels of others; [`DeviceLog::put`] makes its own.
    ///
    /// # Errors
    /// `NotReady` if the rank takes no puts now, or 256 launches are in flight.
    pub fn claims(&self) -> Result<DeviceClaims> {
        let rank = self.peer.rank;
        let closed = || Error::not_ready(format!("rank {rank} takes no puts"));
        let inside = Inside::new(&self.peer).ok_or_else(closed)?;
        let bound = self.memory.memory().load(self.log()?.layout.claim_word())?;
        let claims = self.log()?.open.enter_launch(bound).ok_or_else(|| {
            Error::not_ready("as many launches are in flight as there may be: wait for one")
        })?;
        Ok(DeviceClaims(Some((claims, inside))))
    }

    /// Queues puts of objects whose bytes lie in a source.
    ///
    /// # Errors
    /// For what cannot be put, and those of the driver: then nothing is queued.
    pub fn put(
        &self,
        stream: &LaunchStream,
        options: LaunchOptions,
        puts: &[DevicePut<'_>],
        source: &Source,
    ) -> Result<DevicePuts> {
        self.client.check_usable()?;
        let objects: Vec<_> = puts.iter().map(|put| self.object(put)).collect::<Result<_>>()?;
        let keys = puts.iter().map(|put| Ok(Key::new(put.key)?)).collect::<Result<Vec<_>>>()?;
        let claims = self.claims()?;
        let (kernels, log) = (&self.kernels, &self.memory);
        let launch = kernels.put(stream, options, log, LIMIT_SPINS, &objects, source);
        let launch = match launch {
            Ok(launch) => launch,
            Err(e) => {
                // What was queued before the error was waited for, if that ended.
                if !kernels.has_unknown_launches() {
                    claims.leave();
                }
                return Err(of_driver(e));
            }
        };
        let objects = keys.into_iter().zip(objects.iter().map(|o| o.claim_bytes)).collect();
        Ok(DevicePuts { log: self.clone(), launch: Some(launch), claims: Some(claims), objects })
    }

    /// Sends the owner what a launch has done: the keys of what is stored, so that it can be listed
    /// and removed by pattern, and claims that were given up. Without it, objects are found by
    /// their keys alone, and such claims are holes until the owner has asked this process.
    pub fn report<'a>(&self, outcomes: impl IntoIterator<Item = (&'a [u8], u64, LogPutOutcome)>) {
        let Some(log) = &self.peer.log else { return };
        for (key, claim_bytes, LogPutOutcome { status, position }) in outcomes {
            match status {
                LogPutStatus::Stored => log.name(position, KeyNote { key, group: None }),
                LogPutStatus::Waited if log.layout.is_claim(position, claim_bytes) => {
                    let given_up = Abandoned { position, bytes: claim_bytes };
                    self.client.give_up_claim(&self.peer, log, given_up);
                }
                LogPutStatus::Waited | LogPutStatus::Full | LogPutStatus::Wrapped => {}
            }
        }
    }
}

impl DevicePuts {
    /// Whether it has ended.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn is_done(&self) -> Result<bool> {
        self.launch.as_ref().map_or(Ok(true), |launch| launch.is_done().map_err(of_driver))
    }

    /// Waits for its end, and reports it to the owner. What is `Stored` is put; anything else may
    /// be put again, or by a plan.
    ///
    /// # Errors
    /// Those of the driver; `Disconnected` if the owner ended meanwhile.
    pub fn wait(mut self) -> Result<Vec<LogPutOutcome>> {
        self.end()
    }

    fn end(&mut self) -> Result<Vec<LogPutOutcome>> {
        let Some(launch) = self.launch.take() else { return Ok(Vec::new()) };
        // After an error the claims stay in doubt: the kernel may still run.
        let outcomes = launch.wait().map_err(of_driver)?;
        let objects = self.objects.iter().zip(&outcomes);
        self.log
            .report(objects.map(|((key, claimed), outcome)| (key.as_bytes(), *claimed, *outcome)));
        let stored = outcomes.iter().filter(|o| o.status == LogPutStatus::Stored).count();
        self.log.client.shared.writes.by_log.add(stored);
        if let Some(claims) = self.claims.take() {
            claims.leave();
        }
        if !self.log.peer.is_alive() {
            let rank = self.log.peer.rank;
            return Err(Error::disconnected(format!("rank {rank} ended during the launch")));
        }
        Ok(outcomes)
    }
}

impl Drop for DevicePuts {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "puts by a kernel that nobody waited for");
        }
    }
}
