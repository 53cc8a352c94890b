//! Files whose acknowledged bytes are all to be in the file.
//!
//! Arrives: requests of ranks, control points, answers of aggregators. Leaves: requests to aggregators, answers. Must
//! not know: windows, copies.

use std::collections::BTreeSet;
use std::sync::Arc;

use waystage_collective_wire::local::ToRank;
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::FileId;

use super::{Gatherer, Settling};
use crate::effect::{Effect, Outcome, RankId};

impl Gatherer {
    /// A rank goes on once nothing of the file is behind.
    pub(super) fn settle(
        &mut self,
        rank: RankId,
        id: FileId,
        out: &mut Vec<Effect>,
    ) -> Result<(), &'static str> {
        self.member_file(rank, id)?;
        let settled = self.is_settled(id, 0, out);
        let Some(file) = self.files.get_mut(&id) else {
            return Ok(());
        };
        if let Some(settling) = &mut file.settling {
            settling.ranks.insert(rank);
        } else if settled {
            let Outcome { status, message } = std::mem::take(&mut file.deferred);
            out.push(Effect::ToRank(rank, ToRank::Settled { file: id, status, message }));
        }
        Ok(())
    }

    /// Whether nothing of the file is behind; where something may be, its aggregators are asked, unless they were. A
    /// rank knows this epoch.
    pub(super) fn is_settled(&mut self, id: FileId, epoch: u64, out: &mut Vec<Effect>) -> bool {
        let given = self.control.last_map(id).map_or(0, |map| map.epoch);
        let Some(file) = self.files.get_mut(&id) else {
            return true;
        };
        if file.settling.is_some() {
            return false;
        }
        let dead = self.control.dead();
        let left: BTreeSet<Arc<str>> =
            file.unsettled.iter().filter(|address| !dead.contains(*address)).cloned().collect();
        if left.is_empty() {
            return true;
        }
        let lost: Vec<String> =
            file.unsettled.intersection(dead).map(ToString::to_string).collect();
        let adopted = file.map.as_ref().map_or(0, |(map, _)| map.epoch);
        let epoch = epoch.max(given).max(adopted);
        file.settles += 1;
        let number = file.settles;
        file.settling = Some(Settling { number, ranks: BTreeSet::new(), left: left.clone() });
        for address in left {
            let lost = lost.clone();
            file.tell(id, &address, Peer::Settle { file: id, number, epoch, lost }, out);
        }
        false
    }

    /// An aggregator has nothing behind.
    pub(super) fn settled(
        &mut self,
        (id, number): (FileId, u64),
        address: &Arc<str>,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.deferred.combine(outcome);
        let Some(settling) = file.settling.as_mut().filter(|settling| settling.number == number)
        else {
            return;
        };
        settling.left.remove(address);
        file.unsettled.remove(address);
        self.end_settling(id, out);
    }

    /// An aggregator was lost: the others are asked once more, and learn it.
    pub(super) fn settle_without(&mut self, id: FileId, out: &mut Vec<Effect>) {
        let Some(settling) = self.files.get_mut(&id).and_then(|file| file.settling.take()) else {
            return;
        };
        self.is_settled(id, 0, out);
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if let Some(again) = &mut file.settling {
            again.ranks = settling.ranks;
        } else {
            file.settling = Some(Settling { left: BTreeSet::new(), ..settling });
            self.end_settling(id, out);
        }
    }

    fn end_settling(&mut self, id: FileId, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let Some(settling) = file.settling.take_if(|settling| settling.left.is_empty()) else {
            return;
        };
        if !settling.ranks.is_empty() {
            let Outcome { status, message } = std::mem::take(&mut file.deferred);
            for rank in settling.ranks {
                let message = message.clone();
                out.push(Effect::ToRank(rank, ToRank::Settled { file: id, status, message }));
            }
        }
        self.answer_held(out);
    }
}
