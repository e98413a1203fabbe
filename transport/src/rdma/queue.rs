//! Completion queues: completions are polled in batches, and a caller that finds none may sleep
//! until one arrives.

use super::context::Context;
use super::error::{check, failed, made};
use crate::error::TransportError;
use rdma_sys as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Most completions polled at once.
pub(super) const BATCH: usize = 16;

/// A completion queue with its channel.
#[derive(Debug)]
pub(super) struct Queue {
    raw: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows any thread to poll, arm and wait.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: made by `Queue::new`; its pairs hold an Arc and are gone, and every event was
        // acknowledged when it was taken.
        self.context.end("ibv_destroy_comp_channel", || unsafe {
            sys::ibv_destroy_cq(self.raw.as_ptr());
            sys::ibv_destroy_comp_channel(self.channel.as_ptr())
        });
    }
}

impl Queue {
    pub(super) fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Self>, TransportError> {
        let name = context.name();
        // SAFETY: the device is open.
        let channel = unsafe { sys::ibv_create_comp_channel(context.raw()) };
        let channel = made("ibv_create_comp_channel", name, channel)?;
        let nothing = std::ptr::null_mut();
        // SAFETY: device and channel live.
        let raw = unsafe {
            sys::ibv_create_cq(context.raw(), entries as i32, nothing, channel.as_ptr(), 0)
        };
        let raw = made("ibv_create_cq", name, raw).inspect_err(|_| {
            // SAFETY: made above, and no queue uses it.
            unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
        })?;
        let queue = Self { raw, channel, context: context.clone() };
        // Waiting uses poll(2) with a limit; getting an event must not block again.
        let unblocked = fcntl_getfl(queue.fd())
            .and_then(|flags| fcntl_setfl(queue.fd(), flags | OFlags::NONBLOCK));
        unblocked.map_err(|e| failed("fcntl", name, e.into()))?;
        Ok(Arc::new(queue))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    /// Readable once an armed queue has a completion.
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Appends the completions that are there, of signaled requests and of those that failed, up to
    /// [`BATCH`]; returns their number.
    pub(super) fn take(&self, found: &mut Vec<sys::ibv_wc>) -> Result<usize, TransportError> {
        // SAFETY: structures of plain numbers, all of which may be zero.
        let mut list: [sys::ibv_wc; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue lives, and the list has that many entries.
        let n = unsafe { sys::ibv_poll_cq(self.raw(), BATCH as i32, list.as_mut_ptr()) };
        let Ok(n) = usize::try_from(n) else {
            check("ibv_poll_cq", || self.context.name().to_string(), n)?;
            return Ok(0);
        };
        found.extend_from_slice(&list[..n]);
        Ok(n)
    }

    /// The next completion makes the channel readable. Poll once more afterwards: a completion that
    /// came before does not.
    pub(super) fn arm(&self) -> Result<(), TransportError> {
        // SAFETY: the queue lives.
        let errno = unsafe { sys::ibv_req_notify_cq(self.raw(), 0) };
        check("ibv_req_notify_cq", || self.context.name().to_string(), errno)
    }

    /// Sleeps until an armed queue has a completion, at most for `limit`.
    pub(super) fn sleep(&self, limit: Duration) {
        let limit = Timespec::try_from(limit).ok();
        let fd = self.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        // Interrupted or timed out: the caller polls in any case.
        let _ = poll(&mut fds, limit.as_ref());
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel lives, and both pointers are valid for the call.
        let taken = unsafe {
            sys::ibv_get_cq_event(self.channel.as_ptr(), &raw mut queue, &raw mut context)
        };
        if taken == 0 {
            // SAFETY: an event of this queue, the only one of its channel, was just taken.
            unsafe { sys::ibv_ack_cq_events(self.raw(), 1) };
        }
    }
}
