//! The frames of the control plane and its network interface. Frames are small, bounded and decoded
//! as untrusted input; payload bytes are never sent in them. All code that opens a control
//! connection uses [`Net`], so that a simulation can replace the network.

mod address;
pub mod auth;
mod descriptor;
mod frame;
mod net;
mod peer;
mod sealed;

pub use address::Address;
pub use descriptor::{pass_descriptor, take_descriptor};
pub use frame::{
    FRAME_HEADER_BYTES, MAX_FRAME_BYTES, WIRE_VERSION, WireError, decode_frame, encode_frame,
    read_frame, within, write_encoded, write_frame,
};
pub use net::{BoxFuture, BoxStream, Listener, Net, OsNet, Stream};
pub use peer::{Peer, Process, UnixPeer};
