//! The client's end of the wire: posts a batch, and waits for the answer no longer than a real one
//! does.

use super::{AgentEndpoint, Batch, Result1, Sent, Wire};
use crate::net::Net;
use crate::stack;
use nkv_store::device_log::{ClaimStep, ControlLine, LogLayout, LogPut};
use nkv_store::op::through_host;
use nkv_transport::verbs::{Append, Appended};
use nkv_transport::{Alive, Kind, Op, TransportError, Verbs};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// Pause between checks whether the owner is dead, or the path is restored.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Verbs of one process to one agent.
#[derive(Debug)]
pub struct SimVerbs {
    net: Net,
    host: usize,
    endpoint: AgentEndpoint,
    wire: Wire,
    alive: Alive,
}

/// Where a batch loses its connection.
enum Loss {
    None,
    There,
    Back,
}

impl SimVerbs {
    pub fn new(net: Net, host: usize, endpoint: AgentEndpoint, wire: Wire) -> Self {
        Self { net, host, endpoint, wire, alive: Alive::new() }
    }

    pub fn alive(&self) -> Alive {
        self.alive.clone()
    }

    /// One append by verbs of its own, as far as the agent would make it; sometimes only the claim,
    /// as if others had come before it.
    fn append_one(
        &self,
        token: u64,
        layout: LogLayout,
        append: &Append<'_>,
    ) -> Result<Appended, TransportError> {
        let Append { key, page_bytes, payload, mark, .. } = *append;
        let mut line = ControlLine::unread();
        self.post(0, &mut [line.read()])?;
        let put = LogPut::new(layout, key, page_bytes, payload.len() as u64);
        let put = put.map(|put| put.in_set(mark));
        let Some(put) = put.filter(|put| put.room(&line).is_some()) else {
            return Ok(Appended::NoRoom);
        };
        let mut claim = [put.fetch_add()];
        self.post(token, &mut claim)?;
        let Op::FetchAdd { old: p, .. } = claim[0] else { return Ok(Appended::Refused) };
        if self.wire.dice().permille(300) {
            return Ok(Appended::Waits(p));
        }
        match put.claimed(p).next(line.heap_limit()) {
            ClaimStep::Wait(_) => Ok(Appended::Waits(p)),
            ClaimStep::Skip(skip) => {
                self.post(token, &mut skip.ops())?;
                Ok(Appended::NoRoom)
            }
            ClaimStep::Write(write) => {
                let object = write.publication();
                let mut ops = object.whole(payload);
                self.post(token, &mut ops)?;
                Ok(object.took(&ops).map_or(Appended::Void(p), |()| Appended::Ready(p)))
            }
        }
    }

    fn check_alive(&self) -> Result<(), TransportError> {
        let gone = || TransportError::Disconnected("the owner is gone".to_string());
        self.alive.is_alive().then_some(()).ok_or_else(gone)
    }

    fn check(&self, token: u64, ops: &[Op<'_>]) -> Result<(), TransportError> {
        for op in ops {
            let (offset, len) = op.range();
            if offset.checked_add(len).is_none_or(|end| end > self.endpoint.len) {
                return Err(TransportError::OutOfBounds(format!("{len} bytes at {offset}")));
            }
            if op.changes() && token == 0 {
                return Err(TransportError::Refused("token 0 allows reads only".to_string()));
            }
        }
        Ok(())
    }

    fn fate(&self) -> (Loss, bool) {
        if self.wire.is_kind() {
            return (Loss::None, false);
        }
        let mut dice = self.wire.dice();
        let loss = match dice.permille(self.wire.wire_profile.loss_permille) {
            true if dice.permille(500) => Loss::There,
            true => Loss::Back,
            false => Loss::None,
        };
        (loss, dice.permille(500))
    }

    async fn exchange(&self, token: u64, ops: Vec<Sent>) -> Result<Vec<Result1>, TransportError> {
        let broken = || TransportError::Disconnected("the data connection broke".to_string());
        let (loss, ends_with_client) = self.fate();
        let deadline = Instant::now() + self.wire.wire_profile.stall;
        sleep(self.net.delay(self.host, self.endpoint.host)).await;
        while !self.net.is_open(self.host, self.endpoint.host) {
            self.check_alive()?;
            if Instant::now() >= deadline {
                return Err(TransportError::Timeout("no path to the agent".to_string()));
            }
            sleep(POLL_INTERVAL).await;
        }
        if matches!(loss, Loss::There) {
            return Err(broken());
        }
        let (answer, mut answered) = oneshot::channel();
        let batch = Batch { from: self.host, token, ops, ends_with_client, answer };
        if !self.endpoint.send(batch) {
            return Err(broken());
        }
        if matches!(loss, Loss::Back) {
            // Its result will never be known.
            return Err(broken());
        }
        loop {
            match timeout(POLL_INTERVAL, &mut answered).await {
                Ok(Ok(Ok(results))) => return Ok(results),
                Ok(Ok(Err(why))) => return Err(TransportError::Refused(why)),
                Ok(Err(_)) if self.net.is_open(self.endpoint.host, self.host) => {
                    return Err(broken());
                }
                Ok(Err(_)) => sleep(deadline.saturating_duration_since(Instant::now())).await,
                Err(_) => self.check_alive()?,
            }
            if Instant::now() >= deadline {
                return Err(TransportError::Timeout("the agent does not answer".to_string()));
            }
        }
    }

    fn post_on_host(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        self.check_alive()?;
        self.check(token, ops)?;
        let sent = ops.iter().map(Sent::of).collect();
        let results = stack::wait(self.exchange(token, sent))?;
        for (op, result) in ops.iter_mut().zip(results) {
            match (op, result) {
                (Op::Read { dst, .. }, Result1::Bytes(bytes)) => {
                    dst.copy_from_slice(&bytes);
                    stack::reads_from(self.endpoint.incarnation);
                }
                (Op::FetchAdd { old, .. } | Op::CompareSwap { old, .. }, Result1::Word(word)) => {
                    *old = word;
                }
                _ => {}
            }
        }
        self.check_alive()
    }
}

impl Verbs for SimVerbs {
    fn kind(&self) -> Kind {
        Kind::Tcp
    }

    fn post(&self, token: u64, ops: &mut [Op<'_>]) -> Result<(), TransportError> {
        through_host(ops, |ops| self.post_on_host(token, ops))
    }

    fn append(
        &self,
        token: u64,
        appends: &mut [Append<'_>],
        line: &mut ControlLine,
    ) -> Option<Result<(), TransportError>> {
        let layout = self.endpoint.log?;
        let all = appends.iter_mut().enumerate().try_for_each(|(i, append)| {
            append.outcome = self.append_one(token, layout, append).map_err(|e| match e {
                // Those before it may be READY.
                TransportError::Refused(why) if i > 0 => TransportError::Disconnected(why),
                other => other,
            })?;
            Ok(())
        });
        Some(all.and_then(|()| self.post(0, &mut [line.read()])))
    }

    fn is_alive(&self) -> bool {
        self.alive.is_alive()
    }

    fn segment_len(&self) -> u64 {
        self.endpoint.len
    }
}
