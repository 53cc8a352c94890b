//! A process as one state machine: its gatherer and its aggregator, which talk to each other without a connection.
//!
//! Arrives: messages of ranks and of processes, outcomes of storage requests, the time. Leaves: effects for the
//! outside. Must not know: sockets, files, clocks.

use std::sync::Arc;

use waystage_collective_wire::local::ToNode;
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::FileId;

use crate::aggregator::Aggregator;
use crate::coverage::Coverage;
use crate::effect::{Effect, LinkId, Outcome, RankId, OWN};
use crate::gatherer::{Gatherer, LIST_BYTES};
use crate::patience::Patience;
use crate::room::Room;

/// The state of a process.
pub struct Node {
    own: Arc<str>,
    /// The ranks' side.
    pub gatherer: Gatherer,
    /// The storage's side.
    pub aggregator: Aggregator,
}

impl Node {
    /// The process at an address, with a pool of these bytes: lists of ranks first, then half for images and half for
    /// staging.
    pub fn new(own: Arc<str>, pool_bytes: u64) -> Self {
        let lists = (pool_bytes / 16 / LIST_BYTES).clamp(1, 64);
        let begin = lists * LIST_BYTES;
        let half = pool_bytes.saturating_sub(begin) / 2 / 4096 * 4096;
        let staging = Room::new(begin + half, half);
        let list_offsets = (0..lists).map(|list| list * LIST_BYTES).collect();
        let gatherer = Gatherer::new(Arc::clone(&own), pool_bytes, staging, list_offsets);
        Self { own, gatherer, aggregator: Aggregator::new(Room::new(begin, half)) }
    }

    /// Carry out what stays in this process; the rest is for the outside.
    fn route(&mut self, mut todo: Vec<Effect>, now_ns: u64) -> Vec<Effect> {
        let mut outside = Vec::new();
        while !todo.is_empty() {
            let mut next = Vec::new();
            for effect in todo {
                match effect {
                    Effect::ToAggregator(address, message) if address == self.own => {
                        self.peer(OWN, message, now_ns, &mut next);
                    }
                    Effect::ToNode(OWN, message) => {
                        let own = Arc::clone(&self.own);
                        self.gatherer.aggregator_message(&own, message, &mut next);
                    }
                    Effect::PullOwn { file, op, pull, window, image } => {
                        self.gatherer.pull_own(file, op, pull, window, image, &mut next);
                    }
                    Effect::KeepOwn { file, op, hull } => self.aggregator.keep(file, op, hull),
                    Effect::DataOwn { pull, coverage, next: reach } => {
                        self.aggregator.data(OWN, pull, coverage, reach, &mut next);
                    }
                    Effect::ReadOwn { pull } => {
                        let own = Arc::clone(&self.own);
                        self.gatherer.read_data(&own, pull, &mut next);
                    }
                    Effect::ReadTaken { pull } => self.aggregator.delivered(OWN, pull, &mut next),
                    Effect::Probe(address) if address == self.own => {
                        self.gatherer.reached(&address, now_ns, &mut next);
                    }
                    other => outside.push(other),
                }
            }
            todo = next;
        }
        outside
    }

    fn peer(&mut self, link: LinkId, message: Peer, now_ns: u64, out: &mut Vec<Effect>) {
        match message {
            Peer::Suspect { address, .. } => self.gatherer.suspected(&address.into(), now_ns),
            message => self.aggregator.message(link, message, out),
        }
    }

    /// A rank was admitted.
    pub fn rank_joined(&mut self, rank: RankId, app: Arc<str>, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.gatherer.rank_joined(rank, app, out))
    }

    /// A rank's connection has ended.
    pub fn rank_left(&mut self, rank: RankId, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.gatherer.rank_left(rank, out))
    }

    /// A message of a rank. `list` reads bytes of the pool.
    pub fn rank_message(
        &mut self,
        rank: RankId,
        message: ToNode,
        list: &dyn Fn(u64, usize) -> Vec<u8>,
        now_ns: u64,
    ) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.gatherer.message(rank, message, list, now_ns, out))
    }

    /// A message of a node, on the connection that it made, unless it is `Data`.
    pub fn node_message(&mut self, link: LinkId, message: Peer, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.peer(link, message, now_ns, out))
    }

    /// A node's `Data`, whose bytes are in the image.
    pub fn data(
        &mut self,
        link: LinkId,
        pull: u64,
        coverage: Coverage,
        next: u64,
        now_ns: u64,
    ) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.aggregator.data(link, pull, coverage, next, out))
    }

    /// A message of an aggregator, on the connection made to it, unless it is `ReadData`.
    pub fn aggregator_message(
        &mut self,
        address: &Arc<str>,
        message: Peer,
        now_ns: u64,
    ) -> Vec<Effect> {
        self.run(now_ns, |node, out| match message {
            Peer::Taken { .. } | Peer::Kept { .. } => node.aggregator.holder_message(message, out),
            message => node.gatherer.aggregator_message(address, message, out),
        })
    }

    /// An aggregator's `ReadData`, whose bytes are in the image.
    pub fn read_data(&mut self, address: &Arc<str>, pull: u64, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.gatherer.read_data(address, pull, out))
    }

    /// `SendData` has left.
    pub fn data_sent(&mut self, address: &Arc<str>, pull: u64, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.gatherer.data_sent(address, pull, out))
    }

    /// `SendRead` has left.
    pub fn delivered(&mut self, link: LinkId, pull: u64, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.aggregator.delivered(link, pull, out))
    }

    /// The bytes of an aggregator's `Copy` are in the image.
    pub fn copied(&mut self, link: LinkId, file: FileId, copy: u64, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.aggregator.copied(link, file, copy, out))
    }

    /// A node's connection has ended; `silent`: nothing was heard of it, for the lease.
    pub fn node_lost(&mut self, link: LinkId, silent: bool, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.aggregator.node_lost(link, silent, out))
    }

    /// The connection to an aggregator has ended, or none could be made.
    pub fn aggregator_lost(&mut self, address: &Arc<str>, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| {
            node.aggregator.holder_lost(address, out);
            node.gatherer.aggregator_lost(address, now_ns, out);
        })
    }

    /// An aggregator that was tried answers.
    pub fn reached(&mut self, address: &Arc<str>, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.gatherer.reached(address, now_ns, out))
    }

    /// A file was opened for its aggregator.
    pub fn opened(&mut self, file: FileId, outcome: Outcome, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.aggregator.opened(file, outcome, out))
    }

    /// A file was opened for a rank.
    pub fn created(
        &mut self,
        rank: RankId,
        file: FileId,
        outcome: Outcome,
        stripe: Option<(u64, u32)>,
        now_ns: u64,
    ) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.gatherer.created(rank, file, outcome, stripe, out))
    }

    /// A storage request has ended.
    pub fn transferred(
        &mut self,
        job: u64,
        outcome: Outcome,
        eof: u64,
        now_ns: u64,
    ) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.aggregator.transferred(job, outcome, eof, out))
    }

    /// A storage request hangs.
    pub fn late(&mut self, job: u64, outcome: Outcome, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.aggregator.late(job, outcome, out))
    }

    /// fsync has ended.
    pub fn synced(&mut self, job: u64, outcome: Outcome, now_ns: u64) -> Vec<Effect> {
        self.run(now_ns, |node, out| node.aggregator.synced(job, outcome, out))
    }

    /// Answer control points whose time has come; tell ranks that wait; give up what is waited for too long.
    pub fn tick(&mut self, now_ns: u64, patience: Patience) -> Vec<Effect> {
        self.run(now_ns, |node, out| {
            node.gatherer.answer(now_ns, out);
            node.gatherer.tick(now_ns, patience, out);
            node.gatherer.tell_waiting(out);
            node.aggregator.tick(now_ns, patience.absence_ns, out);
        })
    }

    fn run(&mut self, now_ns: u64, act: impl FnOnce(&mut Self, &mut Vec<Effect>)) -> Vec<Effect> {
        let mut out = Vec::new();
        act(self, &mut out);
        self.route(out, now_ns)
    }
}
