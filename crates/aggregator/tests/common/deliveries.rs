//! Deliveries of messages and data between ranks and processes.

use waystage_aggregator::coverage::Coverage;
use waystage_aggregator::effect::{Effect, Outcome};
use waystage_collective_wire::local::{ToNode, ToRank};
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{coverage, Status};

use super::{address, number, Cluster, Process, Wire};

impl Cluster {
    pub(super) fn other(&mut self, node: usize) {
        let effect = self.processes[node].other.pop_front().unwrap();
        let now = self.now;
        let process = &mut self.processes[node].node;
        let effects = match effect {
            Effect::Open { file, .. } => process.opened(file, Outcome::ok(), now),
            Effect::Create { rank, file, .. } => {
                process.created(rank, file, Outcome::ok(), None, now)
            }
            Effect::Fsync { job, .. } => process.synced(job, Outcome::ok(), now),
            Effect::Probe(to) if self.dead.contains(&number(&to)) => {
                process.aggregator_lost(&to, now)
            }
            Effect::Probe(to) => process.reached(&to, now),
            _ => Vec::new(),
        };
        self.effects(node, effects);
    }

    pub(super) fn rank_to_node(&mut self, connection: u64) {
        let message = self.up.get_mut(&connection).unwrap().pop_front().unwrap();
        let Some(node) =
            self.ranks.iter().find(|rank| rank.connection == connection).map(|rank| rank.node)
        else {
            return;
        };
        let Process { node: machine, pool, .. } = &mut self.processes[node];
        let list = |at: u64, bytes: usize| pool[at as usize..at as usize + bytes].to_vec();
        let effects = machine.rank_message(connection, message, &list, self.now);
        self.effects(node, effects);
    }

    pub(super) fn node_to_rank(&mut self, connection: u64) {
        let message = self.down.get_mut(&connection).unwrap().pop_front().unwrap();
        let Some(rank) = self.ranks.iter_mut().find(|rank| rank.connection == connection) else {
            return;
        };
        let pool = &mut self.processes[rank.node].pool;
        let answer = match message {
            ToRank::Pack { request, op, window, image, list, list_capacity, from, .. } => {
                assert!(op == rank.op && rank.result.is_none(), "asked outside of its operation");
                let mut runs = coverage::Writer::new((list_capacity as usize).min(96));
                let mut upto = window.bytes();
                for (position, at, bytes) in rank.pieces.inside(&window) {
                    if position < from {
                        continue;
                    }
                    if list_capacity > 0 && !runs.push(position, bytes) {
                        upto = position;
                        break;
                    }
                    if let Some(image) = image {
                        let to = (image + position) as usize;
                        pool[to..to + bytes as usize]
                            .copy_from_slice(&rank.pieces.data[at..at + bytes as usize]);
                    }
                }
                let runs = if list_capacity > 0 { runs.finish() } else { Vec::new() };
                self.lists += usize::from(list_capacity > 0);
                pool[list as usize..list as usize + runs.len()].copy_from_slice(&runs);
                let next =
                    rank.pieces.extents.iter().find(|(offset, bytes)| offset + bytes > window.hi);
                let next = next.map_or(u64::MAX, |(offset, _)| (*offset).max(window.hi));
                Some(ToNode::Packed { request, list_bytes: runs.len() as u32, upto, next })
            }
            ToRank::Unpack { request, op, window, image, .. } => {
                assert!(op == rank.op && rank.result.is_none(), "asked outside of its operation");
                for (position, at, bytes) in rank.pieces.inside(&window) {
                    let from = (image + position) as usize;
                    rank.pieces.data[at..at + bytes as usize]
                        .copy_from_slice(&pool[from..from + bytes as usize]);
                }
                Some(ToNode::Unpacked { request })
            }
            ToRank::Done { op, status, eof, .. } => {
                if op == rank.op {
                    (rank.result, rank.settled) = (Some((status, eof)), rank.connection);
                }
                None
            }
            ToRank::Synced { number, status, .. } => {
                assert!(number == self.syncs, "another sync's answer");
                match status {
                    Status::Ok => rank.result = Some((status, u64::MAX)),
                    Status::Again => rank.entering = true,
                    other => panic!("{other:?}"),
                }
                None
            }
            ToRank::Settled { status, .. } => {
                if self.settling {
                    rank.result = Some((status, u64::MAX));
                }
                None
            }
            ToRank::Control { map, .. } => {
                self.map = map;
                None
            }
            ToRank::Attached { status, .. } => {
                assert_eq!(status, Status::Ok);
                None
            }
            _ => None,
        };
        if let Some(answer) = answer {
            self.up.entry(connection).or_default().push_back(answer);
        }
    }

    pub(super) fn gather(pool: &[u8], image: u64, coverage: &mut Coverage) -> Vec<u8> {
        coverage
            .runs()
            .into_iter()
            .flat_map(|(p, n)| pool[(image + p) as usize..(image + p + n) as usize].to_vec())
            .collect()
    }

    pub(super) fn scatter(pool: &mut [u8], image: u64, coverage: &mut Coverage, bytes: &[u8]) {
        let mut at = 0;
        for (p, n) in coverage.runs() {
            pool[(image + p) as usize..(image + p + n) as usize]
                .copy_from_slice(&bytes[at..at + n as usize]);
            at += n as usize;
        }
        assert_eq!(at, bytes.len());
    }

    pub(super) fn node_to_aggregator(&mut self, key: (usize, usize)) {
        let wire = self.out.get_mut(&key).unwrap().pop_front().unwrap();
        let link = self.links[&key];
        let now = self.now;
        let effects = match wire {
            Wire::Message(Peer::Data { pull, coverage, next, bytes: 0 }) => {
                let target = self.processes[key.1]
                    .node
                    .aggregator
                    .data_target(link, pull, coverage.as_deref())
                    .unwrap();
                match target {
                    Some((_, coverage)) => {
                        self.processes[key.1].node.data(link, pull, coverage, next, now)
                    }
                    None => Vec::new(),
                }
            }
            Wire::Message(message) => self.processes[key.1].node.node_message(link, message, now),
            Wire::Data(Peer::Copy { file, copy, .. }, image, mut covered) => {
                let bytes = Self::gather(&self.processes[key.0].pool, image, &mut covered);
                let to = &mut self.processes[key.1];
                match to.node.aggregator.copy_target(link, file, copy) {
                    Some((image, mut coverage)) => {
                        self.copies += 1;
                        Self::scatter(&mut to.pool, image, &mut coverage, &bytes);
                        to.node.copied(link, file, copy, now)
                    }
                    None => Vec::new(),
                }
            }
            Wire::Data(message, image, mut covered) => {
                let Peer::Data { pull, coverage, next, .. } = message else { panic!() };
                let bytes = Self::gather(&self.processes[key.0].pool, image, &mut covered);
                let sent = self.processes[key.0].node.data_sent(&address(key.1), pull, now);
                self.effects(key.0, sent);
                let to = &mut self.processes[key.1];
                match to.node.aggregator.data_target(link, pull, coverage.as_deref()).unwrap() {
                    Some((image, mut coverage)) => {
                        Self::scatter(&mut to.pool, image, &mut coverage, &bytes);
                        to.node.data(link, pull, coverage, next, now)
                    }
                    None => Vec::new(),
                }
            }
        };
        self.effects(key.1, effects);
    }

    pub(super) fn aggregator_to_node(&mut self, key: (usize, usize)) {
        let wire = self.back.get_mut(&key).unwrap().pop_front().unwrap();
        let (from, now) = (address(key.1), self.now);
        let effects = match wire {
            Wire::Message(message) => {
                self.processes[key.0].node.aggregator_message(&from, message, now)
            }
            Wire::Data(message, image, mut covered) => {
                let Peer::ReadData { pull, .. } = message else { panic!() };
                let bytes = Self::gather(&self.processes[key.1].pool, image, &mut covered);
                let sent = self.processes[key.1].node.delivered(self.links[&key], pull, now);
                self.effects(key.1, sent);
                let to = &mut self.processes[key.0];
                match to.node.gatherer.read_target(&from, pull) {
                    Some((image, mut coverage)) => {
                        Self::scatter(&mut to.pool, image, &mut coverage, &bytes);
                        to.node.read_data(&from, pull, now)
                    }
                    None => Vec::new(),
                }
            }
        };
        self.effects(key.0, effects);
    }
}
