//! This machine with other properties than it has.

use nkv_actors::machine::{
    AgentConfig, Connected, DataAgent, Machine, NewSegment, OsMachine, SegmentKind,
};
use nkv_store::memory::SplitMemory;
use nkv_store::shm::Allocation;
use nkv_store::testkit::Unaddressable;
use nkv_store::{AnonMemory, Memory, StoreError, Stripes};
use nkv_transport::TransportError;
use nkv_transport::fabric::{Fabric, FabricConfig};
use nkv_transport::wire::BoxFuture;
use nkv_transport::wire::auth::Credentials;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// This machine, with a device whose memory the CPU cannot address, and with these RDMA devices, if
/// any.
#[derive(Debug, Default)]
pub struct TestMachine {
    pub fabric: Option<Arc<dyn Fabric>>,
    /// As which host it passes; None: itself.
    pub boot_id: Option<u64>,
}

impl Machine for TestMachine {
    fn create(
        &self,
        kind: SegmentKind<'_>,
        bytes: u64,
        allocation: Allocation,
    ) -> Result<NewSegment, StoreError> {
        let SegmentKind::Device { payloads, .. } = kind else {
            return OsMachine.create(kind, bytes, allocation);
        };
        let control = Arc::new(AnonMemory::new(payloads)?);
        let device = Arc::new(Unaddressable(AnonMemory::new(bytes - payloads)?));
        Ok(NewSegment::private(Arc::new(SplitMemory::new(control, device).unwrap())))
    }
    fn fabric(&self, _: &FabricConfig) -> Result<Arc<dyn Fabric>, TransportError> {
        let none = || TransportError::Protocol("no devices".to_string());
        self.fabric.clone().ok_or_else(none)
    }
    fn boot_id(&self) -> u64 {
        self.boot_id.unwrap_or_else(|| OsMachine.boot_id())
    }
    fn pid(&self) -> u32 {
        OsMachine.pid()
    }
    fn attach(&self, file_name: &str) -> Result<Arc<dyn Memory>, StoreError> {
        OsMachine.attach(file_name)
    }
    fn prefault(&self, file_name: &str) {
        OsMachine.prefault(file_name);
    }
    fn rest(&self, pause: Duration) {
        OsMachine.rest(pause);
    }
    fn available(&self) -> u64 {
        OsMachine.available()
    }
    fn remove_socket(&self, path: &Path) {
        OsMachine.remove_socket(path);
    }
    fn serve(&self, what: AgentConfig) -> Result<Box<dyn DataAgent>, TransportError> {
        OsMachine.serve(what)
    }
    fn connect(
        &self,
        at: &str,
        incarnation: u64,
        credentials: &Credentials,
        stripes: Stripes,
    ) -> BoxFuture<'static, Result<Connected, TransportError>> {
        OsMachine.connect(at, incarnation, credentials, stripes)
    }
}
