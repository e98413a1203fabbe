//! What `nkv top` shows: computed from the latest sample of the cluster and the one before, which
//! gives rates. Pure: it sends no request and draws nothing. What is not known is absent, never
//! zero.

use super::collect::Sample;
use super::status_page::{ActorPage, NodePage};
use nkv::message::{ClusterStats, OwnerGauges, RankState, View};
use nkv_actors::tier::TierFigures;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Totals of past samples kept for the curve.
const HISTORY: usize = 512;

/// How a rank or actor is, for its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Health {
    /// As it should be.
    Good,
    /// Needs attention.
    Odd,
    /// Broken.
    Bad,
}

/// Everything on the screen.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Screen {
    /// The job.
    pub(super) job: String,
    /// Ranks of the job; 0 until a master has answered.
    pub(super) world_size: u32,
    /// Ranks that are members and linked to the master, by its last answer.
    pub(super) members: usize,
    /// False while these are too few: then the master serves nothing.
    pub(super) serves: bool,
    /// Why the master does not answer, and for how many milliseconds.
    pub(super) master_lost: Option<(String, u64)>,
    /// The master's figures.
    pub(super) master: Option<MasterRow>,
    /// One row per rank.
    pub(super) ranks: Vec<RankRow>,
    /// Of all ranks together.
    pub(super) total: Rates,
    /// Payload bytes per second in past samples, read and written, the latest last.
    #[serde(skip)]
    pub(super) history: Vec<u64>,
}

/// The master's figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct MasterRow {
    /// Its rank.
    pub(super) rank: u32,
    /// Number of its term.
    pub(super) term: u64,
    /// Objects listed.
    pub(super) objects: u64,
    /// Plans open.
    pub(super) plans_open: u64,
    /// Opens that wait for room.
    pub(super) waiting: u64,
    /// Objects that have fewer replicas than they should.
    pub(super) replicas_missing: u64,
    /// How new objects are placed.
    pub(super) placement: String,
    /// Keys looked up per second.
    pub(super) lookups_per_s: Option<f64>,
    /// Keys found per key looked up since the sample before.
    pub(super) hit_ratio: Option<f64>,
    /// The same since the master started.
    pub(super) hit_ratio_total: Option<f64>,
}

/// One rank.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RankRow {
    /// Its number.
    pub(super) rank: u32,
    /// Its state, in one word.
    pub(super) state: String,
    /// How healthy that state is.
    pub(super) health: Health,
    /// Figures of its heap; absent for a rank that is not there.
    pub(super) heap: Option<OwnerGauges>,
    /// Largest contiguous free range, in bytes, that the master's allocator has.
    pub(super) hole: Option<u64>,
    /// Milliseconds since its last message to the master.
    pub(super) heard_ms: Option<u64>,
    /// Its SSD tier, if it has one and served its status.
    pub(super) ssd: Option<SsdRow>,
    /// What it does per second.
    pub(super) rates: Option<Rates>,
    /// Its actors.
    pub(super) actors: Vec<ActorRow>,
    /// Why its own status is absent.
    pub(super) silent: Option<String>,
}

/// The SSD tier of a rank.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SsdRow {
    /// Objects saved per second.
    pub(super) saved_per_s: Option<f64>,
    /// Objects brought back into memory per second.
    pub(super) promoted_per_s: Option<f64>,
    /// As the rank's status has them.
    pub(super) figures: TierFigures,
}

impl SsdRow {
    /// Objects that are not on disk, or that the disk did not give, though they should be.
    pub(super) fn lost(&self) -> u64 {
        let f = &self.figures;
        f.kv_demote_dropped
            + f.kv_demote_unnamed
            + f.ssd_save_fail
            + f.ssd_load_corrupt
            + f.ssd_load_fail
    }

    fn of(figures: &TierFigures, then: Option<&TierFigures>, seconds: Option<f64>) -> Self {
        let rate = |of: fn(&TierFigures) -> u64| {
            let more = of(figures).saturating_sub(of(then?));
            Some(more as f64 / seconds?.max(1e-3))
        };
        Self {
            saved_per_s: rate(|f| f.ssd_save_success),
            promoted_per_s: rate(|f| f.kv_promote_hits),
            figures: figures.clone(),
        }
    }
}

/// Per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    /// Gets that readers reported.
    pub(super) gets: f64,
    /// Bytes that readers reported.
    pub(super) bytes_read: f64,
    /// Objects committed.
    pub(super) puts: f64,
    /// Bytes committed.
    pub(super) bytes_written: f64,
    /// Objects evicted.
    pub(super) evictions: f64,
}

/// One actor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ActorRow {
    /// Which one.
    pub(super) name: String,
    /// Its state, in one word.
    pub(super) state: String,
    /// How healthy that state is.
    pub(super) health: Health,
    /// Messages in its mailbox.
    pub(super) queue: u64,
    /// Times restarted after a panic.
    pub(super) restarts: u32,
    /// Where it is frozen, or its last panic.
    pub(super) fault: Option<String>,
}

/// State kept between samples.
#[derive(Debug, Default)]
pub(super) struct Model {
    job: String,
    /// Time of the previous sample, and each rank's counters then, by incarnation.
    before: Option<(u64, BTreeMap<u64, OwnerGauges>)>,
    /// The figures of SSD tiers then, by incarnation.
    ssd_before: BTreeMap<u64, TierFigures>,
    /// Keys found and not found by then, and the master's term.
    lookups: Option<(u64, u64, u64)>,
    /// The members by the master's last answer.
    view: View,
    /// Time of that answer, in nanoseconds; until there is one, of the first sample.
    answered_ns: Option<u64>,
    /// Ranks that were members at some time.
    seen: BTreeSet<u32>,
    history: VecDeque<u64>,
}

impl Model {
    /// A model without samples.
    pub(super) fn new(job: String) -> Self {
        Self { job, ..Self::default() }
    }

    /// Adds a sample; returns what to show now.
    pub(super) fn update(&mut self, sample: Sample) -> Screen {
        let seconds = self.before.as_ref().map(|(then, _)| (sample.at_ns - then) as f64 / 1e9);
        let master =
            sample.master.as_ref().ok().map(|(view, stats)| self.master_row(view, stats, seconds));
        let answered_ns = self.answered_ns.get_or_insert(sample.at_ns);
        let master_lost = match &sample.master {
            Ok((view, _)) => {
                self.seen.extend(view.nodes().map(|(info, _)| info.rank));
                self.view = view.clone();
                *answered_ns = sample.at_ns;
                None
            }
            Err(why) => Some((why.clone(), (sample.at_ns - *answered_ns) / 1_000_000)),
        };
        let ranks: Vec<RankRow> =
            (0..self.view.world_size).map(|rank| self.rank_row(rank, &sample, seconds)).collect();
        let counters = self.view.nodes().filter_map(|(info, _)| {
            let row: &RankRow = ranks.get(info.rank as usize)?;
            Some((info.incarnation, row.heap?))
        });
        self.before = Some((sample.at_ns, counters.collect()));
        let figures = self.view.nodes().filter_map(|(info, _)| {
            let row: &RankRow = ranks.get(info.rank as usize)?;
            Some((info.incarnation, row.ssd.as_ref()?.figures.clone()))
        });
        self.ssd_before = figures.collect();
        let total = ranks.iter().filter_map(|r| r.rates).fold(Rates::default(), Rates::plus);
        if seconds.is_some() {
            self.history.push_back((total.bytes_read + total.bytes_written) as u64);
            self.history.drain(..self.history.len().saturating_sub(HISTORY));
        }
        Screen {
            job: self.job.clone(),
            world_size: self.view.world_size,
            members: self.view.linked().count(),
            // Before the first answer nothing is known.
            serves: self.view.world_size == 0 || self.view.has_quorum(),
            master_lost,
            master,
            ranks,
            total,
            history: self.history.iter().copied().collect(),
        }
    }

    fn master_row(&mut self, view: &View, stats: &ClusterStats, seconds: Option<f64>) -> MasterRow {
        let (hits, misses) = (stats.master.lookup_hits, stats.master.lookup_misses);
        let ratio = |hits: u64, misses: u64| {
            (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
        };
        // The counters of a master of another term start from zero.
        let then = self.lookups.filter(|(term, ..)| *term == view.term.number);
        let since = then.map(|(_, h, m)| (hits.saturating_sub(h), misses.saturating_sub(m)));
        self.lookups = Some((view.term.number, hits, misses));
        MasterRow {
            rank: view.master,
            term: view.term.number,
            objects: stats.objects,
            plans_open: stats.plans_open,
            waiting: stats.waiting,
            replicas_missing: stats.master.repairs_waiting,
            placement: view.placement.to_string(),
            lookups_per_s: since.zip(seconds).map(|((h, m), s)| (h + m) as f64 / s.max(1e-3)),
            hit_ratio: since.and_then(|(h, m)| ratio(h, m)),
            hit_ratio_total: ratio(hits, misses),
        }
    }

    fn rank_row(&self, rank: u32, sample: &Sample, seconds: Option<f64>) -> RankRow {
        let member = self.view.nodes().find(|(info, _)| info.rank == rank);
        let page = sample.nodes.get(&rank);
        let fresh = sample.master.is_ok();
        let (state, health) = self.state(rank, member.map(|(_, state)| *state), page, fresh);
        let stats = sample.master.as_ref().ok().and_then(|(_, stats)| {
            stats.ranks.iter().find(|r| member.is_some_and(|(i, _)| i.incarnation == r.incarnation))
        });
        // From its own status, else from its last heartbeat to the master.
        let own = page.and_then(|page| page.as_ref().ok()?.owner);
        let heap = member.and(own.or(stats.map(|s| s.owner)));
        let rates = heap.zip(seconds).zip(member).and_then(|((now, seconds), (info, _))| {
            let then = self.before.as_ref()?.1.get(&info.incarnation)?;
            Some(Rates::between(then, &now, seconds))
        });
        let actors = match page {
            Some(Ok(page)) => page.actors.iter().map(ActorRow::of).collect(),
            _ => Vec::new(),
        };
        let silent = match (member, page) {
            (Some(_), Some(Err(why))) => Some(why.clone()),
            (Some((info, _)), None) if info.http.is_none() => {
                Some("serves no /status (--http off)".to_string())
            }
            _ => None,
        };
        let figures = page.and_then(|page| page.as_ref().ok()?.ssd.as_ref()).zip(member);
        let ssd = figures.map(|(figures, (info, _))| {
            SsdRow::of(figures, self.ssd_before.get(&info.incarnation), seconds)
        });
        RankRow {
            rank,
            state,
            health,
            heap,
            ssd,
            hole: stats.map(|s| s.largest_hole),
            heard_ms: stats.map(|s| s.heard_ms),
            rates,
            actors,
            silent,
        }
    }

    /// A rank's state in one word: the master's if it answered, else the rank's own.
    fn state(
        &self,
        rank: u32,
        member: Option<RankState>,
        page: Option<&Result<NodePage, String>>,
        fresh: bool,
    ) -> (String, Health) {
        let (state, health) = match (member, page) {
            (None, _) if self.seen.contains(&rank) => ("gone", Health::Bad),
            (None, _) => ("missing", Health::Bad),
            (Some(RankState::Suspect), _) if fresh => ("suspect", Health::Bad),
            (Some(RankState::Draining), _) if fresh => ("draining", Health::Odd),
            (Some(_), Some(Err(_))) => ("unreachable", Health::Bad),
            (Some(_), Some(Ok(page))) if page.draining => ("draining", Health::Odd),
            (Some(_), Some(Ok(page))) if page.link != "joined" => {
                let state = page.link.split([':', ' ']).next().unwrap_or_default();
                return (state.to_string(), Health::Odd);
            }
            (Some(_), None) if !fresh => ("unknown", Health::Odd),
            (Some(_), _) => ("alive", Health::Good),
        };
        (state.to_string(), health)
    }
}

impl Rates {
    fn between(then: &OwnerGauges, now: &OwnerGauges, seconds: f64) -> Self {
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds.max(1e-3);
        Self {
            gets: rate(now.gets_served, then.gets_served),
            bytes_read: rate(now.bytes_read, then.bytes_read),
            puts: rate(now.commits, then.commits),
            bytes_written: rate(now.bytes_written, then.bytes_written),
            evictions: rate(now.evictions, then.evictions),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            gets: self.gets + other.gets,
            bytes_read: self.bytes_read + other.bytes_read,
            puts: self.puts + other.puts,
            bytes_written: self.bytes_written + other.bytes_written,
            evictions: self.evictions + other.evictions,
        }
    }
}

impl ActorRow {
    fn of(page: &ActorPage) -> Self {
        let state = if page.state.is_empty() { "running" } else { page.state.as_str() };
        let health = match state {
            "running" if page.restarts == 0 => Health::Good,
            "running" => Health::Odd,
            _ => Health::Bad,
        };
        let frozen = page.frozen_in.as_ref().map(|what| format!("{state} in {what}"));
        let panic = page.last_error.as_ref().map(|text| format!("last panic: {text}"));
        Self {
            name: page.name.clone(),
            state: state.to_string(),
            health,
            queue: page.queue,
            restarts: page.restarts,
            fault: frozen.or(panic),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
