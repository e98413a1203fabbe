//! Two processes with a mapping each: one puts objects into a log by the kernel, the other waits
//! for each by the kernel. The second process is this test's program once more.

use nkv_gpu::kernels::{
    Descriptor, LOG_PUT, LogPut, LogPutObject, LogPutResult, LogPutStatus, PTX_SM80, PTX_SM90,
    ScatterResult, WAIT_SCATTER, WaitScatter,
};
use nkv_ptx::{Kernel, Launch, Module, Stale, run};
use nkv_store::layout::{OWNER_OFF, PUBLISH_OFF, flag, state, word};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Names the file that both map, in the second process.
const FILE: &str = "NKV_PTX_TEST_FILE";
const HEADERS: u64 = 4096;
const PAYLOAD: u64 = 16 * 4096;
const OBJECTS: u64 = 12;
const BYTES: u64 = 1207;
const LOG_BYTES: u64 = 64 * 4096;
const LENGTH: usize = (PAYLOAD + LOG_BYTES) as usize;

/// A file of so many bytes.
pub struct Mapping(pub u64, usize);

impl Mapping {
    pub fn new(file: &File, length: usize) -> Mapping {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that has this length.
        let at = unsafe {
            let null = std::ptr::null_mut();
            libc::mmap(null, length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert!(at != libc::MAP_FAILED);
        Mapping(at as u64, length)
    }

    pub fn word(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: an aligned word of the mapping, which only atomic accesses reach.
        unsafe { &*((self.0 + offset) as *const AtomicU64) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no kernel runs any more, and references to its words have ended.
        unsafe { libc::munmap(self.0 as *mut libc::c_void, self.1) };
    }
}

pub fn byte(key: u64, i: u64) -> u8 {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (i % 56)) as u8 ^ i as u8
}

fn launch(kernel: &Kernel, args: &[u64], seed: u64, stale: Option<Stale>) {
    let launch = Launch {
        grid: 2,
        block: 16,
        args: args.to_vec(),
        seed,
        stale,
        max_instructions: 1 << 32,
        ..Launch::default()
    };
    // SAFETY: the kernels access the mapping and the caller's arrays.
    unsafe { run(kernel, &launch) }.unwrap();
}

/// Puts one object, in the second process.
fn put(log: &Mapping, kernel: &Kernel, key: u64) {
    let source: Vec<u128> = vec![0; BYTES.div_ceil(16) as usize];
    for i in 0..BYTES {
        // SAFETY: inside `source`.
        unsafe { ((source.as_ptr() as u64 + i) as *mut u8).write_volatile(byte(key, i)) };
    }
    let object = LogPutObject {
        src: source.as_ptr() as u64,
        bytes: BYTES,
        claim_bytes: 4096,
        key_hash: key,
        key_check: !key,
        n_pages: 1,
        page_size: BYTES as u32,
    };
    let result = LogPutResult::default();
    let args = LogPut {
        objects: &raw const object as u64,
        count: 1,
        bump: log.0 + 16,
        limit: log.0 + 8,
        headers: log.0 + HEADERS,
        payload: log.0 + PAYLOAD,
        offset: PAYLOAD,
        log_bytes: LOG_BYTES,
        spins: 10,
        results: &raw const result as u64,
    };
    launch(kernel, &args.args(), key, None);
    // SAFETY: the kernel that wrote it has ended.
    let result = unsafe { (&raw const result).read_volatile() };
    let stored = LogPutResult { position: key * 4096, status: 1 };
    assert_eq!(LogPutStatus::from_word(result.status), Some(LogPutStatus::Stored));
    assert_eq!(result, stored);
}

/// What the second process does.
fn write(path: &OsStr) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let log = Mapping::new(&file, LENGTH);
    let module = Module::parse(PTX_SM90).unwrap();
    for key in 0..OBJECTS {
        put(&log, module.kernel(LOG_PUT).unwrap(), key);
    }
}

/// Waits for the object of a key and checks its bytes.
fn get(log: &Mapping, kernel: &Kernel, key: u64) {
    let target: Vec<u128> = vec![0; BYTES.div_ceil(16) as usize];
    let src = log.0 + PAYLOAD + key * 4096;
    let copy = Descriptor { dst: target.as_ptr() as u64, src, size: BYTES };
    let words = [0u64; 2];
    let args = WaitScatter {
        header: log.0 + HEADERS + key * 64,
        key_hash: key,
        key_check: !key,
        epoch: 1,
        payload_base: PAYLOAD + key * 4096,
        bytes: BYTES,
        spins: 1 << 24,
        descriptors: &raw const copy as u64,
        count: 1,
        done: words.as_ptr() as u64,
        result: words.as_ptr() as u64 + 8,
    };
    let stale = Stale { base: log.0, bytes: vec![0; LENGTH] };
    launch(kernel, &args.args(), key, Some(stale));
    // SAFETY: the kernel that wrote it has ended.
    let result = unsafe { (&raw const words[1]).read_volatile() };
    assert_eq!(ScatterResult::from_word(result), Some(ScatterResult::Valid), "key {key}");
    for i in 0..BYTES {
        // SAFETY: inside `target`.
        let got = unsafe { ((target.as_ptr() as u64 + i) as *const u8).read_volatile() };
        assert_eq!(got, byte(key, i), "byte {i} of key {key}");
    }
}

#[test]
fn another_process_reads_what_a_kernel_put() {
    if let Some(path) = std::env::var_os(FILE) {
        return write(&path);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(LENGTH as u64).unwrap();
    let log = Mapping::new(file.as_file(), LENGTH);
    log.word(8).store(LOG_BYTES, SeqCst);
    // The owner's part, done ahead: it would set LIVE once it sees READY.
    for key in 0..OBJECTS {
        log.word(HEADERS + key * 64 + OWNER_OFF).store(word(flag::LIVE, 1), SeqCst);
    }
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::another_process_reads_what_a_kernel_put"])
        .env(FILE, file.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let module = Module::parse(PTX_SM80).unwrap();
    for key in 0..OBJECTS {
        get(&log, module.kernel(WAIT_SCATTER).unwrap(), key);
    }
    // It ends: its launches are bounded.
    assert!(writer.wait().unwrap().success());
    for key in 0..OBJECTS {
        let publish = log.word(HEADERS + key * 64 + PUBLISH_OFF).load(SeqCst);
        assert_eq!(publish, word(state::READY, 1));
    }
    assert_eq!(log.word(16).load(SeqCst), OBJECTS * 4096);
}
