//! A rank of a coupled name that writes or reads a version as a file: bytes at offsets.
//!
//! Arrives: bytes to write, places to read. Leaves: the same at readers. Must not know: C, MPI, views.
//!
//! A write has happened when it returns: bytes are in a slab, which all writers use. Writes to other hosts are gathered
//! until [`Coupling::settle`], so that one operation of many runs is few messages.

use crate::address::Address;
use crate::client::Coupling;
use crate::failure::{dead, gone, refused, Failure, Result};
use crate::open_file::{part, OpenFile, Part, Place, BLOCK};
use crate::region::Region;
use crate::request::{Answer, Found, Request, Role, Slab, Why};
use crate::slabs::UNIT;
use crate::wire::{Message, RUNS_MOST};

/// Bytes for other hosts that are gathered before they are sent.
const GATHERED_MOST: usize = 4 << 20;

/// A run of at least this many bytes is fetched alone, a shorter one with its block.
const ALONE_LEAST: u64 = 64 << 10;

impl Coupling {
    /// Opens a version as a file. A writer waits while the depth is reached; a reader's has appeared, or is waited for.
    ///
    /// # Errors
    /// As [`Self::put`] and [`Self::inquire`]; [`Why::Argument`] where the version holds arrays.
    pub fn open_file(&mut self, version: u64) -> Result<()> {
        match &self.file {
            Some(file) if file.version == version => return Ok(()),
            Some(_) => return Err(refused(Why::Argument, "another version is open as a file")),
            None => {}
        }
        if self.options.role == Role::Writer {
            self.begin(version)?;
            self.ask(Request::Open { version })?;
            self.file = Some(OpenFile::new(version));
            return Ok(());
        }
        let mut file = OpenFile::new(version);
        let mut unit = 0;
        loop {
            let units = u64::MAX / UNIT - unit;
            let found = self.locate(version, unit, units, None)?;
            file.bytes = found.bytes;
            for slab in &found.slabs {
                let place = self.place(slab)?;
                file.insert(slab.first, slab.units, place);
            }
            unit = found.end;
            if unit >= found.bytes.div_ceil(UNIT) {
                break;
            }
        }
        self.file = Some(file);
        Ok(())
    }

    fn opened(&mut self) -> Result<&mut OpenFile> {
        self.file.as_mut().ok_or_else(|| refused(Why::Argument, "no version is open as a file"))
    }

    /// The version that is open as a file.
    #[must_use]
    pub fn open_version(&self) -> Option<u64> {
        self.file.as_ref().map(|file| file.version)
    }

    fn locate(
        &mut self,
        version: u64,
        first: u64,
        units: u64,
        write: Option<u64>,
    ) -> Result<Found> {
        match self.ask(Request::Locate { version, first, units, write })? {
            // An answer that leads nowhere would be asked for again and again.
            Answer::Slabs(found) if found.end > first || units == 0 => Ok(found),
            _ => Err(gone(&crate::link::protocol())),
        }
    }

    fn place(&mut self, slab: &Slab) -> Result<Place> {
        let (owner, key) = slab.place.clone().ok_or_else(|| gone(&crate::link::protocol()))?;
        self.place_of(owner, key)
    }

    fn place_of(&mut self, owner: String, key: u64) -> Result<Place> {
        if self.node.as_ref().is_some_and(|(_, own)| *own == owner) {
            if let Some(segment) = self.own.get(&key) {
                return Ok(Place::Own(*segment));
            }
        }
        Address::parse(&owner)
            .ok_or_else(|| refused(Why::Argument, "an owner without an address"))?;
        let near = self.owner(&owner)?.link.is_unix();
        Ok(if near { Place::Near(owner, key) } else { Place::Far(owner, key) })
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// [`Why::Lost`].
    pub fn file_bytes(&mut self) -> Result<u64> {
        let version = self.opened()?.version;
        if self.options.role == Role::Writer {
            let bytes = self.locate(version, 0, 0, None)?.bytes;
            let file = self.opened()?;
            file.bytes = bytes;
            if bytes == 0 {
                // Another writer took all bytes away, and their slabs.
                file.clear();
            }
        }
        Ok(self.opened()?.bytes)
    }

    /// Writes bytes at an offset, as part of an operation that writes up to `upto`.
    ///
    /// # Errors
    /// [`Why::Lost`], [`Why::Memory`].
    pub fn write_at(&mut self, offset: u64, bytes: &[u8], upto: u64) -> Result<()> {
        if self.options.role != Role::Writer {
            return Err(refused(Why::Argument, "a reader cannot write"));
        }
        let end = offset
            .checked_add(bytes.len() as u64)
            .filter(|end| i64::try_from(*end).is_ok())
            .ok_or_else(|| refused(Why::Argument, "an offset above the largest file offset"))?;
        let upto = upto.max(end);
        let mut at = offset;
        while at < end {
            let unit = at / UNIT;
            let file = self.opened()?;
            let known = file.of(unit).map(|(first, units, place)| (first, units, place.clone()));
            let known = known.filter(|(first, units, _)| {
                file.bytes >= end.min((first + units).saturating_mul(UNIT))
            });
            let Some((first, units, place)) = known else {
                self.take(unit, end.div_ceil(UNIT) - unit, upto, at..end)?;
                continue;
            };
            let part = part(first, units, place, at..end);
            let from = (at - offset) as usize;
            at += part.buffer.len() as u64;
            self.write_part(&part, &bytes[from..from + part.buffer.len()])?;
        }
        Ok(())
    }

    /// Learns where units are, and provides those that it is given; the bytes `own` are about to be written.
    fn take(&mut self, first: u64, units: u64, upto: u64, own: std::ops::Range<u64>) -> Result<()> {
        let version = self.opened()?.version;
        let found = self.locate(version, first, units, Some(upto))?;
        for slab in &found.slabs {
            let place = if slab.place.is_some() {
                self.place(slab)?
            } else {
                self.provide(version, slab, &own)?
            };
            self.opened()?.insert(slab.first, slab.units, place);
        }
        let file = self.opened()?;
        file.bytes = file.bytes.max(found.bytes);
        Ok(())
    }

    /// Makes memory for a slab, with what it holds so far.
    fn provide(&mut self, version: u64, slab: &Slab, own: &std::ops::Range<u64>) -> Result<Place> {
        let bytes = slab.units.checked_mul(UNIT).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes =
            bytes.ok_or_else(|| refused(Why::Argument, "a slab above the address space"))?;
        let number = self.segment(bytes, true)?;
        let copied = match &slab.base {
            Some((owner, key)) => {
                let mut copied = vec![0; bytes];
                let place = self.place_of(owner.clone(), *key)?;
                let all = Part { place, offset: 0, buffer: 0..bytes, slab: bytes as u64 };
                self.read_parts(&[all], &mut copied)?;
                Some(copied)
            }
            None => None,
        };
        let segment = &mut self.segments[number];
        if let Some(copied) = copied {
            segment.memory.bytes_mut()[..bytes].copy_from_slice(&copied);
        } else if segment.written {
            // What the operation writes next need not be 0 before.
            let written = part(slab.first, slab.units, Place::Own(number), own.clone());
            let from = written.offset as usize;
            let memory = &mut segment.memory.bytes_mut()[..bytes];
            memory[..from].fill(0);
            memory[(from + written.buffer.len()).min(bytes)..].fill(0);
        }
        segment.used = true;
        segment.written = true;
        let keys = self.hold_segments(&[(number, bytes as u64)])?;
        let key = keys.first().copied().unwrap_or_default();
        let owner = self.node.as_ref().map(|(_, address)| address.clone()).unwrap_or_default();
        self.ask(Request::Provide { version, first: slab.first, owner, key })?;
        // The segment may have held a slab that was freed.
        self.own.retain(|_, other| *other != number);
        self.own.insert(key, number);
        Ok(Place::Own(number))
    }

    fn write_part(&mut self, part: &Part, bytes: &[u8]) -> Result<()> {
        let written = match &part.place {
            Place::Own(number) => self.segments[*number].memory.write(part.offset, bytes),
            Place::Near(owner, key) => {
                self.owner(owner)?.slab(owner, *key)?.write(part.offset, bytes)
            }
            Place::Far(owner, key) => {
                let to = (owner.clone(), *key);
                let outgoing = self.opened()?.outgoing.entry(to).or_default();
                match outgoing.runs.last_mut() {
                    Some((at, run)) if *at + *run == part.offset => *run += bytes.len() as u64,
                    _ => outgoing.runs.push((part.offset, bytes.len() as u64)),
                }
                outgoing.bytes.extend_from_slice(bytes);
                if outgoing.bytes.len() >= GATHERED_MOST || outgoing.runs.len() >= RUNS_MOST {
                    self.settle()?;
                }
                true
            }
        };
        if written {
            Ok(())
        } else {
            Err(refused(Why::Argument, "bytes outside of their slab"))
        }
    }

    /// Waits until all that was written is at the processes that hold it.
    ///
    /// # Errors
    /// [`Why::Lost`].
    pub fn settle(&mut self) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let outgoing = std::mem::take(&mut file.outgoing);
        let mut sent = Vec::with_capacity(outgoing.len());
        for ((owner, key), outgoing) in outgoing {
            self.owner(&owner)?.send(&owner, key, outgoing.runs, &outgoing.bytes)?;
            sent.push(owner);
        }
        for owner in sent {
            self.owner(&owner)?.written(&owner)?;
        }
        Ok(())
    }

    /// Reads bytes at an offset; how many there are before the end of the file.
    ///
    /// # Errors
    /// [`Why::Lost`].
    pub fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<usize> {
        self.settle()?;
        let writes = self.options.role == Role::Writer;
        let file = self.opened()?;
        let (version, mut bytes) = (file.version, file.bytes);
        let units = offset / UNIT..offset.saturating_add(to.len() as u64).div_ceil(UNIT);
        let mut fresh = None;
        if writes && !(file.knows(units.clone()) && units.end.saturating_mul(UNIT) <= bytes) {
            // What other writers have written meanwhile: not remembered where it may move.
            let mut all = OpenFile::new(version);
            let mut unit = units.start;
            while unit < units.end {
                let found = self.locate(version, unit, units.end - unit, None)?;
                for slab in &found.slabs {
                    let place = self.place(slab)?;
                    if !slab.shared {
                        self.opened()?.insert(slab.first, slab.units, place.clone());
                    }
                    all.insert(slab.first, slab.units, place);
                }
                bytes = found.bytes;
                unit = found.end;
            }
            fresh = Some(all);
        }
        let there = bytes.saturating_sub(offset).min(to.len() as u64) as usize;
        let to = &mut to[..there];
        let file = self.opened()?;
        let parts = fresh.as_ref().unwrap_or(file).parts(offset, there);
        if parts.iter().map(|part| part.buffer.len()).sum::<usize>() < there {
            to.fill(0);
        }
        if writes {
            self.read_parts(&parts, to)?;
            return Ok(there);
        }
        for part in &parts {
            let to = &mut to[part.buffer.clone()];
            let part = Part { buffer: 0..to.len(), ..part.clone() };
            self.read_kept(&part, to)?;
        }
        Ok(there)
    }

    /// As [`Self::read_parts`] for one part of a version that does not change: short ones with their blocks.
    fn read_kept(&mut self, part: &Part, to: &mut [u8]) -> Result<()> {
        let Place::Far(owner, key) = &part.place else {
            return self.read_parts(std::slice::from_ref(part), to);
        };
        if to.len() as u64 >= ALONE_LEAST {
            return self.read_parts(std::slice::from_ref(part), to);
        }
        let mut done = 0;
        while done < to.len() {
            let at = part.offset + done as u64;
            let (block, inside) = (at / BLOCK, (at % BLOCK) as usize);
            if self.opened()?.block(owner, *key, block).is_none() {
                let start = block * BLOCK;
                let bytes = BLOCK.min(part.slab - start) as usize;
                let mut fetched = vec![0; bytes];
                let whole = Part { offset: start, buffer: 0..bytes, ..part.clone() };
                self.read_parts(&[whole], &mut fetched)?;
                self.opened()?.keep(owner, *key, block, fetched);
            }
            let file = self.opened()?;
            let found = file.block(owner, *key, block).and_then(|block| block.get(inside..));
            let found = found.ok_or_else(|| refused(Why::Argument, "bytes outside of a slab"))?;
            let step = found.len().min(to.len() - done);
            to[done..done + step].copy_from_slice(&found[..step]);
            done += step;
        }
        Ok(())
    }

    /// Reads parts of slabs into their places. All other hosts send while memory of this one is copied.
    fn read_parts(&mut self, parts: &[Part], to: &mut [u8]) -> Result<()> {
        let outside = || refused(Why::Argument, "bytes outside of their slab");
        for part in parts {
            let Place::Far(owner, key) = &part.place else { continue };
            let (region, cut) = regions(part).ok_or_else(outside)?;
            let message = Message::Pull { key: *key, region, cut, element_bytes: 1 };
            let sent = self.owner(owner)?.link.send(&message, None, None);
            sent.map_err(|error| dead(owner, &error))?;
        }
        for part in parts {
            let to = to.get_mut(part.buffer.clone()).ok_or_else(outside)?;
            let read = match &part.place {
                Place::Own(number) => self.segments[*number].memory.read(part.offset, to),
                Place::Near(owner, key) => {
                    self.owner(owner)?.slab(owner, *key)?.read(part.offset, to)
                }
                Place::Far(..) => true,
            };
            if !read {
                return Err(outside());
            }
        }
        for part in parts {
            let Place::Far(owner, _) = &part.place else { continue };
            let (_, cut) = regions(part).ok_or_else(outside)?;
            let to = to.get_mut(part.buffer.clone()).ok_or_else(outside)?;
            self.owner(owner)?.receive(owner, to, &cut, &cut, 1)?;
        }
        Ok(())
    }

    /// Sets the bytes of the file: those beyond are gone, and 0 where it grows again. One writer calls it while no
    /// other writes; the others call [`Self::file_bytes`] afterwards.
    ///
    /// # Errors
    /// [`Why::Lost`].
    pub fn resize_file(&mut self, bytes: u64) -> Result<()> {
        if self.options.role != Role::Writer {
            return Err(refused(Why::Argument, "a reader cannot change the size"));
        }
        let version = self.opened()?.version;
        let before = self.file_bytes()?;
        let zeros = vec![0; UNIT as usize];
        let (mut unit, mut last) = (bytes / UNIT, before.div_ceil(UNIT));
        if bytes == 0 {
            self.opened()?.clear();
            last = 0;
        }
        while unit < last {
            let found = self.locate(version, unit, last - unit, None)?;
            for slab in &found.slabs {
                let end = before.min((slab.first + slab.units).saturating_mul(UNIT));
                let mut at = bytes.max(slab.first * UNIT);
                while at < end {
                    let step = UNIT.min(end - at);
                    self.write_at(at, &zeros[..step as usize], 0)?;
                    at += step;
                }
            }
            unit = found.end;
        }
        self.settle()?;
        self.ask(Request::Resize { version, bytes })?;
        self.opened()?.bytes = bytes;
        Ok(())
    }

    /// Calls `each` with the bytes that this rank holds of the file, and their offsets.
    ///
    /// # Errors
    /// Those of `each`; [`Why::Lost`].
    pub fn own_bytes<E: From<Failure>>(
        &mut self,
        mut each: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<u64, E> {
        let (version, bytes) = (self.opened()?.version, self.file_bytes()?);
        let mut unit = 0;
        while unit < bytes.div_ceil(UNIT) {
            let found = self.locate(version, unit, bytes.div_ceil(UNIT) - unit, None)?;
            for slab in &found.slabs {
                let own = self.node.as_ref().map(|(_, own)| own);
                let place = slab.place.as_ref().filter(|(owner, _)| own == Some(owner));
                let number = place.and_then(|(_, key)| self.own.get(key));
                let start = slab.first * UNIT;
                if let Some(segment) = number.and_then(|number| self.segments.get(*number)) {
                    let end = bytes.min((slab.first + slab.units) * UNIT).max(start);
                    let held = segment.memory.bytes().get(..(end - start) as usize);
                    each(start, held.unwrap_or_default())?;
                }
            }
            unit = found.end;
        }
        Ok(bytes)
    }

    /// A writer has written all that it has of the version; with `keep` the next one begins with its bytes. Whether
    /// this commit completed it.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn commit_file(&mut self, keep: bool) -> Result<bool> {
        self.settle()?;
        let version = self.opened()?.version;
        let complete =
            matches!(self.ask(Request::CommitFile { version, keep })?, Answer::Version(_));
        self.file = None;
        self.current = None;
        Ok(complete)
    }
}

/// A slab as a box of bytes, and the part of it.
fn regions(part: &Part) -> Option<(Region, Region)> {
    let slab = Region::new(&[0], &[part.slab])?;
    Some((slab, Region::new(&[part.offset], &[part.buffer.len() as u64])?))
}
