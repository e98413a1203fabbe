//! The claims that this process has open in the logs of segments. There is one table per segment
//! for all handles, since the owner asks about the claims of the whole process [I14].

use nkv_store::device_log::{Landing, OpenClaims};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// The tables of one process, by incarnation of the segment's owner.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogClaims(Arc<Mutex<BTreeMap<u64, Weak<OpenClaims>>>>);

impl LogClaims {
    /// Those of this process.
    pub(crate) fn of_this_process() -> Self {
        static HERE: LazyLock<LogClaims> = LazyLock::new(LogClaims::default);
        HERE.clone()
    }

    /// The table of a segment, made if there is none.
    pub(crate) fn of(&self, incarnation: u64) -> Arc<OpenClaims> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tables.get(&incarnation).and_then(Weak::upgrade) {
            return known;
        }
        tables.retain(|_, table| table.strong_count() > 0);
        // The memory is mapped: when the call returns, its writes have landed.
        let made = Arc::new(OpenClaims::new(Landing::InCall));
        tables.insert(incarnation, Arc::downgrade(&made));
        made
    }
}
