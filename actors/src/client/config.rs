//! How a handle behaves.

use super::peer::TransportChoice;
use crate::placement::RackPath;
use nkv_transport::fabric::FabricConfig;
use nkv_transport::wire::auth::Secret;

/// How a client behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// The job; must be the cluster's.
    pub job: String,
    /// Which data path to use to the owners.
    pub transport: TransportChoice,
    /// Limit of one control call in milliseconds.
    pub call_timeout_ms: u64,
    /// Whether puts go into the owner's device log without a request to the master, unless their
    /// options set it otherwise. Then Ok means that the bytes are written: they are readable once
    /// the owner has accepted them, after some 1 ms. Where the key has an object already, that one
    /// stays, and the put is Ok all the same. Puts to owners without a log use plans.
    pub device_alloc: bool,
    /// Number of stripes into which one read or write of at least 8 MiB is cut. Each stripe has its
    /// own thread and, over tcp, its own connection. 0: one for every two processors, at most 4; 1:
    /// no striping; at most 16.
    pub data_stripes: usize,
    /// Values of more bytes are put in stripes, one for each rank but at most 8, unless the options
    /// of the put set it otherwise; 0: none.
    pub stripe_above: u64,
    /// Whether what is read from another host is kept at the rank of this host, as an extra replica
    /// that is evicted before all other objects. Needs the automatic transport. Objects up to
    /// 16 MiB.
    pub cache_on_read: bool,
    /// Bytes of buffers kept for later gets after the bytes that `get` returned are dropped; 0:
    /// none.
    pub get_pool_bytes: u64,
    /// Whether a background thread prefaults a mapped segment during the first calls, if its owner
    /// prefaulted it too (0.3 s/GiB). Later calls then have no page faults. A process that makes
    /// few calls does not need it.
    pub prefault: bool,
    /// Which RDMA devices of this host reach owners that have RDMA devices too.
    pub fabric: FabricConfig,
    /// The NUMA node to which this process is bound, if it is bound to one: where objects are
    /// placed by distance, they go to ranks of that node first.
    pub numa_node: Option<u32>,
    /// The rack of this host; unknown: that of a rank on this host, if there is one.
    pub rack: RackPath,
    /// The job's secret [I20]. Without it the nodes must run on this host as this user.
    pub secret: Option<Secret>,
}

/// Default of [`ClientConfig::get_pool_bytes`].
pub(crate) const GET_POOL_BYTES: u64 = 64 << 20;

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            job: "nkv".to_string(),
            transport: TransportChoice::Auto,
            call_timeout_ms: 2_000,
            device_alloc: true,
            data_stripes: 0,
            stripe_above: 0,
            cache_on_read: false,
            get_pool_bytes: GET_POOL_BYTES,
            prefault: true,
            fabric: FabricConfig::default(),
            numa_node: None,
            rack: RackPath::default(),
            secret: None,
        }
    }
}
