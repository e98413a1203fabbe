//! VRAM between processes of one host.

use crate::descriptors::{receive, send};
use crate::start::{Start, on_a_gpu};
use crate::task::{self, Done, Tasks, Tensor, other, pattern, peek};
use nkv_gpu::vram::{DeviceRange, ForeignVram, TensorHandle, Vram, VramMemory};
use nkv_store::Memory;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::Arc;

const BYTES: u64 = (4 << 20) + 123;
/// Bytes that are compared.
const LEN: usize = 300_000;

/// See `task`.
pub fn tasks() -> Tasks {
    &[
        ("owner", owner),
        ("importer", importer),
        ("survivor", survivor),
        ("tensor_owner", tensor_owner),
        ("tensor_user", tensor_user),
        ("forked", forked),
    ]
}

/// Allocates, writes, passes the memory on over its standard input, a socket, and waits there for
/// what the other process has written.
fn owner() -> Done {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let vram = Arc::new(Vram::allocate(&task::device()?, BYTES)?);
    let memory = VramMemory::new(vram.clone())?;
    memory.write(BYTES - LEN as u64, &pattern(1, LEN))?;
    send(&socket, &vram.export_fd()?)?;
    socket.read_exact(&mut [0])?;
    let mut there = vec![0; LEN];
    memory.read(0, &mut there)?;
    assert!(there == pattern(2, LEN), "what the other process wrote");
    Ok(())
}

/// An owner in its own process, and what it passed on, mapped here.
fn mapped_from_owner() -> Result<(Child, UnixStream, Arc<Vram>), task::Error> {
    let (here, there) = UnixStream::pair()?;
    let owner = other("owner").stdin(Stdio::from(OwnedFd::from(there))).spawn()?;
    let fd = receive(&here)?;
    Ok((owner, here, Arc::new(Vram::import(&task::device()?, fd, BYTES)?)))
}

fn importer() -> Done {
    let (mut owner, mut socket, vram) = mapped_from_owner()?;
    let (memory, mut there) = (VramMemory::new(vram)?, vec![0; LEN]);
    memory.read(BYTES - LEN as u64, &mut there)?;
    assert!(there == pattern(1, LEN), "what the owner wrote");
    memory.write(0, &pattern(2, LEN))?;
    socket.write_all(&[1])?;
    assert!(owner.wait()?.success());
    Ok(())
}

pub fn two_processes_see_each_others_bytes() {
    Start::task("importer").run().good();
}

fn survivor() -> Done {
    let (mut owner, _socket, vram) = mapped_from_owner()?;
    owner.kill()?;
    owner.wait()?;
    let (memory, mut there) = (VramMemory::new(vram)?, vec![0; LEN]);
    memory.read(BYTES - LEN as u64, &mut there)?;
    assert!(there == pattern(1, LEN), "what the owner wrote before it was killed");
    memory.write(0, &there)?;
    Ok(())
}

pub fn memory_outlives_its_owner_that_was_killed() {
    Start::task("survivor").run().good();
}

/// Prints a handle of a tensor, and keeps it until its standard input ends.
fn tensor_owner() -> Done {
    let device = task::device()?;
    let tensor = Tensor::new(LEN);
    let of = TensorHandle::export(&device, tensor.0 + 512, 4096)?;
    let own = VramMemory::new(Arc::new(ForeignVram::open(&device, &of)?))?;
    own.write(0, &pattern(3, 4096))?;
    let hex: String = of.handle.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{hex} {} {} {} {} {}", of.pid, of.process, of.base, of.offset, of.bytes);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Runs `body` with the handle of another process's tensor, and the bytes that it contains.
pub fn with_tensor_of_other(body: impl FnOnce(&TensorHandle, Vec<u8>) -> Done) -> Done {
    let mut owner = other("tensor_owner").spawn()?;
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<u64>();
    let mut handle = [0; 64];
    for (at, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&words[0][2 * at..2 * at + 2], 16)?;
    }
    let of = TensorHandle {
        handle,
        pid: number(1)? as u32,
        process: number(2)?,
        base: number(3)?,
        offset: number(4)?,
        bytes: number(5)?,
    };
    let done = body(&of, pattern(3, 4096));
    drop(owner.stdin.take());
    assert!(owner.wait()?.success());
    done
}

fn tensor_user() -> Done {
    let device = task::device()?;
    with_tensor_of_other(|of, wanted| {
        let foreign = Arc::new(ForeignVram::open(&device, of)?);
        assert_eq!(foreign.bytes(), 4096);
        if !on_a_gpu() {
            assert_eq!(peek(&*foreign, 0, 4096), wanted);
        }
        let memory = VramMemory::new(foreign)?;
        let mut there = vec![0; 4096];
        memory.read(0, &mut there)?;
        assert_eq!(there, wanted);
        Ok(())
    })
}

pub fn a_tensor_of_another_process_is_mapped() {
    let ended = Start::task("tensor_user").run().good();
    let closed = ended.calls.iter().any(|call| call == "cuIpcCloseMemHandle");
    assert!(closed || on_a_gpu());
}

fn calls_made() -> usize {
    let log = std::env::var("MOCK_CUDA_LOG").unwrap();
    std::fs::read_to_string(log).unwrap().lines().count()
}

fn forked() -> Done {
    let device = task::device()?;
    let memory = task::vram(&device, BYTES)?;
    memory.write(0, &pattern(4, LEN))?;
    // SAFETY: this process has no other thread but the stand-in's streams; the child calls what is
    // tested and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let before = calls_made();
        let refused = [
            Vram::allocate(&device, BYTES).unwrap_err().to_string(),
            memory.read(0, &mut [0]).unwrap_err().to_string(),
        ];
        drop(memory);
        drop(device);
        let clear = refused.iter().all(|text| text.contains("forked after the GPU was opened"));
        let wrong = i32::from(!clear) + 2 * i32::from(calls_made() != before);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 0, "1: unclear errors, 2: calls of the driver");
    let mut there = vec![0; LEN];
    memory.read(0, &mut there)?;
    assert!(there == pattern(4, LEN));
    Ok(())
}

pub fn a_forked_child_gets_an_error_and_gives_nothing_back() {
    Start::task("forked").run().good();
}
