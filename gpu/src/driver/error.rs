//! What can go wrong with the driver, and what to do about it.

use super::OLDEST_VERSION;
use nkv_store::StoreError;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// The driver cannot be used, or a call of it failed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The library is not there, or is no library.
    #[error(
        "the CUDA driver library cannot be loaded ({why}): install the NVIDIA driver, or start \
         the container with its GPUs, as in docker run --gpus all"
    )]
    NoLibrary {
        /// What the dynamic linker reported.
        why: String,
    },
    /// An old driver, or another library under its name.
    #[error(
        "the CUDA driver library has no {symbol}: nkv needs a driver for CUDA {} or later; \
         nvidia-smi shows the one that is installed",
        spelled(OLDEST_VERSION)
    )]
    MissingSymbol {
        /// The first symbol that is missing.
        symbol: &'static str,
    },
    /// A driver older than [`OLDEST_VERSION`].
    #[error(
        "the NVIDIA driver is for CUDA {}, and nkv needs one for CUDA {} or later: update it",
        spelled(*.version),
        spelled(OLDEST_VERSION)
    )]
    TooOld {
        /// Its version.
        version: i32,
    },
    /// A driver without devices.
    #[error(
        "the NVIDIA driver finds no GPU: compare nvidia-smi -L with CUDA_VISIBLE_DEVICES of this \
         process, which must not be empty"
    )]
    NoDevice,
    /// A device number beyond the last.
    #[error(
        "there is no GPU {ordinal}: this process can use {devices}, counted from 0; --gpu, \
         which is LOCAL_RANK by default, must be below that, and CUDA_VISIBLE_DEVICES limits it"
    )]
    NoSuchDevice {
        /// The number asked for.
        ordinal: u32,
        /// How many there are.
        devices: u32,
    },
    /// A device that other processes use.
    #[error(
        "this process cannot use GPU {}, only {devices} others: CUDA_VISIBLE_DEVICES may hide it",
        uuid_shown(uuid)
    )]
    OtherDevice {
        /// Its id.
        uuid: [u8; 16],
        /// How many it can use.
        devices: u32,
    },
    /// A device that lacks what is needed.
    #[error("GPU {ordinal} ({name}) lacks {lacks}")]
    Lacks {
        /// Its number.
        ordinal: u32,
        /// Its name.
        name: String,
        /// What is lacking, and the remedy.
        lacks: String,
    },
    /// A device used in a child made by fork.
    #[error(
        "CUDA cannot be used in a process that was forked after the GPU was opened: open it in \
         the child, or start the child by exec (Python: multiprocessing's \"spawn\")"
    )]
    Forked,
    /// A request that cannot be served, with the numbers.
    #[error("{0}")]
    Invalid(String),
    /// The driver returned an error.
    #[error("{call} failed with {name} ({code}), {about}: {}", advice(call, *.code))]
    Call {
        /// The call.
        call: &'static str,
        /// The error's number.
        code: u32,
        /// The error's name.
        name: String,
        /// What the call was for, with the sizes.
        about: String,
    },
}

impl From<DriverError> for StoreError {
    fn from(e: DriverError) -> Self {
        match e {
            DriverError::Call { code: OUT_OF_MEMORY, .. } => Self::NotEnoughMemory(e.to_string()),
            _ => Self::Device(e.to_string()),
        }
    }
}

/// As nvidia-smi -L shows it.
fn uuid_shown(uuid: &[u8; 16]) -> String {
    let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let parts = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex);
    format!("GPU-{}", parts.join("-"))
}

/// 12080 as 12.8.
fn spelled(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// What to do about an error of the driver.
fn advice(call: &str, code: u32) -> &'static str {
    match code {
        2 | 304 if call == "cuMemHostRegister" => {
            "the host's memory cannot be pinned; raise the limit of locked memory (ulimit -l \
             unlimited; systemd: LimitMEMLOCK=infinity; Slurm: \
             PropagateResourceLimitsExcept=MEMLOCK; docker: --ulimit memlock=-1), or pin less"
        }
        1 => "nkv passed a value that this driver refuses; report it with the driver's version",
        2 => {
            "the GPU has too little free memory; give the segment fewer bytes or free some \
             (nvidia-smi shows who uses it)"
        }
        3 | 4 => {
            "the driver is not initialised in this process; open the GPU after a fork, not before, \
             and not while the process exits"
        }
        36 => "the GPU is in a state of lost isolation; restart the process",
        46 | 101 => "the GPU is busy or in exclusive mode; nvidia-smi -q -d COMPUTE shows it",
        100 => {
            "no GPU can be used; compare nvidia-smi -L with CUDA_VISIBLE_DEVICES of this process"
        }
        201 | 709 => "the GPU's context is gone; another library of this process reset the device",
        400 => "give a stream of this GPU that has not been destroyed",
        209 | 218..=222 => {
            "this driver cannot compile the kernels for this GPU; they need a driver for CUDA 13.0 \
             or later (580) and a GPU of compute capability 8.0 or later"
        }
        304 => "the operating system refused; check the limits of open files and locked memory",
        712 => "another part of this process has pinned that memory; pin each mapping once",
        700..=719 => {
            "the GPU's context is lost with all of its memory; a kernel of this process failed \
             before: restart the process, and run it under compute-sanitizer"
        }
        800 | 801 => {
            "this GPU, driver or container does not allow it; nkv doctor lists what it has"
        }
        802 => "the GPUs' fabric is not ready; check that nvidia-fabricmanager runs",
        900..=907 => "a CUDA graph is being recorded; put and get outside of it",
        803 | 804 => {
            "the driver library does not fit the kernel module; restart the host after an update, \
             or use a container that fits the driver"
        }
        _ => "see dmesg for lines with NVRM or Xid, and restart the process",
    }
}
