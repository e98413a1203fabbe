//! A request as the agent parses it: descriptors are decoded, counted and checked before the first
//! byte is written. This file accesses neither the segment nor the socket.

use super::frame::{
    APPEND_LEN, APPEND_LEN_BITS, MAX_EARLY_BYTES, MAX_OPS, NOT_FOUND, NOT_READ, OP_APPEND,
    OP_COMPARE_SWAP, OP_FETCH_ADD, OP_FIND, OP_FLUSH, OP_READ, OP_STORE, OP_WRITE, OpDesc,
    REQUEST_MAGIC, Request, Status,
};
use crate::access::{Intent, Permit};
use crate::verbs::check_range;
use nkv_store::KeyId;
use nkv_store::layout::HEADER_BYTES;
use nkv_store::object::SetMark;
use nkv_store::reader::{Hit, Reader};
use zerocopy::FromBytes;

/// An object to be put into the log, before its payload is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ToAppend {
    pub key: KeyId,
    pub page_bytes: u32,
    pub mark: SetMark,
    pub len: u64,
}

/// One verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Read {
        offset: u64,
        len: u64,
    },
    Change(Intent),
    Flush,
    /// A lookup.
    Find(KeyId),
    /// A read of what the last lookup found: an offset from its header on, then its payload.
    ReadFound {
        offset: u64,
        len: u64,
    },
    /// An object to be put into the log: claim, write and publish it.
    Append(ToAppend),
    /// The payload of the append before it.
    Appended {
        len: u64,
    },
}

impl Step {
    fn from_desc(d: &OpDesc) -> Option<Self> {
        let (offset, a, b) = (d.offset.get(), d.a.get(), d.b.get());
        Some(match d.code.get() {
            OP_READ if d.relative.get() == 1 => Step::ReadFound { offset, len: a },
            OP_READ => Step::Read { offset, len: a },
            OP_FIND => Step::Find(KeyId { hash: offset, check: b }),
            OP_APPEND => Step::Append(ToAppend {
                key: KeyId { hash: offset, check: b },
                page_bytes: d.relative.get(),
                mark: SetMark::of_word((a >> APPEND_LEN_BITS) as u32),
                len: a & APPEND_LEN,
            }),
            OP_WRITE if d.relative.get() == 1 => Step::Appended { len: a },
            OP_WRITE => Step::Change(Intent::Write { offset, len: a }),
            OP_STORE => Step::Change(Intent::Store { offset, value: a }),
            OP_FETCH_ADD => Step::Change(Intent::FetchAdd { offset, add: a }),
            OP_COMPARE_SWAP => Step::Change(Intent::CompareSwap { offset, expect: a, new: b }),
            OP_FLUSH => Step::Flush,
            _ => return None,
        })
    }

    fn fits(&self, segment_len: u64) -> Result<(), String> {
        match *self {
            Step::Read { offset, len } | Step::Change(Intent::Write { offset, len }) => {
                check_range(offset, len, false, segment_len)
            }
            Step::Change(
                Intent::Store { offset, .. }
                | Intent::FetchAdd { offset, .. }
                | Intent::CompareSwap { offset, .. },
            ) => check_range(offset, 8, true, segment_len),
            // An append goes where a claim lies.
            Step::Append(_) | Step::Appended { .. } => Ok(()),
            Step::Flush | Step::Find(_) | Step::ReadFound { .. } => Ok(()),
        }
    }

    /// Whether it changes memory.
    fn changes(&self) -> bool {
        matches!(self, Step::Change(_) | Step::Append(_) | Step::Appended { .. })
    }

    /// Bytes of payload that the request brings for it.
    fn brings(&self) -> Option<u64> {
        match *self {
            Step::Change(Intent::Write { len, .. }) | Step::Appended { len } => Some(len),
            _ => None,
        }
    }
}

/// Checks a request's header alone: the numbers in it are within the limits.
pub(super) fn check_header(r: &Request, max_bytes: u64) -> Result<(), String> {
    if r.magic.get() != REQUEST_MAGIC {
        return Err(format!("{:#010x} is not a request", r.magic.get()));
    }
    if r.n_ops.get() as usize > MAX_OPS {
        return Err(format!("{} verbs in one request, at most {MAX_OPS}", r.n_ops.get()));
    }
    for bytes in [r.write_bytes.get(), r.read_bytes.get()] {
        if bytes > max_bytes {
            return Err(format!("{bytes} bytes in one request, at most {max_bytes}"));
        }
    }
    Ok(())
}

/// The verbs of one request, reused between requests.
#[derive(Debug, Default)]
pub(super) struct Steps {
    all: Vec<Step>,
    // Every verb from here on only reads.
    tail: usize,
    // It has lookups.
    finds: bool,
}

impl Steps {
    /// Decodes the descriptors and checks that their sums match the header. An error means that the
    /// peer violates the protocol.
    pub(super) fn decode(&mut self, header: &Request, descs: &[u8]) -> Result<(), String> {
        self.all.clear();
        self.tail = 0;
        self.finds = false;
        let (mut writes, mut reads, mut early) = (0u64, 0u64, 0);
        let (descs, rest) =
            <[OpDesc]>::ref_from_prefix_with_elems(descs, header.n_ops.get() as usize)
                .map_err(|_| "descriptors of another length".to_string())?;
        debug_assert!(rest.is_empty());
        for d in descs {
            let step = Step::from_desc(d).ok_or_else(|| format!("verb {}", d.code.get()))?;
            match step {
                Step::ReadFound { .. } if !self.finds => {
                    return Err("a read of what was found, before any lookup".to_string());
                }
                Step::Read { len, .. } | Step::ReadFound { len, .. } => {
                    reads = reads.saturating_add(len);
                }
                Step::Find(_) => self.finds = true,
                _ => writes = writes.saturating_add(step.brings().unwrap_or(0)),
            }
            let due = match self.all.last() {
                Some(Step::Append(ToAppend { len, .. })) => Some(Step::Appended { len: *len }),
                _ => None,
            };
            if due.is_some() != matches!(step, Step::Appended { .. })
                || due.is_some_and(|due| due != step)
            {
                return Err("an append and another payload than its own".to_string());
            }
            self.all.push(step);
            // A flush directly after a change is executed with the change, before the answer [I4].
            let flushes = matches!(step, Step::Flush) && self.tail + 1 == self.all.len();
            if step.changes() || flushes && self.tail > 0 {
                self.tail = self.all.len();
                early = reads;
            }
        }
        if writes != header.write_bytes.get() || reads != header.read_bytes.get() {
            return Err(format!(
                "descriptors of {writes} and {reads} bytes under a header of {} and {}",
                header.write_bytes.get(),
                header.read_bytes.get()
            ));
        }
        if matches!(self.all.last(), Some(Step::Append(_))) {
            return Err("an append without its payload".to_string());
        }
        if self.finds && self.tail > 0 {
            return Err("a lookup and a change in one request".to_string());
        }
        if early > MAX_EARLY_BYTES {
            return Err(format!(
                "{early} bytes to read before a change, at most {MAX_EARLY_BYTES}"
            ));
        }
        Ok(())
    }

    /// Makes the lookups, and turns reads of what they find into reads of the segment. Returns the
    /// result of each lookup. The offsets are those of the epoch in the result: the caller accepts
    /// only a header of that epoch, whose fields do not change [I3].
    pub(super) fn resolve(&mut self, reader: Option<&Reader>, segment_len: u64) -> Vec<u64> {
        let mut results = Vec::new();
        let mut found = None;
        for step in self.all.iter_mut().filter(|_| self.finds) {
            match *step {
                Step::Find(key) => {
                    found = reader.and_then(|r| Some((r, r.find(key)?)));
                    let at = |hit: Hit| u64::from(hit.epoch()) << 32 | u64::from(hit.slot);
                    results.push(found.map_or(NOT_FOUND, |(_, hit)| at(hit)));
                }
                Step::ReadFound { offset, len } => {
                    let at = found.map(|(reader, hit)| match offset.checked_sub(HEADER_BYTES) {
                        None => reader.layout().header_off(hit.slot) + offset,
                        Some(into) => hit.header.payload_base.saturating_add(into),
                    });
                    let fits = |at: &u64| check_range(*at, len, false, segment_len).is_ok();
                    let inside = at.filter(fits);
                    if let (Some(_), None, Some(result)) = (at, inside, results.last_mut()) {
                        *result = NOT_READ;
                    }
                    *step = Step::Read { offset: inside.unwrap_or(0), len };
                }
                _ => {}
            }
        }
        results
    }

    /// Checks bounds and alignment of every verb.
    pub(super) fn check_bounds(&self, segment_len: u64) -> Result<(), (Status, String)> {
        self.all
            .iter()
            .try_for_each(|s| s.fits(segment_len).map_err(|why| (Status::OutOfBounds, why)))
    }

    /// Checks every change against the permit; those of appends, once their claims are known.
    pub(super) fn check_permit(&self, permit: &dyn Permit) -> Result<(), (Status, String)> {
        self.leading().iter().try_for_each(|step| match step {
            Step::Change(intent) => permit.check(intent).map_err(|why| (Status::Refused, why)),
            _ => Ok(()),
        })
    }

    /// True if the request has a change.
    pub(super) fn changes(&self) -> bool {
        self.tail > 0
    }

    /// Everything up to and including the last change.
    pub(super) fn leading(&self) -> &[Step] {
        &self.all[..self.tail]
    }

    /// Lengths of its writes, in order.
    pub(super) fn writes(&self) -> impl Iterator<Item = u64> + '_ {
        self.leading().iter().filter_map(Step::brings)
    }

    /// Lengths of its reads before the last change, in order.
    pub(super) fn early_reads(&self) -> impl Iterator<Item = usize> + '_ {
        self.leading().iter().filter_map(|s| match *s {
            Step::Read { len, .. } => Some(len as usize),
            _ => None,
        })
    }

    /// The verbs after the last change, which only read: offset and length of each.
    pub(super) fn trailing(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.all[self.tail..].iter().filter_map(|s| match *s {
            Step::Read { offset, len } if len > 0 => Some((offset, len as usize)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn desc(code: u32, offset: u64, a: u64) -> OpDesc {
        let (code, offset, a) = (code.into(), offset.into(), a.into());
        OpDesc { code, relative: 0.into(), offset, a, b: 0.into() }
    }

    fn header(n: u32, write: u64, read: u64) -> Request {
        Request {
            magic: REQUEST_MAGIC.into(),
            n_ops: n.into(),
            id: 1.into(),
            token: 1.into(),
            write_bytes: write.into(),
            read_bytes: read.into(),
        }
    }

    fn decode(write: u64, read: u64, descs: &[OpDesc]) -> Result<Steps, String> {
        let mut s = Steps::default();
        s.decode(&header(descs.len() as u32, write, read), descs.as_bytes()).map(|()| s)
    }

    #[test]
    fn i19_a_request_that_does_not_add_up_is_no_request() {
        decode(8, 16, &[desc(OP_WRITE, 0, 8), desc(OP_READ, 0, 16)]).unwrap();
        assert!(decode(9, 0, &[desc(OP_WRITE, 0, 8)]).is_err());
        assert!(decode(0, 0, &[desc(OP_READ, 0, 8)]).is_err());
        assert!(decode(0, 0, &[desc(99, 0, 8)]).is_err());
        assert!(decode(0, u64::MAX, &[desc(OP_READ, 0, u64::MAX), desc(OP_READ, 0, 2)]).is_ok());
        let mut s = Steps::default();
        assert!(s.decode(&header(2, 0, 0), desc(OP_FLUSH, 0, 0).as_bytes()).is_err());
        let early = MAX_EARLY_BYTES + 1;
        assert!(decode(0, early, &[desc(OP_READ, 0, early), desc(OP_STORE, 0, 0)]).is_err());
        decode(0, early, &[desc(OP_STORE, 0, 0), desc(OP_READ, 0, early)]).unwrap();
    }

    #[test]
    fn i19_a_lookup_with_a_change_or_after_what_it_finds_is_no_request() {
        let relative = |len| OpDesc { relative: 1.into(), ..desc(OP_READ, 0, len) };
        let found = decode(0, 8, &[desc(OP_FIND, 1, 0), relative(8)]).map(|mut steps| {
            assert!(!steps.changes());
            let results = steps.resolve(None, 4096);
            (results, steps.trailing().collect::<Vec<_>>())
        });
        assert_eq!(found, Ok((vec![NOT_FOUND], vec![(0, 8)])));
        assert!(decode(0, 8, &[relative(8), desc(OP_FIND, 1, 0)]).is_err());
        assert!(decode(0, 0, &[desc(OP_FIND, 1, 0), desc(OP_STORE, 0, 0)]).is_err());
        assert!(decode(0, 7, &[desc(OP_FIND, 1, 0), relative(8)]).is_err());
        // Nothing is found, and the read does not fit the segment: refused by its bounds.
        let mut steps = decode(0, 8, &[desc(OP_FIND, 1, 0), relative(8)]).unwrap();
        steps.resolve(None, 4);
        assert!(steps.check_bounds(4).is_err());
    }

    #[test]
    fn i19_claims_above_the_limits_are_refused_by_the_header_alone() {
        check_header(&header(MAX_OPS as u32, 100, 100), 100).unwrap();
        assert!(check_header(&header(MAX_OPS as u32 + 1, 0, 0), 100).is_err());
        assert!(check_header(&header(1, 101, 0), 100).is_err());
        assert!(check_header(&header(1, 0, 101), 100).is_err());
        let mut h = header(1, 0, 0);
        h.magic = 7.into();
        assert!(check_header(&h, 100).is_err());
    }

    #[test]
    fn bounds_are_checked_without_overflow_and_words_are_aligned() {
        let check = |d| decode_any(d).check_bounds(4096).is_ok();
        assert!(check(desc(OP_WRITE, 4088, 8)) && check(desc(OP_READ, 4096, 0)));
        assert!(!check(desc(OP_WRITE, 4089, 8)) && !check(desc(OP_READ, u64::MAX, 2)));
        assert!(check(desc(OP_STORE, 4088, 0)));
        assert!(!check(desc(OP_STORE, 4084, 0)) && !check(desc(OP_FETCH_ADD, 4096, 0)));
        assert!(!check(desc(OP_COMPARE_SWAP, u64::MAX - 7, 0)));
    }

    fn decode_any(d: OpDesc) -> Steps {
        let len = |code| if d.code.get() == code { d.a.get() } else { 0 };
        decode(len(OP_WRITE), len(OP_READ), &[d]).unwrap()
    }
}
