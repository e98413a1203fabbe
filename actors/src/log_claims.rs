//! The claims that this process has open in the logs of segments, one table per segment whatever
//! the number of handles: the owner's question "is nothing of yours open?" is about the process
//! [I14].

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
        // Memory at hand: who is out of the call writes no more.
        let made = Arc::new(OpenClaims::new(Landing::InCall));
        tables.insert(incarnation, Arc::downgrade(&made));
        made
    }
}
