//! A relay between a client or a rank and the master's control port. It copies bytes, changes none,
//! and can hold back one direction, so that a message arrives as late as a test needs, or never.

use nkv::Address;
use nkv_store::threads::spawn_named;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// No byte is held back for longer, whatever a test does.
const LONGEST_HOLD: Duration = Duration::from_secs(30);

/// Direction of bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
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
    // The waiting bytes are lost, and their connection is closed.
    lost: bool,
    // Only answers to requests of so many bytes and more are held.
    asked: Option<usize>,
}

/// One connection.
#[derive(Default)]
struct Line {
    // Bytes sent up since the last bytes came down: a request, as far as a relay can see.
    request_bytes: AtomicUsize,
    // A request passed whose answer is to be held.
    asked: AtomicBool,
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

    /// Returns once these bytes may go on; false if they are lost.
    fn pass(&self, bytes: usize, line: &Line) -> bool {
        let mut held = self.lock();
        if !held.on || (held.asked.is_some() && !line.asked.load(Ordering::Acquire)) {
            return true;
        }
        held.bytes += bytes;
        let waited = self.changed.wait_timeout_while(held, LONGEST_HOLD, |h| h.on);
        !waited.unwrap_or_else(PoisonError::into_inner).0.lost
    }
}

/// See the file's first paragraph. Its threads end with the connections they serve.
pub struct Relay {
    address: Address,
    port: u16,
    gates: Arc<[Gate; 2]>,
}

impl Relay {
    /// Relays to `port` of this host.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        let gates: Arc<[Gate; 2]> = Arc::default();
        let shared = gates.clone();
        spawn_named("relay", move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A master that is away is a closed connection.
                if let Ok(master) = TcpStream::connect(("127.0.0.1", port)) {
                    let at = (&shared, &Arc::new(Line::default()));
                    relay(&client, &master, at, Direction::Up);
                    relay(&master, &client, at, Direction::Down);
                }
            }
        })
        .expect("a thread");
        Self { address: Address::Tcp(at.to_string()), port: at.port(), gates }
    }

    /// Where clients connect.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Its port on this host.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Holds back bytes of that direction from now on.
    pub fn hold(&self, direction: Direction) {
        self.set(direction, Held { on: true, ..Held::default() });
    }

    /// Holds back the answer to a request of `request_bytes` bytes or more: a relay sees only the
    /// length of an encrypted request.
    pub fn hold_answer_to(&self, request_bytes: usize) {
        self.set(Direction::Down, Held { on: true, asked: Some(request_bytes), ..Held::default() });
    }

    /// Forwards all bytes held back, and all later ones.
    pub fn release(&self, direction: Direction) {
        self.set(direction, Held::default());
    }

    /// Drops the bytes held back and closes their connections; later bytes are forwarded.
    pub fn lose(&self, direction: Direction) {
        self.set(direction, Held { lost: true, ..Held::default() });
    }

    fn set(&self, direction: Direction, held: Held) {
        let gate = &self.gates[direction as usize];
        *gate.lock() = held;
        gate.changed.notify_all();
    }

    /// Bytes that are held back now.
    pub fn held(&self, direction: Direction) -> usize {
        self.gates[direction as usize].lock().bytes
    }
}

/// True if the answer to a request of `request_bytes` bytes is to be held back.
fn asks(gates: &[Gate; 2], request_bytes: usize) -> bool {
    gates[Direction::Down as usize].lock().asked.is_some_and(|least| request_bytes >= least)
}

fn relay(
    from: &TcpStream,
    to: &TcpStream,
    (gates, line): (&Arc<[Gate; 2]>, &Arc<Line>),
    direction: Direction,
) {
    let copy = |s: &TcpStream| s.try_clone().expect("a socket");
    let (mut from, mut to, gates, line) = (copy(from), copy(to), gates.clone(), line.clone());
    spawn_named("relay-pump", move || {
        let mut buf = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buf) {
            match direction {
                Direction::Down => line.request_bytes.store(0, Ordering::Relaxed),
                Direction::Up => {
                    let request = line.request_bytes.fetch_add(n, Ordering::Relaxed) + n;
                    line.asked.fetch_or(asks(&gates, request), Ordering::Release);
                }
            }
            if !gates[direction as usize].pass(n, &line) || to.write_all(&buf[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    })
    .expect("a thread");
}
