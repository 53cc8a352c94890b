//! fsync at an aggregator, and files that are being opened.
//!
//! Arrives: requests of nodes, outcomes of the storage. Leaves: answers. Must not know: operations.

use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Status};

use super::Aggregator;
use crate::effect::{Effect, LinkId, Outcome};

impl Aggregator {
    pub(super) fn sync(&mut self, link: LinkId, id: FileId, number: u64, out: &mut Vec<Effect>) {
        let outcome = match self.files.get(&id).map(|file| &file.open) {
            Some(None) => return self.delayed.push((link, Peer::Sync { file: id, number })),
            Some(Some(open)) => open.clone(),
            None => Outcome::failed(Status::Lost, "the file is not attached"),
        };
        let job = self.number();
        self.syncs.insert(job, (id, link, number));
        if outcome.status == Status::Ok {
            out.push(Effect::Fsync { job, file: id });
        } else {
            self.synced(job, outcome, out);
        }
    }

    /// A file was opened, or was not.
    pub fn opened(&mut self, id: FileId, outcome: Outcome, out: &mut Vec<Effect>) {
        if let Some(file) = self.files.get_mut(&id) {
            file.open = Some(outcome);
        }
        let of_it =
            |(_, message): &mut _| matches!(message, Peer::Sync { file, .. } if *file == id);
        for (link, message) in self.delayed.extract_if(.., of_it).collect::<Vec<_>>() {
            self.message(link, message, out);
        }
        self.advance(id, out);
    }

    /// fsync has ended.
    pub fn synced(&mut self, job: u64, outcome: Outcome, out: &mut Vec<Effect>) {
        if let Some((file, link, number)) = self.syncs.remove(&job) {
            let Outcome { status, message } = outcome;
            out.push(Effect::ToNode(link, Peer::Synced { file, number, status, message }));
        }
    }
}
