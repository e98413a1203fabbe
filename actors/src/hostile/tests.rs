//! Mutated bytes, and invalid messages one at a time and in sequence.

use super::whole::Whole;
use super::*;

/// Inputs of one test run; `NKV_HOSTILE_INPUTS` sets another number.
const INPUTS: u64 = 2_000;
/// Sequences of invalid messages in one test run.
const ROWS: u64 = 400;
/// Numbers at which a range may begin, end or wrap.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    63,
    1_024,
    4_095,
    4_096,
    65_536,
    1 << 31,
    u32::MAX as u64 - 1,
    u32::MAX as u64,
    1 << 32,
    1 << 43,
    1 << 63,
    u64::MAX - 4_095,
    u64::MAX,
];

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ x >> 31) % n.max(1) as u64) as usize
    }
}

/// Messages of the seeds with a few numbers changed.
fn lie(dice: &mut Dice, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = Vec::new();
    for _ in 0..1 + dice.below(6) {
        let mut message = seeds[dice.below(seeds.len())].clone();
        for _ in 0..dice.below(4) {
            let width = [1, 2, 4, 8][dice.below(4)];
            let room = message.len().saturating_sub(MESSAGE_HEADER + width - 1);
            if room == 0 {
                continue;
            }
            let at = MESSAGE_HEADER + dice.below(room);
            let number = NUMBERS[dice.below(NUMBERS.len())].to_le_bytes();
            message[at..at + width].copy_from_slice(&number[..width]);
        }
        input.extend(message);
    }
    input
}

#[test]
fn i19_no_message_that_decodes_makes_an_actor_panic_or_harms_others() {
    let seeds = seeds();
    for seed in &seeds {
        assert!(run(seed), "a seed that is not understood: {seed:?}");
    }
    let wanted = std::env::var("NKV_HOSTILE_INPUTS").ok().and_then(|n| n.parse().ok());
    let mut understood = 0;
    for n in 0..wanted.unwrap_or(INPUTS) {
        let input = lie(&mut Dice(n), &seeds);
        let done = std::panic::catch_unwind(|| run(&input));
        understood += u64::from(done.unwrap_or_else(|_| panic!("input {n}: {input:?}")));
    }
    assert!(understood > INPUTS / 10, "only {understood} inputs decoded");
}

/// Runs `work` with a new scene.
fn with_scene(work: impl AsyncFnOnce(Whole)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async { work(Whole::new().await).await });
}

#[test]
fn i19_each_thing_that_cannot_be_is_refused_and_changes_nothing() {
    with_scene(async |mut whole| whole.check().await);
    let mut believed = Vec::new();
    for (what, input) in lies::all() {
        with_scene(async |mut whole| {
            println!("{what}: {}", short(&input));
            if whole.scene.receives(input).await {
                believed.push(what);
            } else {
                whole.check().await;
            }
        });
    }
    assert!(believed.is_empty(), "believed: {believed:#?}");
}

#[test]
fn i11_what_is_late_or_said_twice_or_of_another_changes_nothing() {
    for n in 0..lies::stale(&seeds::granted(), false).len() {
        for twice in [false, true] {
            with_scene(async |mut whole| {
                let (what, input) = lies::stale(&whole.granted, twice).swap_remove(n);
                println!("{what}: {}", short(&input));
                whole.scene.receives(input.clone()).await;
                if twice {
                    whole.scene.receives(input).await;
                }
                whole.check().await;
            });
        }
    }
}

#[test]
fn i19_lies_in_a_row_change_nothing() {
    let all = lies::all();
    for n in 0..ROWS {
        with_scene(async |mut whole| {
            let (dice, stale) = (&mut Dice(n), lies::stale(&whole.granted, false));
            for _ in 0..1 + dice.below(8) {
                let from = if dice.below(2) == 0 { &all } else { &stale };
                let (what, input) = from[dice.below(from.len())].clone();
                println!("row {n}: {what}: {}", short(&input));
                whole.scene.receives(input).await;
            }
            whole.check().await;
        });
    }
}

fn short(input: &lies::HostileInput) -> String {
    format!("{input:?}").chars().take(200).collect()
}
