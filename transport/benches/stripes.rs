//! The gain from stripes: one large write, then one large read, over one and several tcp
//! connections and with one and several copying threads, alternating in one run: `cargo bench -p
//! nkv-transport`. Prints medians in microseconds; asserts nothing. The agent is in this process:
//! both ends share its processors.
#![expect(clippy::unwrap_used, reason = "a measurement ends where it cannot go on")]

use nkv_store::clock::{BootClock, Clock};
use nkv_store::{Buffer, Memory, SegmentName, Stripes, random_u64, shm};
use nkv_transport::access::OpenAccess;
use nkv_transport::{
    AgentLimits, Alive, MappedVerbs, Op, TcpAgent, TcpOptions, TcpVerbs, TransportError, Verbs,
};
use std::sync::Arc;

const SEGMENT: u64 = 1 << 30;
const SIZES: [usize; 5] = [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];
const STRIPES: [usize; 3] = [1, 2, 4];
/// Below every size: the bench shows from which size stripes pay.
const FROM_BYTES: u64 = 1 << 20;
/// Turns of every kind with one size, and the header that a chain begins and ends with.
const TURNS: usize = 40;
const HEADER: u64 = 4096;

fn write(verbs: &dyn Verbs, at: u64, src: &[u8]) -> Result<(), TransportError> {
    let mut ops = [
        Op::Write { offset: HEADER, src: &[1; 40] },
        Op::Store { offset: HEADER + 40, value: 1 },
        Op::Write { offset: at, src },
        Op::CompareSwap { offset: HEADER + 40, expect: 1, new: 2, old: 0 },
    ];
    verbs.post(1, &mut ops)
}

fn read(verbs: &dyn Verbs, at: u64, dst: &mut [u8]) -> Result<(), TransportError> {
    let (mut before, mut after) = ([0; 64], [0; 64]);
    let header = |dst| Op::Read { offset: HEADER, dst };
    verbs.post(0, &mut [header(&mut before), Op::Read { offset: at, dst }, header(&mut after)])
}

fn median_us(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2] as f64 / 1000.0
}

fn measure(name: &str, handles: &[Arc<dyn Verbs>]) {
    let mut buffer = Buffer::new(16 << 20).unwrap();
    for size in SIZES {
        let mut times = vec![(Vec::new(), Vec::new()); handles.len()];
        let places = (1..SEGMENT / size as u64).cycle().map(|i| i * size as u64);
        for (turn, at) in places.take(TURNS).enumerate() {
            for (verbs, times) in handles.iter().zip(&mut times) {
                let began = BootClock.now_ns();
                write(&**verbs, at, &buffer[..size]).unwrap();
                let written = BootClock.now_ns();
                read(&**verbs, at, &mut buffer[..size]).unwrap();
                let done = BootClock.now_ns();
                // The first round connects and faults pages in.
                if turn > 0 {
                    times.0.push(written - began);
                    times.1.push(done - written);
                }
            }
        }
        print!("{name:>6} {:>6} KiB", size >> 10);
        for (n, (writes, reads)) in STRIPES.iter().zip(times) {
            print!("   {n}: {:>8.0} {:>8.0}", median_us(writes), median_us(reads));
        }
        println!();
    }
}

fn main() {
    let name = SegmentName { job: "stripes".into(), rank: 0, incarnation: random_u64() };
    let segment: Arc<dyn Memory> =
        Arc::new(shm::create(&name, SEGMENT, shm::Allocation::NOW).unwrap());
    let any = "127.0.0.1:0".parse().unwrap();
    let (access, limits) = (Arc::new(OpenAccess), AgentLimits::default());
    let agent = TcpAgent::start(any, segment.clone(), 1, "bench", access, None, limits).unwrap();
    let to = agent.local_addr().to_string();
    let by = |n: &usize| Stripes::new(*n, FROM_BYTES);
    let tcp = STRIPES.iter().map(|n| {
        let opts = TcpOptions { stripes: by(n), ..TcpOptions::default() };
        Arc::new(TcpVerbs::connect(&to, 1, "bench", opts).unwrap()) as Arc<dyn Verbs>
    });
    let shm = STRIPES.iter().map(|n| {
        let verbs = MappedVerbs::shm(segment.clone(), Alive::new()).with_stripes(by(n));
        Arc::new(verbs) as Arc<dyn Verbs>
    });
    println!("stripes: median write, median read in us");
    measure("tcp", &tcp.collect::<Vec<_>>());
    measure("shm", &shm.collect::<Vec<_>>());
}
