//! The settings that all nodes of a job share, by the configuration of one of them.

use super::NodeConfig;
use crate::message::Settings;

/// What a master sends clients and ranks of its node's configuration.
pub(super) fn shared_settings(config: &NodeConfig) -> Settings {
    Settings {
        page_bytes: config.page_bytes,
        write_ttl_ms: config.write_ttl_ms,
        ttl_ms: config.ttl_ms,
        call_timeout_ms: config.call_timeout_ms,
        master_lease_ms: match config.election.is_any_rank() {
            false => 0,
            true => config.master_lease_ms,
        },
    }
}
