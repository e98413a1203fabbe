//! Four processes with a mapping each: three write objects and put others into one log by Triton's
//! kernels, the fourth waits for each object by the kernel that reads. The others are this test's
//! program once more.

use super::{LOG_PUT, PUSH_OBJECT, PUSH_PAGES, WAIT_READ, launch, module};
use crate::processes::{Mapping, byte};
use nkv_gpu::kernels::{LogPutObject, LogPutResult, ScatterResult};
use nkv_ptx::{Kernel, Launch, Stale, run};
use nkv_store::layout::{OWNER_OFF, PUBLISH_OFF, flag, state, word};
use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;

/// Name the file and the number of the writer, in a process that writes.
const FILE: &str = "NKV_TRITON_TEST_FILE";
const WRITER: &str = "NKV_TRITON_TEST_WRITER";
const WRITERS: u64 = 3;
const OBJECTS: u64 = 12;
const PAGE: u64 = 1024;
const PAGES: u64 = 2;
const BYTES: u64 = PAGE * PAGES;
const EPOCH: u32 = 3;
/// The claim word and the limit of the log.
const BUMP: u64 = 16;
const LIMIT: u64 = 8;
/// Where the headers of objects, those of the log, the objects and the log begin.
const HEADERS: u64 = 4096;
const LOG_HEADERS: u64 = 2 * 4096;
const PAYLOAD: u64 = 4 * 4096;
const LOG: u64 = PAYLOAD + OBJECTS * 4096;
const LOG_OBJECTS: u64 = 4;
const LOG_BYTES: u64 = 16 * 4096;
const LENGTH: usize = (LOG + LOG_BYTES) as usize;

fn run_over(kernel: &Kernel, launch: Launch) {
    let launch = Launch { max_instructions: 1 << 32, ..launch };
    // SAFETY: the kernels access the mapping and the caller's arrays, which live until they end.
    unsafe { run(kernel, &launch) }.unwrap();
}

/// The bytes of an object, in memory that is aligned for vectors.
fn source(key: u64) -> Vec<u128> {
    let bytes: Vec<u8> = (0..BYTES).map(|i| byte(key, i)).collect();
    bytes.chunks(16).map(|c| u128::from_le_bytes(c.try_into().unwrap())).collect()
}

fn bases(memory: &Mapping) -> [u64; 2] {
    [memory.0; 2]
}

fn push(memory: &Mapping, key: u64) {
    let (source, mut found, mut counter) = (source(key), 0u64, 0u64);
    let (header, payload) = (HEADERS + key * 64, PAYLOAD + key * 4096);
    let (src, out) = (source.as_ptr() as u64, &raw mut found as u64);
    if key.is_multiple_of(2) {
        let (module, bases) = (module(PUSH_OBJECT, 80), bases(memory));
        let args = vec![src, PAGES, header, payload, PAGE, 0, bases.as_ptr() as u64, out];
        let kernel = module.kernel(PUSH_OBJECT).unwrap();
        run_over(kernel, launch(kernel, 1, args, key));
    } else {
        let (module, at) = (module(PUSH_PAGES, 90), memory.0);
        let done = &raw mut counter as u64;
        let of = [src, PAGE / 4, at + header, at + payload, PAGE, u64::from(EPOCH), done, out];
        let kernel = module.kernel(PUSH_PAGES).unwrap();
        run_over(kernel, launch(kernel, PAGES as u32, of.to_vec(), key));
    }
    // SAFETY: the kernel that wrote it has ended.
    assert_eq!(unsafe { (out as *const u64).read_volatile() }, 1, "key {key}");
}

fn put(memory: &Mapping, writer: u64) {
    let keys: Vec<u64> = (0..LOG_OBJECTS).map(|i| 100 + writer * LOG_OBJECTS + i).collect();
    let sources: Vec<_> = keys.iter().map(|key| source(*key)).collect();
    let object = |(key, source): (&u64, &Vec<u128>)| LogPutObject {
        src: source.as_ptr() as u64,
        bytes: BYTES,
        claim_bytes: 4096,
        key_hash: *key,
        key_check: !*key,
        n_pages: PAGES as u32,
        page_size: PAGE as u32,
    };
    let objects: Vec<LogPutObject> = keys.iter().zip(&sources).map(object).collect();
    let results = vec![LogPutResult::default(); objects.len()];
    let (bump, limit) = (memory.0 + BUMP, memory.0 + LIMIT);
    let (list, out) = (objects.as_ptr() as u64, results.as_ptr() as u64);
    let (headers, payload) = (memory.0 + LOG_HEADERS, memory.0 + LOG);
    let args = [list, LOG_OBJECTS, bump, limit, headers, payload, LOG, LOG_BYTES, 10, out];
    let module = module(LOG_PUT, 80);
    let kernel = module.kernel(LOG_PUT).unwrap();
    run_over(kernel, launch(kernel, 2, args.to_vec(), writer + 50));
    for result in &results {
        // SAFETY: the kernel that wrote it has ended.
        assert_eq!(unsafe { (&raw const result.status).read_volatile() }, 1);
    }
}

/// Waits for the object of a key and checks its bytes.
fn get(memory: &Mapping, key: u64) {
    let (target, mut result) = (vec![0u128; (BYTES / 16) as usize], 0u64);
    let (header, payload) = (HEADERS + key * 64, PAYLOAD + key * 4096);
    let (bases, out) = (bases(memory), &raw mut result as u64);
    let of = [header, u64::from(EPOCH), key, !key, payload, BYTES, 1 << 24];
    let to = [payload, target.as_ptr() as u64, 0, bases.as_ptr() as u64, out];
    let module = module(WAIT_READ, 90);
    let kernel = module.kernel(WAIT_READ).unwrap();
    let launch = launch(kernel, 2, [of.as_slice(), &to].concat(), key);
    let stale = Stale { base: memory.0, bytes: vec![0; LENGTH] };
    run_over(kernel, Launch { stale: Some(stale), ..launch });
    // SAFETY: the kernel that wrote it has ended.
    let result = unsafe { (out as *const u64).read_volatile() };
    assert_eq!(ScatterResult::from_word(result), Some(ScatterResult::Valid), "key {key}");
    assert_eq!(whole(target.as_ptr() as u64, key), Ok(()));
}

/// The first byte that is not the key's, if any.
fn whole(at: u64, key: u64) -> Result<(), u64> {
    // SAFETY: an object of this test, which no kernel writes any more.
    let read = |i: u64| unsafe { ((at + i) as *const u8).read_volatile() };
    (0..BYTES).find(|i| read(*i) != byte(key, *i)).map_or(Ok(()), Err)
}

/// What a process that writes does.
fn write(memory: &Mapping, writer: u64) {
    for key in (writer..OBJECTS).step_by(WRITERS as usize) {
        push(memory, key);
    }
    put(memory, writer);
}

/// The owner's part, done ahead: headers of open plans, and room in the log.
fn prepare(memory: &Mapping) {
    for key in 0..OBJECTS {
        let header = HEADERS + key * 64;
        let pages = PAGES | PAGE << 32;
        let fields = [key, pages, PAYLOAD + key * 4096, BYTES, !key];
        for (at, field) in (header..).step_by(8).zip(fields) {
            memory.word(at).store(field, SeqCst);
        }
        memory.word(header + PUBLISH_OFF).store(word(state::WRITING, EPOCH), SeqCst);
        memory.word(header + OWNER_OFF).store(word(flag::LIVE, EPOCH), SeqCst);
    }
    memory.word(LIMIT).store(LOG_BYTES, SeqCst);
}

#[test]
fn another_process_reads_what_kernels_of_three_wrote() {
    if let (Some(path), Ok(writer)) = (std::env::var_os(FILE), std::env::var(WRITER)) {
        let file = File::options().read(true).write(true).open(path).unwrap();
        return write(&Mapping::new(&file, LENGTH), writer.parse().unwrap());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(LENGTH as u64).unwrap();
    let memory = Mapping::new(file.as_file(), LENGTH);
    prepare(&memory);
    let name = "triton::processes::another_process_reads_what_kernels_of_three_wrote";
    let start = |writer: u64| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(FILE, file.path())
            .env(WRITER, writer.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let writers: Vec<_> = (0..WRITERS).map(start).collect();
    (0..OBJECTS).for_each(|key| get(&memory, key));
    // They end: their launches are bounded.
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    let stored = WRITERS * LOG_OBJECTS;
    assert_eq!(memory.word(BUMP).load(SeqCst), stored * 4096);
    let mut keys = Vec::new();
    for slot in 0..stored {
        let header = LOG_HEADERS + slot * 64;
        assert_eq!(memory.word(header + PUBLISH_OFF).load(SeqCst), word(state::READY, 1));
        let key = memory.word(header).load(SeqCst);
        assert_eq!(whole(memory.0 + LOG + slot * 4096, key), Ok(()), "key {key}");
        keys.push(key);
    }
    keys.sort_unstable();
    assert_eq!(keys, (100..100 + stored).collect::<Vec<_>>());
}
