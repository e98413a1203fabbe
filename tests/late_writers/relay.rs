//! A relay between a client and the master's control port. It copies bytes and looks at none, but
//! can hold back what goes one way: so an answer, or a request, arrives as late as a test wants it.

use nkv::Address;
use nkv::store::threads::spawn_named;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Nothing is held back for longer, whatever a test does.
const LONGEST_HOLD: Duration = Duration::from_secs(30);

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the master.
    Up,
    /// From the master to the client.
    Down,
}

#[derive(Default)]
struct Held {
    on: bool,
    // Bytes that arrived since and wait.
    bytes: usize,
}

#[derive(Default)]
struct Gate {
    held: Mutex<Held>,
    changed: Condvar,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, bytes: usize) {
        let mut held = self.lock();
        if !held.on {
            return;
        }
        held.bytes += bytes;
        let waited = self.changed.wait_timeout_while(held, LONGEST_HOLD, |h| h.on);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// See the file's first paragraph. Its threads end with the connections they serve.
pub struct Relay {
    address: Address,
    gates: Arc<[Gate; 2]>,
}

impl Relay {
    /// Relays to `port` of this host.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = Address::Tcp(listener.local_addr().expect("an address").to_string());
        let gates: Arc<[Gate; 2]> = Arc::default();
        let shared = gates.clone();
        spawn_named("relay", move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A master that is away is a closed connection.
                if let Ok(master) = TcpStream::connect(("127.0.0.1", port)) {
                    pump(&client, &master, &shared, Way::Up);
                    pump(&master, &client, &shared, Way::Down);
                }
            }
        })
        .expect("a thread");
        Self { address, gates }
    }

    /// Where clients connect.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Holds what goes that way back from now on, or lets all of it go.
    pub fn hold(&self, way: Way, on: bool) {
        let gate = &self.gates[way as usize];
        *gate.lock() = Held { on, bytes: 0 };
        gate.changed.notify_all();
    }

    /// Bytes that are held back now.
    pub fn held(&self, way: Way) -> usize {
        self.gates[way as usize].lock().bytes
    }
}

fn pump(from: &TcpStream, to: &TcpStream, gates: &Arc<[Gate; 2]>, way: Way) {
    let (mut from, mut to) =
        (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
    let gates = gates.clone();
    spawn_named("relay-pump", move || {
        let mut buf = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buf) {
            gates[way as usize].pass(n);
            if to.write_all(&buf[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    })
    .expect("a thread");
}
