//! Pulls: windows that aggregators ask for, packed by ranks; what was read, unpacked by them.
//!
//! Arrives: pulls, answers of ranks. Leaves: requests to ranks, data for aggregators. Must not know: files' paths.

use std::sync::Arc;

use waystage_collective_wire::local::ToRank;
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Window};

use super::{Announced, Gatherer, Phase, Pull, PullKey, Request, LIST_BYTES};
use crate::coverage::Coverage;
use crate::effect::{Effect, RankId};
use crate::view_coverage::add_view;

impl Gatherer {
    /// Begin the pulls for which there is staging memory, in order.
    pub(super) fn stage(&mut self, out: &mut Vec<Effect>) {
        while let Some((address, file, op, pull, window)) = self.unstaged.front().cloned() {
            if !self.pulls_of(file, op) {
                self.unstaged.pop_front();
                continue;
            }
            if window.bytes() > self.staging.bytes() {
                // Larger than was announced: the aggregator is of another version.
                self.unstaged.pop_front();
                out.push(Effect::ToAggregator(address, Peer::Abort { file, op }));
                continue;
            }
            let Some(image) = self.staging.take(window.bytes()) else {
                return;
            };
            self.unstaged.pop_front();
            self.pull((address, pull), (file, op), window, image, out);
        }
    }

    pub(super) fn pulls_of(&self, file: FileId, number: u64) -> bool {
        let op = self.files.get(&file).and_then(|file| file.op.as_ref());
        op.is_some_and(|op| op.number == number && op.running && !op.aborting)
    }

    /// The own aggregator pulls.
    pub fn pull_own(
        &mut self,
        file: FileId,
        op: u64,
        pull: u64,
        window: Window,
        image: u64,
        out: &mut Vec<Effect>,
    ) {
        let own = Arc::clone(&self.own);
        if self.pulls_of(file, op) {
            self.pull((own, pull), (file, op), window, image, out);
        } else {
            out.push(Effect::DataOwn {
                pull,
                coverage: Coverage::new(window.bytes()),
                next: u64::MAX,
            });
        }
    }

    pub(super) fn pull(
        &mut self,
        key: PullKey,
        of: (FileId, u64),
        window: Window,
        image: u64,
        out: &mut Vec<Effect>,
    ) {
        let (file, number) = of;
        let own = key.0 == self.own;
        let Some(known) = self.files.get(&file) else {
            return;
        };
        let Some(op) = &known.op else {
            return;
        };
        let mut coverage = Coverage::new(window.bytes());
        let (mut next, mut asked, mut by_views) = (u64::MAX, Vec::new(), true);
        for (rank, announced) in &op.ranks {
            if announced.hull.start >= announced.hull.end {
                continue;
            }
            by_views &= announced.view.is_some();
            if announced.hull.start >= window.hi {
                next = next.min(announced.hull.start);
                continue;
            }
            if announced.hull.end <= window.lo {
                continue;
            }
            if let Some(view) = announced.view {
                if let Some((view, _)) = known.views.get(view as usize) {
                    add_view(&mut coverage, view, &announced.data, &window);
                    next = next.min(view.next(&announced.data, window.hi).unwrap_or(u64::MAX));
                }
            }
            if op.write || announced.view.is_none() {
                asked.push((*rank, announced.view.is_none()));
            }
        }
        let (phase, failed, waiting) = (Phase::Packing, false, asked.len());
        let pull = Pull {
            file,
            op: number,
            window,
            image,
            own,
            waiting,
            coverage,
            by_views,
            next,
            phase,
            failed,
        };
        self.pulls.insert(key.clone(), pull);
        for (rank, listed) in asked {
            if listed {
                self.unlisted.push_back((key.clone(), rank, 0));
            } else {
                self.ask(&key, rank, None, 0, out);
            }
        }
        self.give_lists(out);
        self.collected(&key, out);
    }

    pub(super) fn give_lists(&mut self, out: &mut Vec<Effect>) {
        while !self.lists.is_empty() {
            let Some((key, rank, from)) = self.unlisted.pop_front() else {
                return;
            };
            let list = self.lists.pop();
            self.ask(&key, rank, list, from, out);
        }
    }

    pub(super) fn ask(
        &mut self,
        key: &PullKey,
        rank: RankId,
        list: Option<u64>,
        from: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(pull) = self.pulls.get(key) else {
            self.lists.extend(list);
            return;
        };
        let write =
            self.files.get(&pull.file).and_then(|file| file.op.as_ref()).is_some_and(|op| op.write);
        let request = self.next_request;
        self.next_request += 1;
        out.push(Effect::ToRank(
            rank,
            ToRank::Pack {
                request,
                file: pull.file,
                op: pull.op,
                window: pull.window,
                image: write.then_some(pull.image),
                list: list.unwrap_or(0),
                list_capacity: if list.is_some() { LIST_BYTES as u32 } else { 0 },
                from,
            },
        ));
        self.requests.insert(
            request,
            Request { pull: key.clone(), rank, list, from, unpack: false, ticks: 0 },
        );
    }

    pub(super) fn packed(
        &mut self,
        request: u64,
        list: &[u8],
        upto: u64,
        next: u64,
        out: &mut Vec<Effect>,
    ) -> Result<(), &'static str> {
        let Some(of) = self.requests.remove(&request) else {
            return Ok(());
        };
        self.lists.extend(of.list);
        let Some(pull) = self.pulls.get_mut(&of.pull) else {
            return Ok(());
        };
        let total = pull.window.bytes();
        let listed = pull.coverage.add_list(list);
        if listed.is_err()
            || upto > total
            || (upto < total && (upto <= of.from || of.list.is_none()))
        {
            self.fail_pull(&of.pull, out);
            return Err("an answer that makes no sense");
        }
        if upto < total {
            self.unlisted.push_back((of.pull.clone(), of.rank, upto));
        } else {
            pull.next = pull.next.min(next.max(pull.window.hi));
            pull.waiting -= 1;
        }
        self.give_lists(out);
        self.collected(&of.pull, out);
        Ok(())
    }

    /// A rank of the pull is gone: nothing of it may be used.
    pub(super) fn fail_pull(&mut self, key: &PullKey, out: &mut Vec<Effect>) {
        let Some(pull) = self.pulls.get_mut(key) else {
            return;
        };
        pull.failed = true;
        pull.waiting = pull.waiting.saturating_sub(1);
        if pull.phase == Phase::Unpacking {
            if pull.waiting == 0 {
                self.finish_pull(key, out);
            }
        } else {
            self.collected(key, out);
        }
    }

    /// All ranks have answered: answer the aggregator.
    pub(super) fn collected(&mut self, key: &PullKey, out: &mut Vec<Effect>) {
        let Some(pull) = self
            .pulls
            .get_mut(key)
            .filter(|pull| pull.waiting == 0 && pull.phase == Phase::Packing)
        else {
            return;
        };
        let op = self.files.get(&pull.file).and_then(|file| file.op.as_ref());
        let op = op.filter(|op| op.number == pull.op && !op.aborting && !pull.failed);
        let (id, number) = (pull.file, key.1);
        let Some(op) = op else {
            // It is being ended; the own aggregator holds the image until it hears.
            if pull.own {
                let coverage = Coverage::new(pull.window.bytes());
                out.push(Effect::DataOwn { pull: number, coverage, next: u64::MAX });
            }
            self.finish_pull(key, out);
            return self.end(id, out);
        };
        let next = pull.next;
        if pull.own {
            pull.phase = Phase::AwaitingData;
            let coverage = pull.coverage.clone();
            if op.write {
                self.pulls.remove(key);
            }
            return out.push(Effect::DataOwn { pull: number, coverage, next });
        }
        let encoded = (!pull.by_views).then(|| pull.coverage.encode());
        let (address, image) = (Arc::clone(&key.0), pull.image);
        if op.write {
            pull.phase = Phase::Sending;
            let (bytes, coverage) = (pull.coverage.total(), std::mem::take(&mut pull.coverage));
            let message = Peer::Data { pull: number, coverage: encoded, next, bytes };
            out.push(Effect::SendData { address, message, pull: number, image, coverage });
        } else {
            pull.phase = Phase::AwaitingData;
            let message = Peer::Data { pull: number, coverage: encoded, next, bytes: 0 };
            out.push(Effect::ToAggregator(address, message));
        }
    }

    /// `SendData` has left, or never will.
    pub fn data_sent(&mut self, address: &Arc<str>, pull: u64, out: &mut Vec<Effect>) {
        let key = (Arc::clone(address), pull);
        if self.pulls.get(&key).is_some_and(|pull| pull.phase == Phase::Sending) {
            self.finish_pull(&key, out);
        }
    }

    pub(super) fn finish_pull(&mut self, key: &PullKey, out: &mut Vec<Effect>) {
        if let Some(pull) = self.pulls.remove(key) {
            if !pull.own {
                self.staging.give(pull.image);
            }
            self.stage(out);
        }
    }

    /// Where the raw bytes behind `ReadData` go: the image and the runs.
    pub fn read_target(&mut self, address: &Arc<str>, pull: u64) -> Option<(u64, Coverage)> {
        let pull = self.pulls.get_mut(&(Arc::clone(address), pull))?;
        (pull.phase == Phase::AwaitingData).then(|| (pull.image, pull.coverage.clone()))
    }

    /// What was read is in the image: have the ranks copy it.
    pub fn read_data(&mut self, address: &Arc<str>, number: u64, out: &mut Vec<Effect>) {
        let key = (Arc::clone(address), number);
        let found = self.pulls.get_mut(&key).filter(|pull| pull.phase == Phase::AwaitingData);
        let Some(pull) = found else {
            return;
        };
        pull.phase = Phase::Unpacking;
        let (id, op, window, image) = (pull.file, pull.op, pull.window, pull.image);
        let ranks = self.files.get(&id).and_then(|file| file.op.as_ref()).map(|op| &op.ranks);
        let inside = |of: &Announced| of.hull.start < window.hi && of.hull.end > window.lo;
        let ranks: Vec<RankId> = ranks
            .map(|ranks| ranks.iter().filter(|(_, of)| inside(of)).map(|(rank, _)| *rank).collect())
            .unwrap_or_default();
        pull.waiting = ranks.len() + 1;
        for rank in ranks {
            let request = self.next_request;
            self.next_request += 1;
            self.requests.insert(
                request,
                Request { pull: key.clone(), rank, list: None, from: 0, unpack: true, ticks: 0 },
            );
            out.push(Effect::ToRank(rank, ToRank::Unpack { request, file: id, op, window, image }));
        }
        self.unpacked(&key, out);
    }

    pub(super) fn unpacked(&mut self, key: &PullKey, out: &mut Vec<Effect>) {
        let Some(pull) = self.pulls.get_mut(key) else {
            return;
        };
        pull.waiting = pull.waiting.saturating_sub(1);
        if pull.waiting > 0 {
            return;
        }
        let (id, own) = (pull.file, pull.own);
        self.finish_pull(key, out);
        if own {
            out.push(Effect::ReadTaken { pull: key.1 });
        }
        self.end(id, out);
    }
}
