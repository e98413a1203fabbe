//! Memory of a simulated segment. It is the program's own private memory, with two additions: a
//! client that reads or writes it may be delayed between any two of its accesses, like a real
//! thread, and the segment's watch sees every change. Owners are never delayed.

use crate::dice::Dice;
use crate::oracle::Watch;
use crate::process::Pid;
use crate::stack;
use nkv_store::{AnonMemory, Export, Memory, StoreError};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a trap delays a caught client.
const HELD: Duration = Duration::from_millis(500);

/// How often, and for how long, a client's thread is delayed in the middle of an access.
#[derive(Debug, Clone, Copy)]
pub struct StallProfile {
    /// Of a thousand accesses.
    pub permille: u64,
    /// For so many milliseconds.
    pub ms: (u64, u64),
    /// Of a thousand claims in a device log: before the fetch-and-add, and behind it.
    pub claim_permille: u64,
}

/// Catches the next client program that has claimed in a mapped log, and delays it there.
#[derive(Debug, Default)]
pub struct ClaimTrap {
    armed: AtomicBool,
    caught: Mutex<Option<Pid>>,
}

impl ClaimTrap {
    /// Arms or disarms the trap.
    pub fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::Relaxed);
    }

    /// The client program caught since the last call.
    pub fn caught(&self) -> Option<Pid> {
        self.caught.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn hold(&self, program: Pid) {
        if self.armed.swap(false, Ordering::Relaxed) {
            *self.caught.lock().unwrap_or_else(PoisonError::into_inner) = Some(program);
            stack::rest(HELD);
        }
    }
}

/// What delays clients.
#[derive(Debug)]
pub struct StallInjection {
    hiccups: StallProfile,
    // True once no client is delayed any more.
    kind: Arc<AtomicBool>,
    trap: Arc<ClaimTrap>,
    dice: Mutex<Dice>,
}

impl StallInjection {
    pub fn new(
        hiccups: StallProfile,
        kind: Arc<AtomicBool>,
        trap: Arc<ClaimTrap>,
        dice: Dice,
    ) -> Self {
        Self { hiccups, kind, trap, dice: Mutex::new(dice) }
    }

    /// How long the client is delayed now, if at all.
    fn pause(&self, permille: u64) -> Option<Duration> {
        if self.kind.load(Ordering::Relaxed) {
            return None;
        }
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        let (low, high) = self.hiccups.ms;
        dice.permille(permille).then(|| dice.ms(low, high))
    }

    fn below(&self, limit: usize) -> usize {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        dice.below(limit as u64) as usize
    }
}

/// See the file's first paragraph.
#[derive(Debug)]
pub struct SimMemory {
    bytes: AnonMemory,
    watch: Arc<Watch>,
    stalls: StallInjection,
    file_name: String,
}

impl SimMemory {
    pub fn new(
        file_name: &str,
        len: u64,
        watch: Arc<Watch>,
        stalls: StallInjection,
    ) -> Result<Self, StoreError> {
        let bytes = AnonMemory::new(len)?;
        let file_name = file_name.to_string();
        Ok(Self { bytes, watch, stalls, file_name })
    }

    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Called between two accesses: the client may be delayed here.
    fn between(&self) {
        if stack::is_client()
            && let Some(pause) = self.stalls.pause(self.stalls.hiccups.permille)
        {
            stack::rest(pause);
        }
    }

    /// Called between reading the log's words and the claim, and after the claim.
    fn at_claim(&self) {
        if stack::is_client()
            && let Some(pause) = self.stalls.pause(self.stalls.hiccups.claim_permille)
        {
            stack::rest(pause);
        }
    }

    /// Where an access of this length is split in two, if the client is delayed within it.
    fn split(&self, len: usize) -> usize {
        if len <= 64 || !stack::is_client() {
            return 0;
        }
        self.stalls.below(len)
    }
}

impl Memory for SimMemory {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn export(&self) -> Export {
        match self.file_name.as_str() {
            "" => Export::Private,
            name => Export::Shm { name: name.to_string() },
        }
    }

    fn host_base(&self) -> Option<NonNull<u8>> {
        None
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), StoreError> {
        self.between();
        self.watch.read();
        let (early, late) = dst.split_at_mut(self.split(dst.len()));
        self.bytes.read(offset, early)?;
        if !early.is_empty() {
            self.between();
        }
        self.bytes.read(offset + early.len() as u64, late)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), StoreError> {
        self.between();
        let (early, late) = src.split_at(self.split(src.len()));
        self.bytes.write(offset, early)?;
        self.watch.written(offset, early.len());
        if !early.is_empty() {
            self.between();
        }
        let offset = offset + early.len() as u64;
        self.bytes.write(offset, late)?;
        self.watch.written(offset, late.len());
        Ok(())
    }

    fn load(&self, offset: u64) -> Result<u64, StoreError> {
        self.bytes.load(offset)
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), StoreError> {
        self.between();
        let before = self.bytes.load(offset)?;
        self.bytes.store(offset, value)?;
        self.watch.word(&self.bytes, offset, before, value);
        Ok(())
    }

    fn compare_swap(&self, offset: u64, expect: u64, new: u64) -> Result<u64, StoreError> {
        self.between();
        let found = self.bytes.compare_swap(offset, expect, new)?;
        if found == expect {
            self.watch.word(&self.bytes, offset, found, new);
        }
        Ok(found)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, StoreError> {
        self.at_claim();
        let found = self.bytes.fetch_add(offset, add)?;
        self.watch.claimed(found, add);
        if let Some(program) = stack::program() {
            self.stalls.trap.hold(program);
        }
        self.at_claim();
        Ok(found)
    }
}
