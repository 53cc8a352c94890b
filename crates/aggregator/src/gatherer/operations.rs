//! Operations: announced by ranks, begun at aggregators, ended or repeated.
//!
//! Arrives: announcements of ranks, outcomes of aggregators, losses. Leaves: announcements of the node, outcomes.
//! Must not know: data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use waystage_collective::View;
use waystage_collective_wire::local::{ToNode, INLINE_BYTES};
use waystage_collective_wire::peer::{Peer, RankRange};
use waystage_collective_wire::{FileId, Status, Window};

use super::{done, Announced, Gatherer, Op, Phase, Pull, PullKey};
use crate::coverage::Coverage;
use crate::effect::{Effect, Notice, Outcome, RankId};
use crate::room::union_of;
use crate::view_coverage::add_view;

impl Gatherer {
    pub(super) fn announce(
        &mut self,
        rank: RankId,
        message: ToNode,
        out: &mut Vec<Effect>,
    ) -> Result<(), &'static str> {
        let ToNode::Announce {
            file: id,
            op: number,
            epoch,
            write,
            renewed,
            view,
            data_offset,
            bytes,
            hull_lo,
            hull_hi,
            inline,
        } = message
        else {
            return Ok(());
        };
        let file = self.member_file(rank, id)?;
        if hull_lo > hull_hi || hull_hi > i64::MAX as u64 {
            return Err("an operation beyond any file");
        }
        let known = file.members.get(&rank).ok_or("a file that it did not attach")?.view;
        let number_of = |view| known.filter(|(of, _)| *of == view).map(|(_, number)| number);
        let view =
            view.map(|view| number_of(view).ok_or("a view that it did not set")).transpose()?;
        let data_end = data_offset.checked_add(bytes).ok_or("more data than any file has")?;
        let fits = inline.len() as u64 == bytes && bytes <= INLINE_BYTES && write && view.is_some();
        if !(inline.is_empty() || fits) {
            return Err("data that do not fit their announcement");
        }
        if let Some((_, outcome)) = file.ended.as_ref().filter(|(last, _)| *last == number) {
            out.push(Effect::ToRank(rank, done(id, number, outcome, u64::MAX)));
            return Ok(());
        }
        if !file.departed.is_empty() {
            let outcome = Outcome::failed(Status::Lost, file.departed_text());
            out.push(Effect::ToRank(rank, done(id, number, &outcome, u64::MAX)));
            // Also those that were restarted since, and their other nodes.
            let message = outcome.message.clone();
            file.tell_all(id, &Peer::RankLost { file: id, message }, out);
            file.tell_all(id, &Peer::Abort { file: id, op: number }, out);
            file.ended = Some((number, outcome));
            return Ok(());
        }
        let op = file.op.get_or_insert_with(|| Op {
            number,
            epoch,
            write,
            ranks: BTreeMap::new(),
            left: BTreeSet::new(),
            since_ns: 0,
            running: false,
            aborting: false,
            outcome: Outcome::ok(),
            eof: u64::MAX,
        });
        if op.number != number {
            // Its ranks have left: what is in progress only ends. No node waits for this one.
            let why = "the ranks of this node are in different operations";
            let outcome = Outcome::failed(Status::Again, why);
            out.push(Effect::ToRank(rank, done(id, number, &outcome, u64::MAX)));
            file.tell_all(id, &Peer::Abort { file: id, op: number }, out);
            return Ok(());
        }
        let why = if renewed {
            "the aggregator process of this node was restarted"
        } else if op.epoch != epoch || op.write != write || (op.running && !op.aborting) {
            "the ranks of this node disagree about the operation"
        } else {
            ""
        };
        op.ranks.insert(
            rank,
            Announced { view, data: data_offset..data_end, hull: hull_lo..hull_hi, inline },
        );
        if !why.is_empty() {
            op.outcome.combine(Outcome::failed(Status::Again, why));
            self.abort(id, out);
        } else if !op.running && op.ranks.len() >= file.local_ranks {
            self.begin(id, out);
        }
        Ok(())
    }

    /// All ranks of the node are in the operation: announce it to the aggregators.
    pub(super) fn begin(&mut self, id: FileId, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let attach = file.attach_message(id);
        let Some(op) = file.op.as_mut() else {
            return;
        };
        let known = file.map.as_ref().filter(|(map, _)| map.epoch == op.epoch);
        let lost = |address: &String| file.lost.contains(address.as_str());
        let Some((map, encoded)) = known.filter(|(map, _)| !map.aggregators.iter().any(lost))
        else {
            let why = if known.is_some() {
                "an aggregator was restarted since the last operation"
            } else {
                "this node has not adopted the epoch"
            };
            op.outcome.combine(Outcome::failed(Status::Again, why));
            return self.abort(id, out);
        };
        op.running = true;
        let hull = union_of(op.ranks.values().map(|of| &of.hull)).unwrap_or(0..0);
        let with_bytes = || op.ranks.values().filter(|of| of.hull.start < of.hull.end);
        let by_views: Option<Vec<RankRange>> = with_bytes()
            .map(|of| {
                let (data_offset, bytes) = (of.data.start, of.data.end - of.data.start);
                of.view.map(|view| RankRange { view, data_offset, bytes })
            })
            .collect();
        let kept = map.aggregators.len() > 1
            && map.aggregators.iter().any(|name| **name == *self.own)
            && !file.hints.exchanges(op.write)
            && runs_are_long(&file.views, op, map.unit);
        if kept {
            file.attached.entry(Arc::clone(&self.own)).or_insert_with(|| {
                out.push(Effect::ToAggregator(Arc::clone(&self.own), attach.clone()));
                0
            });
            out.push(Effect::KeepOwn { file: id, op: op.number, hull: hull.clone() });
        }
        // The aggregators wait for the announcement of all nodes, also of one without bytes for them.
        let (hull, by_views) = if kept { (0..0, Some(Vec::new())) } else { (hull, by_views) };
        let aggregators: Vec<Arc<str>> =
            map.aggregators.iter().map(|text| Arc::from(text.as_str())).collect();
        op.left = aggregators.iter().cloned().collect();
        let inline = if kept {
            Vec::new()
        } else {
            inline_of(op, aggregators.len().max(file.addresses.len()))
        };
        for (index, address) in aggregators.into_iter().enumerate() {
            let known = file.attached.entry(Arc::clone(&address)).or_insert_with(|| {
                out.push(Effect::ToAggregator(Arc::clone(&address), attach.clone()));
                0
            });
            if by_views.is_some() && !kept {
                for (view, (_, encoded)) in file.views.iter().enumerate().skip(*known) {
                    let (view, encoded) =
                        (u32::try_from(view).unwrap_or(u32::MAX), encoded.clone());
                    out.push(Effect::ToAggregator(
                        Arc::clone(&address),
                        Peer::View { file: id, view, encoded },
                    ));
                }
                *known = file.views.len();
            }
            let behind = op.write && file.hints.write_behind;
            if op.write {
                file.dirty.insert(Arc::clone(&address));
            }
            if behind {
                file.unsettled.insert(Arc::clone(&address));
            }
            out.push(Effect::ToAggregator(
                address,
                Peer::Announce {
                    file: id,
                    op: op.number,
                    map: encoded.clone(),
                    index: u32::try_from(index).unwrap_or(u32::MAX),
                    write: op.write,
                    hull_lo: hull.start,
                    hull_hi: hull.end,
                    behind,
                    views: by_views.clone(),
                    inline: inline.clone(),
                },
            ));
        }
    }

    /// A message of the aggregator at an address, unless it is `ReadData`.
    pub fn aggregator_message(&mut self, address: &Arc<str>, message: Peer, out: &mut Vec<Effect>) {
        match message {
            Peer::Pull { file, op, pull, window } => {
                self.unstaged.push_back((Arc::clone(address), file, op, pull, window));
                self.stage(out);
            }
            Peer::OpDone { file: id, op: number, status, message, eof } => {
                let op = self.files.get_mut(&id).and_then(|file| file.op.as_mut());
                let Some(op) = op.filter(|op| op.number == number && op.running) else {
                    return;
                };
                op.left.remove(address);
                op.eof = op.eof.min(eof);
                op.outcome.combine(Outcome { status, message });
                let given_up = status != Status::Ok && !op.aborting;
                if given_up && status == Status::Again {
                    self.abort(id, out);
                }
                self.end(id, out);
            }
            Peer::Synced { file, number, status, message } => {
                let sync = self.files.get_mut(&file).and_then(|file| file.sync.as_mut());
                if let Some(sync) = sync.filter(|sync| sync.number == number) {
                    sync.left.remove(address);
                    sync.outcome.combine(Outcome { status, message });
                    self.end_sync(file, out);
                }
            }
            Peer::Settled { file, number, status, message } => {
                self.settled((file, number), address, Outcome { status, message }, out);
            }
            Peer::Fenced { file: id, epoch } => {
                if let Some(file) = self.files.get_mut(&id) {
                    file.fences.retain(|of, last| of != address || *last > epoch);
                }
                self.answer_fenced(u32::MAX, out);
            }
            _ => {}
        }
    }

    /// End the operation at the aggregators that have not ended it, also where it has not begun: nodes that announce it
    /// later learn it. The ranks learn it once the aggregators have answered, so that the end of this process in
    /// between makes no node wait.
    pub(super) fn abort(&mut self, id: FileId, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let Some(op) = file.op.as_mut() else {
            return;
        };
        if !op.aborting {
            op.aborting = true;
            if !op.running {
                op.running = true;
                let names = file.map.iter().flat_map(|(map, _)| &map.aggregators);
                op.left = names.map(|name| Arc::from(name.as_str())).collect();
            }
            let (number, left) = (op.number, op.left.clone());
            for address in left {
                file.tell(id, &address, Peer::Abort { file: id, op: number }, out);
            }
        }
        self.end(id, out);
    }

    /// Tell the ranks, where nothing of the operation is left.
    pub(super) fn end(&mut self, id: FileId, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let Some(op) = &file.op else {
            return;
        };
        let of_it = |pull: &Pull| pull.file == id && pull.op == op.number;
        // Where ranks may still copy, the images are in use.
        let busy = self
            .pulls
            .values()
            .any(|pull| of_it(pull) && matches!(pull.phase, Phase::Packing | Phase::Unpacking));
        if !op.running || !op.left.is_empty() || busy {
            return;
        }
        let Some(op) = file.op.take() else {
            return;
        };
        let mut eof = op.eof;
        if op.outcome.status != Status::Ok {
            eof = u64::MAX;
        }
        for rank in op.ranks.keys() {
            out.push(Effect::ToRank(*rank, done(id, op.number, &op.outcome, eof)));
        }
        file.ended = Some((op.number, op.outcome));
        file.lost.clear();
        self.unstaged.retain(|(_, file, number, _, _)| *file != id || *number != op.number);
        let old: Vec<PullKey> = self
            .pulls
            .iter()
            .filter(|(_, pull)| {
                pull.file == id && pull.op == op.number && pull.phase == Phase::AwaitingData
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in old {
            self.finish_pull(&key, out);
        }
    }

    /// The connection to an aggregator has ended, or none could be made.
    pub fn aggregator_lost(&mut self, address: &Arc<str>, now_ns: u64, out: &mut Vec<Effect>) {
        if self.control.lost(address) {
            out.push(Effect::Notice(Notice::AggregatorLost { address: Arc::clone(address) }));
        }
        self.unstaged.retain(|(of, ..)| of != address);
        let keys: Vec<PullKey> =
            self.pulls.keys().filter(|(of, _)| of == address).cloned().collect();
        for key in keys {
            let idle = self.pulls.get_mut(&key).is_some_and(|pull| {
                pull.failed = true;
                matches!(pull.phase, Phase::AwaitingData | Phase::Sending)
            });
            if idle {
                self.finish_pull(&key, out);
            }
        }
        let files: Vec<FileId> = self.files.keys().copied().collect();
        for id in files {
            let Some(file) = self.files.get_mut(&id) else {
                continue;
            };
            if file.attached.remove(address).is_some() {
                file.lost.insert(Arc::clone(address));
            }
            // It has ended, or was cut off and has left this node before.
            file.fences.remove(address);
            let op = file.op.as_mut().filter(|op| op.running && op.left.contains(address));
            if let Some(op) = op {
                op.left.remove(address);
                if let Some(root) = file
                    .addresses
                    .get(file.root)
                    .filter(|root| **root != self.own && *root != address)
                {
                    let message = Peer::Suspect { file: id, address: address.to_string() };
                    out.push(Effect::ToAggregator(Arc::clone(root), message));
                }
                let why = format!(
                    "the aggregator {address} was lost: the operation is to be repeated without it"
                );
                op.outcome.combine(Outcome::failed(Status::Again, why));
                // Other nodes may announce it to the aggregator's successor, where they would wait for this one.
                let number = op.number;
                file.tell(id, address, Peer::Abort { file: id, op: number }, out);
                self.abort(id, out);
            }
            if let Some(sync) = self.files.get_mut(&id).and_then(|file| file.sync.as_mut()) {
                if sync.left.remove(address) {
                    let why = format!("the aggregator {address} was lost: whether its data are on disk is unknown");
                    sync.outcome.combine(Outcome::failed(Status::Again, why));
                }
            }
            self.end_sync(id, out);
            self.settle_without(id, out);
        }
        self.probing.remove(address);
        self.answer_fenced(u32::MAX, out);
        self.answer(now_ns, out);
    }
}

/// Share of a unit that a run must have to be long, and bounds of that.
const LONG_RUN: u64 = 4;
const LONG_RUNS: (u64, u64) = (64 << 10, 1 << 20);

/// Extents of a sample that are looked at.
const SAMPLE_EXTENTS: u64 = 4096;

/// Bytes that go to all aggregators together with a node's announcement, and to one with those of all nodes. More are
/// sent where they are asked for.
const INLINE_IN_ALL: u64 = 256 << 10;

/// The data of a node's ranks, where all of them are few; else nothing.
fn inline_of(op: &Op, shares: usize) -> Vec<u8> {
    let ranks = || op.ranks.values().filter(|of| of.hull.start < of.hull.end);
    let bytes: u64 = ranks().map(|of| of.data.end - of.data.start).sum();
    let all = ranks().all(|of| of.inline.len() as u64 == of.data.end - of.data.start);
    if !op.write || !all || bytes.saturating_mul(shares as u64) > INLINE_IN_ALL {
        return Vec::new();
    }
    ranks().flat_map(|of| &of.inline).copied().collect()
}

/// Whether what the ranks of this node have is in runs that are worth a storage request each, next to each other's. A
/// sample from the middle of the operation tells: whether data is exchanged changes its way, and never what is written.
fn runs_are_long(views: &[(Arc<View>, Vec<u8>)], op: &Op, unit: u64) -> bool {
    let long = (unit / LONG_RUN).clamp(LONG_RUNS.0, LONG_RUNS.1);
    let mut parts = Vec::new();
    for of in op.ranks.values().filter(|of| of.hull.start < of.hull.end) {
        match of.view.and_then(|view| views.get(view as usize)) {
            Some((view, _)) => parts.push((view, of)),
            None => return false,
        }
    }
    let shortest = parts.iter().map(|(view, _)| view.mean_extent()).min();
    let (Some(hull), Some(shortest)) = (union_of(parts.iter().map(|(_, of)| &of.hull)), shortest)
    else {
        return false;
    };
    // As many bytes as have long runs, and not more extents than a sample may cost.
    let bytes = (hull.end - hull.start).min(16 * long);
    if shortest == 0 || bytes / shortest > SAMPLE_EXTENTS {
        return false;
    }
    let begin = hull.start + (hull.end - hull.start - bytes) / 2;
    let Some(window) = Window::range(begin, begin + bytes) else {
        return false;
    };
    let mut found = Coverage::new(window.bytes());
    for (view, of) in parts {
        add_view(&mut found, view, &of.data, &window);
    }
    let runs = found.runs().len() as u64;
    runs > 0 && found.total() / runs >= long
}
