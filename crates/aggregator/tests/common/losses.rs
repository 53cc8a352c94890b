//! Processes that are killed, and what their peers and ranks notice.

use std::collections::VecDeque;

use waystage_aggregator::node::Node;
use waystage_collective_wire::local::ToRank;

use super::{address, Cluster, Loss, Process, PATIENCE, POOL};

impl Cluster {
    /// Kill a process: its peers and ranks notice, and it begins anew.
    pub fn kill(&mut self, node: usize) {
        // Requests that the kernel had begun may or may not have reached the file.
        let transfers = std::mem::take(&mut self.processes[node].transfers);
        for transfer in transfers {
            if self.dice.below(2) == 0 {
                self.store(node, &transfer);
            }
        }
        self.processes[node] = Process {
            node: Node::new(address(node), POOL),
            pool: vec![0xdd; POOL as usize],
            transfers: Vec::new(),
            other: VecDeque::new(),
        };
        let lost: Vec<(usize, usize)> =
            self.links.keys().filter(|(from, to)| *from == node || *to == node).copied().collect();
        // What it had not noticed, it never will.
        self.losses.retain(|loss| match loss {
            Loss::Aggregator(by, _) | Loss::Node(by, ..) => *by != node,
        });
        self.broken.retain(|(from, _)| *from != node);
        for key in lost {
            let link = self.links.remove(&key).unwrap();
            self.out.remove(&key);
            self.back.remove(&key);
            let (from, to) = key;
            if from == node && to != node {
                self.losses.push(Loss::Node(to, link, false));
            } else if to == node && from != node {
                self.broken.insert(key);
                self.losses.push(Loss::Aggregator(from, to));
            }
        }
        for index in 0..self.ranks.len() {
            let rank = &mut self.ranks[index];
            if rank.node != node || !rank.attached {
                continue;
            }
            self.up.remove(&rank.connection);
            for message in self.down.remove(&rank.connection).unwrap_or_default() {
                // It may have been received before.
                if let ToRank::Done { op, status, eof, .. } = message {
                    if op == rank.op
                        && !(self.syncing || self.settling)
                        && rank.result.is_none()
                        && self.dice.below(2) == 0
                    {
                        (rank.result, rank.settled) = (Some((status, eof)), rank.connection);
                    }
                }
            }
            rank.attached = false;
            rank.entering =
                rank.op == self.op && rank.result.is_none() && self.op > 0 && !self.map.is_empty();
        }
    }

    /// Cut a node off from an aggregator, both of which go on: each notices it later. What the aggregator has asked of
    /// its storage happens in its own time.
    pub fn cut(&mut self, from: usize, to: usize) {
        if let Some(link) = self.links.remove(&(from, to)) {
            self.out.remove(&(from, to));
            self.back.remove(&(from, to));
            self.broken.insert((from, to));
            self.losses.push(Loss::Aggregator(from, to));
            self.losses.push(Loss::Node(to, link, true));
        }
    }

    pub(super) fn notice(&mut self, index: usize) {
        match self.losses.swap_remove(index) {
            Loss::Aggregator(node, to) => {
                self.broken.remove(&(node, to));
                let effects = self.processes[node].node.aggregator_lost(&address(to), self.now);
                self.effects(node, effects);
            }
            Loss::Node(node, link, silent) => {
                let effects = self.processes[node].node.node_lost(link, silent, self.now);
                self.effects(node, effects);
            }
        }
    }

    /// Nothing can happen: the patience of the processes ends.
    pub(super) fn pass_time(&mut self) {
        self.waits += 1;
        for _ in 0..2 {
            self.now += PATIENCE.absence_ns + 1;
            for node in 0..self.processes.len() {
                let effects = self.processes[node].node.tick(self.now, PATIENCE);
                self.effects(node, effects);
            }
        }
        while self.step() {}
        assert!(
            self.ranks.iter().all(|rank| rank.result.is_some()),
            "stuck in operation {}",
            self.op
        );
    }
}
