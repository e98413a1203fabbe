//! A producer of the model: one process, one put at a time, whose verbs land one by one after they
//! were posted, also after it died.

use super::{Actual, Bug, Model, RULES, Step as Done, Wrong};
use crate::device_log::tests::{U, key, open_entries};
use crate::device_log::*;
use crate::key::KeyId;
use crate::op::Op;
use std::collections::VecDeque;

/// How often it reads the limit while it waits for room.
const MAX_WAITS: u32 = 25;

/// A verb in flight, of the claim at a position.
#[derive(Debug)]
struct Verb {
    p: u64,
    end: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    Write(u64, Vec<u8>),
    Store(u64, u64),
    Swap(u64, u64, u64),
}

/// Its entry, in a table that is never freed: a claim is held beyond any borrow.
type Ticket = OpenClaim<'static>;

#[derive(Debug)]
enum Life {
    Idle,
    /// Read the control line.
    Looked(LogPut, ControlLine),
    Entered(LogPut, Option<Ticket>),
    /// The fetch-and-add came back; not noted yet.
    Added(Claim, Option<Ticket>),
    Waiting(Claim, Ticket, u32),
    /// The verbs that end the claim are in flight; afterwards the put starts again, or is over.
    Ending(Ticket, Option<LogPut>),
    /// So many units are posted.
    Writing(ClaimWrite, Ticket, u64),
    Publishing(u64, Option<Ticket>),
    /// Until the owner replies.
    Abandoning(Ticket),
}

#[derive(Debug)]
pub(super) struct Producer {
    pub(super) id: u64,
    pub(super) claims: &'static OpenClaims,
    queue: VecDeque<Verb>,
    life: Life,
    /// The current put: the word that fills it, its key and its logical bytes.
    name: u64,
    key: KeyId,
    bytes: u64,
    pub(super) dead: bool,
    pub(super) fenced: bool,
    /// After its death a verb lands once in so many turns.
    late: u64,
    /// Not scheduled before this time.
    asleep_until: u64,
    took: Option<bool>,
    pub(super) replied: bool,
}

impl Producer {
    pub(super) fn new(id: u64) -> Producer {
        let entries = (0..4).map(|_| Line::default()).collect();
        Producer {
            id,
            claims: Box::leak(Box::new(OpenClaims::with(entries, Landing::Later))),
            queue: VecDeque::new(),
            life: Life::Idle,
            name: 0,
            key: key(0),
            bytes: 0,
            dead: false,
            fenced: false,
            late: 1,
            asleep_until: 0,
            took: None,
            replied: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.queue.is_empty() && (self.dead || matches!(self.life, Life::Idle))
    }

    /// None of its verbs lands any more [I10].
    pub(super) fn fence(&mut self) {
        self.queue.clear();
        self.fenced = true;
    }

    /// The owner may drop it without asking: dead, with no claim open and no verb in flight.
    fn is_gone(&self) -> bool {
        self.dead && (self.fenced || self.queue.is_empty() && open_entries(self.claims) == (0, 0))
    }

    fn post(&mut self, (p, n): (u64, u64), ops: &[Op<'_>]) {
        for op in ops {
            let what = match op {
                Op::Write { offset, src } => What::Write(*offset, src.to_vec()),
                Op::Store { offset, value } => What::Store(*offset, *value),
                Op::CompareSwap { offset, expect, new, .. } => What::Swap(*offset, *expect, *new),
                _ => continue,
            };
            self.queue.push_back(Verb { p, end: p + n, what });
        }
    }
}

impl Model {
    /// One producer lands a verb or makes a step. With `begin`, idle ones put and some die.
    pub(super) fn producer_step(&mut self, begin: bool) -> Done {
        let i = self.dice.below(self.producers.len() as u64) as usize;
        if !self.producers[i].queue.is_empty() && self.dice.one_in(2) {
            return self.land(i);
        }
        if self.producers[i].is_gone() {
            self.producers[i] = Producer::new(self.next_producer);
            self.next_producer += 1;
        }
        if self.producers[i].dead || self.producers[i].asleep_until > self.now {
            return Ok(());
        }
        if begin && self.dice.one_in(300) {
            self.producers[i].dead = true;
            self.producers[i].late = [1, 30, 1000][self.dice.below(3) as usize];
            self.met.crashes += 1;
            return Ok(());
        }
        if begin && self.dice.one_in(100) {
            self.producers[i].asleep_until = self.now + self.dice.below(2 * RULES.claim_ttl_ns);
        }
        if begin || !matches!(self.producers[i].life, Life::Idle) {
            return self.go_on(i);
        }
        Ok(())
    }

    /// The oldest verbs in flight arrive.
    fn land(&mut self, i: usize) -> Done {
        if self.dice.one_in(self.producers[i].late) {
            for _ in 0..=self.dice.below(3) {
                self.land_one(i)?;
            }
        }
        Ok(())
    }

    fn land_one(&mut self, i: usize) -> Done {
        let Some(Verb { p, end, what }) = self.producers[i].queue.pop_front() else {
            return Ok(());
        };
        let limit = self.w.memory.load(HEAP_LIMIT_OFF).unwrap();
        if self.all_seeing && end > limit {
            return Err(Wrong::AboveTheLimit(p));
        }
        if self.all_seeing && p < self.w.log.tail {
            return Err(Wrong::BelowTheTail(p));
        }
        let memory = &self.w.memory;
        match what {
            What::Write(offset, src) => memory.write(offset, &src).unwrap(),
            What::Store(offset, value) => memory.store(offset, value).unwrap(),
            What::Swap(offset, expect, new) => {
                let took = memory.compare_swap(offset, expect, new).unwrap() == expect;
                self.producers[i].took = Some(took);
            }
        }
        Ok(())
    }

    fn line(&self) -> ControlLine {
        self.w.line()
    }

    fn go_on(&mut self, i: usize) -> Done {
        let life = std::mem::replace(&mut self.producers[i].life, Life::Idle);
        let next = match life {
            Life::Idle => self.begin(i),
            Life::Looked(put, line) => match put.room(&line) {
                None => {
                    // It takes a plan.
                    self.w.log.put_elsewhere(self.producers[i].bytes);
                    Life::Idle
                }
                Some(_) if self.bug == Bug::EntersLate => Life::Entered(put, None),
                Some(bound) => {
                    let ticket = self.producers[i].claims.enter_from(0, bound).unwrap();
                    Life::Entered(put, Some(ticket))
                }
            },
            Life::Entered(put, ticket) => self.add(i, put, ticket),
            Life::Added(claim, ticket) => {
                let claims = self.producers[i].claims;
                let open = match ticket {
                    Some(ticket) => ticket,
                    None => claims.enter_from(0, claim.position).unwrap(),
                };
                open.note(claim.position);
                Life::Waiting(claim, open, 0)
            }
            Life::Waiting(claim, ticket, waited) => self.decide(i, claim, ticket, waited),
            Life::Ending(ticket, again) => self.end(i, ticket, again),
            Life::Writing(write, ticket, units) => self.write(i, write, ticket, units),
            Life::Publishing(p, ticket) => return self.publish(i, p, ticket),
            Life::Abandoning(ticket) if self.producers[i].replied => {
                ticket.leave();
                Life::Idle
            }
            Life::Abandoning(ticket) => Life::Abandoning(ticket),
        };
        self.producers[i].life = next;
        Ok(())
    }

    /// A new put: sometimes of a key that was put before.
    fn begin(&mut self, i: usize) -> Life {
        let name = self.actual.len() as u64 + 1 + (self.now << 20);
        let bytes = 1 + self.dice.below(self.w.layout.max_claim());
        let before = self.actual.len() as u64;
        let mut id = key(name);
        if before > 0 && self.dice.one_in(5) {
            let back = self.dice.below(before.min(8));
            id = self.actual.values().rev().nth(back as usize).unwrap().key;
        }
        let producer = &mut self.producers[i];
        (producer.name, producer.key, producer.bytes) = (name, id, bytes);
        Life::Looked(self.put_of(i), self.line())
    }

    fn put_of(&self, i: usize) -> LogPut {
        let Producer { key, bytes, .. } = self.producers[i];
        LogPut::new(self.w.layout, key, 4096, bytes).unwrap()
    }

    fn add(&mut self, i: usize, put: LogPut, ticket: Option<Ticket>) -> Life {
        let mut op = put.fetch_add();
        op.run(self.w.memory.as_ref()).unwrap();
        let Op::FetchAdd { old: p, .. } = op else { unreachable!() };
        let actual = Actual {
            n: put.claim_bytes(),
            producer: self.producers[i].id,
            name: self.producers[i].name,
            key: self.producers[i].key,
            done: false,
            acknowledged: false,
        };
        self.actual.insert(p, actual);
        Life::Added(put.claimed(p), ticket)
    }

    fn decide(&mut self, i: usize, claim: Claim, ticket: Ticket, waited: u32) -> Life {
        let line = self.line();
        let ignores = self.bug == Bug::WritesAboveTheLimit;
        let p = claim.position;
        let limit = if ignores { u64::MAX } else { line.heap_limit() };
        let mut next = claim.next(limit);
        if let ClaimStep::Wait(claim) = next {
            self.met.waits += u64::from(waited == 0);
            if waited < MAX_WAITS {
                return Life::Waiting(claim, ticket, waited + 1);
            }
            let abandon = claim.abandon();
            self.mail.push_back((self.producers[i].id, abandon));
            self.producers[i].replied = false;
            if self.bug != Bug::WritesWhatItAbandoned {
                self.actual.get_mut(&p).unwrap().done = true;
                return Life::Abandoning(ticket);
            }
            next = self.put_of(i).claimed(p).next(u64::MAX);
        }
        match next {
            ClaimStep::Wait(_) => unreachable!(),
            ClaimStep::Skip(skip) => {
                let put = self.put_of(i);
                self.producers[i].post((p, put.claim_bytes()), &skip.ops());
                self.actual.get_mut(&p).unwrap().name = 0;
                Life::Ending(ticket, Some(put))
            }
            ClaimStep::Write(write) => {
                let n = self.actual[&p].n;
                self.producers[i].post((p, n), &write.publication().announce());
                Life::Writing(write, ticket, 0)
            }
        }
    }

    /// A skip or an abort: done once it has landed.
    fn end(&mut self, i: usize, ticket: Ticket, again: Option<LogPut>) -> Life {
        if !self.producers[i].queue.is_empty() {
            return Life::Ending(ticket, again);
        }
        let id = self.producers[i].id;
        let mine = self.actual.values_mut().filter(|actual| actual.producer == id);
        mine.for_each(|actual| actual.done = true);
        let line = self.line();
        let open = ticket;
        match again.and_then(|put| put.room(&line).map(|bound| (put, bound))) {
            Some((put, bound)) => {
                open.note(bound);
                Life::Entered(put, Some(open))
            }
            None => {
                open.leave();
                Life::Idle
            }
        }
    }

    /// Posts one unit after the other, then READY; sometimes it fails before the end.
    fn write(&mut self, i: usize, write: ClaimWrite, ticket: Ticket, units: u64) -> Life {
        let p = write.position;
        let n = self.actual[&p].n;
        if self.dice.one_in(40) {
            self.met.aborts += 1;
            self.producers[i].post((p, n), &write.abort().ops());
            return Life::Ending(ticket, None);
        }
        let object = write.publication();
        let (name, bytes) = (self.producers[i].name, self.producers[i].bytes);
        let at = units * U;
        if at < bytes {
            let page = name.to_le_bytes().repeat(U as usize / 8);
            let page = &page[..(bytes - at).min(U) as usize];
            self.producers[i].post((p, n), &[object.page(at, page)]);
            return Life::Writing(write, ticket, units + 1);
        }
        self.producers[i].took = None;
        self.producers[i].post((p, n), &object.publish());
        if self.bug == Bug::LeavesEarly {
            ticket.leave();
            return Life::Publishing(p, None);
        }
        Life::Publishing(p, Some(ticket))
    }

    fn publish(&mut self, i: usize, p: u64, ticket: Option<Ticket>) -> Done {
        let producer = &mut self.producers[i];
        let Some(took) = producer.took.take() else {
            producer.life = Life::Publishing(p, ticket);
            return Ok(());
        };
        if !took && self.all_seeing {
            return Err(Wrong::Reclaimed(p));
        }
        if let Some(ticket) = ticket {
            ticket.leave();
        }
        self.met.puts += u64::from(took);
        let actual = self.actual.get_mut(&p).unwrap();
        (actual.done, actual.acknowledged) = (true, took);
        Ok(())
    }
}
