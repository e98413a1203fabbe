//! The claims that this process has open in the logs of segments, one table per segment whatever the
//! number of handles: the owner's question "is nothing of yours open?" is about the process [I14].

use nkv_store::device_log::{Landing, OpenClaims};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

type ByIncarnation = BTreeMap<u64, Weak<OpenClaims>>;

fn tables() -> MutexGuard<'static, ByIncarnation> {
    static TABLES: Mutex<ByIncarnation> = Mutex::new(BTreeMap::new());
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The table of a segment, made if this process has none.
pub(crate) fn claims_of(incarnation: u64) -> Arc<OpenClaims> {
    let mut tables = tables();
    if let Some(known) = tables.get(&incarnation).and_then(Weak::upgrade) {
        return known;
    }
    tables.retain(|_, table| table.strong_count() > 0);
    // Memory at hand: who is out of the call writes no more.
    let made = Arc::new(OpenClaims::new(Landing::InCall));
    tables.insert(incarnation, Arc::downgrade(&made));
    made
}

/// The table of a segment; None if nobody in this process can have a claim there.
pub(crate) fn open_claims(incarnation: u64) -> Option<Arc<OpenClaims>> {
    tables().get(&incarnation).and_then(Weak::upgrade)
}
