//! What ranks and aggregators are waited for, and for how long.
//!
//! Arrives: the time. Leaves: what is given up, signs of life. Must not know: what is waited for.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use waystage_collective_wire::local::ToRank;
use waystage_collective_wire::Status;

use super::Gatherer;
use crate::effect::{Effect, Outcome, RankId};
use crate::patience::Patience;

impl Gatherer {
    /// Cut off ranks that do not answer; give up ranks that have not come back, and aggregators that were
    /// left out.
    pub fn tick(&mut self, now_ns: u64, patience: Patience, out: &mut Vec<Effect>) {
        for request in self.requests.values_mut() {
            request.ticks = request.ticks.saturating_add(1);
            if request.ticks == patience.answer_ticks {
                let why = "it does not answer a request to pack or unpack";
                out.push(Effect::DropRank(request.rank, why));
            }
        }
        let mut late = Vec::new();
        for (id, file) in &mut self.files {
            let present = file.members.len() + file.opening.len();
            let Some(op) = file.op.as_mut().filter(|op| !op.running && present < file.local_ranks)
            else {
                continue;
            };
            if op.since_ns == 0 {
                op.since_ns = now_ns;
            } else if now_ns.saturating_sub(op.since_ns) > patience.absence_ns {
                let why = "a rank of this node has not come back to its aggregator process";
                op.outcome.combine(Outcome::failed(Status::Again, why));
                late.push(*id);
            }
        }
        for id in late {
            self.abort(id, out);
        }
        for answer in &mut self.fenced {
            answer.ticks = answer.ticks.saturating_add(1);
        }
        self.answer_fenced(patience.fence_ticks, out);
    }

    /// Ranks that wait for other ranks, other nodes or the storage: they hear that this process is alive.
    pub fn tell_waiting(&self, out: &mut Vec<Effect>) {
        let mut waiting: BTreeSet<RankId> = self.control.asking().collect();
        waiting.extend(self.held.iter().map(|(_, question)| question.rank));
        waiting.extend(self.fenced.iter().map(|answer| answer.rank));
        for file in self.files.values() {
            waiting.extend(file.op.iter().flat_map(|op| op.ranks.keys()));
            waiting.extend(file.sync.iter().flat_map(|sync| &sync.ranks));
            waiting.extend(file.settling.iter().flat_map(|settling| &settling.ranks));
            waiting.extend(&file.opening);
        }
        out.extend(waiting.into_iter().map(|rank| Effect::ToRank(rank, ToRank::Alive {})));
    }

    /// The distinct addresses that operations in progress wait for.
    pub fn waits_for(&self) -> HashSet<Arc<str>> {
        self.files
            .values()
            .filter_map(|file| file.op.as_ref())
            .flat_map(|op| op.left.iter().cloned())
            .collect()
    }
}
