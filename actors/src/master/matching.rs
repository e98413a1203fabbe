//! List and RemoveMatching: keys by regular expression. A request is one round over a bounded part
//! of the index. The patterns of users run on threads beside the actor, never in it: the actor only
//! collects the keys of a part, and later removes those that matched as any other remove does.

use super::entry::{Entry, State};
use super::known::Known;
use super::{Ask, Master};
use crate::actor::{Context, Message, On, Reply};
use crate::error::{Error, Result};
use crate::message::{KEYS_PER_ROUND, KeyBytes, KeyState, Listed, Request, Response, Selection};
use crate::pattern::compile;
use crate::striping::is_stripe;
use hashbrown::HashSet;
use nkv_store::KeyId;
use nkv_store::clock::Clock;
use std::collections::VecDeque;
use std::sync::Arc;

/// Rounds whose patterns may run at the same time.
const MAX_RUNNING: usize = 2;
/// Rounds that wait for their turn; further ones are refused.
const MAX_WAITING: usize = 256;
/// After matching for this time a round ends, and the next one continues there.
const MATCH_LIMIT_MS: u64 = 200;

/// A request that waits to run or runs.
#[derive(Debug)]
pub(super) struct Round {
    pub ask: Ask,
    pub reply: Reply<Response>,
    pub taken: RemovedBefore,
    /// After its first run.
    pub ended: Option<Ended>,
}

/// What a round found when it ran first.
#[derive(Debug)]
pub(super) struct Ended {
    /// Sets of replicas that all logs serve no more since.
    pub sets: HashSet<(KeyId, u32)>,
    /// Where the next round begins.
    pub next: Option<KeyId>,
}

impl Round {
    pub(super) fn new(ask: Ask, reply: Reply<Response>, taken: RemovedBefore) -> Self {
        Self { ask, reply, taken, ended: None }
    }
}

/// What was removed for a round before it began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RemovedBefore {
    /// Objects that logs retired, listed or not.
    pub from_logs: u64,
    /// Objects that disks removed.
    pub from_disks: u64,
}

/// Rounds in progress.
#[derive(Default)]
pub(super) struct Rounds {
    waiting: VecDeque<Round>,
    running: usize,
}

/// A key as the round found it in the index.
type Seen = (KeyId, Listed);

/// The keys that matched, and where the next round begins.
#[derive(Debug)]
struct Found {
    keys: Vec<Seen>,
    next: Option<KeyId>,
}

/// A round's pattern has run.
#[derive(Debug)]
pub(super) struct RoundMatched {
    round: Round,
    found: Result<Found>,
}

impl Message for RoundMatched {
    type Reply = ();
}

impl Master {
    /// Queues a round; fails it with `NotReady` if `MAX_WAITING` are queued.
    pub(super) fn enter_round(&mut self, round: Round) {
        if self.rounds.waiting.len() < MAX_WAITING {
            return self.rounds.waiting.push_back(round);
        }
        let text = format!("{MAX_WAITING} listings and removals by pattern wait; try again later");
        round.reply.send(Response::Failed(Error::not_ready(text)));
    }

    /// Runs a round once more, before those that wait.
    pub(super) fn resume_round(&mut self, round: Round) {
        self.rounds.waiting.push_front(round);
    }

    /// Begins as many rounds as may run. While the state is being rebuilt they wait.
    pub(super) fn start_rounds(&mut self, ctx: &mut Context<'_, Self>) {
        while self.rounds.running < MAX_RUNNING && self.recovering.is_empty() {
            let Some(round) = self.rounds.waiting.pop_front() else { return };
            let Some(query) = Query::of(&round.ask.request) else {
                round.reply.send(Response::Failed(Error::internal("not a request for a round")));
                continue;
            };
            if let Some(e) = self.refuse_round(&round.ask.request) {
                round.reply.send(Response::Failed(e));
                continue;
            }
            let (seen, next) = self.scan(query.from);
            let clock = self.durable.clock.clone();
            self.rounds.running += 1;
            let run = move || query.run(seen, next, &clock);
            ctx.beside(run, |run| RoundMatched { round, found: run.and_then(|found| found) });
        }
    }

    /// A round needs the complete index: a key that is not reported yet would count as absent.
    fn refuse_round(&self, request: &Request) -> Option<Error> {
        if !self.settled() {
            return Some(self.early("a listing"));
        }
        self.refuse(request).or_else(|| self.check_all_reported().err())
    }

    fn scan(&self, from: KeyId) -> (Vec<Seen>, Option<KeyId>) {
        let (entries, next) = self.objects.slice(from, KEYS_PER_ROUND);
        let seen = entries.into_iter().map(|(id, e)| {
            let key = KeyBytes::shared(e.key.clone());
            let (rank, state) = (e.segment_id().rank, self.state_of(e));
            let of_stripes = self.stripes_of(e);
            let (bytes_total, mut others) = of_stripes.unwrap_or_else(|| {
                let others = e.replicas().skip(1).map(|r| r.segment_id.rank);
                (e.replica().object.bytes_total, others.collect())
            });
            others.retain(|other| *other != rank);
            let extras = e.replicas().filter(|r| e.is_extra(r.at)).map(|r| r.segment_id.rank);
            let (extras, retention) = (extras.collect(), e.retention());
            (id, Listed { key, bytes_total, rank, others, extras, retention, state })
        });
        (seen.collect(), next)
    }

    fn state_of(&self, e: &Entry) -> KeyState {
        match e.state() {
            State::Writing(_) => KeyState::Writing,
            State::Removing => KeyState::Removing,
            State::Live if self.is_readable(e) => KeyState::Ready,
            State::Live => KeyState::Unreachable,
        }
    }

    /// Of what a round found when it ran again: without what was put since it ran first.
    fn keep_ended(&self, found: &mut Found, ended: &Ended) {
        let next = [found.next, ended.next].into_iter().flatten().min();
        let is_ended = |id: &KeyId| {
            let mark = self.objects.get(id).and_then(|e| e.set().mark());
            mark.is_none_or(|mark| ended.sets.contains(&(*id, mark)))
        };
        found.keys.retain(|(id, _)| next.is_none_or(|next| *id < next) && is_ended(id));
        found.next = next;
    }

    /// Removes the keys that matched; keys that were removed meanwhile are not counted.
    fn sweep(&mut self, round: Round, mut found: Found) {
        if !self.recovering.is_empty() {
            // The actor was rebuilt meanwhile: run the round again once the index is complete.
            return self.enter_round(round);
        }
        let Round { ask, reply, mut taken, ended } = round;
        if let Some(e) = self.refuse_round(&ask.request) {
            return reply.send(Response::Failed(e));
        }
        let (ask, reply) = match ended {
            Some(ended) => {
                self.keep_ended(&mut found, &ended);
                (ask, reply)
            }
            None => {
                let mut sets = self.sets_of(found.keys.iter().map(|k| k.0));
                sets.extend(self.unended.iter().copied());
                let (from_logs, removed_count) = (taken.from_logs, taken.from_disks);
                let swept = Some(found.next);
                let known = Known { from_logs, removed_count, swept, ..Known::default() };
                // Then the round runs again.
                let Some(asked) = self.end_sets(sets, ask, reply, known) else { return };
                asked
            }
        };
        // Each round asks the disks again, and they answer the same until the last one is over.
        if !matches!(&ask.request, Request::RemoveMatching(of) if of.from.is_none()) {
            taken.from_disks = 0;
        }
        let next = found.next;
        let n = found.keys.len();
        let batch = self.batches.swept(n, (next, taken), reply);
        let keys = found.keys.iter().map(|(_, row)| &*row.key);
        self.remove_each(batch, keys, &hashbrown::HashSet::new());
        // Counted as one more item, so that the answer waits until the loss of a rank is known to
        // the others: keys of a lost rank come back if a later master does not learn of the loss.
        self.complete_remove(batch, n, Ok(()));
    }
}

impl On<RoundMatched> for Master {
    fn on(&mut self, m: RoundMatched, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        // A rebuilt actor also gets the results of rounds that began before the panic.
        self.rounds.running = self.rounds.running.saturating_sub(1);
        match (m.found, &m.round.ask.request) {
            (Err(e), _) => m.round.reply.send(Response::Failed(e)),
            (Ok(found), Request::RemoveMatching(_)) => self.sweep(m.round, found),
            (Ok(Found { keys, next }), _) => {
                let keys = keys.into_iter().map(|(_, row)| row).collect();
                m.round.reply.send(Response::Listed { keys, next });
            }
        }
        self.start_rounds(ctx);
        reply.send(());
    }
}

/// The query of a round.
struct Query {
    pattern: Option<String>,
    from: KeyId,
    // For a listing: the key after which it begins, and the limit.
    page: Option<(Option<Vec<u8>>, usize)>,
}

impl Query {
    fn of(request: &Request) -> Option<Self> {
        let (of, page) = match request {
            Request::List { of, after, limit } => {
                (of, Some((after.as_ref().map(|k| Vec::from(k.clone())), *limit as usize)))
            }
            Request::RemoveMatching(of) => (of, None),
            _ => return None,
        };
        let Selection { pattern, from } = of.clone();
        let from = from.map_or(KeyId { hash: 0, check: 0 }, KeyId::from);
        Some(Self { pattern, from, page })
    }

    /// Runs the pattern over what a round saw. Not in the actor: a pattern may be slow.
    fn run(
        self,
        mut seen: Vec<Seen>,
        next: Option<KeyId>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Found> {
        let pattern = self.pattern.as_deref().map(compile).transpose()?;
        let after = self.page.as_ref().and_then(|(after, _)| after.as_deref());
        let mut found = Found { keys: Vec::new(), next };
        seen.sort_unstable_by_key(|(id, _)| *id);
        let until_ms = clock.now_ms() + MATCH_LIMIT_MS;
        for (looked_at, s) in seen.into_iter().enumerate() {
            if looked_at > 0 && clock.now_ms() >= until_ms {
                found.next = Some(s.0);
                break;
            }
            let key = &*s.1.key;
            // They are no keys of the user, and are removed with their object.
            if is_stripe(key) && (self.page.is_some() || pattern.is_some()) {
                continue;
            }
            if after.is_none_or(|a| key > a) && pattern.as_ref().is_none_or(|p| p.is_match(key)) {
                found.keys.push(s);
            }
        }
        if let Some((_, limit)) = self.page {
            found.keys.sort_unstable_by(|(_, a), (_, b)| a.key.cmp(&b.key));
            found.keys.truncate(limit);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::{MATCH_LIMIT_MS, Query, Seen};
    use crate::ErrorKind;
    use crate::message::{KeyBytes, KeyState, Listed, MAX_PATTERN_BYTES};
    use crate::pattern::compile;
    use nkv_store::clock::Clock;
    use nkv_store::{KeyId, Retention};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Each reading advances the clock by the second field, in milliseconds.
    #[derive(Debug)]
    struct SlowClock(AtomicU64, u64);

    impl Clock for SlowClock {
        fn now_ns(&self) -> u64 {
            self.0.fetch_add(self.1 * 1_000_000, Ordering::Relaxed)
        }
    }

    fn clock(step_ms: u64) -> Arc<dyn Clock> {
        Arc::new(SlowClock(AtomicU64::new(0), step_ms))
    }

    fn seen(keys: &[&[u8]]) -> Vec<Seen> {
        let one = |k: &&[u8]| {
            let (key, state) = (KeyBytes::from(*k), KeyState::Ready);
            let (others, extras, retention) = (Vec::new(), Vec::new(), Retention::Usual);
            let row = Listed { key, bytes_total: 1, rank: 0, others, extras, retention, state };
            (nkv_store::KeyHasher::new([7; 16]).id(k), row)
        };
        keys.iter().map(one).collect()
    }

    fn query(pattern: Option<&str>, page: Option<(Option<&[u8]>, usize)>) -> Query {
        let page = page.map(|(after, limit)| (after.map(<[u8]>::to_vec), limit));
        Query { pattern: pattern.map(str::to_string), from: KeyId { hash: 0, check: 0 }, page }
    }

    fn keys_of(found: &super::Found) -> Vec<&[u8]> {
        found.keys.iter().map(|(_, row)| &*row.key).collect()
    }

    #[test]
    fn a_pattern_is_searched_for_in_bytes_and_not_anchored() {
        for (pattern, key, matches) in [
            ("b", &b"abc"[..], true),
            ("^b", b"abc", false),
            ("^abc$", b"abc", true),
            ("", b"\xff", true),
            (r"(?-u:\xff)", b"a\xffb", true),
            ("^a.b$", b"a\xffb", false),
            (r"^a(?s-u:.)b$", b"a\xffb", true),
            ("ü", "über/grün".as_bytes(), true),
        ] {
            assert_eq!(compile(pattern).unwrap().is_match(key), matches, "{pattern} in {key:?}");
        }
    }

    #[test]
    fn a_wrong_pattern_gets_the_text_of_the_regex_crate_and_a_huge_one_is_not_compiled() {
        let long = "a".repeat(MAX_PATTERN_BYTES + 1);
        for (pattern, expected) in
            [("a(", "unclosed group"), (r"\w{100000}", "size limit"), (&long, "at most 4096 bytes")]
        {
            let e = compile(pattern).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidArgument);
            assert!(e.message().contains(expected), "{e}");
        }
    }

    #[test]
    fn a_slow_pattern_ends_its_round_early_and_the_next_goes_on_there() {
        let all: Vec<Vec<u8>> = (0..50).map(|i| format!("k{i:02}").into_bytes()).collect();
        let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let (mut got, mut from, mut rounds) = (Vec::new(), KeyId { hash: 0, check: 0 }, 0);
        loop {
            let mut left = seen(&all);
            left.retain(|(id, _)| *id >= from);
            let round = query(Some("k"), None).run(left, None, &clock(MATCH_LIMIT_MS)).unwrap();
            got.extend(keys_of(&round).into_iter().map(<[u8]>::to_vec));
            rounds += 1;
            match round.next {
                Some(next) => from = next,
                None => break,
            }
        }
        got.sort_unstable();
        assert_eq!((got.iter().map(Vec::as_slice).collect::<Vec<_>>(), rounds), (all, 50));
    }

    #[test]
    fn a_page_is_the_first_keys_after_a_key() {
        let keys: [&[u8]; 5] = [b"b", b"a", b"\xff", b"ab", b"c"];
        let page = |after: Option<&[u8]>, limit| {
            let query = query(None, Some((after, limit)));
            let found = query.run(seen(&keys), None, &clock(0)).unwrap();
            keys_of(&found).into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        assert_eq!(page(None, 2), [b"a".to_vec(), b"ab".to_vec()]);
        assert_eq!(page(Some(b"ab"), 9), [b"b".to_vec(), b"c".to_vec(), b"\xff".to_vec()]);
        assert_eq!(page(Some(b"\xff"), 9), Vec::<Vec<u8>>::new());
        assert_eq!(page(None, 0), Vec::<Vec<u8>>::new());
    }
}
