//! Requests that are made up: sessions whose prefix grows turn by turn behind a system prompt that
//! many of them share. Every session draws from a generator of its own, so one seed gives the same
//! requests everywhere, and more sessions leave the first ones as they were.

use super::file::{MAX_BLOCKS, Request};
use crate::flags::Workload;

/// Tokens in one block.
const BLOCK_TOKENS: f64 = 512.0;
/// Longest prefix of a session, in tokens: it ends there, as at the limit of a model's context.
const MOST_TOKENS: f64 = 131_072.0;
/// How far the lengths of one kind spread: the standard deviation of their logarithm.
const SPREAD: f64 = 1.0;

/// The requests of a workload, in the order in which they are issued.
pub(super) fn requests(workload: &Workload) -> Vec<Request> {
    let prompts = Prompts::new(workload);
    let mut begins_ms = 0.0;
    let mut arrivals = Draws::of(workload.seed, u64::MAX);
    let mut requests = Vec::new();
    for number in 0..u64::from(workload.sessions) {
        begins_ms += arrivals.interval(1000.0 / workload.per_s);
        session(workload, &prompts, (number, begins_ms), &mut requests);
    }
    requests.sort_by(|a, b| a.timestamp_ms.total_cmp(&b.timestamp_ms));
    requests
}

/// Adds the requests of one session: it may be abandoned after each turn.
fn session(
    workload: &Workload,
    prompts: &Prompts,
    (number, begins_ms): (u64, f64),
    requests: &mut Vec<Request>,
) {
    let mut draws = Draws::of(workload.seed, number);
    let (prompt, prompt_tokens) = prompts.choose(&mut draws);
    let mut tokens = prompt_tokens + draws.length(workload.first);
    let mut timestamp_ms = begins_ms;
    loop {
        tokens = tokens.min(MOST_TOKENS);
        let prefix = Prefix { number, prompt, prompt_tokens, tokens };
        requests.push(Request { timestamp_ms, hash_ids: prefix.blocks(workload) });
        let goes_on = draws.uniform() * workload.turns >= 1.0;
        if !goes_on || tokens >= MOST_TOKENS {
            return;
        }
        tokens += draws.length(workload.answer) + draws.length(workload.question);
        timestamp_ms += draws.interval(workload.think_s * 1000.0);
    }
}

/// What a request of a session begins with.
struct Prefix {
    number: u64,
    prompt: u64,
    prompt_tokens: f64,
    tokens: f64,
}

impl Prefix {
    /// The ids of its blocks. Blocks inside the prompt are those of every session that has it; a
    /// last one that is not full is another block once it is.
    fn blocks(&self, workload: &Workload) -> Vec<u64> {
        let shared = (self.prompt_tokens / BLOCK_TOKENS) as u64;
        let full = (self.tokens / BLOCK_TOKENS) as u64;
        let id = |at| match at < shared {
            true => mixed([workload.seed, 1, self.prompt, at]),
            false => mixed([workload.seed, 2, self.number, at]),
        };
        let rest = (self.tokens % BLOCK_TOKENS) as u64;
        let last = (workload.partial && rest > 0)
            .then(|| mixed([mixed([workload.seed, 3, self.number, full]), rest, 0, 0]));
        (0..full).map(id).chain(last).take(MAX_BLOCKS).collect()
    }
}

/// System prompts, or documents: how long each is, and how often it is chosen.
struct Prompts {
    tokens: Vec<f64>,
    /// The sum of the weights of each prompt and those before it.
    weights: Vec<f64>,
}

impl Prompts {
    fn new(workload: &Workload) -> Self {
        let mut draws = Draws::of(workload.seed, u64::MAX - 1);
        let tokens = (0..workload.prompts).map(|_| draws.length(workload.prompt)).collect();
        let mut sum = 0.0;
        let weight = |rank: u32| {
            sum += f64::from(rank).powf(-workload.zipf);
            sum
        };
        Self { tokens, weights: (1..=workload.prompts).map(weight).collect() }
    }

    /// Number and tokens of the one that a session has.
    fn choose(&self, draws: &mut Draws) -> (u64, f64) {
        let drawn = draws.uniform() * self.weights.last().copied().unwrap_or(0.0);
        let at = self.weights.partition_point(|sum| *sum <= drawn);
        (at as u64, self.tokens.get(at).copied().unwrap_or(0.0))
    }
}

/// Pseudorandom numbers (splitmix64).
struct Draws(u64);

impl Draws {
    fn of(seed: u64, stream: u64) -> Self {
        Self(mixed([seed, 0, stream, 0]))
    }

    /// From 0 (included) to 1 (excluded).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (finished(self.0) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Time between two events of a Poisson process.
    fn interval(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }

    /// Tokens of a text: log-normal, at least one, so that a few are much longer than most.
    fn length(&mut self, mean: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.uniform()).cos();
        (mean * (SPREAD * normal - SPREAD * SPREAD / 2.0).exp()).clamp(1.0, MOST_TOKENS).round()
    }
}

/// The last steps of splitmix64.
fn finished(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn mixed(parts: [u64; 4]) -> u64 {
    let step = |mixed: u64, part| finished(mixed.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ part);
    parts.into_iter().fold(0, step)
}

#[cfg(test)]
mod tests {
    use super::{MAX_BLOCKS, Request, requests};
    use crate::flags::Workload;
    use std::collections::{HashMap, HashSet};

    fn of(text: &str) -> Vec<Request> {
        requests(&text.parse::<Workload>().unwrap())
    }

    /// The requests whose block at `at` is one of a session's own, by that block.
    fn sessions(requests: &[Request], at: usize) -> HashMap<u64, Vec<&Request>> {
        let mut all = HashMap::<u64, Vec<&Request>>::new();
        for request in requests.iter().filter(|r| r.hash_ids.len() > at) {
            all.entry(request.hash_ids[at]).or_default().push(request);
        }
        all
    }

    #[test]
    fn a_seed_gives_the_same_requests_and_another_gives_others() {
        for preset in ["chat", "agents", "documents"] {
            let first = of(&format!("{preset},sessions=50,seed=3"));
            assert_eq!(first, of(&format!("{preset},sessions=50,seed=3")));
            let ids = |requests: &[Request]| -> HashSet<u64> {
                requests.iter().flat_map(|r| &r.hash_ids).copied().collect()
            };
            let other = of(&format!("{preset},sessions=50,seed=4"));
            assert!(ids(&first).is_disjoint(&ids(&other)), "{preset}");
            assert!(first.is_sorted_by(|a, b| a.timestamp_ms <= b.timestamp_ms));
            assert!(first.iter().all(|r| r.hash_ids.len() <= MAX_BLOCKS));
        }
    }

    #[test]
    fn each_turn_of_a_session_begins_with_the_one_before() {
        // Prompts shorter than a block: whatever is in a request is its session's own.
        let requests = of("chat,sessions=200,prompt=1,partial=0,turns=4");
        let sessions = sessions(&requests, 0);
        let turns: usize = sessions.values().map(Vec::len).sum();
        assert!(turns > 2 * sessions.len(), "{turns} turns of {} sessions", sessions.len());
        for session in sessions.values() {
            for pair in session.windows(2) {
                assert!(pair[1].hash_ids.starts_with(&pair[0].hash_ids));
            }
        }
    }

    #[test]
    fn a_last_block_that_is_not_full_is_another_once_it_is() {
        let whole = of("chat,sessions=200,partial=0");
        let partial = of("chat,sessions=200,partial=1");
        let seen: HashSet<u64> = whole.iter().flat_map(|r| &r.hash_ids).copied().collect();
        let mut more = 0;
        for (whole, partial) in whole.iter().zip(&partial) {
            assert!(partial.hash_ids.starts_with(&whole.hash_ids));
            let last = &partial.hash_ids[whole.hash_ids.len()..];
            assert!(last.len() <= 1 && last.iter().all(|id| !seen.contains(id)));
            more += last.len();
        }
        assert!(more * 10 > whole.len() * 9, "{more} of {}", whole.len());
    }

    #[test]
    fn few_prompts_are_those_of_most_sessions() {
        let requests = of("documents,sessions=2000,turns=1,prompts=100,zipf=1");
        let mut counts: Vec<usize> = sessions(&requests, 0).values().map(Vec::len).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let all: usize = counts.iter().sum();
        let most: usize = counts.iter().take(10).sum();
        // By Zipf's law with exponent 1, 10 of 100 have 56%.
        assert!((50..65).contains(&(most * 100 / all)), "{most} of {all}");
    }
}
