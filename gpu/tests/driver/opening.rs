//! The reasons that the driver or a device cannot be used, each an error that says what to do.

use crate::start::Start;
use crate::task::{self, Done, Tasks};

/// See `task`.
pub fn tasks() -> Tasks {
    &[("open", open), ("open_second", open_second)]
}

fn open() -> Done {
    println!("{}", task::device()?.attributes());
    Ok(())
}

fn open_second() -> Done {
    nkv_gpu::driver::Device::new(nkv_gpu::driver::Driver::open()?, 1)?;
    Ok(())
}

/// This host has a real driver, which is found where the folder is empty.
fn has_driver() -> bool {
    [
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/local/cuda/lib64",
    ]
    .iter()
    .any(|folder| std::path::Path::new(folder).join("libcuda.so.1").exists())
}

pub fn no_library_is_an_error_that_says_what_to_install() {
    if has_driver() {
        println!("not tested: this host has a driver");
        return;
    }
    let parts = ["cannot be loaded", "libcuda.so.1", "install the NVIDIA driver", "--gpus all"];
    Start::without_library("open").run().failed_with(&parts);
}

pub fn a_file_that_is_no_library_is_an_error() {
    if has_driver() {
        println!("not tested: this host has a driver");
        return;
    }
    let garbage = Start::without_library("open").library(&[b'x'; 4096]);
    garbage.run().failed_with(&["cannot be loaded", "invalid ELF header", "install"]);
    let empty = Start::without_library("open").library(b"");
    empty.run().failed_with(&["cannot be loaded", "file too short"]);
}

pub fn each_missing_symbol_is_named() {
    for symbol in ["cuInit", "cuMemCreate", "cuMemGetHandleForAddressRange", "cuStreamDestroy_v2"] {
        let run = Start::task("open").without_symbol(symbol).run();
        let ended = run.failed_with(&[&format!("has no {symbol}:"), "CUDA 12.0 or later"]);
        assert!(ended.calls.is_empty(), "called before all symbols were found: {:?}", ended.calls);
    }
}

pub fn a_driver_that_is_too_old_is_refused() {
    let old = Start::task("open").env("MOCK_CUDA_VERSION", "11040").run();
    old.failed_with(&["for CUDA 11.4", "needs one for CUDA 12.0 or later", "update it"]);
    Start::task("open").env("MOCK_CUDA_VERSION", "12000").run().good();
}

pub fn an_error_of_init_has_its_name_number_and_remedy() {
    let init = |code: &str| Start::task("open").env("MOCK_CUDA_FAIL", code).run();
    let mismatch = init("cuInit:803");
    let parts = ["cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "restart the host"];
    mismatch.failed_with(&parts);
    init("cuInit:100").failed_with(&["CUDA_ERROR_NO_DEVICE (100)", "CUDA_VISIBLE_DEVICES"]);
    // A number that neither the bindings nor the driver know.
    init("cuInit:12345").failed_with(&["an error unknown to this driver (12345)", "dmesg"]);
}

pub fn no_device_is_an_error() {
    let none = Start::task("open").env("MOCK_CUDA_DEVICES", "0").run();
    none.failed_with(&["finds no GPU", "CUDA_VISIBLE_DEVICES"]);
}

pub fn a_device_beyond_the_last_is_refused() {
    let parts = ["there is no GPU 1", "this process can use 1", "LOCAL_RANK"];
    Start::task("open_second").run().failed_with(&parts);
    Start::task("open_second").env("MOCK_CUDA_DEVICES", "2").run().good();
}

pub fn a_device_without_what_vram_needs_is_refused() {
    for (attribute, lacking) in [("41=0", "address management"), ("103=0", "file descriptors")] {
        let run = Start::task("open").env("MOCK_CUDA_ATTRIBUTES", attribute).run();
        run.failed_with(&["GPU 0 (mock GPU) lacks", lacking, "--memory shm"]);
    }
}

pub fn the_device_lists_what_it_can_do() {
    let listed = Start::task("open").env("MOCK_CUDA_ATTRIBUTES", "124=0,118=0").run().good().text;
    for part in [
        "mock GPU, 80.0 GiB, compute capability 9.0, 132 multiprocessors",
        "fd handles yes",
        "GPUDirect RDMA yes, of mapped ranges yes, dma-buf no",
        "native atomics with the host no",
        "RDMA writes ordering 0, flush options 1",
    ] {
        assert!(listed.contains(part), "no {part:?} in: {listed}");
    }
}
