//! Memory of a caller's tensors, as the buffer of a put or a get: ranges that another allocator
//! owns, one after another, and the stream on which the caller uses them.

use super::copies::{Copies, CopyMethod, Direction};
use super::lane::Lane;
use super::lanes::Lanes;
use super::span::{Cursor, Span, pairs};
use crate::driver::{Device, Driver, DriverError};
use crate::kernels::Event;
use crate::registered::registered;
use cudarc::driver::sys::CUstream;
use nkv_store::memory::{DeviceMemory, HostRegion};
use nkv_store::{Export, Memory, StoreError, words};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The devices on which this process has tensors. Each is opened at its first use, and stays open.
#[derive(Debug)]
pub struct TensorDevices {
    driver: Arc<Driver>,
    open: Mutex<Vec<(u32, Arc<Copier>)>>,
    always: Option<CopyMethod>,
}

/// What copies on one device use.
#[derive(Debug)]
struct Copier {
    lanes: Lanes,
    copies: Copies,
}

impl TensorDevices {
    /// Those of this process.
    ///
    /// # Errors
    /// What the driver lacks. Later calls try again.
    pub fn of_process() -> Result<&'static TensorDevices, DriverError> {
        static OPEN: OnceLock<TensorDevices> = OnceLock::new();
        if let Some(open) = OPEN.get() {
            return Ok(open);
        }
        let driver = Driver::open()?;
        Ok(OPEN.get_or_init(|| TensorDevices::new(driver)))
    }

    /// None are open yet.
    pub fn new(driver: Arc<Driver>) -> Self {
        Self { driver, open: Mutex::default(), always: None }
    }

    /// The same, with one method for copies of many ranges wherever it can be used: to compare it
    /// with others. Otherwise each device chooses by what it measures at its first such copy.
    #[must_use]
    pub fn copying_by(self, method: CopyMethod) -> Self {
        Self { always: Some(method), ..self }
    }

    /// The number of the GPU that the memory at this address is in.
    ///
    /// # Errors
    /// If it is in none.
    pub fn device_of(&self, address: u64) -> Result<u32, DriverError> {
        self.driver.device_of(address)
    }

    fn copier(&self, ordinal: u32) -> Result<Arc<Copier>, DriverError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, copier)) = open.iter().find(|(of, _)| *of == ordinal) {
            return Ok(copier.clone());
        }
        let lanes = Lanes::new(&Device::new(self.driver.clone(), ordinal)?)?;
        let copier = Arc::new(Copier { lanes, copies: Copies::new(self.always) });
        open.push((ordinal, copier.clone()));
        Ok(copier)
    }

    /// Memory of these ranges, which are in one device. They must stay allocated as long as the
    /// value lives. Copies wait for what is in `stream` now: 1 is the legacy default stream, 2 that
    /// of the calling thread; None: the caller has waited already.
    ///
    /// # Errors
    /// If a range is not in a device, or they are in several, or the stream is none, or records a
    /// graph.
    pub fn tensor(
        &self,
        spans: Vec<Span>,
        stream: Option<u64>,
    ) -> Result<TensorMemory, DriverError> {
        let (mut of, mut bytes): (Option<u32>, u64) = (None, 0);
        for span in spans.iter().filter(|span| span.bytes > 0) {
            let ordinal = self.device_of(span.address)?;
            if of.is_some_and(|of| of != ordinal) {
                return Err(DriverError::Invalid(format!(
                    "{} bytes at {:#x} are on GPU {ordinal}, others of the same value on GPU {}: \
                     put them as values of their own",
                    span.bytes,
                    span.address,
                    of.unwrap_or_default()
                )));
            }
            of = Some(ordinal);
            let end = span.address.checked_add(span.bytes).and(bytes.checked_add(span.bytes));
            bytes = end.ok_or_else(|| {
                let (bytes, address) = (span.bytes, span.address);
                DriverError::Invalid(format!("{bytes} bytes at {address:#x} of a GPU"))
            })?;
        }
        let copier = self.copier(of.unwrap_or_default())?;
        let after = stream.map(|stream| After::of(copier.lanes.device(), stream)).transpose()?;
        Ok(TensorMemory { after, copier, ordinal: of.unwrap_or_default(), spans, bytes })
    }
}

/// What is in a caller's stream at some time.
#[derive(Debug)]
struct After {
    event: Event,
    over: AtomicBool,
}

impl After {
    fn of(device: &Arc<Device>, stream: u64) -> Result<Self, DriverError> {
        device.refuse_recording(stream)?;
        let (event, current) = (Event::new(device)?, device.enter()?);
        // SAFETY: a handle that is none is an error of the call; the event lives as `self`.
        let rc = unsafe { (current.api().cuEventRecord)(event.raw(), stream as CUstream) };
        let about = || format!("for stream {stream:#x} on GPU {}", device.ordinal());
        current.check("cuEventRecord", rc, about)?;
        drop(current);
        Ok(Self { event, over: AtomicBool::new(false) })
    }

    fn wait(&self, device: &Arc<Device>) -> Result<(), DriverError> {
        if self.over.load(Ordering::Acquire) {
            return Ok(());
        }
        let current = device.enter()?;
        // SAFETY: the event lives as long as `self`.
        let rc = unsafe { (current.api().cuEventSynchronize)(self.event.raw()) };
        let about = || format!("for a stream of the caller on GPU {}", device.ordinal());
        current.check("cuEventSynchronize", rc, about)?;
        self.over.store(true, Ordering::Release);
        Ok(())
    }
}

/// See [`TensorDevices::tensor`]. A copy is complete when it returns.
#[derive(Debug)]
pub struct TensorMemory {
    // Dropped before the device of its event may be.
    after: Option<After>,
    copier: Arc<Copier>,
    ordinal: u32,
    spans: Vec<Span>,
    bytes: u64,
}

impl TensorMemory {
    /// Runs copies on a lane, after the caller's stream.
    fn run(
        &self,
        what: &'static str,
        (offset, len): (u64, usize),
        copies: impl FnOnce(&Lane, &mut Cursor<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        StoreError::check_bounds(what, offset, len as u64, self.bytes)?;
        if len == 0 {
            return Ok(());
        }
        fence(Ordering::SeqCst);
        self.wait()?;
        self.copier.lanes.run(|lane| copies(lane, &mut Cursor::new(&self.spans, offset)))
    }

    /// Copies by addresses that the driver knows: of devices, or of registered host memory.
    fn copy(
        &self,
        lane: &Lane,
        direction: Direction,
        (into, from): (&mut Cursor<'_>, &mut Cursor<'_>),
        len: usize,
    ) -> Result<(), StoreError> {
        Ok(self.copier.copies.run(lane, direction, pairs(into, from, len as u64))?)
    }

    /// Whether an address is in the same GPU: copies between two take another call, and access that
    /// memory of nkv does not give.
    fn is_beside(&self, address: u64) -> Result<bool, DriverError> {
        Ok(self.copier.lanes.device().driver().device_of(address)? == self.ordinal)
    }

    fn no_words(&self, offset: u64) -> StoreError {
        StoreError::Unsupported(format!(
            "a word at offset {offset} of a tensor of {} bytes: tensors have bytes alone",
            self.bytes
        ))
    }
}

impl Memory for TensorMemory {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn export(&self) -> Export {
        Export::Private
    }

    fn host_base(&self) -> Option<NonNull<u8>> {
        None
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        let len = dst.len();
        self.run("read", (offset, len), |lane, spans| {
            lane.read(spans, len, |at, piece| {
                dst[at as usize..][..piece.len()].copy_from_slice(piece);
                Ok(())
            })
        })
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        self.run("write", (offset, src.len()), |lane, spans| {
            lane.write(spans, src.len(), |at, piece| {
                piece.copy_from_slice(&src[at as usize..][..piece.len()]);
                Ok(())
            })
        })
    }

    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        Err(self.no_words(offset))
    }

    fn store(&self, offset: u64, _: u64) -> Result<(), StoreError> {
        Err(self.no_words(offset))
    }

    fn compare_swap(&self, offset: u64, _: u64, _: u64) -> Result<u64, StoreError> {
        Err(self.no_words(offset))
    }

    fn fetch_add(&self, offset: u64, _: u64) -> Result<u64, StoreError> {
        Err(self.no_words(offset))
    }
}

impl DeviceMemory for TensorMemory {
    fn wait(&self) -> Result<(), StoreError> {
        let waited = self.after.as_ref().map(|after| after.wait(self.copier.lanes.device()));
        Ok(waited.unwrap_or(Ok(()))?)
    }

    fn copy_to_host(
        &self,
        offset: u64,
        host: &HostRegion,
        at: u64,
        len: usize,
    ) -> Result<(), StoreError> {
        let into = host.at("write", at, len as u64)?;
        self.run("read", (offset, len), |lane, spans| {
            if let Some(_pinned) = registered(into, len) {
                let into = [Span { address: into.as_ptr().addr() as u64, bytes: len as u64 }];
                let into = &mut Cursor::new(&into, 0);
                return self.copy(lane, Direction::ToHost, (into, spans), len);
            }
            lane.read(spans, len, |done, piece| words::write(host, at + done, piece))
        })
    }

    fn copy_from_host(
        &self,
        offset: u64,
        host: &HostRegion,
        at: u64,
        len: usize,
    ) -> Result<(), StoreError> {
        let from = host.at("read", at, len as u64)?;
        self.run("write", (offset, len), |lane, spans| {
            if let Some(_pinned) = registered(from, len) {
                let from = [Span { address: from.as_ptr().addr() as u64, bytes: len as u64 }];
                let from = &mut Cursor::new(&from, 0);
                return self.copy(lane, Direction::FromHost, (spans, from), len);
            }
            lane.write(spans, len, |done, piece| words::read(host, at + done, piece))
        })
    }

    fn copy_to_device(
        &self,
        offset: u64,
        address: u64,
        len: usize,
    ) -> Option<Result<(), StoreError>> {
        match self.is_beside(address) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(e) => return Some(Err(e.into())),
        }
        let into = [Span { address, bytes: len as u64 }];
        Some(self.run("read", (offset, len), |lane, spans| {
            self.copy(lane, Direction::OnDevice, (&mut Cursor::new(&into, 0), spans), len)
        }))
    }

    fn copy_from_device(
        &self,
        offset: u64,
        address: u64,
        len: usize,
    ) -> Option<Result<(), StoreError>> {
        match self.is_beside(address) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(e) => return Some(Err(e.into())),
        }
        let from = [Span { address, bytes: len as u64 }];
        Some(self.run("write", (offset, len), |lane, spans| {
            self.copy(lane, Direction::OnDevice, (spans, &mut Cursor::new(&from, 0)), len)
        }))
    }
}
