//! Removal from disks, before the same is removed from memory: what is on no disk, and is not saved
//! or brought back meanwhile, cannot come back from there [I6].

use super::super::known::{Known, removes};
use super::super::{Ask, Master};
use super::WORK_LIMIT_MS;
use super::missed::RunningRemoval;
use crate::actor::Reply;
use crate::error::{Error, ErrorKind};
use crate::message::{
    DiskQuestion, DiskSelection, KeyBytes, MAX_BATCH, MasterToOwner, Request, Response,
};

/// Whether some of the keys are gone, and must not come back.
fn confirms(answer: &Response) -> bool {
    match answer {
        Response::Done(list) => list.iter().any(is_gone),
        Response::Swept(swept) => swept.why.is_none(),
        _ => false,
    }
}

fn is_gone(done: &Result<(), Error>) -> bool {
    done.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::NotFound)
}

/// Whether an answer ends a removal that may take several rounds.
fn ends_removal(answer: &Response) -> bool {
    match answer {
        Response::Swept(swept) => swept.next.is_none() && swept.why.is_none(),
        Response::Done(list) => list.iter().all(is_gone),
        _ => false,
    }
}

impl Master {
    /// What a removal covers: of keys the stripes that are in memory, too.
    fn selection_of(&self, request: &Request) -> Option<DiskSelection> {
        let with_stripes = |mut keys: Vec<KeyBytes>| {
            let stripes: Vec<_> = keys.iter().flat_map(|key| self.keys_of_stripes(key)).collect();
            keys.extend(stripes);
            keys.truncate(MAX_BATCH);
            DiskSelection::Keys(keys)
        };
        match request {
            Request::Remove(keys) => Some(with_stripes(keys.clone())),
            Request::RemoveAt(list) => {
                Some(with_stripes(list.iter().map(|(key, _)| key.clone()).collect()))
            }
            Request::RemoveMatching(of) => Some(match &of.pattern {
                Some(pattern) => DiskSelection::Matching(pattern.clone()),
                None => DiskSelection::All,
            }),
            _ => None,
        }
    }

    /// Gives the request back if no disk is to be asked. Each round of a removal that takes several
    /// asks again: a disk that has done it says so at once, and remembers it for longer.
    pub(in crate::master) fn remove_from_disks_first(
        &mut self,
        ask: Ask,
        reply: Reply<Response>,
    ) -> Option<(Ask, Reply<Response>)> {
        let which = self.selection_of(&ask.request).filter(|_| removes(&ask.request));
        let Some(which) = which else {
            return Some((ask, reply));
        };
        // Before any disk is asked: a removal that cannot be done must not be half done.
        if let Err(error) = self.check_logs_of(&ask.request) {
            reply.send(Response::Failed(error));
            return None;
        }
        let disks: Vec<_> = self.disks().collect();
        if let Some((segment_id, _)) = disks.iter().find(|(id, _)| !self.reachable(*id)) {
            let text = format!(
                "the link of {segment_id} is down, and the disk of that rank may hold what is to \
                 be removed: nothing was removed; remove again once that rank is back, or gone \
                 after its TTL"
            );
            reply.send(Response::Failed(Error::disconnected(text)));
            return None;
        }
        let removal = self.durable.random.u64();
        let (members, asked, over) = (self.durable.members.clone(), disks.clone(), which.clone());
        // Ranks that join from now on are asked for nothing before it is over.
        let running = RunningRemoval::begin(self.durable.members.clone());
        let reply = reply.observed(move |answer| {
            if confirms(answer) {
                members.note_missed(&over, &asked);
            }
            drop(running);
            let again = !ends_removal(answer);
            for (segment_id, _) in asked {
                members.send(segment_id, MasterToOwner::RemovalOver { removal, again });
            }
        });
        let question = DiskQuestion::Remove { removal, which };
        let questions = disks.into_iter().map(|(id, of)| (id, of, question.clone())).collect();
        let known = Known::default();
        self.ask_disks(questions, WORK_LIMIT_MS, (ask, reply, known)).map(|(a, r, _)| (a, r))
    }

    /// The disks have removed it; now memory does. What held when they were asked may not hold any
    /// more.
    pub(super) fn removed_from_disks(&mut self, ask: Ask, reply: Reply<Response>, known: Known) {
        match self.refuse(&ask.request) {
            Some(error) => reply.send(Response::Failed(error)),
            None => self.answer_from_memory(ask, reply, known),
        }
    }
}
