//! A cluster of state machines: queues between them, a file, ranks, all moved in an order that a seed decides.

#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use waystage_aggregator::coverage::Coverage;
use waystage_aggregator::effect::{Effect, Outcome, Transfer};
use waystage_aggregator::node::Node;
use waystage_aggregator::patience::Patience;
use waystage_collective_wire::local::{ToNode, ToRank, REATTACHED};
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Status};

mod data;
mod deliveries;
mod dice;
mod losses;

pub use data::Pieces;
use dice::Dice;

pub const FILE: FileId = FileId([7; 16]);
const POOL: u64 = 1 << 20;
const PATIENCE: Patience =
    Patience { absence_ns: 1_000_000_000_000, answer_ticks: u32::MAX, fence_ticks: u32::MAX };

#[derive(Default)]
pub struct Rank {
    pub node: usize,
    pub number: usize,
    pub pieces: Pieces,
    pub by_view: bool,
    pub result: Option<(Status, u64)>,
    /// The connection, new after each restart of the node.
    connection: u64,
    attached: bool,
    /// The connection by which its last operation ended; 0: it has not attached before.
    settled: u64,
    /// It has an operation to announce.
    entering: bool,
    op: u64,
}

/// What a process has not noticed yet.
enum Loss {
    /// Of a node: of its connection to an aggregator.
    Aggregator(usize, usize),
    /// Of an aggregator: of this link, and whether it fell silent.
    Node(usize, u64, bool),
}

enum Wire {
    Message(Peer),
    Data(Peer, u64, Coverage),
}

pub struct Process {
    pub node: Node,
    pub pool: Vec<u8>,
    transfers: Vec<Transfer>,
    other: VecDeque<Effect>,
}

/// Everything.
pub struct Cluster {
    pub dice: Dice,
    pub processes: Vec<Process>,
    pub ranks: Vec<Rank>,
    pub file: Vec<u8>,
    pub window: u64,
    pub cyclic: bool,
    pub cb_nodes: usize,
    /// Of the storage: a status to fail with.
    pub fail: Option<Status>,
    /// Messages from a rank and to it.
    up: HashMap<u64, VecDeque<ToNode>>,
    down: HashMap<u64, VecDeque<ToRank>>,
    /// By node and aggregator: both directions of the connection that the node made, and its link number.
    out: BTreeMap<(usize, usize), VecDeque<Wire>>,
    back: BTreeMap<(usize, usize), VecDeque<Wire>>,
    links: BTreeMap<(usize, usize), u64>,
    losses: Vec<Loss>,
    /// Connections whose loss the node has not noticed: what it sends there is lost.
    broken: HashSet<(usize, usize)>,
    /// How often only the passing of time could help.
    pub waits: usize,
    writing: bool,
    syncs: u64,
    syncing: bool,
    /// Whether files are written behind, and whether ranks wait for that.
    pub write_behind: bool,
    /// Windows of which another aggregator got a copy.
    pub copies: usize,
    settling: bool,
    /// The last map that ranks have adopted.
    adopted: Vec<u8>,
    next: u64,
    pub epoch: u64,
    map: Vec<u8>,
    op: u64,
    dead: HashSet<usize>,
    pub lists: usize,
    /// Announcements with their data.
    pub inlined: usize,
    /// Messages with data between processes.
    pub crossings: usize,
    pub now: u64,
    /// A node, an aggregator, and the number of steps after which they are cut off from each other.
    pub cuts: Vec<(usize, usize, usize)>,
    /// The aggregator whose next request to the storage hangs, for longer than its timeout.
    pub hangs: Option<usize>,
    /// That request; it ends when nothing else can happen.
    pub hung: Option<(usize, u64)>,
}

fn address(node: usize) -> Arc<str> {
    format!("n{node}@h:{node}").into()
}

fn number(address: &str) -> usize {
    address[1..].split('@').next().unwrap().parse().unwrap()
}

impl Cluster {
    pub fn new(seed: u64, nodes: usize, ranks: usize, window: u64) -> Self {
        let process = |node| Process {
            node: Node::new(address(node), POOL),
            pool: vec![0xee; POOL as usize],
            transfers: Vec::new(),
            other: VecDeque::new(),
        };
        let rank = |number| Rank { node: number % nodes, number, ..Rank::default() };
        Self {
            dice: Dice(seed),
            processes: (0..nodes).map(process).collect(),
            ranks: (0..ranks).map(rank).collect(),
            file: Vec::new(),
            window,
            cyclic: false,
            cb_nodes: nodes,
            fail: None,
            up: HashMap::new(),
            down: HashMap::new(),
            out: BTreeMap::new(),
            back: BTreeMap::new(),
            links: BTreeMap::new(),
            losses: Vec::new(),
            broken: HashSet::new(),
            waits: 0,
            writing: false,
            syncs: 0,
            syncing: false,
            write_behind: false,
            copies: 0,
            settling: false,
            adopted: Vec::new(),
            next: 100,
            epoch: 0,
            map: Vec::new(),
            op: 0,
            dead: HashSet::new(),
            lists: 0,
            inlined: 0,
            crossings: 0,
            now: 1,
            cuts: Vec::new(),
            hangs: None,
            hung: None,
        }
    }

    fn effects(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            self.effect(node, effect);
        }
    }

    fn effect(&mut self, node: usize, effect: Effect) {
        match effect {
            Effect::ToRank(rank, message) => self.down.entry(rank).or_default().push_back(message),
            Effect::DropRank(_, why) | Effect::DropNode(_, why) => panic!("dropped: {why}"),
            Effect::ToAggregator(to, message) => {
                let to = number(&to);
                if self.dead.contains(&to) {
                    self.processes[node].other.push_back(Effect::Probe(address(to)));
                    return;
                }
                if self.broken.contains(&(node, to)) {
                    return;
                }
                let next = self.next;
                self.links.entry((node, to)).or_insert(next);
                self.next += 1;
                self.out.entry((node, to)).or_default().push_back(Wire::Message(message));
            }
            Effect::ToNode(link, message) => {
                if let Some(key) = self.link(node, link) {
                    self.back.entry(key).or_default().push_back(Wire::Message(message));
                }
            }
            Effect::SendData { address, message, image, coverage, .. } => {
                self.crossings += usize::from(!coverage.is_empty());
                if !self.links.contains_key(&(node, number(&address))) {
                    return;
                }
                self.out
                    .entry((node, number(&address)))
                    .or_default()
                    .push_back(Wire::Data(message, image, coverage));
            }
            Effect::SendCopy { address, message, image, coverage } => {
                if self.links.contains_key(&(node, number(&address))) {
                    let queue = self.out.entry((node, number(&address))).or_default();
                    queue.push_back(Wire::Data(message, image, coverage));
                }
            }
            Effect::SendRead { link, message, image, coverage, .. } => {
                if let Some(key) = self.link(node, link) {
                    self.back
                        .entry(key)
                        .or_default()
                        .push_back(Wire::Data(message, image, coverage));
                }
            }
            Effect::Fill { image, runs, data } => self.fill(node, image, &runs, &data),
            Effect::Transfer(transfer) => self.processes[node].transfers.push(transfer),
            other => self.processes[node].other.push_back(other),
        }
    }

    fn link(&self, aggregator: usize, link: u64) -> Option<(usize, usize)> {
        self.links
            .iter()
            .find(|((_, to), number)| *to == aggregator && **number == link)
            .map(|(key, _)| *key)
    }

    /// A rank connects where it is not connected.
    fn connect(&mut self, index: usize) {
        if !self.ranks[index].attached {
            self.next += 1;
            let (connection, node) = (self.next, self.ranks[index].node);
            let size = self.ranks.len();
            let local = self.ranks.iter().filter(|rank| rank.node == node).count();
            let rank = &mut self.ranks[index];
            (rank.connection, rank.attached) = (connection, true);
            let flags = 4 | if rank.settled > 0 { REATTACHED } else { 0 };
            if rank.settled == 0 {
                rank.settled = connection;
            }
            let joined = self.processes[node].node.rank_joined(connection, "app".into(), self.now);
            self.effects(node, joined);
            let mut hints = vec![
                ("cb_buffer_size".to_owned(), self.window.to_string()),
                ("striping_unit".to_owned(), "4096".to_owned()),
                ("cb_nodes".to_owned(), self.cb_nodes.to_string()),
            ];
            if self.write_behind {
                hints.push(("waystage_write_behind".to_owned(), "enable".to_owned()));
            }
            if self.cyclic {
                hints.push(("waystage_placement".to_owned(), "cyclic".to_owned()));
            }
            let queue = self.up.entry(connection).or_default();
            queue.push_back(ToNode::Attach {
                file: FILE,
                path: b"/f".to_vec(),
                flags,
                rank: index as u32,
                size: size as u32,
                local_ranks: local as u32,
                node: node as u32,
                root: self.ranks[0].node as u32,
                addresses: (0..self.processes.len())
                    .map(|node| address(node).to_string())
                    .collect(),
                hints,
            });
            if !self.adopted.is_empty() {
                let map = self.adopted.clone();
                self.up.entry(connection).or_default().push_back(ToNode::Adopt { file: FILE, map });
            }
        }
    }

    /// One attempt at a collective operation; every rank's status. `kills`: these processes, after these numbers of
    /// steps, are killed.
    fn attempt(&mut self, write: bool, kills: &mut Vec<(usize, usize)>) -> Vec<Status> {
        if self.epoch == 0 {
            (0..self.ranks.len()).for_each(|index| self.connect(index));
        }
        self.ranks.iter_mut().for_each(|rank| rank.result = None);
        self.map.clear();
        let mut root = 0;
        while self.map.is_empty() {
            self.connect(0);
            if self.ranks[0].connection != root {
                root = self.ranks[0].connection;
                let asked = ToNode::ControlPoint { file: FILE, epoch: self.epoch, write, bytes: 0 };
                self.up.entry(root).or_default().push_back(asked);
            }
            assert!(self.step(), "stuck at the control point");
            self.maybe_kill(kills);
        }
        self.epoch = waystage_collective::ServerMap::decode(&self.map).unwrap().epoch;
        self.adopted = self.map.clone();
        (self.op, self.writing) = (self.op + 1, write);
        for rank in &mut self.ranks {
            (rank.op, rank.entering) = (self.op, true);
        }
        while self.ranks.iter().any(|rank| rank.result.is_none()) {
            if !self.step() {
                self.pass_time();
            }
            self.maybe_kill(kills);
        }
        self.ranks.iter().map(|rank| rank.result.unwrap().0).collect()
    }

    /// All ranks sync, each until it succeeds.
    pub fn sync(&mut self, kills: impl IntoIterator<Item = (usize, usize)>) {
        let mut kills: Vec<_> = kills.into_iter().collect();
        (self.syncs, self.syncing) = (self.syncs + 1, true);
        for rank in &mut self.ranks {
            (rank.result, rank.entering) = (None, true);
        }
        while self.ranks.iter().any(|rank| rank.result.is_none()) {
            assert!(self.step(), "stuck in a sync");
            self.maybe_kill(&mut kills);
        }
        self.syncing = false;
    }

    /// All ranks wait until what was acknowledged is in the file; the worst status.
    pub fn settle(&mut self, kills: impl IntoIterator<Item = (usize, usize)>) -> Status {
        let mut kills: Vec<_> = kills.into_iter().collect();
        self.settling = true;
        for rank in &mut self.ranks {
            (rank.result, rank.entering) = (None, true);
        }
        while self.ranks.iter().any(|rank| rank.result.is_none()) {
            assert!(self.step(), "stuck in settling");
            self.maybe_kill(&mut kills);
        }
        self.settling = false;
        self.ranks.iter().map(|rank| rank.result.unwrap().0).fold(Status::Ok, Status::worse)
    }

    /// A rank enters the operation, or is in it and has lost its process.
    fn enter(&mut self, index: usize) {
        self.connect(index);
        let (map, op, epoch, write) = (self.map.clone(), self.op, self.epoch, self.writing);
        let rank = &mut self.ranks[index];
        rank.entering = false;
        let queue = self.up.entry(rank.connection).or_default();
        if self.settling {
            return queue.push_back(ToNode::Settle { file: FILE });
        }
        if self.syncing {
            queue.push_back(ToNode::Sync { file: FILE, number: self.syncs });
            return;
        }
        queue.push_back(ToNode::Adopt { file: FILE, map });
        let (hull_lo, hull_hi) = rank.pieces.hull();
        let bytes = rank.pieces.extents.iter().map(|(_, bytes)| bytes).sum();
        let view = (rank.by_view && bytes > 0).then_some(op as u32);
        if view.is_some() {
            let encoded = rank.pieces.view();
            queue.push_back(ToNode::SetView { file: FILE, view: op as u32, encoded });
        }
        let inline = rank.pieces.inline(write && view.is_some(), &mut self.dice);
        self.inlined += usize::from(!inline.is_empty());
        queue.push_back(ToNode::Announce {
            file: FILE,
            op,
            epoch,
            write,
            renewed: rank.connection != rank.settled,
            view,
            data_offset: 0,
            bytes,
            hull_lo,
            hull_hi,
            inline,
        });
    }

    /// A collective operation, repeated as callers do; the number of attempts and the worst status.
    pub fn operation(
        &mut self,
        write: bool,
        kills: impl IntoIterator<Item = (usize, usize)>,
    ) -> (usize, Status) {
        let mut kills: Vec<_> = kills.into_iter().collect();
        for attempt in 1..20 {
            let all = self.attempt(write, &mut kills);
            let worst = all.into_iter().fold(Status::Ok, Status::worse);
            if worst != Status::Again {
                self.connect(0);
                let root = self.ranks[0].connection;
                let finished = ToNode::Finished { file: FILE, write, bytes: 0 };
                self.up.entry(root).or_default().push_back(finished);
                return (attempt, worst);
            }
        }
        panic!("it never ends");
    }

    fn maybe_kill(&mut self, kills: &mut Vec<(usize, usize)>) {
        self.cuts.iter_mut().for_each(|(_, _, left)| *left = left.saturating_sub(1));
        for (from, to, _) in self.cuts.extract_if(.., |cut| cut.2 == 0).collect::<Vec<_>>() {
            self.cut(from, to);
        }
        kills.iter_mut().for_each(|(_, left)| *left = left.saturating_sub(1));
        for (node, _) in kills.extract_if(.., |(_, left)| *left == 0).collect::<Vec<_>>() {
            self.kill(node);
        }
    }

    /// Something that can happen happens. False where nothing can.
    fn step(&mut self) -> bool {
        self.now += 1;
        let mut choices: Vec<(u8, u64, usize)> = Vec::new();
        choices.extend(
            self.up.iter().filter(|(_, queue)| !queue.is_empty()).map(|(rank, _)| (0, *rank, 0)),
        );
        choices.extend(
            self.down.iter().filter(|(_, queue)| !queue.is_empty()).map(|(rank, _)| (1, *rank, 0)),
        );
        choices.extend(
            self.out.iter().filter(|(_, q)| !q.is_empty()).map(|(key, _)| (2, key.0 as u64, key.1)),
        );
        choices.extend(
            self.back
                .iter()
                .filter(|(_, q)| !q.is_empty())
                .map(|(key, _)| (3, key.0 as u64, key.1)),
        );
        for (node, process) in self.processes.iter().enumerate() {
            let free = |index: &usize| self.hung != Some((node, process.transfers[*index].job));
            let transfers = (0..process.transfers.len()).filter(free);
            choices.extend(transfers.map(|index| (4, node as u64, index)));
            if !process.other.is_empty() {
                choices.push((5, node as u64, 0));
            }
        }
        choices.extend((0..self.losses.len()).map(|index| (6, 0, index)));
        let entering = self.ranks.iter().enumerate().filter(|(_, rank)| rank.entering);
        choices.extend(entering.map(|(index, _)| (7, 0, index)));
        choices.sort_unstable();
        if choices.is_empty() {
            return self.hung.take().is_some();
        }
        let (kind, a, b) = choices[self.dice.below(choices.len())];
        match kind {
            0 => self.rank_to_node(a),
            1 => self.node_to_rank(a),
            2 => self.node_to_aggregator((a as usize, b)),
            3 => self.aggregator_to_node((a as usize, b)),
            4 if self.hangs == Some(a as usize) => {
                self.hangs = None;
                let job = self.processes[a as usize].transfers[b].job;
                self.hung = Some((a as usize, job));
                let hung = Outcome::failed(Status::Io, "the storage hangs");
                let effects = self.processes[a as usize].node.late(job, hung, self.now);
                self.effects(a as usize, effects);
            }
            4 => {
                let transfer = self.processes[a as usize].transfers.swap_remove(b);
                let (outcome, eof) = match self.fail {
                    Some(status) => (Outcome::failed(status, "the storage says no"), u64::MAX),
                    None => (Outcome::ok(), self.store(a as usize, &transfer)),
                };
                let effects = self.processes[a as usize].node.transferred(
                    transfer.job,
                    outcome,
                    eof,
                    self.now,
                );
                self.effects(a as usize, effects);
            }
            5 => self.other(a as usize),
            6 => self.notice(b),
            _ => self.enter(b),
        }
        true
    }

    /// Nothing is left of any operation.
    pub fn at_rest(&mut self) {
        while self.step() {}
        for process in &self.processes {
            assert_eq!(process.node.aggregator.image_bytes(), 0, "an image is still taken");
            assert_eq!(process.node.gatherer.pulls_in_progress(), 0, "a pull is still open");
        }
    }
}
