//! Arming a slot: its header names an epoch at which nothing is published yet.

use crate::error::StoreError;
use crate::layout::{OWNER_OFF, PUBLISH_OFF, flag, state, word};
use crate::memory::Memory;

/// Arms a slot: stores the publish word, then the owner word, so that a reader that sees LIVE at an
/// epoch never sees what an older epoch published.
pub(crate) fn arm(memory: &dyn Memory, header_off: u64, epoch: u32) -> Result<(), StoreError> {
    memory.store(header_off + PUBLISH_OFF, word(state::RESERVED, epoch))?;
    memory.store(header_off + OWNER_OFF, word(flag::LIVE, epoch))
}
