//! An owner as the handles of its own process reach it: frames go to its mailbox, without a socket.

use crate::actor::ActorAddr;
use crate::attachment::{Answer, AttachId, LocalOwner, ProducerGates};
use crate::error::Result;
use crate::message::{ClientToOwner, PlanId, Term, TouchBatch};
use crate::owner::attachments::Route;
use crate::owner::tables::OwnerTables;
use crate::owner::{FromClient, Owner};
use nkv_store::Memory;
use nkv_transport::Alive;
use std::sync::Arc;

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct LocalSegment {
    pub memory: Arc<dyn Memory>,
    pub alive: Alive,
    pub owner: ActorAddr<Owner>,
    pub tables: Arc<OwnerTables>,
}

impl LocalOwner for LocalSegment {
    fn memory(&self) -> Arc<dyn Memory> {
        self.memory.clone()
    }

    fn alive(&self) -> Alive {
        self.alive.clone()
    }

    fn attach(&self, producer: u64, gates: Arc<dyn ProducerGates>) -> (AttachId, Term) {
        let id = self.tables.attachments.add(producer, Route::Local(gates));
        // Read after the route is registered: a later term is sent to the route.
        (id, self.tables.term())
    }

    fn pin_table(&self, id: AttachId) -> Option<u32> {
        self.tables.pins.give(id, None)
    }

    fn send(&self, frame: ClientToOwner) -> bool {
        match frame {
            ClientToOwner::Abandoned(_)
            | ClientToOwner::KeysReported(_)
            | ClientToOwner::Touched(_) => {
                self.owner.try_send(FromClient { from: None, frame }).is_ok()
            }
            // The owner reads the gates itself.
            _ => true,
        }
    }

    fn touched(&self, batch: TouchBatch) -> Answer<'_, Result<()>> {
        let m = FromClient { from: None, frame: ClientToOwner::Touched(batch) };
        Box::pin(self.owner.push(m))
    }

    fn is_open(&self, plan: PlanId) -> Answer<'_, bool> {
        Box::pin(self.tables.wait_open(plan))
    }

    fn detach(&self, id: AttachId) {
        self.tables.attachments.detach(id);
        // Views hold their attachment, so none is left.
        self.tables.pins.take_back(id);
    }
}
