//! The command-line options of the client programs that select RDMA devices.

use clap::Args;
use nkv::TransportChoice;
use nkv_transport::fabric::{FabricConfig, MAX_PAIRS};

// Default: every device whose link is up.
#[expect(missing_docs, reason = "clap would print it as the program's description")]
#[derive(Debug, Default, Clone, PartialEq, Eq, Args)]
pub struct FabricFlags {
    /// RDMA devices to reach owners through, such as mlx5_0,mlx5_1, in the owners' order [default:
    /// all]
    #[arg(long, global = true, value_name = "NAME,...", value_delimiter = ',', num_args = 1,
        value_parser = device)]
    rdma_devices: Vec<String>,

    /// Index in their GID tables (nkv doctor lists them) [default: RoCE v2 over IPv4 first]
    #[arg(long, global = true, value_name = "N")]
    rdma_gid_index: Option<u8>,

    /// Queue pairs to each owner [default: one for each device]
    #[arg(long, global = true, value_name = "N",
        value_parser = clap::value_parser!(u8).range(1..=MAX_PAIRS as i64))]
    rdma_pairs: Option<u8>,
}

fn device(name: &str) -> Result<String, String> {
    match name.trim() {
        "" | "auto" | "none" => {
            Err("names such as mlx5_0,mlx5_1 are expected; without the flag all devices are used, \
                                     and none with --transport tcp"
                .to_string())
        }
        name => Ok(name.to_string()),
    }
}

impl FabricFlags {
    /// Checks that these options have an effect with that transport.
    ///
    /// # Errors
    /// One sentence if they would be ignored.
    pub fn check(&self, transport: TransportChoice) -> Result<(), String> {
        let flags = "--rdma-devices, --rdma-gid-index and --rdma-pairs";
        if *self == Self::default() {
            return Ok(());
        }
        if !cfg!(feature = "rdma") {
            return Err(format!(
                "{flags}: this program was built without the feature rdma \
                 (cargo build --features rdma)"
            ));
        }
        let named = &self.rdma_devices;
        if (1..named.len()).any(|i| named[..i].contains(&named[i])) {
            return Err(
                "--rdma-devices names one twice; for more queue pairs there is --rdma-pairs"
                    .to_string(),
            );
        }
        match transport {
            TransportChoice::Tcp | TransportChoice::Shm => {
                Err(format!("{flags} go with --transport rdma or auto"))
            }
            TransportChoice::Rdma | TransportChoice::Auto => Ok(()),
        }
    }

    /// Checks that the named devices can be used here: else another data path would be used
    /// silently.
    ///
    /// # Errors
    /// One sentence with the devices that there are.
    pub fn find(&self) -> Result<(), String> {
        // Without the feature [`Self::check`] refuses every named device.
        #[cfg(feature = "rdma")]
        if self.config().is_particular() {
            nkv_transport::rdma::open(&self.config()).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// The options as the library's configuration.
    pub fn config(&self) -> FabricConfig {
        FabricConfig {
            devices: self.rdma_devices.clone(),
            gid_index: self.rdma_gid_index,
            pairs: self.rdma_pairs.map_or(0, usize::from),
        }
    }
}
