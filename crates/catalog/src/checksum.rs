//! Checksums of a file's objects, and repair of damage from a copy.
//!
//! Arrives: open files, and how the file is cut into objects.
//! Leaves: a digest for each object; damaged objects repaired.
//! Must not know: where digests are kept, which files are damaged.
//!
//! Holes are not read: their digest takes the same time for any size. Checksums are of objects and not of
//! files, because damage comes by the storage target: the objects lost with a target are read again from a copy, and
//! not the terabyte around them. The digest is XXH3 of 128 bits: it finds accidents, not forgery, at more bytes a
//! second than any storage gives, and is here already for transfers. A cryptographic digest was rejected: an attacker
//! who can forge files can forge the checksums beside them.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{fallocate, fsync, FallocateFlags};
use rustix::io::{pread, pwrite, Errno};

use crate::digest::Hasher;
pub use crate::digest::{Digest, Rule};
use crate::holes::{Extents, Run};

use crate::layout::{Layout, Mirrors, Target};

/// How a digest is computed, as files of checksums name it.
pub const ALGORITHM: &str = "xxh3-128";

/// Bytes read at once: several stripes, so that small ones cost no call each.
const WINDOW: usize = 1 << 20;

/// The checksum of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// The index of its component; None for bytes that no component covers, or of a file without layout.
    pub component: Option<usize>,
    /// Its number in the component.
    pub object: u64,
    /// Its target, where that is known.
    pub target: Option<Target>,
    /// The first byte of the file in it.
    pub offset: u64,
    /// How many bytes of the file it holds.
    pub length: u64,
    /// None where it could not be read.
    pub digest: Option<Digest>,
}

/// One run of a file's bytes in an object, by the object's place in the list of sums.
#[derive(Debug, Clone, Copy)]
struct Piece {
    slot: usize,
    offset: u64,
    length: u64,
}

/// The objects of a file of `size` bytes, in the order in which the file meets them.
fn objects(layout: Option<&Layout>, size: u64) -> (Vec<Sum>, Pieces<'_>) {
    let mut sums: Vec<Sum> = Vec::new();
    let mut pieces = Pieces { layout, size, slots: HashMap::new() };
    let mut slots = HashMap::new();
    pieces.each(|component, object, target, offset, length| {
        let slot = *slots.entry((component, object)).or_insert_with(|| {
            let target = target.cloned();
            sums.push(Sum { component, object, target, offset, length: 0, digest: None });
            sums.len() - 1
        });
        sums[slot].length += length;
        true
    });
    pieces.slots = slots;
    (sums, pieces)
}

/// The pieces of a file in its order; gone through as often as needed, never listed.
struct Pieces<'a> {
    layout: Option<&'a Layout>,
    size: u64,
    slots: HashMap<(Option<usize>, u64), usize>,
}

impl Pieces<'_> {
    /// Until `take` says false.
    fn each(&self, mut take: impl FnMut(Option<usize>, u64, Option<&Target>, u64, u64) -> bool) {
        match self.layout {
            None => {
                if self.size > 0 {
                    take(None, 0, None, 0, self.size);
                }
            }
            Some(layout) => {
                for extent in layout.extents(self.size, Mirrors::Best) {
                    let (object, target) = (extent.object, extent.target);
                    if !take(extent.component, object, target, extent.file_offset, extent.length) {
                        return;
                    }
                }
            }
        }
    }

    fn pieces(&self, mut take: impl FnMut(Piece) -> bool) {
        self.each(|component, object, _, offset, length| {
            let slot = self.slots.get(&(component, object)).copied();
            slot.is_none_or(|slot| take(Piece { slot, offset, length }))
        });
    }
}

/// The checksum of each object of an open file of `size` bytes. `done` grows by the bytes that are dealt with, holes
/// among them.
///
/// # Errors
/// `RANGE` where the file has become shorter. An object that cannot be read has no digest; the others do.
pub fn sum(
    file: BorrowedFd<'_>,
    layout: Option<&Layout>,
    size: u64,
    rule: Rule,
    done: &AtomicU64,
) -> Result<Vec<Sum>, Errno> {
    let (mut sums, pieces) = objects(layout, size);
    let mut hashers: Vec<Option<Hasher>> = sums.iter().map(|_| Some(Hasher::new(rule))).collect();
    let mut window = Window::new(file, size);
    let mut failed = Ok(());
    pieces.pieces(|piece| {
        let hasher = &mut hashers[piece.slot];
        let read = window.each(piece.offset, piece.length, |_, run| {
            done.fetch_add(run.length(), Ordering::Relaxed);
            if let Some(hasher) = hasher {
                hasher.take(&run);
            }
            Ok(())
        });
        match read {
            Ok(()) => true,
            Err(Errno::RANGE) => {
                failed = Err(Errno::RANGE);
                false
            }
            Err(_) => {
                *hasher = None;
                true
            }
        }
    });
    failed?;
    for (sum, hasher) in sums.iter_mut().zip(hashers) {
        sum.digest = hasher.map(Hasher::finish);
    }
    Ok(sums)
}

/// Repair objects of `damaged` from `donor`, a copy of the file: each is written only where the copy's bytes have the
/// digest wanted. Returns which of `wanted`, by place in the list of sums, were.
///
/// # Errors
/// Where `damaged` cannot be written or synced.
pub fn repair(
    damaged: BorrowedFd<'_>,
    donor: BorrowedFd<'_>,
    layout: Option<&Layout>,
    size: u64,
    rule: Rule,
    wanted: &[(usize, Digest)],
) -> Result<Vec<bool>, Errno> {
    let (_, pieces) = objects(layout, size);
    let mut repaired = Vec::with_capacity(wanted.len());
    for (slot, digest) in wanted {
        let whole = through(&pieces, *slot, donor, None, rule)? == Some(*digest);
        // Summed again while it is written, should the copy change meanwhile.
        repaired
            .push(whole && through(&pieces, *slot, donor, Some(damaged), rule)? == Some(*digest));
    }
    fsync(damaged)?;
    Ok(repaired)
}

/// The digest of one object of the donor, written to `to` on the way; None where the donor cannot be read.
fn through(
    pieces: &Pieces<'_>,
    slot: usize,
    donor: BorrowedFd<'_>,
    to: Option<BorrowedFd<'_>>,
    rule: Rule,
) -> Result<Option<Digest>, Errno> {
    let mut hasher = Hasher::new(rule);
    let mut window = Window::new(donor, pieces.size);
    let mut written = Ok(());
    let mut read = Ok(());
    pieces.pieces(|piece| {
        if piece.slot != slot {
            return true;
        }
        read = window.each(piece.offset, piece.length, |offset, run| {
            hasher.take(&run);
            if let Some(to) = to {
                written = match run {
                    Run::Data(bytes) => write_all(to, bytes, offset),
                    Run::Hole(length) => empty(to, offset, length),
                };
            }
            written
        });
        read.is_ok()
    });
    written?;
    Ok(read.is_ok().then(|| hasher.finish()))
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(to, bytes, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Let a run of bytes read as zeros: as a hole, or written where the file system makes none.
fn empty(to: BorrowedFd<'_>, mut offset: u64, mut length: u64) -> Result<(), Errno> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if fallocate(to, how, offset, length).is_ok() {
        return Ok(());
    }
    let zeros = vec![0; WINDOW];
    while length > 0 {
        let most = usize::try_from(length).unwrap_or(WINDOW).min(WINDOW);
        write_all(to, &zeros[..most], offset)?;
        offset += most as u64;
        length -= most as u64;
    }
    Ok(())
}

/// A part of a file in memory, read ahead of what is asked for.
struct Window<'a> {
    file: BorrowedFd<'a>,
    extents: Extents<'a>,
    size: u64,
    start: u64,
    bytes: Vec<u8>,
    held: usize,
}

impl<'a> Window<'a> {
    fn new(file: BorrowedFd<'a>, size: u64) -> Self {
        let most = usize::try_from(size).unwrap_or(WINDOW).min(WINDOW);
        let extents = Extents::new(file);
        Self { file, extents, size, start: 0, bytes: vec![0; most], held: 0 }
    }

    /// Hand over the bytes from `offset` on, in runs that follow one another.
    fn each(
        &mut self,
        mut offset: u64,
        length: u64,
        mut take: impl FnMut(u64, Run<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let end = offset + length;
        while offset < end {
            let held_end = self.start + self.held as u64;
            if offset < self.start || offset >= held_end {
                let hole = self.extents.hole_at(offset)?.min(end - offset);
                if hole > 0 {
                    take(offset, Run::Hole(hole))?;
                    offset += hole;
                } else {
                    self.fill(offset, end)?;
                }
                continue;
            }
            let from = usize::try_from(offset - self.start).map_err(|_| Errno::OVERFLOW)?;
            let run = (end - offset).min(held_end - offset);
            let to = from + usize::try_from(run).map_err(|_| Errno::OVERFLOW)?;
            take(offset, Run::Data(&self.bytes[from..to]))?;
            offset += run;
        }
        Ok(())
    }

    /// Read from `offset` on: as much as there is room for, or where that fails no further than `end`, since the
    /// bytes behind may be on another target.
    fn fill(&mut self, offset: u64, end: u64) -> Result<(), Errno> {
        self.held = 0;
        self.start = offset;
        let room = |until: u64| {
            usize::try_from(until.saturating_sub(offset))
                .unwrap_or(usize::MAX)
                .min(self.bytes.len())
        };
        let data_end = self.extents.data_end(offset);
        let (whole, wanted) = (room(self.size.min(data_end)), room(end.min(data_end)));
        let read = match self.read(whole, offset) {
            Err(_) if wanted < whole => self.read(wanted, offset),
            answer => answer,
        };
        self.held = read?;
        // It has become shorter since its size was asked for.
        if self.held == 0 {
            return Err(Errno::RANGE);
        }
        Ok(())
    }

    fn read(&mut self, length: usize, offset: u64) -> Result<usize, Errno> {
        loop {
            match pread(self.file, &mut self.bytes[..length], offset) {
                Err(Errno::INTR) => {}
                answer => return answer,
            }
        }
    }
}
