//! The interconnect as numbers: directed links with capacities between hosts and switches.
//!
//! Arrives: lists of link ends, capacities in bytes per second, and node names.
//! Leaves: a validated, immutable [`Network`], and for a group of hosts the hops towards them from every switch.
//! Must not know: what the links carry.
//!
//! Nodes are numbered hosts first, then switches. A host sends and receives and never forwards. A cable
//! is two links. Parallel links between two nodes differ by their number.

mod hops;

use std::collections::HashMap;

use crate::error::{FlowError, MAX_CAPACITY};

pub use hops::{Hops, UNREACHABLE};

/// Links at each node, with the node at their other end, in one allocation.
#[derive(Clone, Debug, Default)]
struct LinkLists {
    starts: Vec<u32>,
    links: Vec<u32>,
    /// The other ends beside the links: a search then reads memory in order.
    ends: Vec<u32>,
}

impl LinkLists {
    /// The lists of `count` nodes; `entries`, of node, link and other end, come in the order each list shall have.
    fn new(count: usize, entries: impl Iterator<Item = (u32, u32, u32)> + Clone) -> Self {
        let mut starts = vec![0u32; count + 1];
        for (node, _, _) in entries.clone() {
            starts[node as usize + 1] += 1;
        }
        for node in 0..count {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut links = vec![0; starts[count] as usize];
        let mut ends = links.clone();
        for (node, link, end) in entries {
            let slot = next[node as usize] as usize;
            (links[slot], ends[slot]) = (link, end);
            next[node as usize] += 1;
        }
        Self { starts, links, ends }
    }

    fn range(&self, node: u32) -> std::ops::Range<usize> {
        self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize
    }

    fn ends(&self, node: u32) -> &[u32] {
        &self.ends[self.range(node)]
    }

    /// Links and other ends.
    fn of(&self, node: u32) -> impl Iterator<Item = (u32, u32)> + Clone + '_ {
        let range = self.range(node);
        self.links[range.clone()].iter().copied().zip(self.ends[range].iter().copied())
    }
}

/// Hosts, switches and directed links.
#[derive(Clone, Debug)]
pub struct Network {
    host_count: u32,
    switch_count: u32,
    from: Vec<u32>,
    to: Vec<u32>,
    capacity: Vec<f64>,
    names: Vec<String>,
    between_switches: Vec<bool>,
    /// Links to switches, of every node, by the name of the switch and then by link number.
    to_switches: LinkLists,
    /// Links from switches into every node.
    from_switches: LinkLists,
    /// The group of each host: hosts that the same switches deliver to have one.
    group: Vec<u32>,
    /// The switches that deliver to each group.
    group_switches: Vec<Vec<u32>>,
    /// The same of the switches that a host sends to.
    source_group: Vec<u32>,
    /// For each switch the first one with the same neighbours, in both directions: the two are interchangeable.
    twin: Vec<u32>,
}

impl Network {
    /// Validate and index.
    ///
    /// # Errors
    /// [`FlowError`] names the link or node that cannot be, in words of the caller's numbers and names.
    pub fn new(
        host_count: usize,
        switch_count: usize,
        from: Vec<u32>,
        to: Vec<u32>,
        capacity: Vec<f64>,
        names: Vec<String>,
    ) -> Result<Self, FlowError> {
        let nodes = host_count + switch_count;
        // Half of u32's range leaves room for sums of two.
        if nodes > (1 << 31) || from.len() > (1 << 31) {
            return Err(FlowError::TooLarge);
        }
        same_length("link targets", from.len(), to.len())?;
        same_length("link capacities", from.len(), capacity.len())?;
        same_length("node names", nodes, names.len())?;
        let hosts = host_count as u32;
        for (link, (&a, &b)) in from.iter().zip(&to).enumerate() {
            let fault = if a as usize >= nodes || b as usize >= nodes {
                "has an end that is no node"
            } else if a == b {
                "joins a node to itself"
            } else if a < hosts && b < hosts {
                "joins two hosts: hosts are joined by switches"
            } else {
                continue;
            };
            return Err(FlowError::Link(link, fault));
        }
        for (link, &bytes_per_s) in capacity.iter().enumerate() {
            if !(bytes_per_s > 0.0 && bytes_per_s <= MAX_CAPACITY) {
                let ends = [&names[from[link] as usize], &names[to[link] as usize]];
                return Err(FlowError::LinkCapacity(
                    format!("{}-{}", ends[0], ends[1]),
                    bytes_per_s,
                ));
            }
        }
        let rank = name_ranks(&names)?;
        let mut by_name: Vec<u32> = (0..from.len() as u32).collect();
        by_name.sort_by_key(|&link| (rank[to[link as usize] as usize], link));
        let ends = |link: u32| (from[link as usize], to[link as usize]);
        let outward = by_name.iter().filter(|&&link| ends(link).1 >= hosts);
        let to_switches =
            LinkLists::new(nodes, outward.map(|&link| (ends(link).0, link, ends(link).1)));
        let inward = (0..from.len() as u32).filter(|&link| ends(link).0 >= hosts);
        let from_switches =
            LinkLists::new(nodes, inward.map(|link| (ends(link).1, link, ends(link).0)));
        let between_switches =
            from.iter().zip(&to).map(|(&a, &b)| a >= hosts && b >= hosts).collect();
        let (group, group_switches) = group_hosts(hosts, &from_switches);
        let (source_group, _) = group_hosts(hosts, &to_switches);
        let twin = find_twins(hosts..nodes as u32, &to_switches, &from_switches);
        Ok(Self {
            host_count: hosts,
            switch_count: switch_count as u32,
            from,
            to,
            capacity,
            names,
            between_switches,
            to_switches,
            from_switches,
            group,
            group_switches,
            source_group,
            twin,
        })
    }

    /// How many hosts; their numbers begin at 0.
    #[must_use]
    pub fn host_count(&self) -> u32 {
        self.host_count
    }

    /// How many switches; their numbers follow the hosts'.
    #[must_use]
    pub fn switch_count(&self) -> u32 {
        self.switch_count
    }

    /// How many directed links.
    #[must_use]
    pub fn link_count(&self) -> usize {
        self.from.len()
    }

    /// The node each link leaves from.
    #[must_use]
    pub fn links_from(&self) -> &[u32] {
        &self.from
    }

    /// The node each link arrives at.
    #[must_use]
    pub fn links_to(&self) -> &[u32] {
        &self.to
    }

    /// Bytes per second of each link.
    #[must_use]
    pub fn capacity(&self) -> &[f64] {
        &self.capacity
    }

    /// Names of hosts, then switches.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// For each link whether both its ends are switches: the links whose loads are compared.
    #[must_use]
    pub fn between_switches(&self) -> &[bool] {
        &self.between_switches
    }

    /// The largest of `loads` on links between switches; 0 where there is none.
    #[must_use]
    pub fn max_load(&self, loads: &[f64]) -> f64 {
        let counted = loads.iter().zip(&self.between_switches).filter(|(_, &counted)| counted);
        counted.map(|(&load, _)| load).fold(0.0, f64::max)
    }

    /// The group of a host: hosts of one group are reached by the same ways, but for their own links.
    #[must_use]
    pub fn group(&self, host: u32) -> u32 {
        self.group[host as usize]
    }

    /// The group of a host as a sender: hosts of one group enter by the same switches.
    #[must_use]
    pub fn source_group(&self, host: u32) -> u32 {
        self.source_group[host as usize]
    }

    /// Whether one switch alone delivers to a group of hosts.
    pub(crate) fn delivers_alone(&self, group: u32) -> bool {
        self.group_switches[group as usize].len() == 1
    }

    /// Whether a host enters the network by one link only.
    pub(crate) fn enters_alone(&self, host: u32) -> bool {
        self.to_switches.ends(host).len() == 1 && self.from_switches.ends(host).len() == 1
    }

    /// The first link from a host to a switch.
    pub(crate) fn link_of_host(&self, host: u32, switch: u32) -> Option<u32> {
        self.to_switches.of(host).filter(|&(_, end)| end == switch).map(|(link, _)| link).min()
    }

    /// The first link from a switch to a host.
    pub(crate) fn link_to_host(&self, switch: u32, host: u32) -> Option<u32> {
        self.from_switches.of(host).filter(|&(_, end)| end == switch).map(|(link, _)| link).min()
    }

    /// How many groups of hosts there are.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.group_switches.len()
    }

    pub(crate) fn unreachable(&self, src: u32, dst: u32) -> FlowError {
        let name = |host: u32| self.names[host as usize].clone();
        FlowError::Unreachable(name(src), name(dst))
    }
}

pub(crate) fn same_length(
    what: &'static str,
    expected: usize,
    got: usize,
) -> Result<(), FlowError> {
    if expected == got {
        Ok(())
    } else {
        Err(FlowError::Lengths { what, expected, got })
    }
}

/// The position of each node among all names in order of their bytes, as PFSim's `sorted` has it.
fn name_ranks(names: &[String]) -> Result<Vec<u32>, FlowError> {
    let mut order: Vec<u32> = (0..names.len() as u32).collect();
    order.sort_by_key(|&node| &names[node as usize]);
    if let Some(pair) =
        order.windows(2).find(|pair| names[pair[0] as usize] == names[pair[1] as usize])
    {
        return Err(FlowError::SameName(names[pair[0] as usize].clone()));
    }
    let mut rank = vec![0; names.len()];
    for (position, &node) in order.iter().enumerate() {
        rank[node as usize] = position as u32;
    }
    Ok(rank)
}

/// Groups of hosts with the same switches at the ends of their links, numbered by their first host.
fn group_hosts(hosts: u32, lists: &LinkLists) -> (Vec<u32>, Vec<Vec<u32>>) {
    let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
    let mut switches_of = Vec::new();
    let mut group = Vec::with_capacity(hosts as usize);
    for host in 0..hosts {
        let mut switches = lists.ends(host).to_vec();
        switches.sort_unstable();
        switches.dedup();
        let next = switches_of.len() as u32;
        let number = *known.entry(switches.clone()).or_insert(next);
        if number == next {
            switches_of.push(switches);
        }
        group.push(number);
    }
    (group, switches_of)
}

/// For each switch the first one whose links to and from other switches join the same ones, as often.
fn find_twins(switches: std::ops::Range<u32>, to: &LinkLists, from: &LinkLists) -> Vec<u32> {
    let mut known: HashMap<[Vec<u32>; 2], u32> = HashMap::new();
    let sorted = |lists: &LinkLists, switch: u32| {
        let mut ends = lists.ends(switch).to_vec();
        ends.sort_unstable();
        ends
    };
    let neighbours = |switch: u32| [sorted(to, switch), sorted(from, switch)];
    switches.map(|switch| *known.entry(neighbours(switch)).or_insert(switch)).collect()
}
