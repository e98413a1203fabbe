//! One connection of the agent after authentication: the hello, then requests until the peer
//! leaves, stalls, violates the protocol, or takes too long over a request. Each of these ends this
//! connection and no other [I19]. Bytes of a plan are written only while its permit is held, and
//! the permit is dropped before the answer is sent, so a peer that does not read cannot delay a
//! fence [I10].

use super::agent_state::AgentState;
use super::broken::End;
use super::deadline::Deadline;
use super::frame::{
    DESC_BYTES, HELLO_MAGIC, Hello, MAX_JOB_BYTES, RESPONSE_MAGIC, Request, Response, Status,
    TCP_VERSION, message,
};
use super::line::Line;
use super::request::{Steps, check_header};
use crate::access::Cut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Most bytes of small reads collected before a send.
pub(super) const SMALL_BYTES: usize = 16 << 10;

/// State of one connection; buffers are bounded and reused.
pub(super) struct Connection<'a> {
    pub(super) shared: &'a AgentState,
    pub(super) line: Line,
    cut: Arc<dyn Cut>,
    pub(super) steps: Steps,
    descs: Vec<u8>,
    pub(super) results: Vec<u64>,
    // Data of the reads before the last change, with space for their tags.
    pub(super) early: Vec<u8>,
    pub(super) small: Box<[u8]>,
    pub(super) stage: Vec<u8>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(shared: &'a AgentState, line: Line) -> Self {
        let cut = line.shared.clone();
        Self {
            shared,
            line,
            cut,
            steps: Steps::default(),
            descs: Vec::new(),
            results: Vec::new(),
            early: Vec::new(),
            small: vec![0; SMALL_BYTES].into_boxed_slice(),
            stage: Vec::new(),
        }
    }

    /// Serves until the connection ends.
    pub(super) fn serve(&mut self) -> End {
        if let Err(end) = self.hello() {
            return end;
        }
        let idle = Duration::from_millis(self.shared.limits.idle_ms);
        loop {
            match self.line.wait_begin(idle) {
                Ok(true) => {}
                Ok(false) => return End::Left,
                Err(e) => return e.into(),
            }
            if let Err(end) = self.request() {
                return end;
            }
        }
    }

    fn hello(&mut self) -> Result<(), End> {
        self.line.limits.deadline = Deadline::after_ms(self.shared.limits.hello_ms);
        let hello: Hello = self.line.take_struct()?;
        if hello.magic.get() != HELLO_MAGIC {
            return Err(End::Broken(format!("{:#018x} is not a hello", hello.magic.get())));
        }
        if hello.version.get() != TCP_VERSION {
            let theirs = hello.version.get();
            let why = format!("you speak version {theirs}, this agent {TCP_VERSION}");
            return self.turn_away(Status::Protocol, why);
        }
        let job_len = hello.job_len.get() as usize;
        if job_len > MAX_JOB_BYTES {
            return Err(End::Broken(format!("a job name of {job_len} bytes")));
        }
        let mut job = vec![0; job_len];
        self.line.take(&mut job)?;
        self.line.check_tag(&[hello.as_bytes(), &job])?;
        if job != self.shared.job.as_bytes() {
            let theirs = String::from_utf8_lossy(&job).into_owned();
            let why = format!("this segment is of job {:?}, not {theirs:?}", self.shared.job);
            return self.turn_away(Status::Job, why);
        }
        if hello.incarnation.get() != self.shared.incarnation {
            let why = format!(
                "this segment is incarnation {:#018x}, not {:#018x}",
                self.shared.incarnation,
                hello.incarnation.get()
            );
            return self.turn_away(Status::Incarnation, why);
        }
        Ok(self.shared.send_welcome(&mut self.line, Status::Ok, "")?)
    }

    fn turn_away(&mut self, status: Status, why: String) -> Result<(), End> {
        self.shared.send_welcome(&mut self.line, status, &why)?;
        self.line.finish_sending();
        Err(End::TurnedAway(why))
    }

    fn request(&mut self) -> Result<(), End> {
        // The first byte of the request has arrived.
        self.allow(0);
        let header: Request = self.line.take_struct()?;
        check_header(&header, self.shared.limits.max_request_bytes).map_err(End::Broken)?;
        self.descs.resize(header.n_ops.get() as usize * DESC_BYTES, 0);
        self.line.take(&mut self.descs)?;
        self.line.check_tag(&[header.as_bytes(), &self.descs])?;
        self.steps.decode(&header, &self.descs).map_err(End::Broken)?;
        add(&self.shared.counters.requests, 1);
        let id = header.id.get();
        self.allow(header.write_bytes.get());
        match self.change(&header) {
            Ok(Ok(())) => self.answer(id, header.read_bytes.get()),
            Ok(Err((status, why))) => {
                add(&self.shared.counters.refused, 1);
                let closing = self.line.shared.was_cut();
                self.deny(id, status, &why, closing)?;
                // After an answer that announces the close, nothing sent after its request is
                // processed.
                if closing { Err(End::Fenced) } else { Ok(()) }
            }
            Err(End::Fenced) => {
                self.break_off(id, "the plan or log right was ended while it was written")?;
                Err(End::Fenced)
            }
            Err(End::Unfit(why)) => {
                self.break_off(id, &why)?;
                Err(End::Unfit(why))
            }
            Err(end) => Err(end),
        }
    }

    /// Sets the time limit of the next step, which may move `bytes` of payload.
    fn allow(&mut self, bytes: u64) {
        self.line.limits.deadline = Deadline::for_bytes(self.shared.limits.stall_ms, bytes);
    }

    /// Checks everything, then executes up to the last change; the status and the reason if it
    /// refuses the request. Fenced: while a part of the payload had not arrived.
    fn change(&mut self, header: &Request) -> Result<Result<(), (Status, String)>, End> {
        self.results.clear();
        self.early.clear();
        let (shared, token) = (self.shared, header.token.get());
        self.results.extend(self.steps.resolve(shared.reader.as_ref(), shared.segment.len()));
        let checked = self.steps.check_bounds(shared.segment.len());
        if !self.steps.changes() {
            return Ok(checked);
        }
        let admitted = checked.and_then(|()| {
            if token == 0 {
                return Err((Status::Refused, "token 0 allows reads only".to_string()));
            }
            let permit = shared.access.admit(token, &self.cut).map_err(|w| (Status::Refused, w))?;
            self.steps.check_permit(&*permit).map(|()| permit)
        });
        let permit = match admitted {
            Ok(permit) => permit,
            // The payload of a refused request: after it the connection is in step again.
            Err(refused) => match self.line.discard_payloads(self.steps.writes()) {
                Ok(()) => return Ok(Err(refused)),
                // A cut by a fence looks like the peer's end of stream.
                Err(_) if self.line.shared.was_cut() => return Err(End::Fenced),
                Err(e) => return Err(e.into()),
            },
        };
        let steps = std::mem::take(&mut self.steps);
        let done = steps.leading().iter().try_for_each(|step| self.execute(step, &*permit));
        self.steps = steps;
        match done {
            Ok(()) => add(&shared.counters.bytes_in, header.write_bytes.get()),
            Err(End::Forged) => return Err(End::Forged),
            // A cut by a fence looks like the peer's end of stream.
            Err(_) if permit.is_revoked() => return Err(End::Fenced),
            Err(end) => return Err(end),
        }
        Ok(Ok(()))
    }

    /// Sends the answer with results and payloads.
    fn answer(&mut self, id: u64, read_bytes: u64) -> Result<(), End> {
        self.allow(read_bytes);
        let closing = self.line.shared.was_cut();
        let head = Response {
            magic: RESPONSE_MAGIC.into(),
            status: (Status::Ok as u32).into(),
            id: id.into(),
            n_results: (self.results.len() as u32).into(),
            read_bytes: read_bytes.into(),
            closing: u32::from(closing).into(),
            ..Response::new_zeroed()
        };
        self.results.iter_mut().for_each(|r| *r = r.to_le());
        self.send_results(head.as_bytes())?;
        add(&self.shared.counters.bytes_out, read_bytes);
        if closing { Err(End::Fenced) } else { Ok(()) }
    }

    /// Refuses a request in progress: the connection is out of step and ends.
    fn break_off(&mut self, id: u64, why: &str) -> Result<(), End> {
        add(&self.shared.counters.refused, 1);
        self.deny(id, Status::Refused, why, true)?;
        self.line.finish_sending();
        Ok(())
    }

    fn deny(&mut self, id: u64, status: Status, why: &str, closing: bool) -> Result<(), End> {
        self.allow(0);
        let why = message(why);
        let head = Response {
            magic: RESPONSE_MAGIC.into(),
            status: (status as u32).into(),
            id: id.into(),
            message_len: (why.len() as u32).into(),
            closing: u32::from(closing).into(),
            ..Response::new_zeroed()
        };
        Ok(self.line.send_head(head.as_bytes(), why)?)
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
