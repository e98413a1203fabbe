//! READY rounds: a kernel of one stream waits for what a kernel of another publishes, over old
//! bytes of the round before; every byte is compared. The same with weaker kernels.

use crate::mutate::{SURVIVORS, listed, mutants as all_mutants};
use crate::segment::{Headers, Pages};
use crate::{Bench, Done};
use nkv_gpu::kernels::{
    GATHER_BULK, GATHER_PUBLISH, Kernels, LaunchOptions, LaunchStream, PTX_SM80, PTX_SM90, Reach,
    ScatterResult, Span, WAIT_SCATTER,
};
use nkv_gpu::vram::{DeviceRange, Vram, VramMemory};
use nkv_store::Memory;
use nkv_store::clock::{BootClock, Clock};
use std::sync::Arc;

/// Pages of an object, and their bytes: with 512 threads the loop of one load and its rest.
const COUNT: u32 = 24;
const PAGE: u64 = 1104;
/// Contents that a round can have.
const KINDS: u64 = 8;
/// Rounds on a GPU, if there is time for all.
const ROUNDS: u64 = 1_000_000;

fn content(kind: u64) -> Vec<u8> {
    let word = |at: u64| ((kind << 32) | (at / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bytes = u64::from(COUNT) * PAGE;
    (0..bytes).map(|at| word(at).to_le_bytes()[(at % 8) as usize]).collect()
}

/// Two streams and what they copy between.
struct Round {
    headers: Headers,
    object: Arc<Vram>,
    sources: Vec<Pages>,
    target: Pages,
    target_memory: VramMemory,
    contents: Vec<Vec<u8>>,
    streams: [LaunchStream; 2],
    epoch: u32,
}

/// What came of a round.
#[derive(PartialEq, Eq)]
enum Came {
    Right,
    Torn,
    /// The reader did not find it.
    Nothing,
}

impl Round {
    fn new(bench: &Bench) -> Result<Self, Box<dyn std::error::Error>> {
        let contents: Vec<_> = (0..KINDS).map(content).collect();
        let mut sources = Vec::new();
        for content in &contents {
            let pages = Pages::new(bench, COUNT, PAGE)?;
            let memory = VramMemory::new(pages.vram.clone())?;
            for (offset, bytes) in pages.offsets().zip(content.chunks(PAGE as usize)) {
                memory.write(offset, bytes)?;
            }
            sources.push(pages);
        }
        let target = Pages::new(bench, COUNT, PAGE)?;
        Ok(Self {
            headers: Headers::new(bench, 1)?,
            object: Arc::new(Vram::allocate(&bench.device, u64::from(COUNT) * PAGE)?),
            sources,
            target_memory: VramMemory::new(target.vram.clone())?,
            target,
            contents,
            streams: [LaunchStream::own(&bench.device)?, LaunchStream::own(&bench.device)?],
            epoch: 0,
        })
    }

    fn run(
        &mut self,
        (writer, reader): (&Arc<Kernels>, &Arc<Kernels>),
        bulk: bool,
        options: LaunchOptions,
    ) -> Result<Came, Box<dyn std::error::Error>> {
        self.epoch += 1;
        let bytes = u64::from(COUNT) * PAGE;
        let kind = u64::from(self.epoch) % KINDS;
        let (source, object) = (&self.sources[kind as usize], [Span::of(&*self.object)]);
        self.headers.arm(0, self.epoch, bytes)?;
        let wanted = self.headers.wanted(0, self.epoch, bytes);
        let publish = self.headers.publish(0, self.epoch);
        let scatter = self.target.scatter(self.object.address())?;
        let gather = source.gather(self.object.address())?;
        let (from, to) = ([source.span()], [self.target.span()]);
        let into = Reach { read: &object, write: &to };
        let out = Reach { read: &from, write: &object };
        // SAFETY: all of it is mapped as long as `self`, and both launches are waited for.
        let (reads, writes) = unsafe {
            let reads = reader.wait_scatter(&self.streams[0], options, wanted, &scatter, &into)?;
            let writes = if bulk {
                writer.gather_bulk(&self.streams[1], options, publish, &gather, &out)?
            } else {
                writer.gather_publish(&self.streams[1], options, publish, &gather, &out)?
            };
            (reads, writes)
        };
        if writes.wait()? != publish.expect || reads.wait()? != ScatterResult::Valid {
            return Ok(Came::Nothing);
        }
        let mut there = vec![0; (2 * bytes) as usize];
        self.target_memory.read(0, &mut there)?;
        let wanted = self.contents[kind as usize].chunks(PAGE as usize);
        let right = self
            .target
            .offsets()
            .zip(wanted)
            .all(|(at, wanted)| there[at as usize..].starts_with(wanted));
        Ok(if right { Came::Right } else { Came::Torn })
    }
}

/// Rounds, until there are so many or the time is over. Returns rounds, torn ones, and those
/// without a result.
fn several(
    bench: &Bench,
    kernels: (&Arc<Kernels>, &Arc<Kernels>),
    bulk: bool,
    most: u64,
    until_ns: u64,
) -> Result<[u64; 3], Box<dyn std::error::Error>> {
    let (mut round, mut counts) = (Round::new(bench)?, [0; 3]);
    while counts[0] < most && (counts[0] == 0 || BootClock.now_ns() < until_ns) {
        // Few blocks, many, and all sizes of blocks.
        let which = counts[0] % 4;
        let multiprocessors = (which < 2).then_some(3);
        let threads = Some([512, 96, 256, 32][which as usize]);
        let options = LaunchOptions { multiprocessors, threads };
        let came = round.run(kernels, bulk, options)?;
        counts[0] += 1;
        counts[1] += u64::from(came == Came::Torn);
        counts[2] += u64::from(came == Came::Nothing);
    }
    Ok(counts)
}

fn kinds(bench: &Bench) -> Vec<(&'static str, bool)> {
    let mut kinds = vec![(GATHER_PUBLISH, false)];
    if bench.kernels.has_bulk() {
        kinds.push((GATHER_BULK, true));
    }
    kinds
}

/// A fixed number of rounds of each kernel.
pub fn some(bench: &Bench, rounds: u64) -> Done {
    for (name, bulk) in kinds(bench) {
        let kernels = (&bench.kernels, &bench.kernels);
        let [n, torn, none] = several(bench, kernels, bulk, rounds, u64::MAX)?;
        bench.lines.count(&format!("READY rounds of {name}"), n, torn + none, "0");
        if torn + none > 0 {
            return Err(format!("{name}: {torn} torn, {none} without a result").into());
        }
    }
    Ok(())
}

/// The kernels as they are shipped.
pub fn rounds(bench: &Bench) -> Done {
    let kinds = kinds(bench);
    let share = bench.until_ns.saturating_sub(BootClock.now_ns()) / kinds.len() as u64;
    for (name, bulk) in kinds {
        let (most, until) = (bench.either(ROUNDS, 40), BootClock.now_ns() + share);
        let kernels = (&bench.kernels, &bench.kernels);
        let [n, torn, none] = several(bench, kernels, bulk, most, until)?;
        bench.lines.count(&format!("READY rounds of {name}, torn"), n, torn, "0");
        bench.lines.count(&format!("READY rounds of {name}, no result"), n, none, "0");
        if torn + none > 0 {
            return Err(format!("{name}: {torn} torn, {none} without a result").into());
        }
    }
    Ok(())
}

/// Weaker kernels: torn rounds are reported, and are no failure. Those of `nkv_log_put` need a log
/// with an owner, and do not run here.
pub fn mutants(bench: &Bench) -> Done {
    let text = if bench.kernels.has_bulk() { PTX_SM90 } else { PTX_SM80 };
    let survivors = listed(SURVIVORS);
    // One of the bulk copy engine may wait without end: these come last, and not on the stand-in.
    let bulk = !bench.stand_in;
    let kernels = [GATHER_PUBLISH, WAIT_SCATTER, GATHER_BULK];
    let kernels = kernels.into_iter().filter(|kernel| bulk || *kernel != GATHER_BULK);
    let all: Vec<_> = kernels.flat_map(|kernel| all_mutants(text, kernel)).collect();
    let killed = |name: &(&'static str, String)| !survivors.contains_key(name);
    // Those that the runs in weak memory find come first.
    let (mut first, rest): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|m| killed(&(m.kernel, m.name.clone())));
    first.extend(rest);
    first.sort_by_key(|mutant| mutant.kernel == GATHER_BULK);
    let step = bench.either(1, first.len() / 4);
    let chosen: Vec<_> = first.iter().step_by(step.max(1)).collect();
    for (at, mutant) in chosen.iter().enumerate() {
        if !bench.goes_on() {
            let left =
                format!("{} of {} mutants for want of time", chosen.len() - at, chosen.len());
            bench.lines.fact("mutants not run", &left);
            break;
        }
        let left = (chosen.len() - at) as u64;
        let until = BootClock.now_ns() + bench.until_ns.saturating_sub(BootClock.now_ns()) / left;
        let weak = Kernels::load_ptx(&bench.device, &mutant.text)?;
        let kernels = match mutant.kernel {
            WAIT_SCATTER => (&bench.kernels, &weak),
            _ => (&weak, &bench.kernels),
        };
        let most = bench.either(200_000, 6);
        let bulk = mutant.kernel == GATHER_BULK;
        let key = (mutant.kernel, mutant.name.clone());
        let expected = if killed(&key) { "found by runs in weak memory" } else { "may be 0" };
        let name = format!("mutant {}: {}", mutant.kernel, mutant.name);
        match several(bench, kernels, bulk, most, until) {
            Ok([n, torn, none]) => bench.lines.count(&name, n, torn + none, expected),
            Err(e) => {
                // The context may be lost.
                bench.lines.fact(&name, &format!("ended the run: {e}"));
                return Ok(());
            }
        }
    }
    Ok(())
}
