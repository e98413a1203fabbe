//! Fault injection for tests of supervision: any role can be made to panic or to hang.

use super::{Context, Message, On, Reply, Role};
use std::time::Duration;

/// Makes the role panic inside its handler.
#[derive(Debug)]
pub struct Crash;

impl Message for Crash {
    type Reply = ();
}

impl<R: Role> On<Crash> for R {
    fn on(&mut self, _: Crash, _reply: Reply<()>, _: &mut Context<'_, Self>) {
        panic!("injected panic");
    }
}

/// Makes the role block in its handler for this time, as a defect or a stuck system call would.
#[derive(Debug)]
pub struct Freeze(pub Duration);

impl Message for Freeze {
    type Reply = ();
}

impl<R: Role> On<Freeze> for R {
    fn on(&mut self, m: Freeze, reply: Reply<()>, _: &mut Context<'_, Self>) {
        std::thread::sleep(m.0);
        reply.send(());
    }
}
