//! The gatherer: gathers the ranks of a node, answers what aggregators pull, and tells ranks how operations ended.
//!
//! Arrives: messages of ranks and of aggregators. Leaves: effects. Must not know: sockets, clocks, storage.
//!
//! A pull of another node's aggregator takes staging memory of one window, and waits in line where there is none. An
//! aggregator has made room before it pulls, so staging memory always becomes free: no circle of waiting.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use waystage_collective::{ServerMap, View};
use waystage_collective_wire::local::{ToNode, ToRank, REATTACHED};
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Status, Window};

use crate::control::{Control, Question};
use crate::coverage::Coverage;
use crate::effect::{Effect, Notice, Outcome, RankId};
use crate::hints::Hints;
use crate::room::Room;

mod files;
mod operations;
mod pulls;
mod settle;
mod views;
mod waits;

/// `WS_IO_CREATE`, `WS_IO_EXCL` and `WS_IO_DELETE_ON_CLOSE` of `enum ws_io_flags`.
pub const CREATE: u32 = 8;
/// See [`CREATE`].
pub const EXCL: u32 = 16;
/// See [`CREATE`].
pub const DELETE_ON_CLOSE: u32 = 32;

/// Files, views of a file and ranks that one rank may make this process remember.
const MOST_FILES: usize = 4096;
const MOST_VIEWS: usize = 1024;

/// Bytes of a list that a rank fills at a time.
pub const LIST_BYTES: u64 = 64 << 10;

/// A pull, by the aggregator's address and its number there.
type PullKey = (Arc<str>, u64);

struct Member {
    rank: u32,
    /// The rank's number of its view, and the node's.
    view: Option<(u32, u32)>,
}

struct Announced {
    view: Option<u32>,
    data: Range<u64>,
    hull: Range<u64>,
    /// All data, or nothing.
    inline: Vec<u8>,
}

struct Op {
    number: u64,
    epoch: u64,
    write: bool,
    ranks: BTreeMap<RankId, Announced>,
    /// Aggregators whose `OpDone` is missing.
    left: BTreeSet<Arc<str>>,
    /// Since when it waits for ranks of this node that are not attached (0: since the last tick).
    since_ns: u64,
    running: bool,
    aborting: bool,
    outcome: Outcome,
    eof: u64,
}

struct Sync {
    number: u64,
    ranks: BTreeSet<RankId>,
    left: BTreeSet<Arc<str>>,
    outcome: Outcome,
}

/// What aggregators are asked to settle.
struct Settling {
    number: u64,
    ranks: BTreeSet<RankId>,
    left: BTreeSet<Arc<str>>,
}

struct File {
    path: Vec<u8>,
    flags: u32,
    app: Arc<str>,
    node: u32,
    root: usize,
    addresses: Vec<Arc<str>>,
    local_ranks: usize,
    hints: Hints,
    members: BTreeMap<RankId, Member>,
    views: Vec<(Arc<View>, Vec<u8>)>,
    map: Option<(ServerMap, Vec<u8>)>,
    /// Aggregators that know the file, on their present connection, and how many of its views.
    attached: HashMap<Arc<str>, usize>,
    /// Aggregators that may have written since the last sync.
    dirty: BTreeSet<Arc<str>>,
    op: Option<Op>,
    sync: Option<Sync>,
    /// The last operation that ended, and how: a rank that announces it late learns it at once.
    ended: Option<(u64, Outcome)>,
    /// The last sync that succeeded.
    synced: u64,
    /// Aggregators that were lost since the last operation ended: other nodes may have announced the next one to them,
    /// which their successors know nothing of.
    lost: BTreeSet<Arc<str>>,
    /// Ranks that wait for `Attached`.
    opening: BTreeSet<RankId>,
    /// Ranks of this node that have ended without a close.
    departed: BTreeSet<u32>,
    /// Aggregators that a newer map leaves out, with the last epoch that they were in, until they have said that they
    /// have ended its requests.
    fences: BTreeMap<Arc<str>, u64>,
    /// Aggregators that may have something behind.
    unsettled: BTreeSet<Arc<str>>,
    settling: Option<Settling>,
    /// Number of the last request to settle.
    settles: u64,
    /// An error of acknowledged bytes that no rank has learned yet.
    deferred: Outcome,
}

/// An answer to a control point that waits for [`File::fences`].
struct Fenced {
    file: FileId,
    rank: RankId,
    map: Vec<u8>,
    ticks: u32,
}

impl File {
    /// Send an aggregator a message about the file, after the file itself where its connection is new.
    fn tell(&mut self, id: FileId, address: &Arc<str>, message: Peer, out: &mut Vec<Effect>) {
        if !self.attached.contains_key(address) {
            out.push(Effect::ToAggregator(Arc::clone(address), self.attach_message(id)));
            self.attached.insert(Arc::clone(address), 0);
        }
        out.push(Effect::ToAggregator(Arc::clone(address), message));
    }

    /// The same to all aggregators of the map.
    fn tell_all(&mut self, id: FileId, message: &Peer, out: &mut Vec<Effect>) {
        let names = self.map.iter().flat_map(|(map, _)| &map.aggregators);
        for address in names.map(|name| Arc::<str>::from(name.as_str())).collect::<Vec<_>>() {
            self.tell(id, &address, message.clone(), out);
        }
    }

    fn departed_text(&self) -> String {
        let ranks: Vec<String> = self.departed.iter().take(8).map(u32::to_string).collect();
        let (path, ranks) = (String::from_utf8_lossy(&self.path), ranks.join(", "));
        format!("{path}: rank {ranks} ended without closing the file: restart the program")
    }

    /// What tells an aggregator of the file.
    fn attach_message(&self, file: FileId) -> Peer {
        Peer::Attach {
            file,
            path: self.path.clone(),
            flags: self.flags & !(CREATE | EXCL | DELETE_ON_CLOSE | REATTACHED),
            app: self.app.to_string(),
            node: self.node,
            nodes: u32::try_from(self.addresses.len()).unwrap_or(u32::MAX),
            window_bytes: self.hints.window_bytes(),
        }
    }
}

struct Pull {
    file: FileId,
    op: u64,
    window: Window,
    image: u64,
    /// Whether the image is the own aggregator's.
    own: bool,
    /// Ranks whose answer is missing.
    waiting: usize,
    coverage: Coverage,
    by_views: bool,
    next: u64,
    phase: Phase,
    failed: bool,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Phase {
    Packing,
    Sending,
    AwaitingData,
    Unpacking,
}

struct Request {
    pull: PullKey,
    rank: RankId,
    list: Option<u64>,
    from: u64,
    unpack: bool,
    /// Ticks for which it has not been answered.
    ticks: u32,
}

struct Rank {
    app: Arc<str>,
    files: BTreeSet<FileId>,
}

/// The gatherer's part of a process.
pub struct Gatherer {
    own: Arc<str>,
    pool_bytes: u64,
    ranks: HashMap<RankId, Rank>,
    files: BTreeMap<FileId, File>,
    pulls: HashMap<PullKey, Pull>,
    requests: HashMap<u64, Request>,
    next_request: u64,
    staging: Room,
    lists: Vec<u64>,
    /// Pulls without staging memory.
    unstaged: VecDeque<(Arc<str>, FileId, u64, u64, Window)>,
    /// Requests without a list.
    unlisted: VecDeque<(PullKey, RankId, u64)>,
    /// Control points.
    pub control: Control,
    /// Aggregators that are being tried.
    probing: BTreeSet<Arc<str>>,
    /// Questions that wait for them.
    held: Vec<(Arc<str>, Question)>,
    /// Answers that wait for aggregators that are left out.
    fenced: Vec<Fenced>,
}

impl Gatherer {
    /// The gatherer of the process at `own`, with this staging memory, and lists at these offsets of the pool.
    pub fn new(own: Arc<str>, pool_bytes: u64, staging: Room, lists: Vec<u64>) -> Self {
        Self {
            own,
            pool_bytes,
            ranks: HashMap::new(),
            files: BTreeMap::new(),
            pulls: HashMap::new(),
            requests: HashMap::new(),
            next_request: 1,
            staging,
            lists,
            unstaged: VecDeque::new(),
            unlisted: VecDeque::new(),
            control: Control::default(),
            probing: BTreeSet::new(),
            held: Vec::new(),
            fenced: Vec::new(),
        }
    }

    /// Ranks connected.
    pub fn rank_count(&self) -> usize {
        self.ranks.len()
    }

    /// A rank was admitted.
    pub fn rank_joined(&mut self, rank: RankId, app: Arc<str>, out: &mut Vec<Effect>) {
        let known = self.control.app(&app);
        known.ranks += 1;
        if known.ranks == 1 {
            out.push(Effect::Notice(Notice::AppStarted(Arc::clone(&app))));
        }
        self.ranks.insert(rank, Rank { app, files: BTreeSet::new() });
        let (version, address, pool_bytes) =
            (waystage_collective_wire::VERSION, self.own.to_string(), self.pool_bytes);
        out.push(Effect::ToRank(rank, ToRank::Welcome { version, address, pool_bytes }));
    }

    /// A rank's connection has ended.
    pub fn rank_left(&mut self, rank: RankId, out: &mut Vec<Effect>) {
        let Some(gone) = self.ranks.remove(&rank) else {
            return;
        };
        self.control.forget(rank);
        self.held.retain(|(_, question)| question.rank != rank);
        self.fenced.retain(|answer| answer.rank != rank);
        self.unlisted.retain(|(_, of, _)| *of != rank);
        let left: Vec<u64> = self
            .requests
            .iter()
            .filter(|(_, request)| request.rank == rank)
            .map(|(id, _)| *id)
            .collect();
        for id in left {
            if let Some(request) = self.requests.remove(&id) {
                self.lists.extend(request.list);
                self.fail_pull(&request.pull, out);
            }
        }
        for id in &gone.files {
            self.depart(rank, *id, out);
            self.leave(rank, *id, out);
        }
        let app = self.control.app(&gone.app);
        app.ranks = app.ranks.saturating_sub(1);
        if app.ranks == 0 {
            out.push(Effect::Notice(Notice::AppFinished(gone.app)));
        }
        self.give_lists(out);
    }

    /// A rank has ended without closing a file: all aggregators learn it, and by them the ranks of other nodes.
    fn depart(&mut self, rank: RankId, id: FileId, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let Some(member) = file.members.get(&rank) else {
            return;
        };
        file.departed.insert(member.rank);
        let (message, mut all) = (file.departed_text(), file.addresses.clone());
        let names = file.map.iter().flat_map(|(map, _)| &map.aggregators);
        all.extend(names.map(|name| Arc::from(name.as_str())));
        for address in all.into_iter().collect::<BTreeSet<Arc<str>>>() {
            if !self.control.dead().contains(&address) {
                let message = message.clone();
                file.tell(id, &address, Peer::RankLost { file: id, message }, out);
            }
        }
    }

    /// A rank is no more of a file's: of an operation in progress it was needed.
    fn leave(&mut self, rank: RankId, id: FileId, out: &mut Vec<Effect>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if file.members.remove(&rank).is_none() {
            return;
        }
        let why = if file.departed.is_empty() {
            "a rank closed the file in the middle of the operation".to_owned()
        } else {
            file.departed_text()
        };
        if let Some(op) = &mut file.op {
            op.ranks.remove(&rank);
            op.outcome.combine(Outcome::failed(Status::Lost, why));
            self.abort(id, out);
        }
        if let Some(sync) = self.files.get_mut(&id).and_then(|file| file.sync.as_mut()) {
            sync.ranks.remove(&rank);
        }
        if let Some(settling) = self.files.get_mut(&id).and_then(|file| file.settling.as_mut()) {
            settling.ranks.remove(&rank);
        }
        let empty = self.files.get(&id).is_some_and(|file| file.members.is_empty());
        if empty {
            if let Some(file) = self.files.remove(&id) {
                for address in file.attached.into_keys() {
                    out.push(Effect::ToAggregator(address, Peer::Detach { file: id }));
                }
            }
            self.control.forget_file(id);
        }
    }

    /// A message of a rank. `list` reads bytes of the pool.
    pub fn message(
        &mut self,
        rank: RankId,
        message: ToNode,
        list: &dyn Fn(u64, usize) -> Vec<u8>,
        now_ns: u64,
        out: &mut Vec<Effect>,
    ) {
        if let Err(why) = self.take(rank, message, list, now_ns, out) {
            out.push(Effect::DropRank(rank, why));
        }
    }

    fn take(
        &mut self,
        rank: RankId,
        message: ToNode,
        list: &dyn Fn(u64, usize) -> Vec<u8>,
        now_ns: u64,
        out: &mut Vec<Effect>,
    ) -> Result<(), &'static str> {
        match message {
            ToNode::Hello { .. } => return Err("a second greeting"),
            ToNode::Attach { .. } => self.attach(rank, message, out)?,
            ToNode::SetView { file, view, encoded } => self.set_view(rank, file, view, encoded)?,
            ToNode::ControlPoint { file, epoch, write, bytes } => {
                let known = self.member_file(rank, file)?;
                let (app, path) = (Arc::clone(&known.app), known.path.clone());
                let question = Question { rank, file, epoch, write, bytes, asked_ns: now_ns };
                self.control.ask(&app, question, &path);
                out.push(Effect::Notice(Notice::Requested { app, path, write, bytes }));
                self.answer(now_ns, out);
            }
            ToNode::Adopt { file, map } => {
                let known = self.member_file(rank, file)?;
                let decoded =
                    ServerMap::decode(&map).map_err(|_| "a server map that cannot be read")?;
                if decoded.aggregators.is_empty() {
                    return Err("a server map without aggregators");
                }
                if known.map.as_ref().is_none_or(|(map, _)| map.epoch < decoded.epoch) {
                    // The predecessor of this process knew whether they have something behind.
                    if known.hints.write_behind && known.flags & REATTACHED != 0 {
                        let names = decoded.aggregators.iter();
                        known.unsettled.extend(names.map(|name| Arc::<str>::from(name.as_str())));
                    }
                    known.map = Some((decoded, map));
                }
            }
            ToNode::Announce { .. } => self.announce(rank, message, out)?,
            ToNode::Packed { request, list_bytes, upto, next } => {
                let Some(found) =
                    self.requests.get(&request).filter(|found| found.rank == rank && !found.unpack)
                else {
                    return Err("an answer to what was not asked");
                };
                let bytes = match found.list {
                    Some(at) if u64::from(list_bytes) <= LIST_BYTES => {
                        list(at, list_bytes as usize)
                    }
                    None if list_bytes == 0 => Vec::new(),
                    _ => return Err("a list longer than its room"),
                };
                self.packed(request, &bytes, upto, next, out)?;
            }
            ToNode::Unpacked { request } => {
                let of = self.requests.get(&request);
                if of.is_none_or(|of| of.rank != rank || !of.unpack) {
                    return Err("an answer to what was not asked");
                }
                if let Some(of) = self.requests.remove(&request) {
                    self.unpacked(&of.pull, out);
                }
            }
            ToNode::Finished { file, write, bytes } => {
                let app = Arc::clone(&self.member_file(rank, file)?.app);
                let times = self.control.finished(&app, file, now_ns);
                out.push(Effect::Notice(Notice::Completed { app, write, bytes, times }));
            }
            ToNode::Sync { file, number } => self.sync(rank, file, number, out)?,
            ToNode::Close { file } => self.close(rank, file, out)?,
            ToNode::Settle { file } => self.settle(rank, file, out)?,
        }
        Ok(())
    }

    fn member_file(&mut self, rank: RankId, id: FileId) -> Result<&mut File, &'static str> {
        let found = self.files.get_mut(&id).filter(|file| file.members.contains_key(&rank));
        found.ok_or("a file that it did not attach")
    }

    /// Paths of files, with the number of pulls in progress.
    pub fn pulls_in_progress(&self) -> usize {
        self.pulls.len()
    }
}

fn done(file: FileId, op: u64, outcome: &Outcome, eof: u64) -> ToRank {
    let Outcome { status, message } = outcome.clone();
    ToRank::Done { file, op, status, message, eof }
}
