//! Copies by a kernel that publishes nothing.

use super::launch::{Launch, LaunchOptions, LaunchStream};
use super::loaded::{Kernels, Publish};
use super::{Descriptors, Reach, Span};
use crate::driver::DriverError;
use std::sync::Arc;

impl Kernels {
    /// Queues copies by `nkv_gather_publish`; what it publishes is a word of the launch.
    ///
    /// # Errors
    /// As [`Kernels::gather_publish`].
    ///
    /// # Safety
    /// All ranges are mapped for the device until the launch has ended.
    pub unsafe fn copy(
        self: &Arc<Self>,
        stream: &LaunchStream,
        options: LaunchOptions,
        copies: &Descriptors,
    ) -> Result<Launch<u64>, DriverError> {
        let all = [Span { address: 0, bytes: u64::MAX }];
        let reach = Reach { read: &all, write: &all };
        // SAFETY: by this function's contract.
        unsafe { self.gather_publish(stream, options, Publish::NOTHING, copies, &reach) }
    }
}
