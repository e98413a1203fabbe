//! Which RDMA devices a program goes through, on its command line: the same words wherever it is asked.

use clap::Args;
use nkv::transport::fabric::{FabricConfig, MAX_PAIRS};

/// Nothing named: every device whose link is up.
#[derive(Debug, Default, Clone, PartialEq, Eq, Args)]
pub(crate) struct FabricFlags {
    /// RDMA devices to reach owners through, such as mlx5_0,mlx5_1, in the owners' order [default: all]
    #[arg(long, global = true, value_name = "NAME,...", value_delimiter = ',', num_args = 1)]
    rdma_devices: Vec<String>,

    /// Which address of theirs (nkv doctor lists them) [default: RoCE v2 over IPv4 first]
    #[arg(long, global = true, value_name = "N")]
    rdma_gid_index: Option<u8>,

    /// Queue pairs to each owner [default: one for each device]
    #[arg(long, global = true, value_name = "N",
        value_parser = clap::value_parser!(u8).range(1..=MAX_PAIRS as i64))]
    rdma_pairs: Option<u8>,
}

impl FabricFlags {
    /// What they say.
    pub(crate) fn config(&self) -> FabricConfig {
        FabricConfig {
            devices: self.rdma_devices.clone(),
            gid_index: self.rdma_gid_index,
            pairs: self.rdma_pairs.map_or(0, usize::from),
        }
    }
}
