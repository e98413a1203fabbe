//! Key strings of logged objects. Producers send them in batches after their puts, and the owner
//! announces the objects to the master once it has them. Before a listing the master asks for all:
//! then the owner asks every producer for the keys that it has not sent yet. Puts never wait.

use super::Owner;
use super::log::Log;
use crate::actor::{Context, Message, On, Reply};
use crate::client::log_names::NAMES_PER_FRAME;
use crate::message::{KeyReport, OwnerToClient, OwnerToMaster};
use nkv_store::Key;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Key strings taken in, and entries reported to the master, in one pass over the log: some 2 ms of
/// work each. Under a flood of puts, listing lags behind; lookups do not.
const KEYS_PER_PASS: usize = 2048;
const ENTRIES_PER_PASS: usize = 2048;

/// How long producers have to send their keys. One that is late, because it is stopped, is waited
/// for again only after it has answered.
const SEND_LIMIT_NS: u64 = 300_000_000;
/// Then the owner answers, also if it has not announced all: the master waits for a second.
const ANSWER_LIMIT_NS: u64 = 700_000_000;

/// Names one connection of a producer.
pub type SenderId = u64;

/// A connection of a producer in another process.
#[derive(Debug)]
struct NameSender {
    tx: mpsc::Sender<OwnerToClient>,
    // The last round in which it was asked, and the last that it answered.
    asked: u64,
    answered: u64,
    late: bool,
}

impl NameSender {
    fn owes(&self, round: u64) -> bool {
        !self.late && self.asked >= round && self.answered < round
    }
}

#[derive(Debug, Default)]
struct Senders {
    next: SenderId,
    round: u64,
    all: BTreeMap<SenderId, NameSender>,
}

/// The producers in other processes, whatever they write through. Kept outside the Owner actor.
#[derive(Debug, Default)]
pub struct NameSenders(Mutex<Senders>);

impl NameSenders {
    fn lock(&self) -> MutexGuard<'_, Senders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A producer attached. `remove` it once all its frames are in the owner's mailbox.
    pub fn add(&self, tx: mpsc::Sender<OwnerToClient>) -> SenderId {
        let mut senders = self.lock();
        senders.next += 1;
        let (id, sender) = (senders.next, NameSender { tx, asked: 0, answered: 0, late: false });
        senders.all.insert(id, sender);
        id
    }

    /// Its connection ended.
    pub fn remove(&self, id: SenderId) {
        self.lock().all.remove(&id);
    }

    /// Begins a round: asks every producer that is not late. Returns the round.
    fn ask(&self) -> u64 {
        let mut senders = self.lock();
        senders.round += 1;
        let round = senders.round;
        for sender in senders.all.values_mut().filter(|s| !s.late) {
            // A full queue: its process reads nothing.
            if sender.tx.try_send(OwnerToClient::SendNames(round)).is_ok() {
                sender.asked = round;
            }
        }
        round
    }

    /// A producer has sent all. What it claims of rounds that were not asked counts for nothing.
    fn sent(&self, id: SenderId, round: u64) {
        if let Some(sender) = self.lock().all.get_mut(&id) {
            sender.answered = sender.answered.max(round.min(sender.asked));
            sender.late = false;
        }
    }

    /// Whether a producer still has to answer in this round, or in a later one that covers it.
    fn waits(&self, round: u64) -> bool {
        self.lock().all.values().any(|sender| sender.owes(round))
    }

    /// Those that have not answered are late. Returns their number.
    fn give_up(&self, round: u64) -> usize {
        let mut senders = self.lock();
        let owing = senders.all.values_mut().filter(|sender| sender.owes(round));
        owing.map(|sender| sender.late = true).count()
    }
}

/// How far the answer to a question of the master is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Producers send their keys.
    Asked,
    /// All have sent. Their frames are in the mailbox before the message that ends this stage.
    Sent,
    /// Keys are taken in, up to this count.
    TakeIn(u64),
    /// Objects are announced, up to this count.
    Announce(u64),
}

#[derive(Debug)]
struct Question {
    number: u64,
    round: u64,
    asked_ns: u64,
    stage: Stage,
}

/// Questions of the master that are not answered yet. It bounds their number.
#[derive(Debug, Default)]
pub(super) struct NameQuestions(Vec<Question>);

impl NameQuestions {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A producer has sent all keys that it was asked for.
#[derive(Debug)]
pub struct NamesSent(pub SenderId, pub u64);

/// What was in the mailbox when the producers of these rounds had sent all is handled.
#[derive(Debug)]
pub(super) struct MailboxRead(u64);

impl Message for NamesSent {
    type Reply = ();
}
impl Message for MailboxRead {
    type Reply = ();
}

impl Owner {
    /// The master wants every object announced whose put has returned.
    pub(super) fn asked_for_names(&mut self, number: u64, ctx: &mut Context<'_, Self>) {
        let round = self.ask_for_names();
        let (asked_ns, stage) = (self.durable.clock.now_ns(), Stage::Asked);
        self.name_questions.0.push(Question { number, round, asked_ns, stage });
        self.answer_names(ctx);
    }

    /// Asks every producer for the keys that it has not sent; returns the round.
    pub(super) fn ask_for_names(&self) -> u64 {
        let tables = &self.durable.tables;
        // Handles of this process: their keys are taken at once.
        for gates in tables.attachments.local() {
            // In pieces, since puts note their keys meanwhile; those of later puts are not asked
            // for.
            let mut left = gates.names_noted();
            while left > 0 {
                let names = gates.take_names(left.min(NAMES_PER_FRAME));
                left = if names.is_empty() { 0 } else { left.saturating_sub(names.len()) };
                self.keys_reported(names);
            }
        }
        tables.name_senders.ask()
    }

    /// Moves on with the master's questions; call after each pass over the log.
    pub(super) fn answer_names(&mut self, ctx: &mut Context<'_, Self>) {
        let mut questions = std::mem::take(&mut self.name_questions.0);
        questions.retain_mut(|question| {
            self.move_on(question, ctx);
            !self.is_answered(question)
        });
        self.name_questions.0 = questions;
    }

    fn move_on(&self, question: &mut Question, ctx: &mut Context<'_, Self>) {
        let senders = &self.durable.tables.name_senders;
        if question.stage != Stage::Asked {
            return;
        }
        if senders.waits(question.round) {
            if self.durable.clock.now_ns() < question.asked_ns + SEND_LIMIT_NS {
                return;
            }
            let late = senders.give_up(question.round);
            tracing::warn!(late, "producers that do not send their keys: a listing lacks some");
        }
        question.stage = Stage::Sent;
        let round = question.round;
        ctx.work(async move { MailboxRead(round) });
    }

    /// Answers a question once all is announced, or its time is over.
    fn is_answered(&self, question: &mut Question) -> bool {
        let Some(log) = &self.log else {
            self.answer(question.number);
            return true;
        };
        if let Stage::TakeIn(count) = question.stage
            && self.durable.tables.lock().reported_keys.taken() >= count
        {
            question.stage = Stage::Announce(log.named.put());
        }
        let announced = matches!(question.stage, Stage::Announce(n) if log.named.taken() >= n);
        let late = self.durable.clock.now_ns() >= question.asked_ns + ANSWER_LIMIT_NS;
        if late && !announced {
            let left = self.durable.tables.lock().reported_keys.len() + log.named.len();
            tracing::warn!(left, "keys are taken in too slowly: a listing lacks some");
        }
        if announced || late {
            self.answer(question.number);
        }
        announced || late
    }

    fn answer(&self, number: u64) {
        let (served, removed) = (Vec::new(), Vec::new());
        self.send_to_master(OwnerToMaster::LogAnswer { number, served, removed, taken: 0 });
    }

    /// Takes in up to `KEYS_PER_PASS` reported keys. A producer reports a key after its put, and
    /// this pass accepted the put already.
    pub(super) fn take_names(&self, log: &mut Log) {
        let (mut named, mut late) = (Vec::new(), Vec::new());
        self.take_in(log, &mut named, &mut late);
        self.write_through(&named);
        self.named_late(late);
    }

    /// `named`: objects whose key string is known now; `late`: those that are not live any more.
    fn take_in(
        &self,
        log: &mut Log,
        named: &mut Vec<(u32, u32)>,
        late: &mut Vec<((u32, u32), Key)>,
    ) {
        let mut t = self.durable.tables.lock();
        for _ in 0..KEYS_PER_PASS {
            let Some(KeyReport { slot, epoch, key, group }) = t.reported_keys.pop() else { return };
            let (slot, epoch) = log.unnamed.resolve((slot, epoch));
            let object = log.log.object(slot, epoch);
            // The header holds the key identity: a key string that does not match it is dropped
            // [I16].
            if object.is_some_and(|o| o.key == self.durable.hasher.id(&key)) {
                let Ok(key) = key.into_key(&self.durable.tables.key_pool) else { continue };
                t.keys.insert(slot, (epoch, key));
                if let Some(group) = group {
                    t.groups.add((slot, epoch), group);
                }
                log.named.push((slot, epoch));
                named.push((slot, epoch));
            } else if object.is_none() && self.is_awaited_by_disk((slot, epoch)) {
                late.extend(Key::new(&key).ok().map(|key| ((slot, epoch), key)));
            }
        }
    }

    /// Reports up to `ENTRIES_PER_PASS` objects with a key string to the master.
    pub(super) fn report_keys(&mut self, log: &mut Log) {
        let mut entries = Vec::new();
        while entries.len() < ENTRIES_PER_PASS
            && let Some((slot, epoch)) = log.named.pop()
        {
            let object = log.log.object(slot, epoch).map(|o| self.entry_of(&o));
            entries.extend(object.filter(|o| !o.key.is_empty()));
        }
        if !entries.is_empty() {
            self.send_to_master(OwnerToMaster::Announced(entries));
        }
    }

    /// Key strings that producers report for their logged objects. They are processed at the next
    /// tick: a flood of reports is many messages, and others wait behind them.
    pub(super) fn keys_reported(&self, list: Vec<KeyReport>) {
        // Keep the newest: the log has wrapped since the oldest reports, so those objects are gone.
        // Not decided by `self.log`, which is taken out while it is processed.
        let most = self.durable.heap.layout().log_slots as usize;
        let mut t = self.durable.tables.lock();
        for report in list {
            if self.is_of_log(report.slot) {
                t.reported_keys.push(report);
                continue;
            }
            let KeyReport { slot, epoch, key, group } = report;
            let is_its = t.key(slot, epoch).map(|known| known.as_bytes() == &key[..]);
            match (group, is_its) {
                (Some(group), Some(true)) => t.groups.add((slot, epoch), group),
                (Some(group), None) => t.groups.add_early((slot, epoch), key, group),
                _ => {}
            }
        }
        while t.reported_keys.len() > most {
            t.reported_keys.pop();
        }
    }
}

impl On<NamesSent> for Owner {
    fn on(&mut self, m: NamesSent, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        let NamesSent(id, round) = m;
        self.durable.tables.name_senders.sent(id, round);
        self.answer_names(ctx);
        self.reschedule(ctx);
        reply.send(());
    }
}

impl On<MailboxRead> for Owner {
    fn on(&mut self, m: MailboxRead, reply: Reply<()>, ctx: &mut Context<'_, Self>) {
        let count = self.durable.tables.lock().reported_keys.put();
        for question in &mut self.name_questions.0 {
            if question.stage == Stage::Sent && question.round == m.0 {
                question.stage = Stage::TakeIn(count);
            }
        }
        self.process_log();
        self.answer_names(ctx);
        self.reschedule(ctx);
        reply.send(());
    }
}

#[cfg(test)]
mod tests;
