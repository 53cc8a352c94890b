//! The distance of every switch from a group of hosts, and the links of shortest paths.
//!
//! Arrives: a network, a group of hosts.
//! Leaves: [`Hops`].
//! Must not know: routers.
//!
//! A breadth-first search visits every link of the network, so that one for each edge switch would cost the square of
//! the network's size. Edge switches of one pod have the same neighbours; exchanging two such *twins* changes nothing
//! else, and [`Network::aim_at`] turns the hops to one into those to the other without a search.

use super::Network;

/// Hops of a switch from which a group of hosts cannot be reached.
pub const UNREACHABLE: u16 = u16::MAX;

/// How many hops each switch is from the switches that deliver to a group of hosts, and by which links one gets
/// there.
#[derive(Clone, Debug)]
pub struct Hops {
    from_switch: Vec<u16>,
    /// Where the links that begin a shortest way from each switch begin in `links`, by the next switch's name.
    starts: Vec<u32>,
    links: Vec<u32>,
    first_switch: u32,
    /// The switch searched from and its twin that is meant, where the group has one switch only.
    searched: u32,
    meant: u32,
    alone: bool,
}

impl Hops {
    /// Hops from a switch, 0 where it delivers to the group itself, [`UNREACHABLE`] where there is no way.
    #[must_use]
    pub fn of(&self, switch: u32) -> u16 {
        let switch = if switch == self.meant {
            self.searched
        } else if switch == self.searched {
            self.meant
        } else {
            switch
        };
        self.from_switch[(switch - self.first_switch) as usize]
    }

    fn links_of(&self, switch: u32) -> &[u32] {
        let slot = (switch - self.first_switch) as usize;
        &self.links[self.starts[slot] as usize..self.starts[slot + 1] as usize]
    }
}

impl Network {
    /// Count the hops from every switch to a group, by breadth-first search from the group.
    #[must_use]
    pub fn hops_to(&self, group: u32) -> Hops {
        let switches = &self.group_switches[group as usize];
        let first = self.host_count;
        let switch = switches.first().copied().unwrap_or(first);
        let mut found = Hops {
            from_switch: self.search(switches),
            starts: Vec::with_capacity(self.switch_count as usize + 1),
            links: Vec::new(),
            first_switch: first,
            searched: switch,
            meant: switch,
            alone: switches.len() == 1,
        };
        found.starts.push(0);
        for switch in first..first + self.switch_count {
            let distance = found.from_switch[(switch - first) as usize];
            if distance != UNREACHABLE && distance != 0 {
                for (link, end) in self.to_switches.of(switch) {
                    if found.from_switch[(end - first) as usize] == distance - 1 {
                        found.links.push(link);
                    }
                }
            }
            found.starts.push(found.links.len() as u32);
        }
        found
    }

    /// Turn `hops` into those to `group`, searching only where its switch is no twin of the one before.
    pub fn aim_at(&self, hops: &mut Hops, group: u32) {
        let twin = |switch: u32| self.twin[(switch - self.host_count) as usize];
        match self.group_switches[group as usize][..] {
            [switch] if hops.alone && twin(switch) == twin(hops.searched) => hops.meant = switch,
            _ => *hops = self.hops_to(group),
        }
    }

    /// The links that begin a shortest way from node `at` to host `dst`, by the next node's name; none for no way.
    ///
    /// `hops` are those to the group of `dst`; `buffer` is for links that are not in there.
    pub fn next_links<'a>(
        &self,
        hops: &'a Hops,
        at: u32,
        dst: u32,
        buffer: &'a mut Vec<u32>,
    ) -> &'a [u32] {
        buffer.clear();
        if at < self.host_count {
            if let Some(nearest) = self.switch_hops(hops, at) {
                let entries = self.to_switches.of(at).filter(|&(_, end)| hops.of(end) == nearest);
                buffer.extend(entries.map(|(link, _)| link));
            }
            return buffer;
        }
        match hops.of(at) {
            0 => {
                let delivering = self.from_switches.of(dst).filter(|&(_, end)| end == at);
                buffer.extend(delivering.map(|(link, _)| link));
                buffer
            }
            // Next to a twin, and at it, links differ from those that the search found.
            distance if hops.searched != hops.meant && (distance == 1 || at == hops.searched) => {
                let ways = self.to_switches.of(at);
                let nearer = ways.filter(|&(_, end)| hops.of(end).checked_add(1) == Some(distance));
                buffer.extend(nearer.map(|(link, _)| link));
                buffer
            }
            _ => hops.links_of(at),
        }
    }

    /// Hops between the switches at both ends of the way from `src` to the group of `hops`, or None for no way.
    #[must_use]
    pub fn switch_hops(&self, hops: &Hops, src: u32) -> Option<u16> {
        let nearest = self.to_switches.ends(src).iter().map(|&end| hops.of(end)).min();
        nearest.filter(|&distance| distance != UNREACHABLE)
    }

    fn search(&self, switches: &[u32]) -> Vec<u16> {
        let first = self.host_count;
        let mut hops = vec![UNREACHABLE; self.switch_count as usize];
        let mut queue = switches.to_vec();
        for &switch in &queue {
            hops[(switch - first) as usize] = 0;
        }
        let mut at = 0;
        while at < queue.len() {
            let next_hops = hops[(queue[at] - first) as usize] + 1;
            for &neighbour in self.from_switches.ends(queue[at]) {
                let known = &mut hops[(neighbour - first) as usize];
                // A diameter of 65,534 hops is a ring of 131,068 switches: stop there rather than wrap around.
                if *known == UNREACHABLE && next_hops < UNREACHABLE {
                    *known = next_hops;
                    queue.push(neighbour);
                }
            }
            at += 1;
        }
        hops
    }
}
