//! A process that a reader takes pieces from: by shared memory, or cell by cell over TCP.
//!
//! Arrives: pieces and the cells wanted of them. Leaves: the cells in the reader's buffer. Must not know: directories.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use crate::failure::{dead, refused, Result};
use crate::link::{protocol, Link};
use crate::memory::Memory;
use crate::region::Region;
use crate::wire::Message;

/// A process that a reader takes pieces from.
pub(crate) struct Owner {
    pub(crate) link: Link,
    segments: HashMap<u64, Memory>,
    /// Segments of slabs, whose keys name the same bytes for as long as they are held.
    slabs: HashMap<u64, u64>,
    /// Whether segments are mapped to be written too.
    writes: bool,
}

/// Most keys that are remembered.
const SLABS_MOST: usize = 1 << 16;

impl Owner {
    /// The process that `link` leads to.
    pub(crate) fn new(link: Link, writes: bool) -> Self {
        Self { link, segments: HashMap::new(), slabs: HashMap::new(), writes }
    }

    /// The memory of a piece.
    pub(crate) fn map(&mut self, owner: &str, key: u64) -> Result<&Memory> {
        let segment = self.segment(owner, key)?;
        self.segments.get(&segment).ok_or_else(|| dead(owner, &protocol()))
    }

    /// The memory of a slab that is held, of which the process is asked once.
    pub(crate) fn slab(&mut self, owner: &str, key: u64) -> Result<&Memory> {
        let segment = match self.slabs.get(&key) {
            Some(segment) => *segment,
            None => self.segment(owner, key)?,
        };
        if self.slabs.len() >= SLABS_MOST {
            self.slabs.clear();
        }
        self.slabs.insert(key, segment);
        self.segments.get(&segment).ok_or_else(|| dead(owner, &protocol()))
    }

    fn segment(&mut self, owner: &str, key: u64) -> Result<u64> {
        let failed = |error: io::Error| dead(owner, &error);
        self.link.send(&Message::Map { key }, None, None).map_err(failed)?;
        match self.link.receive(None).map_err(failed)? {
            (Message::Mapped { segment, bytes, attached }, descriptor) => {
                if let (true, Some(descriptor)) = (attached, descriptor) {
                    let memory = self.mapped(descriptor, bytes).map_err(failed)?;
                    self.segments.insert(segment, memory);
                }
                Ok(segment)
            }
            (Message::Refused { why, text }, _) => Err(refused(why, &text)),
            _ => Err(failed(protocol())),
        }
    }

    fn mapped(&self, descriptor: OwnedFd, bytes: u64) -> io::Result<Memory> {
        if self.writes {
            Memory::share(descriptor, bytes)
        } else {
            Memory::open(descriptor, bytes)
        }
    }

    /// Sends runs of bytes to a slab.
    pub(crate) fn send(
        &self,
        owner: &str,
        key: u64,
        runs: Vec<(u64, u64)>,
        bytes: &[u8],
    ) -> Result<()> {
        let message = Message::Write { key, runs };
        let sent = self.link.send_data(&message, None, |push| push(bytes));
        sent.map_err(|error| dead(owner, &error))
    }

    /// Waits until the runs that were sent are written.
    pub(crate) fn written(&self, owner: &str) -> Result<()> {
        match self.link.receive(None).map_err(|error| dead(owner, &error))?.0 {
            Message::Written => Ok(()),
            Message::Refused { why, text } => Err(refused(why, &text)),
            _ => Err(dead(owner, &protocol())),
        }
    }

    /// Receives the cells of a cut into their places.
    pub(crate) fn receive(
        &mut self,
        owner: &str,
        cells: &mut [u8],
        region: &Region,
        cut: &Region,
        element: u64,
    ) -> Result<()> {
        let failed = |error: io::Error| dead(owner, &error);
        match self.link.receive(None).map_err(failed)?.0 {
            Message::Data { bytes } if Some(bytes) == cut.cells().checked_mul(element) => {}
            Message::Refused { why, text } => return Err(refused(why, &text)),
            _ => return Err(failed(protocol())),
        }
        let mut result = Ok(());
        // Cells arrive in the order of the cut, which is that of the runs.
        region.shared_runs(cut, cut, |at, _, run| {
            let range = (at * element) as usize..((at + run) * element) as usize;
            if let (Ok(()), Some(part)) = (&result, cells.get_mut(range)) {
                result = self.link.fill(part, None);
            }
        });
        result.map_err(failed)
    }
}

/// Copies the cells of `cut` from one box's buffer to another's.
pub(crate) fn copy(
    from: &[u8],
    own: &Region,
    to: &mut [u8],
    region: &Region,
    cut: &Region,
    element: u64,
) {
    own.shared_runs(region, cut, |source, target, run| {
        let source = (source * element) as usize..((source + run) * element) as usize;
        let target = (target * element) as usize..((target + run) * element) as usize;
        // A segment that is shorter than its piece says is passed over: its owner checked it.
        if let (Some(source), Some(target)) = (from.get(source), to.get_mut(target)) {
            target.copy_from_slice(source);
        }
    });
}
