//! Writes, reads and small puts through an RDMA device of this machine to itself, one after the
//! other and eight at a time. The memory is either registered with the device, as perftest does it,
//! or copied; `scripts/rdma-bench` runs perftest beside it in the same guest. The first argument is
//! the prefix of the names of the rows to measure, the others are the devices to use. Prints one
//! JSON object: MiB per second of the best of five rounds, and the median of a small put, by a plan
//! and by a claim, in microseconds.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on says where")]
#![expect(clippy::print_stdout, reason = "its result")]

use nkv_store::clock::{BootClock, Clock};
use nkv_store::{AnonMemory, Buffer, Memory};
use nkv_transport::fabric::{FabricConfig, Part, RegisteredBuffer, SegmentBounds};
use nkv_transport::verbs::{NoObserver, Post};
use nkv_transport::{Alive, Op, Verbs};
use std::sync::Arc;

const SEGMENT: u64 = 16 << 20;
const TOKEN: u64 = 1;
const ROUNDS: usize = 5;
/// Bytes of one round.
const ROUND_BYTES: usize = 8 << 20;
const SMALL_PUTS: usize = 300;

fn mib_per_s(mut work: impl FnMut()) -> f64 {
    let round = |work: &mut dyn FnMut()| {
        let start = BootClock.now_ns();
        work();
        ROUND_BYTES as f64 / (1 << 20) as f64 / ((BootClock.now_ns() - start) as f64 / 1e9)
    };
    (0..ROUNDS).map(|_| round(&mut work)).fold(0.0, f64::max)
}

fn one_by_one(verbs: &dyn Verbs, bytes: &mut [u8], write: bool) -> f64 {
    let size = bytes.len();
    mib_per_s(|| {
        for _ in 0..ROUND_BYTES / size {
            match write {
                true => verbs.write(TOKEN, SEGMENT / 2, bytes).unwrap(),
                false => verbs.read(SEGMENT / 2, bytes).unwrap(),
            }
        }
    })
}

fn many(verbs: &dyn Verbs, all: &mut [u8], size: usize, write: bool) -> f64 {
    let offset = SEGMENT / 2;
    mib_per_s(|| {
        let each = all.chunks_mut(size).map(|bytes| match write {
            true => [Op::Write { offset, src: bytes }],
            false => [Op::Read { offset, dst: bytes }],
        });
        let mut ops: Vec<[Op<'_>; 1]> = each.collect();
        let mut posts: Vec<Post<'_, '_>> =
            ops.iter_mut().map(|ops| Post { token: TOKEN, ops }).collect();
        let done = verbs.post_many(&mut posts, &mut NoObserver);
        assert!(done.iter().all(Result::is_ok));
    })
}

/// Header fields, WRITING, 256 bytes and READY, as a plan's producer posts them; or the claim in a
/// device log before them.
fn small_put(verbs: &dyn Verbs, claims: bool) -> f64 {
    let (fields, payload) = ([1; 40], [2; 256]);
    verbs.write(TOKEN, 4096 + 40, &[0; 8]).unwrap();
    let mut times: Vec<u64> = (0..SMALL_PUTS as u64)
        .map(|i| {
            let mut ops = [
                Op::Write { offset: 4096, src: &fields },
                Op::Store { offset: 4096 + 40, value: i },
                Op::Write { offset: SEGMENT / 2, src: &payload },
                Op::CompareSwap { offset: 4096 + 40, expect: i, new: i + 1, old: 0 },
            ];
            let start = BootClock.now_ns();
            if claims {
                verbs.fetch_add(TOKEN, 64, 4096).unwrap();
            }
            verbs.post(TOKEN, &mut ops).unwrap();
            BootClock.now_ns() - start
        })
        .collect();
    times.sort_unstable();
    times[SMALL_PUTS / 2] as f64 / 1e3
}

fn main() {
    let mut args = std::env::args().skip(1);
    let only = args.next().unwrap_or_default();
    let config = FabricConfig { devices: args.collect(), ..FabricConfig::default() };
    let fabric = nkv_transport::rdma::open(&config).unwrap();
    let memory: Arc<dyn Memory> = Arc::new(AnonMemory::new(SEGMENT).unwrap());
    let exported = fabric.export(memory, &Part::halves(SEGMENT), false).unwrap();
    let offering = fabric.offer().unwrap();
    let (_served, answer) = exported.accept(&offering.offer()).unwrap();
    let verbs = offering.connect(&answer, SegmentBounds::halves(SEGMENT), Alive::new()).unwrap();
    let mut registered =
        RegisteredBuffer::new(&*fabric, Buffer::new(ROUND_BYTES).unwrap()).unwrap();
    let mut plain = vec![7; ROUND_BYTES];
    let mut rows = Vec::new();
    let mut row = |name: String, figure: &mut dyn FnMut() -> f64| {
        if name.starts_with(&only) {
            rows.push(format!("\"{name}\":{:.1}", figure()));
        }
    };
    for (name, size) in [("64KiB", 64 << 10), ("1MiB", 1 << 20), ("8MiB", 8 << 20)] {
        for (op, write) in [("write", true), ("read", false)] {
            for (how, bytes) in [("", &mut *registered), (" copied", &mut *plain)] {
                let first = &mut bytes[..size];
                row(format!("{op} {name} 1{how}"), &mut || one_by_one(&*verbs, first, write));
                row(format!("{op} {name} 8{how}"), &mut || many(&*verbs, bytes, size, write));
            }
        }
    }
    for (name, claims) in [("small put us", false), ("small put by claim us", true)] {
        row(name.to_string(), &mut || small_put(&*verbs, claims));
    }
    println!("{{{}}}", rows.join(","));
}
