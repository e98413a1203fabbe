//! How a handle finds the master after another rank became it: it asks the nodes that it knows.

use crate::control_hello::hello;
use crate::message::{Purpose, Term, View, Welcome};
use futures_util::future::join_all;
use nkv_transport::wire::auth::Credentials;
use nkv_transport::wire::{Address, Net, within};
use std::collections::BTreeMap;
use std::time::Duration;

/// A node that does not answer within this time is passed over.
const ANSWER_LIMIT: Duration = Duration::from_millis(300);
/// Nodes that are asked in one search, at most; the next one begins with others.
const ASKED: usize = 16;

/// The nodes that a handle knows, by rank: where each was last.
#[derive(Debug, Default)]
pub(super) struct KnownNodes {
    at: BTreeMap<u32, Address>,
    searches: usize,
}

impl KnownNodes {
    /// Adds what a view names.
    pub(super) fn learn(&mut self, view: &View) {
        self.at.extend(view.nodes().map(|(info, _)| (info.rank, info.control.clone())));
    }

    /// Where the master is, as far as these nodes know: of several that are named the one with the
    /// highest term.
    pub(super) async fn search(
        &mut self,
        net: &dyn Net,
        credentials: &Credentials,
        producer: u64,
    ) -> Option<Address> {
        let begin = (self.searches * ASKED).checked_rem(self.at.len()).unwrap_or(0);
        self.searches += 1;
        let some = self.at.values().cycle().skip(begin).take(self.at.len().min(ASKED));
        let ask = |at: Address| async move {
            let asked = hello(net, &at, credentials, Purpose::Client { producer, ring: false });
            match within(ANSWER_LIMIT, asked).await {
                Ok(Ok((_, Welcome::Client { master, view, .. }))) => Some((at, master, view.term)),
                _ => None,
            }
        };
        let answers: Vec<_> =
            join_all(some.cloned().map(ask)).await.into_iter().flatten().collect();
        let mut masters: BTreeMap<String, (Address, Option<Term>)> = BTreeMap::new();
        for (at, named, term) in answers {
            match named {
                None => drop(masters.insert(at.to_string(), (at, Some(term)))),
                Some(named) => drop(masters.entry(named.to_string()).or_insert((named, None))),
            }
        }
        let unproven = masters.values().filter(|(_, term)| term.is_none());
        let proven = join_all(unproven.map(|(at, _)| ask(at.clone()))).await;
        for (at, named, term) in proven.into_iter().flatten() {
            if named.is_none() {
                masters.insert(at.to_string(), (at, Some(term)));
            }
        }
        let known = masters.into_values().filter_map(|(at, term)| term.map(|term| (term, at)));
        known.max_by_key(|(term, _)| *term).map(|(_, at)| at)
    }
}
