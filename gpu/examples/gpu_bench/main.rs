//! Measures and proves the kernels and copies of nkv-gpu on a GPU: `scripts/gpu-test` runs each
//! part as a process of its own. With the stand-in for the driver library the sizes are small, and
//! the lines say so: its figures are of no GPU.
//!
//! ```sh
//! gpu_bench device|rounds|mutants|gather|copies|ready|puts [SECONDS]
//! ```
#![expect(unsafe_code, reason = "the driver is called for what nkv is compared with")]

mod copies;
#[path = "../../tests/descriptors.rs"]
mod descriptors;
mod gather;
mod line;
#[path = "../../tests/ptx/mutate.rs"]
mod mutate;
mod puts;
mod ready;
mod rounds;
mod segment;

use line::Lines;
use nkv_gpu::driver::{Device, Driver};
use nkv_gpu::kernels::Kernels;
use nkv_store::clock::{BootClock, Clock};
use std::process::ExitCode;
use std::sync::Arc;

/// The end of a part.
pub type Done = Result<(), Box<dyn std::error::Error>>;

/// What every part has.
pub struct Bench {
    /// GPU 0.
    pub device: Arc<Device>,
    /// The kernels as they are shipped.
    pub kernels: Arc<Kernels>,
    /// Where results go.
    pub lines: Lines,
    /// The driver library is the stand-in: small sizes.
    pub stand_in: bool,
    /// When a part that takes as long as it may ends.
    pub until_ns: u64,
}

impl Bench {
    fn open(seconds: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let device = Device::new(Driver::open()?, 0)?;
        let stand_in = device.attributes().name == "mock GPU";
        let of = if stand_in { "the stand-in" } else { device.attributes().name.as_str() };
        let lines = Lines::of(of);
        let kernels = Kernels::load(&device)?;
        let until_ns = BootClock.now_ns() + seconds * 1_000_000_000;
        Ok(Self { device, kernels, lines, stand_in, until_ns })
    }

    /// A number for a GPU, and one for the stand-in.
    pub fn either<T>(&self, gpu: T, stand_in: T) -> T {
        if self.stand_in { stand_in } else { gpu }
    }

    /// Whether there is time left.
    pub fn goes_on(&self) -> bool {
        BootClock.now_ns() < self.until_ns
    }
}

/// Attributes, and how long the kernels take to load.
fn device(bench: &Bench) -> Done {
    bench.lines.fact("device", &bench.device.attributes().to_string());
    bench.lines.fact("driver", &Driver::open()?.version().to_string());
    for (name, text) in
        [("sm_80", nkv_gpu::kernels::PTX_SM80), ("sm_90", nkv_gpu::kernels::PTX_SM90)]
    {
        if name == "sm_90" && !bench.kernels.has_bulk() {
            continue;
        }
        for which in ["first", "again"] {
            let began = BootClock.now_ns();
            drop(Kernels::load_ptx(&bench.device, text)?);
            let ms = (BootClock.now_ns() - began) as f64 / 1e6;
            bench.lines.figure(&format!("load of the PTX for {name}, {which}"), "ms", ms, None);
        }
    }
    Ok(())
}

/// Every kernel once or twice: for compute-sanitizer, under which all is slow.
fn smoke(bench: &Bench) -> Done {
    rounds::some(bench, 20)?;
    puts::some(bench)
}

fn run() -> Done {
    let mut words = std::env::args().skip(1);
    let part = words.next().unwrap_or_default();
    if part == "holder" {
        return gather::holder(words.next().unwrap_or_default().parse()?);
    }
    let bench = Bench::open(words.next().map_or(Ok(10), |word| word.parse())?)?;
    match part.as_str() {
        "device" => device(&bench),
        "smoke" => smoke(&bench),
        "rounds" => rounds::rounds(&bench),
        "mutants" => rounds::mutants(&bench),
        "gather" => gather::gather(&bench),
        "copies" => copies::copies(&bench),
        "ready" => ready::ready(&bench),
        "puts" => puts::puts(&bench),
        other => Err(format!("no part '{other}': see the head of this program").into()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
