//! A holder besides the pins keeps an extent from being used again, also over a panic of the owner.

use super::{Bench, LIMIT, OLD, freed, longer_than_quarantine};
use crate::actor::Crash;
use crate::message::MasterToOwner;
use hashbrown::HashSet;
use nkv_store::StoreError;
use nkv_store::object::{Holders, ready};
use std::sync::{Arc, Mutex};

/// Such as a writer of another tier that still reads these objects.
#[derive(Debug, Default)]
struct Reading(Mutex<HashSet<(u32, u32)>>);

impl Holders for Reading {
    fn held(&self, objects: &mut HashSet<(u32, u32)>) -> Result<(), StoreError> {
        objects.extend(self.0.lock().unwrap().iter().copied());
        Ok(())
    }
}

#[tokio::test]
async fn i9_what_another_holder_reads_is_not_freed_before_it_has_read_it() {
    let reading = Arc::new(Reading::default());
    let mut b = Bench::held_by(0, vec![reading.clone()]).await;
    let plan = b.opens(OLD, 1, 0, 1).await;
    b.writes(0, "k1", ready(1));
    b.receives(MasterToOwner::Committed(vec![plan])).await;
    reading.0.lock().unwrap().insert((0, 1));
    b.receives(MasterToOwner::Retire(vec![b.at(0, 1)])).await;
    longer_than_quarantine(&b).await;
    b.owner.call(Crash, LIMIT).await.unwrap_err();
    longer_than_quarantine(&b).await;
    assert_eq!(b.drain_sent().iter().find_map(freed), None, "it is still read");
    reading.0.lock().unwrap().clear();
    assert_eq!(b.sent_to_master(freed).await, b.at(0, 1));
}
