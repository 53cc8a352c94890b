//! The aggregator: pulls windows of its file domains from nodes and has them written; or reads them and delivers.
//!
//! Arrives: messages of nodes, outcomes of storage requests. Leaves: effects. Must not know: ranks, sockets, clocks.
//!
//! Images of an operation take at most the bytes of two windows of `cb_buffer_size`, as one is filled while the other
//! is written; smaller windows are more at a time. Without a free image an operation waits. Nothing is held that grows
//! with ranks or extents, but bytes of small operations that come with their announcements, which are bounded.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use waystage_collective::behind::{Behind, Entry};
use waystage_collective::{ServerMap, View};
use waystage_collective_wire::peer::{Peer, RankRange};
use waystage_collective_wire::{FileId, Status};

use crate::effect::{Effect, LinkId, Outcome, OWN};
use crate::room::{union_of, Room};

mod behind;
mod choice;
mod losses;
mod pulling;
mod state;
mod syncs;
mod windows;

use choice::{next_kept, next_window, prefetch};
use pulling::{begin_window, fits};
use state::{File, Op, OpWindow, Part, Phase};

/// Windows of the size of `cb_buffer_size` that an operation has images for at a time.
const BUFFERS: u64 = 2;

/// Windows of an operation that have an image at a time, where smaller ones fit into the same memory.
const MOST_WINDOWS: usize = 8;

/// Covered ranges of a read that are at most this far apart are read as one: a page.
const READ_GAP: u64 = 4096;

/// The aggregator's part of a process.
pub struct Aggregator {
    files: BTreeMap<FileId, File>,
    images: Room,
    /// File of each pull.
    pulls: HashMap<u64, FileId>,
    /// File of each storage request, for those that outlive their operation too.
    jobs: HashMap<u64, Job>,
    syncs: HashMap<u64, (FileId, LinkId, u64)>,
    next_number: u64,
    /// Files whose operation waits for an image.
    starved: VecDeque<FileId>,
    fences: Vec<(LinkId, FileId, u64)>,
    /// Operations that were announced while an older one was being ended; syncs of a file that is being opened.
    delayed: Vec<(LinkId, Peer)>,
}

struct Job {
    file: FileId,
    pull: u64,
    image: u64,
    cancelled: bool,
    /// What it writes behind, of no operation.
    behind: Option<Entry>,
}

impl Aggregator {
    /// One whose images have this room.
    pub fn new(images: Room) -> Self {
        Self {
            files: BTreeMap::new(),
            images,
            pulls: HashMap::new(),
            jobs: HashMap::new(),
            syncs: HashMap::new(),
            next_number: 1,
            starved: VecDeque::new(),
            fences: Vec::new(),
            delayed: Vec::new(),
        }
    }

    /// Bytes of images in use.
    pub fn image_bytes(&self) -> u64 {
        self.images.taken_bytes()
    }

    /// Number of files, and of operations in progress.
    pub fn counts(&self) -> (usize, usize) {
        (
            self.files.len(),
            self.files
                .values()
                .filter(|file| file.op.is_some() || file.behind.is_writing())
                .count(),
        )
    }

    /// A message of a node, unless it is `Data`.
    pub fn message(&mut self, link: LinkId, message: Peer, out: &mut Vec<Effect>) {
        match message {
            Peer::Attach { file, path, flags, app, node, nodes, window_bytes } => {
                let most = self.images.bytes() / BUFFERS;
                let known = self.files.entry(file).or_insert_with(|| {
                    out.push(Effect::Open { file, path: path.clone(), flags });
                    File {
                        path,
                        flags,
                        app: app.into(),
                        nodes,
                        window_bytes: window_bytes.clamp(1, most.max(1)),
                        links: HashMap::new(),
                        views: HashMap::new(),
                        open: None,
                        op: None,
                        absent: BTreeMap::new(),
                        ended: None,
                        bereft: BTreeMap::new(),
                        hung: HashSet::new(),
                        kept: None,
                        fenced: 0,
                        last_read: None,
                        behind: Behind::default(),
                        unwritten: BTreeMap::new(),
                        failed: None,
                    }
                });
                known.absent.remove(&node);
                known.links.insert(link, node);
            }
            Peer::View { file, view, encoded } => {
                match (self.files.get_mut(&file), View::decode(&encoded)) {
                    (Some(file), Ok(found)) => {
                        file.views.insert((link, view), Arc::new(found));
                    }
                    _ => out.push(Effect::DropNode(link, "a view that cannot be read")),
                }
            }
            Peer::Announce { .. } => self.announce(link, message, out),
            Peer::Abort { file, op } => self.abort(link, file, op, out),
            Peer::RankLost { file, message } => {
                if let Some(known) = self.files.get_mut(&file) {
                    if let Some(node) = known.links.get(&link) {
                        known.bereft.insert(*node, message.clone());
                    }
                    if let Some(op) = &mut known.op {
                        op.outcome.combine(Outcome::failed(Status::Lost, message));
                    }
                }
                self.advance(file, out);
            }
            Peer::Sync { file, number } => self.sync(link, file, number, out),
            Peer::Detach { file } => {
                self.part_with(link, file, out);
            }
            Peer::Fence { file, epoch } => {
                self.fences.push((link, file, epoch));
                if let Some(known) = self.files.get_mut(&file) {
                    known.fenced = known.fenced.max(epoch);
                    if let Some(op) = known.op.as_mut().filter(|op| op.map.epoch <= epoch) {
                        op.outcome.combine(ended("a new epoch began"));
                    }
                }
                self.advance(file, out);
            }
            message => self.behind_message(link, message, out),
        }
    }

    /// A node gave the operation up, which it or others may not have announced.
    fn abort(&mut self, link: LinkId, id: FileId, op: u64, out: &mut Vec<Effect>) {
        let mut running = false;
        if let Some(file) = self.files.get_mut(&id) {
            if let Some(op) = file.op.as_mut().filter(|running| running.number <= op) {
                op.outcome.combine(ended("a node gave the operation up"));
            }
            running = file
                .op
                .as_ref()
                .is_some_and(|running| running.number == op && running.parts.contains_key(&link));
            if !running && file.ended.as_ref().is_none_or(|(last, _)| *last < op) {
                file.ended = Some((op, ended("a node gave the operation up")));
            }
        }
        if !running {
            out.push(Effect::ToNode(link, done(id, op, &ended("it has ended"), u64::MAX)));
        }
        self.advance(id, out);
    }

    /// Nodes that are not connected and have not announced an operation are waited for no longer. In nanoseconds.
    pub fn tick(&mut self, now_ns: u64, patience_ns: u64, out: &mut Vec<Effect>) {
        let mut late = Vec::new();
        for (id, file) in &mut self.files {
            for since in file.absent.values_mut() {
                if *since == 0 {
                    *since = now_ns;
                }
            }
            let gone =
                file.absent.values().any(|since| now_ns.saturating_sub(*since) > patience_ns);
            // A successor of this or of the node's process may never have heard of the other.
            let linked: HashSet<u32> = file.links.values().copied().collect();
            let missing = (0..file.nodes).any(|node| !linked.contains(&node));
            if let Some(op) = file.op.as_mut().filter(|_| gone || missing) {
                if op.since_ns == 0 {
                    op.since_ns = now_ns;
                }
                if !gone && now_ns.saturating_sub(op.since_ns) <= patience_ns {
                    continue;
                }
                // Its own ranks say that it is lost, if no successor answers them.
                op.outcome
                    .combine(ended("a node's aggregator process has ended and not come back"));
                late.push(*id);
            }
        }
        for id in late {
            self.advance(id, out);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn announce(&mut self, link: LinkId, message: Peer, out: &mut Vec<Effect>) {
        let Peer::Announce {
            file: id,
            op,
            ref map,
            index,
            write,
            hull_lo,
            hull_hi,
            behind,
            ref views,
            ref inline,
        } = message
        else {
            return;
        };
        let Some(file) = self.files.get_mut(&id).filter(|file| file.links.contains_key(&link))
        else {
            return out
                .push(Effect::DropNode(link, "an operation on a file that it did not attach"));
        };
        if let Some(running) = file.op.as_mut().filter(|running| running.number != op) {
            if running.number > op {
                // A latecomer to what was given up.
                return out
                    .push(Effect::ToNode(link, done(id, op, &ended("it has ended"), u64::MAX)));
            }
            // All nodes have left the older operation, or this one would not be announced.
            running.outcome.combine(ended("a node began another operation"));
            self.delayed.push((link, message));
            return self.advance(id, out);
        }
        if let Some((last, outcome)) = file.ended.as_ref().filter(|(last, _)| *last >= op) {
            let failed = if *last == op && outcome.status != Status::Ok {
                outcome.clone()
            } else {
                ended("it has ended")
            };
            return out.push(Effect::ToNode(link, done(id, op, &failed, u64::MAX)));
        }
        let Ok(map) = ServerMap::decode(map) else {
            return out.push(Effect::DropNode(link, "a server map that cannot be read"));
        };
        // A node that announces it has all its ranks.
        let own = file.links.get(&link).copied().unwrap_or(u32::MAX);
        let refused = if file.hung.is_empty() {
            let lost = file.bereft.values().next().cloned();
            file.bereft.remove(&own);
            lost.map(|why| Outcome::failed(Status::Lost, why))
        } else {
            let path = String::from_utf8_lossy(&file.path);
            let why = format!("{path}: the storage has not ended an earlier request to it");
            Some(Outcome::failed(Status::Io, why))
        };
        if let Some(refused) = refused {
            out.push(Effect::ToNode(link, done(id, op, &refused, u64::MAX)));
            if file.op.is_none() {
                file.ended = Some((op, refused));
                return;
            }
            if let Some(running) = &mut file.op {
                running.outcome.combine(refused);
            }
            return self.advance(id, out);
        }
        let known = |range: &RankRange| file.views.contains_key(&(link, range.view));
        let strange = hull_lo > hull_hi
            || hull_hi > i64::MAX as u64
            || index as usize >= map.aggregators.len()
            || views.as_ref().is_some_and(|views| !views.iter().all(known))
            || !fits(inline, views.as_deref());
        if strange {
            return out.push(Effect::DropNode(link, "an operation that makes no sense"));
        }
        if map.epoch <= file.fenced {
            return out
                .push(Effect::ToNode(link, done(id, op, &ended("its epoch has ended"), u64::MAX)));
        }
        let running = file.op.get_or_insert_with(|| Op {
            number: op,
            map: map.clone(),
            index: index as usize,
            write,
            behind: write && behind,
            parts: BTreeMap::new(),
            domains: None,
            kept: None,
            kept_at: 0,
            at: 0,
            windows: Vec::new(),
            outcome: Outcome::ok(),
            eof: u64::MAX,
            since_ns: 0,
        });
        if running.map != map || running.index != index as usize || running.write != write {
            // Nodes that differ would corrupt the file: no node goes on.
            running.outcome.combine(ended("nodes disagree about it"));
        }
        if link == OWN {
            if let Some((_, part)) = file.kept.take_if(|(number, _)| *number == op) {
                running.kept_at = part.hull.start;
                running.kept = Some(part);
            }
        }
        let epoch = running.map.epoch;
        let (views, inline) = (views.clone(), inline.clone());
        running.parts.insert(link, Part { hull: hull_lo..hull_hi, views, inline, reach: hull_lo });
        self.begin_epoch(id, epoch, out);
        self.advance(id, out);
    }

    /// Go on with a file's operation as far as it can.
    fn advance(&mut self, id: FileId, out: &mut Vec<Effect>) {
        self.answer_fences(out);
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let Some(op) = file.op.as_mut() else {
            return;
        };
        if let Some(failed) = file.open.as_ref().filter(|open| open.status != Status::Ok) {
            op.outcome.combine(failed.clone());
        }
        let failed = op.outcome.status != Status::Ok;
        if failed && op.outcome.status == Status::Again {
            // Answers that are missing will not come. An image stays taken while anything writes into it.
            let unused = |window: &mut OpWindow| {
                let busy =
                    window.receiving.iter().chain([&OWN]).any(|link| window.waiting.contains(link));
                !matches!(window.phase, Phase::Storage | Phase::Copying) && !busy
            };
            for window in op.windows.extract_if(.., unused) {
                self.images.give(window.image);
                self.pulls.remove(&window.pull);
            }
            let copying = op.windows.iter().filter(|window| window.phase == Phase::Copying);
            copying.for_each(|window| file.behind.give_up(window.pull));
        }
        if failed {
            for (number, job) in &mut self.jobs {
                if job.file == id
                    && job.behind.is_none()
                    && !std::mem::replace(&mut job.cancelled, true)
                {
                    out.push(Effect::Cancel(*number));
                }
            }
        }
        let complete = op.parts.len() >= file.nodes as usize;
        // What is kept begins early, but not where another node may still ask to settle the file.
        let early = op.kept.is_some() && !op.behind;
        if !failed && (file.open.is_none() || (!complete && !early)) {
            return;
        }
        if !failed && complete && op.domains.is_none() {
            if let Some(hull) = union_of(op.parts.values().map(|part| &part.hull)) {
                op.at = hull.start;
                op.domains = op.map.domains(&hull);
            }
        }
        let (mut starved, mut filled) = (false, Vec::new());
        while !failed && op.windows.len() < MOST_WINDOWS {
            let found = next_kept(op, file.window_bytes);
            let kept = found.is_some();
            let Some((window, links)) = found.or_else(|| next_window(op, file.window_bytes)) else {
                break;
            };
            let held: u64 = op.windows.iter().map(|window| window.window.bytes()).sum();
            if held + window.bytes() > BUFFERS * file.window_bytes {
                break;
            }
            // Another operation waits for the room of a second window.
            let room = op.windows.is_empty() || self.starved.is_empty();
            let Some(image) = room.then(|| self.images.take(window.bytes())).flatten() else {
                starved = true;
                break;
            };
            self.next_number += 1;
            let pull = self.next_number;
            self.pulls.insert(pull, id);
            if kept {
                op.kept_at = window.hi;
            } else {
                op.at = window.hi;
            }
            let of = (id, &mut *op, &file.views);
            let begun = begin_window(of, (window, links, kept), (pull, image), out);
            filled.extend(begun.waiting.is_empty().then_some(pull));
            op.windows.push(begun);
        }
        if !filled.is_empty() {
            filled.into_iter().for_each(|pull| self.transfer(id, pull, out));
            return self.advance(id, out);
        }
        if starved {
            // With a window in work it goes on when that has ended.
            if op.windows.is_empty() && !self.starved.contains(&id) {
                self.starved.push_back(id);
            }
            return;
        }
        if !op.windows.is_empty() || (!failed && !complete) {
            return;
        }
        let (number, outcome, eof) = (op.number, op.outcome.clone(), op.eof);
        let links: Vec<LinkId> = op.parts.keys().copied().collect();
        if !op.write && !failed {
            if let Some(domains) = &op.domains {
                prefetch(id, domains.hull().clone(), &mut file.last_read, out);
            }
        }
        file.op = None;
        if file.ended.as_ref().is_none_or(|(last, _)| *last < number) {
            file.ended = Some((number, outcome.clone()));
        }
        for link in links {
            out.push(Effect::ToNode(link, done(id, number, &outcome, eof)));
        }
        self.answer_fences(out);
        let again: Vec<(LinkId, Peer)> = self
            .delayed
            .extract_if(
                ..,
                |(_, message)| matches!(message, Peer::Announce { file, .. } if *file == id),
            )
            .collect();
        for (link, message) in again {
            self.announce(link, message, out);
        }
        self.feed(out);
    }

    /// Give free images to operations that wait for one.
    fn feed(&mut self, out: &mut Vec<Effect>) {
        for _ in 0..self.starved.len() {
            if let Some(id) = self.starved.pop_front() {
                self.advance(id, out);
            }
        }
    }

    /// Path and flags of the open files, for a status.
    pub fn files(&self) -> impl Iterator<Item = (&FileId, &[u8], u32, &str)> {
        self.files.iter().map(|(id, file)| (id, file.path.as_slice(), file.flags, &*file.app))
    }
}

fn ended(why: &str) -> Outcome {
    Outcome::failed(Status::Again, format!("the operation is to be repeated: {why}"))
}

fn done(file: FileId, op: u64, outcome: &Outcome, eof: u64) -> Peer {
    let Outcome { status, message } = outcome.clone();
    Peer::OpDone { file, op, status, message, eof }
}
