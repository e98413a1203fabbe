//! A relay between client and agent that passes bytes on, connection by connection, and can hold or
//! break one of them.

use nkv_store::threads::spawn_named;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// What happens to the selected connection: the first, apart from the client's very first, that has
/// passed so many bytes in one direction.
#[derive(Debug, Clone, Copy)]
pub enum Interference {
    /// Bytes to the client are held back until the release.
    HoldsAnswer(usize),
    /// The client finds it closed. The agent does not, and receives more payload at the release.
    ClosesClient(usize),
}

#[derive(Debug)]
pub struct Between {
    pub at: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    harm: Interference,
    met: AtomicBool,
    released: AtomicBool,
    sent: AtomicBool,
    connections: AtomicUsize,
}

impl Between {
    pub fn start(agent: SocketAddr, harm: Interference) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            harm,
            met: AtomicBool::new(false),
            released: AtomicBool::new(false),
            sent: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        });
        let here = shared.clone();
        spawn_named("between", move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let agent = TcpStream::connect(agent).unwrap();
                let first = here.connections.fetch_add(1, Ordering::SeqCst) == 0;
                for up in [true, false] {
                    let (from, to) = if up { (&client, &agent) } else { (&agent, &client) };
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let here = here.clone();
                    spawn_named("pass", move || pass(&here, from, to, up, first)).unwrap();
                }
            }
        })
        .unwrap();
        Between { at, shared }
    }

    /// True once a connection was held or broken.
    pub fn met(&self) -> bool {
        self.shared.met.load(Ordering::SeqCst)
    }

    pub fn release(&self) {
        self.shared.released.store(true, Ordering::SeqCst);
    }

    /// True once the agent received more payload on a connection that the client found closed.
    pub fn sent_the_rest(&self) -> bool {
        self.shared.sent.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn wait(&self) {
        while !self.released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether this connection is the selected one, now that `passed` bytes were sent in this
    /// direction.
    fn meets(&self, up: bool, first: bool, passed: usize) -> bool {
        let (direction, bytes) = match self.harm {
            Interference::HoldsAnswer(n) => (false, n),
            Interference::ClosesClient(n) => (true, n),
        };
        !first && direction == up && passed >= bytes && !self.met.swap(true, Ordering::SeqCst)
    }
}

fn pass(shared: &Shared, mut from: TcpStream, mut to: TcpStream, up: bool, first: bool) {
    let mut some = vec![0; 64 << 10];
    let mut passed = 0;
    // Either end may be gone at any moment: then nothing more is passed on.
    while let Ok(n) = from.read(&mut some)
        && n > 0
    {
        if shared.meets(up, first, passed) {
            match shared.harm {
                Interference::HoldsAnswer(_) => shared.wait(),
                Interference::ClosesClient(_) => {
                    from.shutdown(Shutdown::Both).unwrap();
                    shared.wait();
                    let _ = to.write_all(&vec![0xbb; 1 << 20]);
                    shared.sent.store(true, Ordering::SeqCst);
                    return;
                }
            }
        }
        passed += n;
        if to.write_all(&some[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
