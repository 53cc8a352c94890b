//! Paths as lists of links, and adding up what they carry.
//!
//! Arrives: links of each path, from a router of this crate or from a user's own.
//! Leaves: one pair of arrays for all paths; loads.
//! Must not know: how paths were chosen.

use crate::error::FlowError;
use crate::network::{same_length, Network};

/// Path `i` is `links[offsets[i]..offsets[i + 1]]`, from host to host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paths {
    /// Where each path begins; one more than there are paths.
    pub offsets: Vec<u64>,
    /// The links of all paths, one path after the other.
    pub links: Vec<u32>,
}

impl Paths {
    /// The links of path `path`.
    #[must_use]
    pub fn of(&self, path: usize) -> &[u32] {
        &self.links[self.offsets[path] as usize..self.offsets[path + 1] as usize]
    }

    /// How many paths.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether there is no path.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Collects paths in any order and gives them in the order of their positions.
#[derive(Debug)]
pub(crate) struct PathCollector {
    count: usize,
    /// Position, where its links begin in `links`, how many they are.
    found: Vec<(u32, u64, u32)>,
    links: Vec<u32>,
}

impl PathCollector {
    pub(crate) fn new(count: usize) -> Self {
        Self { count, found: Vec::with_capacity(count), links: Vec::new() }
    }

    pub(crate) fn add(&mut self, position: u32, links: &[u32]) {
        self.found.push((position, self.links.len() as u64, links.len() as u32));
        self.links.extend_from_slice(links);
    }

    pub(crate) fn finish(mut self) -> Paths {
        let mut paths = Paths {
            offsets: Vec::with_capacity(self.count + 1),
            links: Vec::with_capacity(self.links.len()),
        };
        self.found.sort_unstable_by_key(|&(position, _, _)| position);
        paths.offsets.push(0);
        for (_, start, length) in self.found {
            let start = start as usize;
            paths.links.extend_from_slice(&self.links[start..start + length as usize]);
            paths.offsets.push(paths.links.len() as u64);
        }
        paths
    }
}

/// Add `bytes[i]` to the load of every link of path `i`.
///
/// # Errors
/// [`FlowError`] names the path that is no path: a link that is none, or two that do not meet.
pub fn add_paths(
    network: &Network,
    loads: &mut [f64],
    offsets: &[u64],
    links: &[u32],
    bytes: &[f64],
) -> Result<(), FlowError> {
    same_length("loads", network.link_count(), loads.len())?;
    same_length("path offsets", bytes.len() + 1, offsets.len())?;
    let mut previous = 0;
    for (path, &end) in offsets.iter().enumerate() {
        if end < previous || end > links.len() as u64 || (path == 0 && end != 0) {
            return Err(FlowError::Path(
                path,
                "has offsets that do not ascend from 0 within the links",
            ));
        }
        previous = end;
    }
    let (from, to) = (network.links_from(), network.links_to());
    for (path, amount) in bytes.iter().enumerate() {
        if !(amount.is_finite() && *amount >= 0.0) {
            return Err(FlowError::PairBytes(path, *amount));
        }
        let taken = &links[offsets[path] as usize..offsets[path + 1] as usize];
        if taken.iter().any(|&link| link as usize >= from.len()) {
            return Err(FlowError::Path(path, "has a link that the network does not have"));
        }
        if taken.windows(2).any(|pair| to[pair[0] as usize] != from[pair[1] as usize]) {
            return Err(FlowError::Path(
                path,
                "has a link that does not begin where the one before ends",
            ));
        }
    }
    for (path, amount) in bytes.iter().enumerate() {
        for &link in &links[offsets[path] as usize..offsets[path + 1] as usize] {
            loads[link as usize] += amount;
        }
    }
    Ok(())
}
