//! A handle's first contact: any node names the master, and the master sends the membership. Every
//! error here states a remedy, since its reader has only an address and a job.

use crate::control_hello::{HelloError, hello};
use crate::error::{Error, ErrorKind, Result};
use crate::message::{Purpose, Refusal, Settings, View, Welcome};
use nkv_store::KeyHasher;
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{Address, Net};
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

/// Pause between tries while no rank is known to be master.
const CHANGING: Duration = Duration::from_millis(50);

/// What a first contact returns.
#[derive(Debug)]
pub(crate) struct ClusterInfo {
    pub hasher: KeyHasher,
    pub view: View,
    pub settings: Settings,
    pub master: Vec<Address>,
}

/// Finds the master through any node of the cluster and returns what it sends, within `limit`.
pub(crate) async fn contact(
    net: &dyn Net,
    node: &Address,
    credentials: &Credentials,
    producer: u64,
    limit: Duration,
) -> Result<ClusterInfo> {
    let named = OnceLock::new();
    let work = async {
        loop {
            match first_contact(net, node, credentials, producer, &named).await {
                // The master is changing.
                Err(e) if e.kind() == ErrorKind::NotReady => tokio::time::sleep(CHANGING).await,
                done => return done,
            }
        }
    };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let (whom, ms) = (named.get().unwrap_or(node), limit.as_millis());
        let late = format!("{whom} did not answer within {ms} ms of this call");
        Err(match named.get() {
            None => Error::timeout(format!(
                "{late}; is that its address, and can it be reached from here?"
            )),
            Some(master) => at_hop(node, master, Error::timeout(late)),
        })
    })
}

/// One try: `NotReady` while no rank is known to be master.
async fn first_contact(
    net: &dyn Net,
    node: &Address,
    credentials: &Credentials,
    producer: u64,
    named: &OnceLock<Address>,
) -> Result<ClusterInfo> {
    let mut at = node.clone();
    // One hop: a node that is not the master names the master. More while it changes.
    for _ in 0..3 {
        let purpose = Purpose::Client { producer, ring: false };
        let hello_done = hello(net, &at, credentials, purpose).await;
        match hello_done.map_err(|e| unanswered(node, named.get(), e))?.1 {
            Welcome::Client { master: Some(next), .. } => {
                at = next;
                // Only for errors: the first one that was named.
                let _ = named.set(at.clone());
            }
            Welcome::Client { master: None, view, settings, hasher, .. } => {
                let hasher = KeyHasher::new(hasher.0);
                return Ok(ClusterInfo { hasher, view, settings, master: vec![at] });
            }
            Welcome::Refused { why: Refusal::Later(why) } => {
                return Err(Error::not_ready(format!("{at} refused for now: {why}")));
            }
            Welcome::Refused { why } => {
                return Err(match named.get() {
                    None => refused(&at, &why),
                    // The node accepted this client, so the master's address belongs to another
                    // cluster.
                    Some(next) => at_hop(node, next, Error::disconnected(why.to_string())),
                });
            }
            other => {
                let text = format!("{at} answered a client {other}: is it a node of this job?");
                return Err(Error::disconnected(text));
            }
        }
    }
    Err(Error::not_ready(format!("the master is changing: {at} was named last")))
}

/// InvalidArgument with the reason of a refusal, and the setting to change.
pub(super) fn refused(at: &Address, why: &Refusal) -> Error {
    Error::invalid(match why {
        Refusal::Job { ours, theirs } => {
            format!("{at} serves job '{ours}', not '{theirs}': give --job {ours}, or NKV_JOB")
        }
        other => format!("{at} refused: {other}"),
    })
}

/// The error for a node that does not answer, with a remedy.
pub(super) fn unanswered(node: &Address, master: Option<&Address>, error: HelloError) -> Error {
    if let Some(master) = master
        && !matches!(error, HelloError::Unproven(_))
    {
        return at_hop(node, master, error.into());
    }
    let remedy = match error {
        HelloError::NoListener(_, ref e)
            if matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
        {
            "start that node, or connect through another one (control= of its ready line)"
        }
        HelloError::NoListener(..) => "is that its address? see control= of its ready line",
        HelloError::Unproven(_) => return error.into(),
        HelloError::OtherPort(..) => "use control= of the ready line",
        HelloError::Broke(..) => {
            "a node that is just ending breaks off like this; otherwise: is that a control port? \
             use control= of the ready line"
        }
    };
    Error::disconnected(format!("{error}; {remedy}"))
}

/// Names the master in an error of the master, so that the node that was asked first is not blamed.
fn at_hop(node: &Address, master: &Address, error: Error) -> Error {
    let why = error.message();
    let message = format!(
        "{node} answers, but not the master {master} it names: {why}; if that rank is down \
         start it again, else see that its address can be reached from here"
    );
    error.with_message(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use nkv_transport::wire::auth::AuthError;

    fn at(port: u16) -> Address {
        format!("h:{port}").parse().unwrap()
    }

    #[test]
    fn a_node_that_does_not_answer_is_named_with_the_remedy_for_just_that() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = unanswered(&at(1), None, HelloError::NoListener(at(1), refused));
        let error = error.message();
        assert!(error.starts_with("cannot connect to tcp://h:1: "), "{error}");
        assert!(error.contains("; start that node, or connect through another one"), "{error}");
        let foreign = io::Error::new(io::ErrorKind::PermissionDenied, "user 7 listens there");
        let error = unanswered(&at(1), None, HelloError::NoListener(at(1), foreign));
        let error = error.message();
        assert!(!error.contains("start that node"), "{error}");
        let data = AuthError::Channel("this is a data port, not a control port".into());
        let error = unanswered(&at(1), None, HelloError::OtherPort(at(1), data));
        let error = error.message();
        assert!(error.ends_with("not a control port; use control= of the ready line"), "{error}");
        let error = unanswered(&at(1), None, HelloError::Broke(at(1), "closed".into()));
        let error = error.message();
        assert!(error.contains("is just ending") && error.contains("control="), "{error}");
    }

    #[test]
    fn a_master_that_does_not_answer_is_not_blamed_on_the_node_that_named_it() {
        let broke = HelloError::Broke(at(2), "closed".into());
        let error = unanswered(&at(1), Some(&at(2)), broke);
        assert_eq!(error.kind(), ErrorKind::Disconnected);
        assert!(error.message().contains("answers, but not the master tcp://h:2"), "{error}");
        assert!(error.message().contains("if that rank is down start it again"), "{error}");
    }

    #[test]
    fn a_refusal_names_the_flag_to_change() {
        let why = Refusal::Job { ours: "theirs".into(), theirs: "mine".into() };
        let error = refused(&at(1), &why);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error.message().contains("serves job 'theirs', not 'mine': give --job theirs"),
            "{error}"
        );
        let error = refused(&at(1), &Refusal::Version { ours: 1, theirs: 2 });
        assert!(error.message().starts_with("tcp://h:1 refused: this node speaks"), "{error}");
    }
}
