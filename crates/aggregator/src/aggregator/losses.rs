//! Nodes that leave, files that no node has, epochs that end.
//!
//! Arrives: losses, farewells, fences. Leaves: operations ended, answers to fences. Must not know: windows' data.

use std::collections::HashSet;

use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::FileId;

use super::state::File;
use super::{ended, Aggregator};
use crate::effect::{Effect, LinkId};

impl Aggregator {
    /// A node's connection has ended.
    /// `silent`: nothing was heard of it, for the lease.
    pub fn node_lost(&mut self, link: LinkId, silent: bool, out: &mut Vec<Effect>) {
        let files: Vec<FileId> = self
            .files
            .iter()
            .filter(|(_, file)| file.links.contains_key(&link))
            .map(|(id, _)| *id)
            .collect();
        self.delayed.retain(|(of, _)| *of != link);
        self.fences.retain(|(of, _, _)| *of != link);
        for id in files {
            if let Some(file) = self.files.get_mut(&id) {
                file.absent.extend(file.links.get(&link).map(|node| (*node, 0)));
            }
            self.behind(id, out, |behind, out| behind.link_lost(link, silent, out));
            self.part_with(link, id, out);
        }
    }

    pub(super) fn part_with(&mut self, link: LinkId, id: FileId, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.links.remove(&link);
        file.views.retain(|(of, _), _| *of != link);
        if let Some(op) = file.op.as_mut() {
            op.outcome.combine(ended("a node was lost"));
            op.parts.remove(&link);
            for window in &mut op.windows {
                window.waiting.remove(&link);
                window.receiving.remove(&link);
                window.wanted.remove(&link);
            }
        }
        self.advance(id, out);
        self.forget_unused(id, out);
    }

    /// A file that no node has and no request is for.
    pub(super) fn forget_unused(&mut self, id: FileId, out: &mut Vec<Effect>) {
        let unused =
            |file: &File| file.links.is_empty() && file.op.is_none() && file.behind.is_empty();
        let busy = self.jobs.values().any(|job| job.file == id);
        if !busy && self.files.get(&id).is_some_and(unused) {
            self.files.remove(&id);
            self.starved.retain(|of| *of != id);
            out.push(Effect::Forget(id));
        }
    }

    pub(super) fn answer_fences(&mut self, out: &mut Vec<Effect>) {
        let writing: HashSet<FileId> = self.jobs.values().map(|job| job.file).collect();
        for (link, file, epoch) in
            self.fences.extract_if(.., |(_, file, _)| !writing.contains(file))
        {
            out.push(Effect::ToNode(link, Peer::Fenced { file, epoch }));
        }
    }
}
