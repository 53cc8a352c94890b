//! All shortest paths between two hosts as a directed acyclic graph, and the cheapest of them.
//!
//! Arrives: a network, two hosts, a cost for each link.
//! Leaves: the links of the cheapest path.
//! Must not know: what costs mean.
//!
//! Hosts on the same switches share one [`PathDag`]; [`PathDagCache`] builds each once. A torus has more shortest
//! paths than could be listed; the graph has no more links than the network.

use std::collections::HashMap;
use std::rc::Rc;

use crate::error::FlowError;
use crate::load::Demands;
use crate::network::{Hops, Network};

/// How the costs of links make the cost of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    Sum,
    Max,
}

/// Switches in levels, from those a host enters by to those that deliver; links lead to the next level.
#[derive(Debug)]
pub(crate) struct PathDag {
    /// Switches of all levels, one level after the other.
    pub switches: Vec<u32>,
    /// Where each level begins in `switches`; one more than there are levels.
    pub levels: Vec<u32>,
    /// Where the links of each switch begin in `links`; one more than there are switches.
    pub starts: Vec<u32>,
    /// Link number and the position of the switch it leads to; ascending by link number for each switch.
    pub links: Vec<(u32, u32)>,
}

impl PathDag {
    /// The ways from the switches next to `src` to the group of `dst`; None where there are none.
    ///
    /// `position` has a place for each switch, of any content.
    fn build(
        network: &Network,
        hops: &Hops,
        (src, dst): (u32, u32),
        position: &mut [u32],
    ) -> Option<Self> {
        network.switch_hops(hops, src)?;
        let mut buffer = Vec::new();
        let entries = network.next_links(hops, src, dst, &mut buffer).iter();
        let mut switches: Vec<u32> =
            entries.map(|&link| network.links_to()[link as usize]).collect();
        switches.sort_unstable();
        switches.dedup();
        let mut level = 0..switches.len();
        let mut ways = Self {
            switches,
            levels: vec![0, level.end as u32],
            starts: vec![0],
            links: Vec::new(),
        };
        let slot = |switch: u32| (switch - network.host_count()) as usize;
        loop {
            for at in level.clone() {
                let switch = ways.switches[at];
                if hops.of(switch) > 0 {
                    let first = ways.links.len();
                    for &link in network.next_links(hops, switch, dst, &mut buffer) {
                        let head = network.links_to()[link as usize];
                        // A place holds the switch's position if that is in the next level, and there it is.
                        let known = position[slot(head)] as usize;
                        let is_known =
                            known >= level.end && ways.switches.get(known) == Some(&head);
                        if !is_known {
                            position[slot(head)] = ways.switches.len() as u32;
                            ways.switches.push(head);
                        }
                        ways.links.push((link, position[slot(head)]));
                    }
                    ways.links[first..].sort_unstable();
                }
                ways.starts.push(ways.links.len() as u32);
            }
            level = level.end..ways.switches.len();
            if level.is_empty() {
                return Some(ways);
            }
            ways.levels.push(level.end as u32);
        }
    }

    /// How many links between switches each way has.
    pub fn length(&self) -> usize {
        self.levels.len() - 2
    }

    /// How many switches a host may enter by.
    pub fn entries(&self) -> usize {
        self.levels[1] as usize
    }

    pub fn links_of(&self, position: usize) -> &[(u32, u32)] {
        &self.links[self.starts[position] as usize..self.starts[position + 1] as usize]
    }

    /// The least cost from each switch on, into `costs`; returns the least of all entries.
    pub fn costs(&self, combine: Combine, cost: impl Fn(u32) -> f64, costs: &mut Vec<f64>) -> f64 {
        costs.clear();
        costs.resize(self.switches.len(), 0.0);
        for at in (0..self.switches.len()).rev() {
            let links = self.links_of(at);
            if !links.is_empty() {
                let onward = links
                    .iter()
                    .map(|&(link, head)| join(combine, cost(link), costs[head as usize]));
                costs[at] = onward.fold(f64::INFINITY, f64::min);
            }
        }
        costs[..self.entries()].iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The links of the cheapest way, into `path`; returns its cost. Ties go to lower link numbers, from the sender
    /// on.
    ///
    /// That is the first of PFSim's paths in a fat tree whose links are listed in the order of its file.
    pub fn cheapest(
        &self,
        combine: Combine,
        cost: impl Fn(u32) -> f64,
        costs: &mut Vec<f64>,
        path: &mut Vec<u32>,
    ) -> f64 {
        let total = self.costs(combine, &cost, costs);
        path.clear();
        let mut at = costs[..self.entries()].iter().position(|&c| c <= total).unwrap_or(0);
        while !self.links_of(at).is_empty() {
            let budget = if combine == Combine::Max { total } else { costs[at] };
            let fitting = self
                .links_of(at)
                .iter()
                .find(|&&(link, head)| join(combine, cost(link), costs[head as usize]) <= budget);
            let &(link, head) = fitting.unwrap_or(&self.links_of(at)[0]);
            path.push(link);
            at = head as usize;
        }
        total
    }
}

fn join(combine: Combine, link: f64, onward: f64) -> f64 {
    match combine {
        Combine::Sum => link + onward,
        Combine::Max => link.max(onward),
    }
}

/// The [`PathDag`] of every pair asked for.
pub(crate) struct PathDagCache<'a> {
    network: &'a Network,
    hops: HashMap<u32, Hops>,
    known: HashMap<(u32, u32), Rc<PathDag>>,
    links: usize,
    most_links: usize,
    /// For [`PathDag::build`].
    position: Vec<u32>,
}

impl<'a> PathDagCache<'a> {
    /// A cache that forgets everything when it holds more than `most_links` links, 8 bytes each.
    pub fn new(network: &'a Network, most_links: usize) -> Self {
        let position = vec![0; network.switch_count() as usize];
        Self {
            network,
            hops: HashMap::new(),
            known: HashMap::new(),
            links: 0,
            most_links,
            position,
        }
    }

    /// The ways of one demand.
    pub fn of(&mut self, demands: &Demands, demand: u32) -> Result<Rc<PathDag>, FlowError> {
        let (src, dst) = (demands.src[demand as usize], demands.dst[demand as usize]);
        let key = (self.network.source_group(src), self.network.group(dst));
        if let Some(ways) = self.known.get(&key) {
            return Ok(Rc::clone(ways));
        }
        let hops = self.hops.entry(key.1).or_insert_with(|| self.network.hops_to(key.1));
        let ways = PathDag::build(self.network, hops, (src, dst), &mut self.position)
            .map(Rc::new)
            .ok_or_else(|| self.network.unreachable(src, dst))?;
        if self.links + ways.links.len() > self.most_links {
            self.known.clear();
            self.links = 0;
        }
        self.links += ways.links.len();
        self.known.insert(key, Rc::clone(&ways));
        Ok(ways)
    }
}

/// The whole path of a way from `ways`: the sender's link, `between`, the receiver's link, into `whole`.
pub(crate) fn whole_path(
    network: &Network,
    (src, dst): (u32, u32),
    ways: &PathDag,
    between: &[u32],
    whole: &mut Vec<u32>,
) {
    let ends = match (between.first(), between.last()) {
        (Some(&first), Some(&last)) => {
            (network.links_from()[first as usize], network.links_to()[last as usize])
        }
        _ => (ways.switches[0], ways.switches[0]),
    };
    whole.clear();
    whole.extend(network.link_of_host(src, ends.0));
    whole.extend_from_slice(between);
    whole.extend(network.link_to_host(ends.1, dst));
}
