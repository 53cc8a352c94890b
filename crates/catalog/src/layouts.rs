//! The layouts that a walk records: asked for as cheaply as each file system allows, targets as numbers.
//!
//! Opening a file costs more than looking at it, on Lustre a message to the server; so it is done only where nothing else
//! tells the layout. What the first file of a device answers says how the others are asked.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::{PoisonError, RwLock};

use rustix::fs::{openat, Mode, OFlags};
use rustix::io::Errno;

use crate::layout::{ceph, lustre, Kind, Layout, LayoutError, Mirrors, Reader, Target, EOF};
use crate::xattr;

/// The longest value of an attribute that Linux hands out (`XATTR_SIZE_MAX`).
const LONGEST: usize = 64 << 10;

/// Enough for a Lustre layout of one component and 8 objects. The kernel allocates and clears as many bytes as are asked for,
/// which for 4 KiB takes as long as the question itself.
const SHORT: usize = 256;

/// Enough for a Lustre layout of 160 objects, so that most files need no second call.
const USUAL: usize = 4 << 10;

/// The bit of numbers that are not a file system's own.
const MADE_UP: u32 = 1 << 31;

/// A run of one file's bytes that one storage target holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The number of the storage target: see [`Layouts::targets`].
    pub target: u32,
    /// Where in the file the object's first byte lies.
    pub offset: u64,
    /// How many of the file's bytes it holds.
    pub length: u64,
}

/// How a file is cut into objects, as a batch takes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objects {
    /// Index into [`Kind::ALL`].
    pub kind: i8,
    /// Bytes of one stripe; 0 where the file is not striped.
    pub stripe_size: u64,
    /// A number that changes with the layout, where the file system keeps one; else 0.
    pub generation: u32,
    /// What each target holds.
    pub objects: Vec<Held>,
}

/// Whom a walk asks for layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Each file system in its own way.
    Each,
    /// Every file for the attribute of Lustre, whatever its file system: what reading layouts costs.
    Attribute,
}

/// How the files of one device are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Not at all: the device is the target, and this its number.
    Device(u32),
    /// By an attribute, without opening the file.
    Lustre,
    Ceph,
    /// By opening the file.
    Open,
    /// Not at all: its file system tells none.
    Without,
}

/// Reads layouts for all workers of a walk.
#[derive(Debug)]
pub struct Layouts {
    ask: Ask,
    reader: Reader,
    ways: RwLock<HashMap<u64, Way>>,
    numbers: RwLock<HashMap<Target, u32>>,
}

impl Layouts {
    /// Layouts asked for in this way.
    #[must_use]
    pub fn new(ask: Ask) -> Self {
        Self { ask, reader: Reader::new(), ways: RwLock::default(), numbers: RwLock::default() }
    }

    /// The targets met so far: their numbers, and what they are.
    ///
    /// An OST and a target of BeeGFS have their own numbers. Others are made up from the target's name, alike in every walk.
    pub fn targets(&self) -> Vec<(u32, String)> {
        let numbers = self.numbers.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> =
            numbers.iter().map(|(target, number)| (*number, target.to_string())).collect();
        all.sort();
        all
    }

    /// The layout of an open file of `size` bytes; None where nothing tells one.
    pub fn of_open(&self, file: BorrowedFd<'_>, size: u64) -> Result<Option<Objects>, LayoutError> {
        Ok(self.reader.layout_of(file)?.map(|layout| self.objects(&layout, size)))
    }

    /// The whole layout of an open file; None where nothing tells one that anyone understands.
    pub(crate) fn layout_of(&self, file: BorrowedFd<'_>) -> Option<Layout> {
        self.reader.layout_of(file).ok().flatten()
    }

    fn objects(&self, layout: &Layout, size: u64) -> Objects {
        let mut objects = Objects::default();
        objects.take(layout, size, |target| self.number(target));
        objects
    }

    pub(crate) fn number(&self, target: &Target) -> u32 {
        let known =
            self.numbers.read().unwrap_or_else(PoisonError::into_inner).get(target).copied();
        if let Some(number) = known {
            return number;
        }
        let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        let mut number = match target {
            Target::Ost(index) => *index,
            Target::BeeGfs { target, .. } => u32::from(*target),
            other => MADE_UP | fnv(other.to_string().as_bytes()),
        };
        // Two names of one number are next to impossible, and then no disaster.
        while numbers.iter().any(|(other, taken)| *taken == number && other != target) {
            number = MADE_UP | number.wrapping_add(1);
        }
        *numbers.entry(target.clone()).or_insert(number)
    }
}

impl Objects {
    /// Become what `layout` says of a file of `size` bytes, in the memory that is there.
    fn take(&mut self, layout: &Layout, size: u64, mut number: impl FnMut(&Target) -> u32) {
        let unit = layout.components().first().map_or(EOF, |component| component.striping.unit);
        self.kind = index_of(layout.kind());
        self.stripe_size = if unit == EOF { 0 } else { unit };
        self.generation = layout.generation();
        self.objects.clear();
        self.objects.extend(layout.shares(size, Mirrors::Best).filter_map(|share| {
            let target = number(share.target?);
            Some(Held { target, offset: share.file_offset, length: share.bytes })
        }));
    }
}

pub(crate) fn index_of(kind: Kind) -> i8 {
    let index = Kind::ALL.iter().position(|one| *one == kind);
    index.and_then(|index| i8::try_from(index).ok()).unwrap_or(-1)
}

/// One worker's own knowledge: for most files neither a lock is taken nor memory allocated.
#[derive(Debug)]
pub(crate) struct Asker<'a> {
    layouts: &'a Layouts,
    way: Option<(u64, Way)>,
    numbers: HashMap<Target, u32>,
    objects: Objects,
    /// Where attributes are read to; always empty, its capacity is what counts.
    room: Vec<u8>,
    /// How many bytes are asked for: as many as the longest attribute so far needed.
    asked: usize,
}

impl<'a> Asker<'a> {
    pub(crate) fn new(layouts: &'a Layouts) -> Self {
        Self {
            layouts,
            way: None,
            numbers: HashMap::new(),
            objects: Objects::default(),
            room: Vec::with_capacity(SHORT),
            asked: SHORT,
        }
    }

    /// The layout of regular file `name` of `size` bytes in directory `dir`; None where nothing tells one.
    pub(crate) fn of(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        size: u64,
        device: (u64, u32, u32),
    ) -> Result<Option<&Objects>, LayoutError> {
        let layout = match self.way(device.0) {
            Some(Way::Without) => None,
            Some(Way::Device(target)) => {
                self.objects.kind = index_of(Kind::Local);
                self.objects.objects.clear();
                // An empty file has no object, as in every other layout.
                if size > 0 {
                    self.objects.objects.push(Held { target, offset: 0, length: size });
                }
                return Ok(Some(&self.objects));
            }
            Some(Way::Lustre) => self.attribute(dir, name, c"lustre.lov", lustre::parse)?,
            Some(Way::Ceph) => self.attribute(dir, name, c"ceph.file.layout", ceph::parse)?,
            Some(Way::Open) => self.opened(dir, name)?,
            None => {
                let layout = self.opened(dir, name)?;
                self.remember(device, layout.as_ref().map(Layout::kind));
                layout
            }
        };
        let Some(layout) = layout else { return Ok(None) };
        let (layouts, numbers) = (self.layouts, &mut self.numbers);
        self.objects.take(&layout, size, |target| match numbers.get(target) {
            Some(number) => *number,
            None => {
                let number = layouts.number(target);
                numbers.insert(target.clone(), number);
                number
            }
        });
        Ok(Some(&self.objects))
    }

    fn opened(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<Layout>, LayoutError> {
        // Should it have become a FIFO meanwhile, opening must not wait for a writer.
        let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(dir, name, how, Mode::empty()) {
            Ok(file) => self.layouts.reader.layout_of(&file),
            // Not everyone may open what everyone may see; it has a layout that cannot be told.
            Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
            Err(error) => Err(LayoutError::io("open", error)),
        }
    }

    /// What an attribute of a file says, without opening the file; None where there is none.
    fn attribute(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        attribute: &CStr,
        parse: impl Fn(&[u8]) -> Result<Layout, LayoutError>,
    ) -> Result<Option<Layout>, LayoutError> {
        loop {
            let room = &mut self.room.spare_capacity_mut()[..self.asked];
            match xattr::get(dir, name, attribute, room) {
                Ok(value) => return parse(value).map(Some),
                Err(Errno::RANGE) if self.asked < LONGEST => {
                    self.asked = if self.asked < USUAL { USUAL } else { LONGEST };
                    self.room.reserve_exact(self.asked);
                }
                Err(
                    Errno::NODATA
                    | Errno::OPNOTSUPP
                    | Errno::PERM
                    | Errno::ACCESS
                    | Errno::NOENT
                    | Errno::LOOP,
                ) => return Ok(None),
                Err(error) => return Err(LayoutError::io("read layout", error)),
            }
        }
    }

    fn way(&mut self, device: u64) -> Option<Way> {
        if self.layouts.ask == Ask::Attribute {
            return Some(Way::Lustre);
        }
        match self.way {
            Some((held, way)) if held == device => Some(way),
            _ => {
                let ways = self.layouts.ways.read().unwrap_or_else(PoisonError::into_inner);
                let way = ways.get(&device).copied()?;
                self.way = Some((device, way));
                Some(way)
            }
        }
    }

    fn remember(&self, (device, major, minor): (u64, u32, u32), kind: Option<Kind>) {
        let way = match kind {
            Some(Kind::Local) => Way::Device(self.layouts.number(&Target::Device { major, minor })),
            Some(Kind::Lustre) => Way::Lustre,
            Some(Kind::Ceph) => Way::Ceph,
            Some(_) => Way::Open,
            None if self.layouts.reader.has_none(device) => Way::Without,
            // This file had none, or could not be opened: the next one is asked.
            None => return,
        };
        let mut ways = self.layouts.ways.write().unwrap_or_else(PoisonError::into_inner);
        ways.insert(device, way);
    }
}

/// FNV-1a of 32 bits (Fowler, Noll, Vo), by its published constants: stable from one walk to the next.
fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::local;
    use std::os::fd::AsFd;

    #[test]
    fn attributes_longer_than_expected_are_read_whole_and_remembered_as_such() {
        let folder = std::env::temp_dir().join(format!("waystage-asker-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let dir = std::fs::File::open(&folder).expect("it opens");
        let layouts = Layouts::new(Ask::Each);
        let mut asker = Asker::new(&layouts);
        for (name, length, asked) in
            [(c"a", 10, SHORT), (c"b", SHORT, SHORT), (c"c", 1_000, USUAL), (c"d", 1, USUAL)]
        {
            let path = folder.join(name.to_str().expect("text"));
            std::fs::write(&path, b"").expect("a file");
            let flags = rustix::fs::XattrFlags::empty();
            if rustix::fs::setxattr(&path, "user.waystage", &vec![7; length], flags).is_err() {
                eprintln!("skipped: this file system has no attributes of users");
                break;
            }
            let read = asker.attribute(dir.as_fd(), name, c"user.waystage", |value| {
                assert_eq!(value, vec![7; length]);
                Ok(local::layout(1, 2))
            });
            assert_eq!(read, Ok(Some(local::layout(1, 2))));
            assert_eq!(asker.asked, asked, "{length}");
        }
        std::fs::remove_dir_all(&folder).expect("it goes");
    }
}
