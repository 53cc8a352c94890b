//! A process that a reader takes pieces from: by shared memory, or cell by cell over TCP.
//!
//! Arrives: pieces and the cells wanted of them. Leaves: the cells in the reader's buffer. Must not know: directories.

use std::collections::HashMap;
use std::io;

use crate::failure::{dead, refused, Result};
use crate::link::{protocol, Link};
use crate::memory::Memory;
use crate::region::Region;
use crate::request::Piece;
use crate::wire::Message;

/// A process that a reader takes pieces from.
pub(crate) struct Owner {
    pub(crate) link: Link,
    segments: HashMap<u64, Memory>,
}

impl Owner {
    /// The process that `link` leads to.
    pub(crate) fn new(link: Link) -> Self {
        Self { link, segments: HashMap::new() }
    }

    /// The memory of a piece.
    pub(crate) fn map(&mut self, piece: &Piece) -> Result<&[u8]> {
        let failed = |error: io::Error| dead(&piece.owner, &error);
        self.link.send(&Message::Map { key: piece.key }, None, None).map_err(failed)?;
        match self.link.receive(None).map_err(failed)? {
            (Message::Mapped { segment, bytes, attached }, descriptor) => {
                if let (true, Some(descriptor)) = (attached, descriptor) {
                    let memory = Memory::open(descriptor, bytes).map_err(failed)?;
                    self.segments.insert(segment, memory);
                }
                let memory = self.segments.get(&segment);
                memory.map(Memory::bytes).ok_or_else(|| failed(protocol()))
            }
            (Message::Refused { why, text }, _) => Err(refused(why, &text)),
            _ => Err(failed(protocol())),
        }
    }

    /// Receives the cells of a cut into their places.
    pub(crate) fn receive(
        &mut self,
        piece: &Piece,
        cells: &mut [u8],
        region: &Region,
        cut: &Region,
        element: u64,
    ) -> Result<()> {
        let failed = |error: io::Error| dead(&piece.owner, &error);
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
