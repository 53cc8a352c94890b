//! Windows that are acknowledged before they are in the file: their memory, their copies, their writes.
//!
//! Arrives: windows whose bytes are all there, messages of other aggregators, outcomes of the storage. Leaves: copies,
//! storage requests, answers. Must not know: which of them may be written when.

use std::collections::HashSet;
use std::sync::Arc;

use waystage_collective::behind::{Action, Behind, Ended, Entry};
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Status};

use super::choice::piece_of;
use super::state::{File, Phase, Unwritten};
use super::{Aggregator, Job};
use crate::coverage::Coverage;
use crate::effect::{Effect, LinkId, Outcome, Transfer};

/// Own windows that are behind take at most this part of the images' room, and so do copies of others'.
const SHARE: u64 = 4;

impl Aggregator {
    /// Offer a window to the next aggregator of the map. False where it has to be written first.
    pub(super) fn offer(&mut self, id: FileId, pull: u64, out: &mut Vec<Effect>) -> bool {
        let own = |entry: &Entry| matches!(entry, Entry::Own(_));
        let left = self.share_left(own);
        let Some(file) = self.files.get_mut(&id) else {
            return false;
        };
        let Some(op) = file.op.as_mut().filter(|op| op.map.aggregators.len() > 1) else {
            return false;
        };
        let Some(window) = op.windows.iter_mut().find(|window| window.pull == pull) else {
            return false;
        };
        if window.window.bytes() > left || !file.behind.may_offer() {
            return false;
        }
        window.phase = Phase::Copying;
        let mut coverage = std::mem::take(&mut window.coverage);
        let (bytes, epoch, aggregators) = (coverage.total(), op.map.epoch, &op.map.aggregators);
        let holder: Arc<str> = aggregators[(op.index + 1) % aggregators.len()].as_str().into();
        let offer = Peer::Offer {
            file: id,
            copy: pull,
            epoch,
            owner: aggregators[op.index].clone(),
            window: window.window,
            coverage: coverage.encode(),
            bytes,
        };
        let unwritten = Unwritten {
            window: window.window,
            image: window.image,
            coverage,
            bytes,
            piece: piece_of(op.map.unit, bytes),
            aggregators: aggregators.len(),
            job: None,
        };
        file.unwritten.insert(Entry::Own(pull), unwritten);
        file.behind.offer(pull, epoch, Arc::clone(&holder));
        out.push(Effect::ToAggregator(holder, offer));
        true
    }

    /// Bytes that windows of a kind may still take.
    fn share_left(&self, kind: impl Fn(&Entry) -> bool) -> u64 {
        let all = self.files.values().flat_map(|file| &file.unwritten);
        let taken: u64 =
            all.filter(|(entry, _)| kind(entry)).map(|(_, of)| of.window.bytes()).sum();
        (self.images.bytes() / SHARE).saturating_sub(taken)
    }

    /// Whether anything that was acknowledged is being written.
    pub fn is_writing_behind(&self) -> bool {
        self.files.values().any(|file| file.behind.is_writing())
    }

    /// A message of another aggregator or of a node, about what is behind.
    pub(super) fn behind_message(&mut self, link: LinkId, message: Peer, out: &mut Vec<Effect>) {
        match message {
            Peer::Offer { .. } => self.offered(link, message, out),
            Peer::Written { file: id, copy, status, message } => {
                if let Some(file) = self.files.get_mut(&id).filter(|_| status != Status::Ok) {
                    record(file, Outcome { status, message });
                }
                self.behind(id, out, |behind, out| behind.dropped(link, copy, out));
            }
            Peer::Settle { file: id, number, epoch, lost } => {
                let lost: Vec<Arc<str>> = lost.into_iter().map(Arc::from).collect();
                if !self.files.contains_key(&id) {
                    let (status, message) = (Status::Ok, String::new());
                    let settled = Peer::Settled { file: id, number, status, message };
                    return out.push(Effect::ToNode(link, settled));
                }
                self.behind(id, out, |behind, out| {
                    behind.settle((link, number), epoch, &lost, out);
                });
            }
            _ => out.push(Effect::DropNode(link, "a message that no node sends")),
        }
    }

    fn offered(&mut self, link: LinkId, message: Peer, out: &mut Vec<Effect>) {
        let Peer::Offer { file: id, copy, epoch, owner, window, coverage, bytes } = message else {
            return;
        };
        let Ok(mut coverage) = Coverage::decode(&coverage, window.bytes()) else {
            return out.push(Effect::DropNode(link, "a coverage that cannot be read"));
        };
        if coverage.total() != bytes || bytes == 0 {
            return out.push(Effect::DropNode(link, "an offer that makes no sense"));
        }
        let copies = |entry: &Entry| matches!(entry, Entry::Copy(..));
        let fits = window.bytes() <= self.share_left(copies);
        let ready = |file: &&mut File| {
            let open = file.open.as_ref().is_some_and(|open| open.status == Status::Ok);
            open && fits && file.hung.is_empty() && file.links.contains_key(&link)
        };
        let mut taken = false;
        if let Some(file) = self.files.get_mut(&id).filter(ready) {
            if let Some(image) = self.images.take(window.bytes()) {
                taken = file.behind.take(link, copy, epoch, owner.into());
                if taken {
                    let unwritten = Unwritten {
                        window,
                        image,
                        coverage,
                        bytes,
                        // It is written alone, at once.
                        piece: piece_of(window.block, bytes),
                        aggregators: 1,
                        job: None,
                    };
                    file.unwritten.insert(Entry::Copy(link, copy), unwritten);
                } else {
                    self.images.give(image);
                }
            }
        }
        out.push(Effect::ToNode(link, Peer::Taken { file: id, copy, taken }));
    }

    /// Where the raw bytes behind `Copy` go: the image and the runs, in order.
    pub fn copy_target(&self, link: LinkId, id: FileId, copy: u64) -> Option<(u64, Coverage)> {
        let file = self.files.get(&id).filter(|file| file.behind.expects(link, copy))?;
        let unwritten = file.unwritten.get(&Entry::Copy(link, copy))?;
        Some((unwritten.image, unwritten.coverage.clone()))
    }

    /// The bytes of a copy are in its image.
    pub fn copied(&mut self, link: LinkId, id: FileId, copy: u64, out: &mut Vec<Effect>) {
        let mut kept = None;
        self.behind(id, out, |behind, out| kept = behind.received(link, copy, out));
        let answer = match kept {
            Some(true) => Peer::Kept { file: id, copy },
            Some(false) => Peer::Taken { file: id, copy, taken: false },
            None => return,
        };
        out.push(Effect::ToNode(link, answer));
    }

    /// The answer of another aggregator that was offered a window.
    pub fn holder_message(&mut self, message: Peer, out: &mut Vec<Effect>) {
        match message {
            Peer::Taken { file, copy, taken } => {
                self.behind(file, out, |behind, out| behind.taken(copy, taken, out));
            }
            Peer::Kept { file, copy } => {
                self.behind(file, out, |behind, out| behind.kept(copy, out));
            }
            _ => {}
        }
    }

    /// The connection to another aggregator has ended.
    pub fn holder_lost(&mut self, address: &str, out: &mut Vec<Effect>) {
        for id in self.files.keys().copied().collect::<Vec<_>>() {
            self.behind(id, out, |behind, out| behind.holder_lost(address, out));
        }
    }

    /// An epoch of a file has begun.
    pub(super) fn begin_epoch(&mut self, id: FileId, epoch: u64, out: &mut Vec<Effect>) {
        self.behind(id, out, |behind, out| behind.begin(epoch, out));
    }

    /// A write of acknowledged bytes has ended.
    pub(super) fn wrote_behind(
        &mut self,
        (number, job): (u64, &Job),
        entry: Entry,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        let id = job.file;
        let known = self.files.get_mut(&id).and_then(|file| file.unwritten.get_mut(&entry));
        if let Some(known) = known.filter(|known| known.job == Some(number)) {
            known.job = None;
            self.end_write(id, entry, outcome, out);
        } else {
            // It was late, and is reported.
            self.images.give(job.image);
        }
        self.answer_fences(out);
        self.forget_unused(id, out);
        self.advance(id, out);
        self.feed(out);
    }

    /// A write of acknowledged bytes hangs: it is reported, and its memory stays taken until it has ended.
    pub(super) fn late_behind(
        &mut self,
        id: FileId,
        entry: Entry,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        if let Some(file) = self.files.get_mut(&id) {
            file.unwritten.remove(&entry);
        }
        self.end_write(id, entry, outcome, out);
    }

    fn end_write(&mut self, id: FileId, entry: Entry, outcome: Outcome, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let ended = match outcome.status {
            Status::Ok => Ended::Done,
            Status::Again => Ended::Stopped,
            _ => Ended::Failed,
        };
        let mut actions = Vec::new();
        if file.behind.ended(entry, ended, &mut actions) {
            record(file, outcome);
        }
        self.carry_out(id, actions, out);
    }

    pub(super) fn behind(
        &mut self,
        id: FileId,
        out: &mut Vec<Effect>,
        act: impl FnOnce(&mut Behind, &mut Vec<Action>),
    ) {
        if let Some(file) = self.files.get_mut(&id) {
            let mut actions = Vec::new();
            act(&mut file.behind, &mut actions);
            self.carry_out(id, actions, out);
        }
    }

    fn carry_out(&mut self, id: FileId, actions: Vec<Action>, out: &mut Vec<Effect>) {
        let (any, mut released) = (!actions.is_empty(), false);
        for action in actions {
            let Some(file) = self.files.get_mut(&id) else {
                return;
            };
            match action {
                Action::Send { window, holder } => {
                    if let Some(of) = file.unwritten.get(&Entry::Own(window)) {
                        let message = Peer::Copy { file: id, copy: window, bytes: of.bytes };
                        let (image, coverage) = (of.image, of.coverage.clone());
                        out.push(Effect::SendCopy { address: holder, message, image, coverage });
                    }
                }
                Action::WriteThrough(pull) => {
                    let Some(of) = file.unwritten.remove(&Entry::Own(pull)) else {
                        continue;
                    };
                    let op = file.op.as_mut();
                    let found = op.and_then(|op| op.windows.iter_mut().find(|w| w.pull == pull));
                    if let Some(window) = found {
                        window.coverage = of.coverage;
                        self.begin_transfer(id, pull, out);
                    }
                }
                Action::Acknowledge(pull) => {
                    if let Some(op) = file.op.as_mut() {
                        op.windows.retain(|window| window.pull != pull);
                    }
                    self.pulls.remove(&pull);
                }
                Action::Write(entry) => self.write_behind(id, entry, out),
                Action::Stop(entry) => {
                    let job = file.unwritten.get(&entry).and_then(|of| of.job);
                    out.extend(job.map(Effect::Cancel));
                }
                Action::Release(entry) => {
                    released = true;
                    if let Some(of) = file.unwritten.remove(&entry) {
                        self.images.give(of.image);
                    }
                    if let (Entry::Own(pull), Some(op)) = (entry, file.op.as_mut()) {
                        op.windows.retain(|window| window.pull != pull);
                        self.pulls.remove(&pull);
                    }
                }
                Action::Drop { window, holder, failed } => {
                    let failure = file.failed.as_ref().filter(|_| failed);
                    let Outcome { status, message } =
                        failure.map(|(outcome, _)| outcome.clone()).unwrap_or_default();
                    let written = Peer::Written { file: id, copy: window, status, message };
                    out.push(Effect::ToAggregator(holder, written));
                }
                Action::Settled(link, number) => {
                    let known =
                        file.failed.as_mut().map(|(outcome, knows)| (outcome, knows.insert(link)));
                    let new = known.filter(|(_, new)| *new).map(|(outcome, _)| outcome.clone());
                    let Outcome { status, message } = new.unwrap_or_default();
                    let settled = Peer::Settled { file: id, number, status, message };
                    out.push(Effect::ToNode(link, settled));
                }
            }
        }
        if any {
            self.advance(id, out);
        }
        if released {
            self.feed(out);
        }
    }

    fn write_behind(&mut self, id: FileId, entry: Entry, out: &mut Vec<Effect>) {
        let job = self.number();
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let Some(of) = file.unwritten.get_mut(&entry) else {
            return;
        };
        of.job = Some(job);
        let image = of.image;
        let behind = Some(entry);
        self.jobs.insert(job, Job { file: id, pull: 0, image, cancelled: false, behind });
        out.push(Effect::Transfer(Transfer {
            job,
            file: id,
            app: Arc::clone(&file.app),
            write: true,
            window: of.window,
            image,
            coverage: of.coverage.clone(),
            bytes: of.bytes,
            piece: of.piece,
            aggregators: of.aggregators,
        }));
    }
}

/// Keep an error of acknowledged bytes for the nodes of the file.
fn record(file: &mut File, outcome: Outcome) {
    match &mut file.failed {
        Some((known, knows)) => {
            known.combine(outcome);
            knows.clear();
        }
        None => file.failed = Some((outcome, HashSet::new())),
    }
}
