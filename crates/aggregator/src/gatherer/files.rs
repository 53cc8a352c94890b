//! Files of ranks: attached, viewed, at control points, synced and closed.
//!
//! Arrives: messages of ranks, outcomes of opens. Leaves: answers. Must not know: windows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use waystage_collective::{ServerMap, View};
use waystage_collective_wire::local::{ToNode, ToRank, REATTACHED};
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Status};

use super::{
    Fenced, File, Gatherer, Member, Sync, CREATE, DELETE_ON_CLOSE, EXCL, MOST_FILES, MOST_VIEWS,
};
use crate::control::FileShape;
use crate::effect::{Effect, Notice, Outcome, RankId};
use crate::hints::Hints;

impl Gatherer {
    pub(super) fn attach(
        &mut self,
        rank: RankId,
        message: ToNode,
        out: &mut Vec<Effect>,
    ) -> Result<(), &'static str> {
        let ToNode::Attach {
            file: id,
            path,
            flags,
            rank: number,
            size,
            local_ranks,
            node,
            root,
            addresses,
            hints,
        } = message
        else {
            return Ok(());
        };
        let known = self.ranks.get_mut(&rank).ok_or("no greeting")?;
        let app = Arc::clone(&known.app);
        let strange = addresses.is_empty()
            || node as usize >= addresses.len()
            || root as usize >= addresses.len()
            || number >= size
            || local_ranks == 0
            || local_ranks > size
            || !path.starts_with(b"/");
        if strange {
            let message =
                "the open of a collective file has values that do not fit each other".to_owned();
            let (status, hints) = (Status::Argument, Vec::new());
            out.push(Effect::ToRank(rank, ToRank::Attached { file: id, status, message, hints }));
            return Ok(());
        }
        if known.files.len() >= MOST_FILES {
            return Err("more files than a rank may open");
        }
        known.files.insert(id);
        let own = Arc::clone(&self.own);
        let file = self.files.entry(id).or_insert_with(|| {
            let mut addresses: Vec<Arc<str>> =
                addresses.iter().map(|text| Arc::from(text.as_str())).collect();
            // A process that was restarted may have another address than the ranks gathered.
            addresses[node as usize] = own;
            // The predecessor of this process knew which of them have written.
            let again = flags & REATTACHED != 0;
            let dirty = if again { addresses.iter().cloned().collect() } else { BTreeSet::new() };
            File {
                path: path.clone(),
                flags,
                app,
                node,
                root: root as usize,
                addresses,
                local_ranks: local_ranks as usize,
                hints: Hints::read(&hints),
                members: BTreeMap::new(),
                views: Vec::new(),
                map: None,
                attached: HashMap::new(),
                dirty,
                op: None,
                sync: None,
                ended: None,
                synced: 0,
                lost: BTreeSet::new(),
                opening: BTreeSet::new(),
                departed: BTreeSet::new(),
                fences: BTreeMap::new(),
                unsettled: BTreeSet::new(),
                settling: None,
                settles: 0,
                deferred: Outcome::ok(),
            }
        });
        if file.path != path || file.local_ranks != local_ranks as usize || file.node != node {
            return Err("an open that differs from other ranks'");
        }
        file.members.insert(rank, Member { rank: number, view: None });
        file.opening.insert(rank);
        file.departed.remove(&number);
        out.push(Effect::Create {
            rank,
            file: id,
            path,
            flags: if number == 0 { flags } else { flags & !(CREATE | EXCL) },
        });
        Ok(())
    }

    /// A file was created, or opened to see whether that is possible. `unit` and `targets` are the storage's, if known.
    pub fn created(
        &mut self,
        rank: RankId,
        id: FileId,
        outcome: Outcome,
        stripe: Option<(u64, u32)>,
        out: &mut Vec<Effect>,
    ) {
        let mut hints = Vec::new();
        if let Some(file) = self.files.get_mut(&id) {
            file.opening.remove(&rank);
            file.hints.storage(stripe);
            hints = file.hints.in_force(file.addresses.len());
        }
        if outcome.status == Status::Ok {
            self.open_early(id, out);
        } else {
            if let Some(known) = self.ranks.get_mut(&rank) {
                known.files.remove(&id);
            }
            self.leave(rank, id, out);
        }
        let Outcome { status, message } = outcome;
        out.push(Effect::ToRank(rank, ToRank::Attached { file: id, status, message, hints }));
    }

    /// The own aggregator opens the file while the ranks open it, so that the first operation finds it open.
    fn open_early(&mut self, id: FileId, out: &mut Vec<Effect>) {
        let own = Arc::clone(&self.own);
        if let Some(file) = self.files.get_mut(&id) {
            if !file.attached.contains_key(&own) {
                out.push(Effect::ToAggregator(Arc::clone(&own), file.attach_message(id)));
                file.attached.insert(own, 0);
            }
        }
    }

    pub(super) fn set_view(
        &mut self,
        rank: RankId,
        id: FileId,
        view: u32,
        encoded: Vec<u8>,
    ) -> Result<(), &'static str> {
        let file = self.member_file(rank, id)?;
        let number = match file.views.iter().position(|(_, known)| *known == encoded) {
            Some(known) => known,
            None => {
                if file.views.len() >= MOST_VIEWS {
                    file.forget_views();
                }
                if file.views.len() >= MOST_VIEWS {
                    return Err("more views than a file may have");
                }
                let found = View::decode(&encoded).map_err(|_| "a view that cannot be read")?;
                file.views.push((Arc::new(found), encoded));
                file.views.len() - 1
            }
        };
        let member = file.members.get_mut(&rank).ok_or("a file that it did not attach")?;
        // A rank uses only its last one.
        member.view = Some((view, u32::try_from(number).unwrap_or(u32::MAX)));
        Ok(())
    }

    /// Answer the control points that may be answered, once the aggregators that were lost have been tried again.
    pub fn answer(&mut self, now_ns: u64, out: &mut Vec<Effect>) {
        let ready = self.control.ready(now_ns);
        if !ready.is_empty() && self.probing.is_empty() {
            for address in self.control.dead() {
                if self.probing.insert(Arc::clone(address)) {
                    out.push(Effect::Probe(Arc::clone(address)));
                }
            }
        }
        self.held.extend(ready);
        self.answer_held(out);
    }

    /// Answer them where no aggregator is being tried, and nothing of the file is behind.
    pub(super) fn answer_held(&mut self, out: &mut Vec<Effect>) {
        if !self.probing.is_empty() {
            return;
        }
        for (app, question) in std::mem::take(&mut self.held) {
            if !self.is_settled(question.file, question.epoch, out) {
                self.held.push((app, question));
                continue;
            }
            let Some(file) = self.files.get(&question.file) else {
                continue;
            };
            let shape = FileShape {
                addresses: &file.addresses,
                cb_nodes: file.hints.cb_nodes,
                unit: file.hints.unit(),
                placement: file.hints.placement(),
            };
            let before = self.control.last_map(question.file).cloned();
            let (map, new) = self.control.map(&app, question.file, question.epoch, &shape);
            if new {
                let (epoch, aggregators) = (map.epoch, map.aggregators.clone());
                out.push(Effect::Notice(Notice::MapAdopted { app, epoch, aggregators }));
            }
            self.fence(question.file, before.as_ref(), &map, out);
            let (file, rank) = (question.file, question.rank);
            self.fenced.push(Fenced { file, rank, map: map.encode(), ticks: 0 });
        }
        self.answer_fenced(u32::MAX, out);
    }

    /// Aggregators that the map leaves out write nothing more of earlier epochs, before an operation begins without
    /// them. Those that do not answer at all have ended, or were cut off and have noticed it before this process.
    fn fence(
        &mut self,
        id: FileId,
        before: Option<&ServerMap>,
        map: &ServerMap,
        out: &mut Vec<Effect>,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        for address in before.iter().flat_map(|before| &before.aggregators) {
            let last = before.map_or(0, |before| before.epoch);
            file.fences.entry(Arc::from(address.as_str())).or_insert(last);
        }
        let dead = self.control.dead();
        let stays = |of: &Arc<str>| map.aggregators.iter().any(|name| **name == **of);
        file.fences.retain(|address, _| !stays(address) && !dead.contains(address));
        for (address, epoch) in file.fences.clone() {
            file.tell(id, &address, Peer::Fence { file: id, epoch }, out);
        }
    }

    /// Answer control points whose fences have been answered, or have not been for this number of ticks.
    pub(super) fn answer_fenced(&mut self, most_ticks: u32, out: &mut Vec<Effect>) {
        let files = &self.files;
        let ready = |answer: &mut Fenced| {
            let free = files.get(&answer.file).is_none_or(|file| file.fences.is_empty());
            free || answer.ticks >= most_ticks
        };
        for answer in self.fenced.extract_if(.., ready) {
            let id = answer.file;
            let left = self.files.get(&id).and_then(|file| file.fences.keys().next());
            let (status, message) = left.map_or((Status::Ok, String::new()), |address| {
                let why = format!(
                    "the aggregator {address}, which is left out, has not ended its requests to the storage"
                );
                (Status::Io, why)
            });
            let control = ToRank::Control { file: id, status, message, map: answer.map };
            out.push(Effect::ToRank(answer.rank, control));
        }
    }

    /// An aggregator that was tried answers.
    pub fn reached(&mut self, address: &Arc<str>, now_ns: u64, out: &mut Vec<Effect>) {
        self.control.reached(address);
        self.probing.remove(address);
        self.answer(now_ns, out);
    }

    pub(super) fn sync(
        &mut self,
        rank: RankId,
        id: FileId,
        number: u64,
        out: &mut Vec<Effect>,
    ) -> Result<(), &'static str> {
        let file = self.member_file(rank, id)?;
        // Collective writes have ended on all ranks before any rank syncs: none waits for another.
        let status = match &mut file.sync {
            _ if file.synced == number => Status::Ok,
            Some(sync) if sync.number == number => {
                sync.ranks.insert(rank);
                return Ok(());
            }
            Some(_) => Status::Again,
            None => {
                file.sync = Some(Sync {
                    number,
                    ranks: BTreeSet::from([rank]),
                    left: file.dirty.clone(),
                    outcome: Outcome::ok(),
                });
                for address in file.dirty.clone() {
                    file.tell(id, &address, Peer::Sync { file: id, number }, out);
                }
                self.end_sync(id, out);
                return Ok(());
            }
        };
        let message = "another sync of the file is in progress".to_owned();
        out.push(Effect::ToRank(rank, ToRank::Synced { file: id, number, status, message }));
        Ok(())
    }

    pub(super) fn end_sync(&mut self, id: FileId, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let Some(sync) = file.sync.take_if(|sync| sync.left.is_empty()) else {
            return;
        };
        let Outcome { status, message } = sync.outcome;
        if status == Status::Ok {
            file.dirty.clear();
            file.synced = sync.number;
        }
        for rank in sync.ranks {
            let (number, message) = (sync.number, message.clone());
            out.push(Effect::ToRank(rank, ToRank::Synced { file: id, number, status, message }));
        }
    }

    pub(super) fn close(
        &mut self,
        rank: RankId,
        id: FileId,
        out: &mut Vec<Effect>,
    ) -> Result<(), &'static str> {
        let file = self.member_file(rank, id)?;
        let root = file.members.get(&rank).is_some_and(|member| member.rank == 0);
        if root && file.flags & DELETE_ON_CLOSE != 0 {
            out.push(Effect::Unlink(file.path.clone()));
        }
        if let Some(known) = self.ranks.get_mut(&rank) {
            known.files.remove(&id);
        }
        self.leave(rank, id, out);
        let (status, message) = (Status::Ok, String::new());
        out.push(Effect::ToRank(rank, ToRank::Closed { file: id, status, message }));
        Ok(())
    }

    /// Another node's word that an aggregator was lost.
    pub fn suspected(&mut self, address: &Arc<str>, now_ns: u64) {
        self.control.suspected(address, now_ns);
    }
}
