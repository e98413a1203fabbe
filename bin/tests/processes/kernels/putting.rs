//! Puts by a kernel of this process into the log of a node, which are compared when they are read.

use nkv::{Blocking, ClientConfig, DeviceLog, DevicePut, ErrorKind, TransportChoice};
use nkv_gpu::kernels::{LaunchOptions, LaunchStream, LogPutStatus, Source};
use nkv_gpu::vram::{DeviceRange, Vram, VramMemory};
use nkv_pace::HANGS;
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Objects of one launch, and the bytes that each has in VRAM.
const BATCH: u64 = 6;
const MOST: u64 = 20_000;
/// The key of an object.
pub fn key(seed: u64, n: u64) -> String {
    format!("kernel/{seed}/{n}")
}

/// The bytes that belong to a key.
pub fn value(seed: u64, n: u64) -> Vec<u8> {
    let bytes = 1 + (seed * 31 + n * 2_777) % (MOST - 1);
    let word = |at: u64| ((seed << 40) | (n << 20) | (at / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..bytes).map(|at| word(at).to_le_bytes()[(at % 8) as usize]).collect()
}

/// Whether the key is served; with other bytes than its own the test fails.
pub fn is_served(client: &Blocking, seed: u64, n: u64) -> bool {
    let until = BootClock.now_ns() + HANGS.as_nanos() as u64;
    loop {
        match client.get(key(seed, n).as_bytes()) {
            Ok(found) => {
                assert!(found == value(seed, n), "wrong bytes of {}", key(seed, n));
                return true;
            }
            Err(e) if e.kind() == ErrorKind::NotFound => return false,
            // On a busy machine the owner may not answer in time.
            Err(e) => assert!(BootClock.now_ns() < until, "{}: {e}", key(seed, n)),
        }
    }
}

/// Puts so many objects of a seed into the log of a rank. `text` is address, job, rank, seed,
/// objects and threads of a block. Prints a line for each launch that has ended.
pub fn main(text: &str) -> ExitCode {
    let words: Vec<&str> = text.split(' ').collect();
    let (address, job) = (words[0].parse().unwrap(), words[1].to_string());
    let number = |at: usize| words[at].parse::<u32>().unwrap();
    let (rank, threads) = (number(2), number(5));
    let (seed, objects) = (number(3).into(), number(4).into());
    let transport = TransportChoice::Shm;
    let config = ClientConfig { job, transport, ..ClientConfig::default() };
    let client = Blocking::connect(&address, config).unwrap();
    puts(&client, rank, (seed, objects), threads);
    // Keys that the owner has not been sent yet would end with this process.
    client.close();
    ExitCode::SUCCESS
}

/// Puts by a kernel, and reads what was put last.
pub fn puts(client: &Blocking, rank: u32, (seed, objects): (u64, u64), threads: u32) {
    let log = client.device_log(rank).unwrap();
    put_all(&log, (seed, objects), threads);
    // What was put last is served here too, through the mapped VRAM. The owner accepts it soon.
    let until = BootClock.now_ns() + HANGS.as_nanos() as u64;
    while !is_served(client, seed, objects - 1) {
        assert!(BootClock.now_ns() < until, "the last object is not served");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn put_all(log: &DeviceLog, (seed, objects): (u64, u64), threads: u32) {
    let device = log.kernels().device().clone();
    let room = MOST.next_multiple_of(16);
    let vram = Arc::new(Vram::allocate(&device, BATCH * room).unwrap());
    let (memory, source) = (VramMemory::new(vram.clone()).unwrap(), Source::of(vram.clone()));
    let stream = LaunchStream::own(&device).unwrap();
    let options = LaunchOptions { multiprocessors: Some(3), threads: Some(threads) };
    let mut waiting: Vec<u64> = Vec::new();
    let (mut next, mut counts) = (0, [0_u64; 5]);
    let until = BootClock.now_ns() + HANGS.as_nanos() as u64;
    while next < objects || !waiting.is_empty() {
        assert!(BootClock.now_ns() < until, "objects that never find room: {counts:?}");
        while (waiting.len() as u64) < BATCH && next < objects {
            waiting.push(next);
            next += 1;
        }
        let keys: Vec<_> = waiting.iter().map(|n| key(seed, *n)).collect();
        let mut puts = Vec::new();
        for ((at, n), key) in waiting.iter().enumerate().zip(&keys) {
            let (offset, value) = (at as u64 * room, value(seed, *n));
            memory.write(offset, &value).unwrap();
            let (address, bytes) = (vram.address() + offset, value.len() as u64);
            puts.push(DevicePut { key: key.as_bytes(), address, bytes });
        }
        let outcomes = log.put(&stream, options, &puts, &source).unwrap().wait().unwrap();
        let stored = |at: usize| outcomes[at].status == LogPutStatus::Stored;
        outcomes.iter().for_each(|o| counts[o.status as usize] += 1);
        let mut at = 0..;
        waiting.retain(|_| !stored(at.next().unwrap()));
        if !waiting.is_empty() {
            // The owner makes room.
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("{counts:?}");
        let _ = std::io::stdout().flush();
    }
}
