//! Exchanges of processes between hosts.
//!
//! Arrives: the hosts of processes, and their traffic.
//! Leaves: better hosts.
//! Must not know: how many exchanges are worth their time.

use crate::error::FlowError;
use crate::mapping::split::SplitTable;
use crate::mapping::Traffic;
use crate::network::Network;
use crate::seeded::Random;

/// Processes tried for an exchange with one, below each switch that it speaks with.
const TRIED_THERE: usize = 12;

/// And below switches drawn at random.
const TRIED_ANYWHERE: usize = 4;

/// The part of all bytes on all links in the sum: decides between exchanges that are equal for the busiest.
const LINEAR: f64 = 1e-3;

/// A sum must fall by this share of a fully loaded link: less is rounding.
const GAIN: f64 = 1e-9;

/// What one process sends to and receives from another.
struct Peer {
    process: u32,
    sent: f64,
    received: f64,
}

pub(super) struct Exchanger<'a> {
    network: &'a Network,
    split: SplitTable<'a>,
    peers: Vec<Vec<Peer>>,
    pub host_of: Vec<u32>,
    /// Processes by group of hosts, and the position of each in its list.
    members: Vec<Vec<u32>>,
    position: Vec<u32>,
    pub loads: Vec<f64>,
    /// What the exchange at hand changes, on the links in `touched`.
    change: Vec<f64>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    pub visits: f64,
}

impl<'a> Exchanger<'a> {
    pub fn new(
        network: &'a Network,
        traffic: Traffic<'_>,
        host_of: Vec<u32>,
    ) -> Result<Self, FlowError> {
        let mut members = vec![Vec::new(); network.group_count()];
        let mut position = Vec::with_capacity(host_of.len());
        for (process, &host) in host_of.iter().enumerate() {
            let there: &mut Vec<u32> = &mut members[network.group(host) as usize];
            position.push(there.len() as u32);
            there.push(process as u32);
        }
        let mut exchanger = Self {
            network,
            split: SplitTable::new(network),
            peers: peers_of(traffic, host_of.len()),
            host_of,
            members,
            position,
            loads: vec![0.0; network.link_count()],
            change: vec![0.0; network.link_count()],
            touched: Vec::new(),
            is_touched: vec![false; network.link_count()],
            visits: 0.0,
        };
        for process in 0..exchanger.peers.len() {
            for at in 0..exchanger.peers[process].len() {
                let Peer { process: other, sent, .. } = exchanger.peers[process][at];
                let ends = [exchanger.host_of[process], exchanger.host_of[other as usize]];
                exchanger.shift(ends[0], ends[1], sent)?;
            }
        }
        exchanger.accept();
        Ok(exchanger)
    }

    /// Offer every process exchanges; how many were made.
    pub fn pass(
        &mut self,
        power: i32,
        random: &mut Random,
        budget: f64,
    ) -> Result<usize, FlowError> {
        let reference = self.network.max_load(&self.loads);
        if reference == 0.0 {
            return Ok(0);
        }
        let mut order: Vec<u32> = (0..self.host_of.len() as u32).collect();
        order.retain(|&process| !self.peers[process as usize].is_empty());
        random.shuffle(&mut order);
        let mut made = 0;
        let mut candidates = Vec::new();
        for process in order {
            if self.visits > budget {
                break;
            }
            self.candidates(process, random, &mut candidates);
            for &other in &candidates {
                if self.gains(process, other, power, reference)? {
                    self.accept();
                    self.change_places(process, other);
                    made += 1;
                } else {
                    self.reject();
                }
            }
        }
        Ok(made)
    }

    /// Exchange processes below one switch while that takes bytes off the links of hosts.
    pub fn gather_on_hosts(&mut self, random: &mut Random, budget: f64) {
        let mut order: Vec<u32> = (0..self.host_of.len() as u32).collect();
        loop {
            random.shuffle(&mut order);
            let mut made = 0;
            for &process in &order {
                for at in 0..self.peers[process as usize].len() {
                    // Where all speak with all, a pass alone is the cube of the processes.
                    if self.visits > budget {
                        return;
                    }
                    let peer = self.peers[process as usize][at].process;
                    let (here, there) = (self.host(process), self.host(peer));
                    if here == there || self.network.group(here) != self.network.group(there) {
                        continue;
                    }
                    let group = self.network.group(there) as usize;
                    let peers = |process: u32| self.peers[process as usize].len();
                    let mut tried = self.members[group].len() as f64;
                    let best = (0..self.members[group].len())
                        .map(|at| self.members[group][at])
                        .filter(|&other| self.host(other) == there && other != peer)
                        .inspect(|&other| tried += (peers(process) + peers(other)) as f64)
                        .map(|other| (self.bytes_saved(process, other), other))
                        .max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
                    self.visits += tried;
                    if let Some((saved, other)) = best {
                        if saved > 0.0 {
                            self.host_of.swap(process as usize, other as usize);
                            made += 1;
                        }
                    }
                }
            }
            if made == 0 || self.visits > budget {
                return;
            }
        }
    }

    fn host(&self, process: u32) -> u32 {
        self.host_of[process as usize]
    }

    /// Bytes that stay on one host when two processes below one switch change hosts.
    fn bytes_saved(&self, one: u32, other: u32) -> f64 {
        let (here, there) = (self.host(one), self.host(other));
        let gain = |process: u32, from: u32, to: u32, not: u32| -> f64 {
            let peers = self.peers[process as usize].iter().filter(|peer| peer.process != not);
            peers
                .map(|peer| {
                    let host = self.host(peer.process);
                    let sign = f64::from(u8::from(host == to)) - f64::from(u8::from(host == from));
                    sign * (peer.sent + peer.received)
                })
                .sum()
        };
        gain(one, here, there, other) + gain(other, there, here, one)
    }

    /// Processes below the switches that `process` speaks with, and below others, but not below its own.
    fn candidates(&self, process: u32, random: &mut Random, candidates: &mut Vec<u32>) {
        candidates.clear();
        let own = self.network.group(self.host(process));
        let mut groups: Vec<u32> = self.peers[process as usize]
            .iter()
            .map(|peer| self.network.group(self.host(peer.process)))
            .filter(|&group| group != own)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            let there = &self.members[group as usize];
            for _ in 0..TRIED_THERE.min(there.len()) {
                candidates.push(there[random.below(there.len())]);
            }
        }
        for _ in 0..TRIED_ANYWHERE {
            let other = random.below(self.host_of.len()) as u32;
            if self.network.group(self.host(other)) != own {
                candidates.push(other);
            }
        }
    }

    /// Work out into `change` what an exchange does to loads, and whether the sum falls.
    fn gains(
        &mut self,
        one: u32,
        other: u32,
        power: i32,
        reference: f64,
    ) -> Result<bool, FlowError> {
        let (here, there) = (self.host(one), self.host(other));
        if self.network.group(here) == self.network.group(there) {
            return Ok(false);
        }
        self.move_traffic(one, here, there, other)?;
        self.move_traffic(other, there, here, one)?;
        if let Some(peer) = self.peers[one as usize].iter().find(|peer| peer.process == other) {
            let (sent, received) = (peer.sent, peer.received);
            self.shift(here, there, received - sent)?;
            self.shift(there, here, sent - received)?;
        }
        let mut difference = 0.0;
        for &link in &self.touched {
            let before = self.loads[link as usize] / reference;
            let after = (before + self.change[link as usize] / reference).max(0.0);
            difference += after.powi(power) - before.powi(power) + LINEAR * (after - before);
        }
        Ok(difference < -GAIN)
    }

    /// Take what `process` sends and receives, but for what `not` has of it, from one host to another.
    fn move_traffic(
        &mut self,
        process: u32,
        from: u32,
        to: u32,
        not: u32,
    ) -> Result<(), FlowError> {
        for at in 0..self.peers[process as usize].len() {
            let Peer { process: peer, sent, received } = self.peers[process as usize][at];
            if peer == not {
                continue;
            }
            let host = self.host(peer);
            self.shift(from, host, -sent)?;
            self.shift(to, host, sent)?;
            self.shift(host, from, -received)?;
            self.shift(host, to, received)?;
        }
        Ok(())
    }

    /// Note `bytes` more, or less, from one host to another.
    fn shift(&mut self, src: u32, dst: u32, bytes: f64) -> Result<(), FlowError> {
        if bytes == 0.0 || self.network.group(src) == self.network.group(dst) {
            return Ok(());
        }
        let shares = self.split.of(src, dst)?;
        self.visits += shares.len() as f64;
        for &(link, share) in shares.iter() {
            self.change[link as usize] += share * bytes;
            if !std::mem::replace(&mut self.is_touched[link as usize], true) {
                self.touched.push(link);
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        for link in self.touched.drain(..) {
            self.is_touched[link as usize] = false;
            let change = std::mem::take(&mut self.change[link as usize]);
            let load = &mut self.loads[link as usize];
            *load = (*load + change).max(0.0);
        }
    }

    fn reject(&mut self) {
        for link in self.touched.drain(..) {
            self.is_touched[link as usize] = false;
            self.change[link as usize] = 0.0;
        }
    }

    fn change_places(&mut self, one: u32, other: u32) {
        let groups = [one, other].map(|process| self.network.group(self.host(process)) as usize);
        let at = [one, other].map(|process| self.position[process as usize]);
        self.members[groups[0]][at[0] as usize] = other;
        self.members[groups[1]][at[1] as usize] = one;
        self.position.swap(one as usize, other as usize);
        self.host_of.swap(one as usize, other as usize);
    }
}

/// The peers of each process, each once, ascending.
fn peers_of(traffic: Traffic<'_>, processes: usize) -> Vec<Vec<Peer>> {
    let mut peers: Vec<Vec<Peer>> = (0..processes).map(|_| Vec::new()).collect();
    for ((&src, &dst), &bytes) in traffic.src.iter().zip(traffic.dst).zip(traffic.bytes) {
        if src != dst && bytes > 0.0 {
            peers[src as usize].push(Peer { process: dst, sent: bytes, received: 0.0 });
            peers[dst as usize].push(Peer { process: src, sent: 0.0, received: bytes });
        }
    }
    for list in &mut peers {
        list.sort_by_key(|peer| peer.process);
        list.dedup_by(|next, kept| {
            let same = next.process == kept.process;
            if same {
                kept.sent += next.sent;
                kept.received += next.received;
            }
            same
        });
    }
    peers
}
