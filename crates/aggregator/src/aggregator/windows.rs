//! Windows: filled by nodes, moved to or from the storage, delivered.
//!
//! Arrives: answers of nodes, outcomes of storage requests. Leaves: storage requests, data for nodes. Must not know:
//! how windows are chosen.

use std::ops::Range;
use std::sync::Arc;

use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Status};

use super::choice::piece_of;
use super::state::{Part, Phase};
use super::{Aggregator, Job, READ_GAP};
use crate::coverage::Coverage;
use crate::effect::{Effect, LinkId, Outcome, Transfer, OWN};
use crate::view_coverage::add_view;

impl Aggregator {
    /// The own node announces this operation next, and its bytes are not of any domain.
    pub fn keep(&mut self, file: FileId, op: u64, hull: Range<u64>) {
        if let Some(file) = self.files.get_mut(&file) {
            let reach = hull.start;
            file.kept = Some((op, Part { hull, views: None, inline: Vec::new(), reach }));
        }
    }

    /// Where the raw bytes behind `Data` go: the image and the runs, in order. An error ends the connection.
    pub fn data_target(
        &mut self,
        link: LinkId,
        pull: u64,
        coverage: Option<&[u8]>,
    ) -> Result<Option<(u64, Coverage)>, &'static str> {
        let Some(file) = self.pulls.get(&pull).and_then(|id| self.files.get_mut(id)) else {
            return Ok(None);
        };
        let Some(op) = &mut file.op else {
            return Ok(None);
        };
        let Some(window) = op.windows.iter_mut().find(|window| window.pull == pull) else {
            return Ok(None);
        };
        if !window.waiting.contains(&link) {
            return Err("an answer to what was not asked");
        }
        let found = if let Some(encoded) = coverage {
            let found = Coverage::decode(encoded, window.window.bytes());
            found.map_err(|_| "a coverage that cannot be read")?
        } else {
            let part = op.parts.get(&link).and_then(|part| part.views.as_ref());
            let mut found = Coverage::new(window.window.bytes());
            for range in part.ok_or("no coverage, and no views")? {
                if let Some(view) = file.views.get(&(link, range.view)) {
                    let data = range.data_offset..range.data_offset.saturating_add(range.bytes);
                    add_view(&mut found, view, &data, &window.window);
                }
            }
            found
        };
        window.receiving.insert(link);
        Ok(Some((window.image, found)))
    }

    /// A node's answer to a pull; of a write its data are in the image.
    pub fn data(
        &mut self,
        link: LinkId,
        pull: u64,
        coverage: Coverage,
        next: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(&id) = self.pulls.get(&pull) else {
            return;
        };
        let Some(op) = self.files.get_mut(&id).and_then(|file| file.op.as_mut()) else {
            return;
        };
        let Some(window) = op.windows.iter_mut().find(|window| window.pull == pull) else {
            return;
        };
        window.receiving.remove(&link);
        if !window.waiting.remove(&link) {
            return;
        }
        let part = if window.kept { op.kept.as_mut() } else { op.parts.get_mut(&link) };
        if let Some(part) = part {
            part.reach = part.reach.max(next.max(window.window.hi));
        }
        window.coverage.add_all(&coverage);
        if !op.write {
            window.wanted.insert(link, coverage);
        }
        if window.waiting.is_empty() {
            self.transfer(id, pull, out);
        }
        self.advance(id, out);
    }

    /// All answers to a pull are there.
    pub(super) fn transfer(&mut self, id: FileId, pull: u64, out: &mut Vec<Effect>) {
        let Some(op) = self.files.get_mut(&id).and_then(|file| file.op.as_mut()) else {
            return;
        };
        let (failed, behind) = (op.outcome.status != Status::Ok, op.behind);
        let Some(at) = op.windows.iter().position(|window| window.pull == pull) else {
            return;
        };
        if op.windows[at].coverage.is_empty() || failed {
            let window = op.windows.swap_remove(at);
            self.images.give(window.image);
            self.pulls.remove(&pull);
            return self.feed(out);
        }
        if !behind || !self.offer(id, pull, out) {
            self.begin_transfer(id, pull, out);
        }
    }

    /// Have the storage move the bytes of a window.
    pub(super) fn begin_transfer(&mut self, id: FileId, pull: u64, out: &mut Vec<Effect>) {
        let job = self.number();
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let app = Arc::clone(&file.app);
        let Some(op) = file.op.as_mut() else {
            return;
        };
        let write = op.write;
        let Some(window) = op.windows.iter_mut().find(|window| window.pull == pull) else {
            return;
        };
        let mut coverage = std::mem::take(&mut window.coverage);
        if !write {
            coverage = coverage.bridged(READ_GAP);
        }
        window.phase = Phase::Storage;
        let (window, image, bytes) = (window.window, window.image, coverage.total());
        let (piece, aggregators) = (piece_of(op.map.unit, bytes), op.map.aggregators.len());
        self.jobs.insert(job, Job { file: id, pull, image, cancelled: false, behind: None });
        out.push(Effect::Transfer(Transfer {
            job,
            file: id,
            app,
            write,
            window,
            image,
            coverage,
            bytes,
            piece,
            aggregators,
        }));
    }

    /// A storage request has ended; a read met the file's end at `eof`.
    pub fn transferred(&mut self, job: u64, outcome: Outcome, eof: u64, out: &mut Vec<Effect>) {
        let number = job;
        let Some(job) = self.jobs.remove(&number) else {
            return;
        };
        if let Some(file) = self.files.get_mut(&job.file) {
            file.hung.remove(&number);
        }
        if let Some(entry) = job.behind {
            return self.wrote_behind((number, &job), entry, outcome, out);
        }
        let op = self.files.get_mut(&job.file).and_then(|file| file.op.as_mut());
        let found = op.and_then(|op| {
            let at = op.windows.iter().position(|window| window.pull == job.pull)?;
            Some((op, at))
        });
        let Some((op, at)) = found else {
            self.images.give(job.image);
            self.pulls.remove(&job.pull);
            self.answer_fences(out);
            self.forget_unused(job.file, out);
            return self.feed(out);
        };
        op.outcome.combine(outcome);
        op.eof = op.eof.min(eof);
        if op.write || op.outcome.status != Status::Ok {
            op.windows.swap_remove(at);
            self.images.give(job.image);
            self.pulls.remove(&job.pull);
        } else {
            let (window, pull, image) = (&mut op.windows[at], job.pull, job.image);
            window.phase = Phase::Delivering;
            for (link, coverage) in &mut window.wanted {
                window.waiting.insert(*link);
                let (bytes, coverage) = (coverage.total(), coverage.clone());
                let message = Peer::ReadData { pull, bytes };
                out.push(if *link == OWN {
                    Effect::ReadOwn { pull }
                } else {
                    Effect::SendRead { link: *link, message, pull, image, coverage }
                });
            }
        }
        self.advance(job.file, out);
        self.feed(out);
    }

    /// A storage request hangs. Its operation ends with an error; its image stays taken, and newer operations of the
    /// file are refused, until it has ended: its bytes could come after theirs.
    pub fn late(&mut self, job: u64, outcome: Outcome, out: &mut Vec<Effect>) {
        let Some(Job { file: id, pull, behind, .. }) = self.jobs.get(&job) else {
            return;
        };
        let (id, pull, behind) = (*id, *pull, *behind);
        if let Some(file) = self.files.get_mut(&id) {
            file.hung.insert(job);
            let running = file.op.as_mut().filter(|op| op.windows.iter().any(|w| w.pull == pull));
            if let Some(op) = running {
                op.windows.retain(|window| window.pull != pull);
                op.outcome.combine(outcome.clone());
                self.pulls.remove(&pull);
            }
        }
        if let Some(entry) = behind {
            self.late_behind(id, entry, outcome, out);
        }
        self.advance(id, out);
    }

    /// A node has what was read for it.
    pub fn delivered(&mut self, link: LinkId, pull: u64, out: &mut Vec<Effect>) {
        let Some(&id) = self.pulls.get(&pull) else {
            return;
        };
        let Some(op) = self.files.get_mut(&id).and_then(|file| file.op.as_mut()) else {
            return;
        };
        let Some(at) = op.windows.iter().position(|window| window.pull == pull) else {
            return;
        };
        let window = &mut op.windows[at];
        window.waiting.remove(&link);
        if window.phase == Phase::Delivering && window.waiting.is_empty() {
            let window = op.windows.swap_remove(at);
            self.images.give(window.image);
            self.pulls.remove(&pull);
        }
        self.advance(id, out);
        self.feed(out);
    }
}
