//! One-sided verbs that bypass the client handle, like a kernel or NIC of the writer: they use the
//! plan's token and offsets, and ignore its gate and its deadline.

use nkv::{Blocking, Credentials, Error, Result, TransportChoice};
use nkv_store::shm;
use nkv_transport::Alive;
use nkv_transport::mapped::MappedVerbs;
use nkv_transport::tcp::{TcpOptions, TcpVerbs};
use nkv_transport::verbs::Verbs;

/// Verbs of their own connection or mapping to the owner of an incarnation.
pub fn own_verbs(
    client: &Blocking,
    job: &str,
    transport: TransportChoice,
    incarnation: u64,
) -> Result<Box<dyn Verbs>> {
    let view = client.membership()?;
    let info = view.ranks.into_iter().map(|(info, _)| info).find(|i| i.incarnation == incarnation);
    let info = info.ok_or_else(|| Error::internal(format!("no {incarnation:016x} in the view")))?;
    if transport == TransportChoice::Shm {
        let memory = shm::attach(info.memory.name().unwrap(), false)?;
        return Ok(Box::new(MappedVerbs::shm(memory, Alive::new())));
    }
    let data = info.data.ok_or_else(|| Error::internal("a rank without a tcp agent"))?;
    let credentials = Some(Credentials::of_client(job, None));
    let options = TcpOptions { credentials, ..TcpOptions::default() };
    Ok(Box::new(TcpVerbs::connect(&data, incarnation, job, options)?))
}
