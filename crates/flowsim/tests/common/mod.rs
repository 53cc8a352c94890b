//! A naive model of routing: it lists all shortest paths, as PFSim does.

#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::VecDeque;

use proptest::prelude::*;
use waystage_flowsim::Network;

/// A network as lists, from which a [`Network`] is made.
#[derive(Clone, Debug)]
pub struct Plain {
    pub hosts: usize,
    pub switches: usize,
    pub cables: Vec<(u32, u32)>,
    pub capacity: Vec<f64>,
}

impl Plain {
    pub fn build(&self) -> Network {
        let (from, to): (Vec<u32>, Vec<u32>) =
            self.cables.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).unzip();
        let capacity = self.capacity.iter().flat_map(|&c| [c, c]).collect();
        Network::new(self.hosts, self.switches, from, to, capacity, self.names()).unwrap()
    }

    /// Names whose order differs from that of the numbers, as core10 and core2 do.
    pub fn names(&self) -> Vec<String> {
        let switch = |number: usize| format!("s{}", (number * 7 + 3) % 101);
        (0..self.hosts).map(|h| format!("h{h}")).chain((0..self.switches).map(switch)).collect()
    }
}

/// Connected networks: a random tree of switches with further cables, hosts with one or two cables.
pub fn networks() -> impl Strategy<Value = Plain> {
    (2usize..8, 1usize..9, any::<u64>()).prop_map(|(hosts, switches, seed)| {
        let mut random = waystage_flowsim::seeded::Random::new(seed);
        let mut cables = Vec::new();
        let node = |switch: usize| (hosts + switch) as u32;
        for switch in 1..switches {
            cables.push((node(random.below(switch)), node(switch)));
        }
        for _ in 0..random.below(3 * switches) {
            let (a, b) = (random.below(switches), random.below(switches));
            if a != b {
                cables.push((node(a), node(b)));
            }
        }
        for host in 0..hosts {
            for _ in 0..1 + random.below(2) {
                cables.push((host as u32, node(random.below(switches))));
            }
        }
        let capacity = cables.iter().map(|_| [1.0, 2.0, 10.0][random.below(3)]).collect();
        Plain { hosts, switches, cables, capacity }
    })
}

/// Every shortest path from host to host, as links, ascending in lexicographic order.
pub fn shortest_paths(network: &Network, src: u32, dst: u32) -> Vec<Vec<u32>> {
    let nodes = network.names().len();
    let mut distance = vec![usize::MAX; nodes];
    distance[dst as usize] = 0;
    let mut queue = VecDeque::from([dst]);
    while let Some(at) = queue.pop_front() {
        if at < network.host_count() && at != dst {
            continue;
        }
        for (link, &to) in network.links_to().iter().enumerate() {
            let from = network.links_from()[link];
            if to == at && distance[from as usize] == usize::MAX {
                distance[from as usize] = distance[at as usize] + 1;
                queue.push_back(from);
            }
        }
    }
    let mut paths = vec![Vec::new()];
    let mut ends = vec![src];
    for left in (0..distance[src as usize]).rev() {
        let (mut longer, mut new_ends) = (Vec::new(), Vec::new());
        for (path, &end) in paths.iter().zip(&ends) {
            for (link, &from) in network.links_from().iter().enumerate() {
                let to = network.links_to()[link];
                let forwards = to >= network.host_count() || to == dst;
                if from == end && forwards && distance[to as usize] == left {
                    longer.push([path.as_slice(), &[link as u32]].concat());
                    new_ends.push(to);
                }
            }
        }
        (paths, ends) = (longer, new_ends);
    }
    paths
}
