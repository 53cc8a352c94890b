//! The layouts that a walk records: read in the cheapest way that each file system offers, with targets as numbers.
//!
//! Opening a file costs more than stat(2), on Lustre a message to the server; so it is done only where no attribute
//! gives the layout. The first file of a device that answers settles how the others are read.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{major, minor, openat, Mode, OFlags};
use rustix::io::Errno;
use waystage_sync::RwLock;

use crate::layout::{
    local, lustre, reader_index, Access, FileSystems, Layout, LayoutError, LayoutReader, Mirrors,
    Served, Target, EOF,
};
use crate::xattr::{self, LONGEST, USUAL};

/// Enough for a Lustre layout of one component and 8 objects. The kernel allocates and clears as many bytes as are
/// asked for, which for 4 KiB takes as long as the question itself.
const SHORT: usize = 256;

/// The bit of target numbers that are not a file system's own.
const MADE_UP: u32 = 1 << 31;

/// A run of one file's bytes that one storage target holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectRange {
    /// The number of the storage target: see [`Layouts::targets`].
    pub target: u32,
    /// The object's first byte, as an offset in the file.
    pub offset: u64,
    /// Bytes of the file in the object.
    pub length: u64,
}

/// How a file is cut into objects, as a batch takes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objects {
    /// Index into [`crate::layout::READERS`].
    pub kind: i8,
    /// Bytes of one stripe; 0 where the file is not striped.
    pub stripe_size: u64,
    /// A number that changes with the layout, where the file system keeps one; else 0.
    pub generation: u32,
    /// The part of the file that each target holds.
    pub objects: Vec<ObjectRange>,
}

/// How a walk reads layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutMethod {
    /// Each file system in its own way.
    PerFileSystem,
    /// Lustre's attribute of every file on any file system: it measures what reading layouts costs.
    LustreAttribute,
}

/// Reads layouts for all workers of a walk.
#[derive(Debug)]
pub struct Layouts {
    method: LayoutMethod,
    file_systems: FileSystems,
    numbers: RwLock<HashMap<Target, u32>>,
}

impl Layouts {
    /// No device and no target known yet.
    #[must_use]
    pub fn new(method: LayoutMethod) -> Self {
        Self { method, file_systems: FileSystems::new(), numbers: RwLock::default() }
    }

    /// The targets met so far: their numbers and names.
    ///
    /// Targets that their file system numbers keep that number. Others get one made from the name, alike in every
    /// walk.
    pub fn targets(&self) -> Vec<(u32, String)> {
        let numbers = self.numbers.read();
        let mut all: Vec<_> =
            numbers.iter().map(|(target, number)| (*number, target.to_string())).collect();
        all.sort();
        all
    }

    /// Whether files on the file system of this open directory are striped over targets that are cheap to ask for.
    pub fn are_cheap(directory: BorrowedFd<'_>) -> bool {
        let file_systems = FileSystems::new();
        // A file system that FUSE hides is known once its directory has answered.
        let _ = file_systems.layout_of(directory);
        let device = rustix::fs::fstat(directory).map(|stat| stat.st_dev);
        let served = device.ok().and_then(|device| file_systems.known(device));
        matches!(served, Some(Served::By(reader)) if reader.is_cheap())
    }

    /// The objects of an open file of `size` bytes; None where the file system discloses no layout.
    pub fn of_open(&self, file: BorrowedFd<'_>, size: u64) -> Result<Option<Objects>, LayoutError> {
        Ok(self.file_systems.layout_of(file)?.map(|layout| self.objects(&layout, size)))
    }

    /// The layout of an open file; None where there is none, or it is not understood.
    pub(crate) fn layout_of(&self, file: BorrowedFd<'_>) -> Option<Layout> {
        self.file_systems.layout_of(file).ok().flatten()
    }

    fn objects(&self, layout: &Layout, size: u64) -> Objects {
        let mut objects = Objects::default();
        objects.take(layout, size, |target| self.number(target));
        objects
    }

    pub(crate) fn number(&self, target: &Target) -> u32 {
        let known = self.numbers.read().get(target).copied();
        if let Some(number) = known {
            return number;
        }
        let mut numbers = self.numbers.write();
        let made_up = || MADE_UP | fnv(target.to_string().as_bytes());
        let mut number = target.number().unwrap_or_else(made_up);
        // A collision of two names is improbable; the later one takes the next number.
        while numbers.iter().any(|(other, taken)| *taken == number && other != target) {
            number = MADE_UP | number.wrapping_add(1);
        }
        *numbers.entry(target.clone()).or_insert(number)
    }
}

impl Objects {
    /// Become the objects of a file of `size` bytes with this layout, without allocating anew.
    fn take(&mut self, layout: &Layout, size: u64, mut number: impl FnMut(&Target) -> u32) {
        let unit = layout.components().first().map_or(EOF, |component| component.striping.unit);
        self.kind = reader_index(layout.kind());
        self.stripe_size = if unit == EOF { 0 } else { unit };
        self.generation = layout.generation();
        self.objects.clear();
        self.objects.extend(layout.shares(size, Mirrors::Best).filter_map(|share| {
            let target = number(share.target?);
            Some(ObjectRange { target, offset: share.file_offset, length: share.bytes })
        }));
    }
}

/// How one worker reads the files of a device.
#[derive(Clone, Copy)]
enum Method {
    /// The device is the target, and this its number.
    Device(u32),
    Attribute(&'static dyn LayoutReader, &'static CStr),
    Open,
    Without,
}

/// One worker's cache: for most files no lock is taken and no memory allocated.
pub(crate) struct WorkerLayouts<'a> {
    layouts: &'a Layouts,
    method: Option<(u64, Method)>,
    numbers: HashMap<Target, u32>,
    objects: Objects,
    /// Attributes are read into its spare capacity; its length stays 0.
    buffer: Vec<u8>,
    /// Bytes to ask for: enough for the longest attribute so far.
    value_bytes: usize,
}

impl<'a> WorkerLayouts<'a> {
    pub(crate) fn new(layouts: &'a Layouts) -> Self {
        Self {
            layouts,
            method: None,
            numbers: HashMap::new(),
            objects: Objects::default(),
            buffer: Vec::with_capacity(SHORT),
            value_bytes: SHORT,
        }
    }

    /// The objects of regular file `name` of `size` bytes in directory `dir`; None where no layout is disclosed.
    pub(crate) fn objects_of(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        size: u64,
        device: u64,
    ) -> Result<Option<&Objects>, LayoutError> {
        let layout = match self.method(device) {
            Some(Method::Without) => None,
            Some(Method::Device(target)) => {
                self.objects.kind = reader_index(local::Reader.name());
                self.objects.objects.clear();
                // An empty file has no object, as in every other layout.
                if size > 0 {
                    self.objects.objects.push(ObjectRange { target, offset: 0, length: size });
                }
                return Ok(Some(&self.objects));
            }
            Some(Method::Attribute(reader, attribute)) => {
                self.attribute(dir, name, attribute, |value| reader.answer(value))?
            }
            Some(Method::Open) | None => self.opened(dir, name)?,
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
            Ok(file) => self.layouts.file_systems.layout_of(&file),
            // A file that stat(2) shows but open(2) refuses has a layout that cannot be read.
            Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
            Err(error) => Err(LayoutError::io("open", error)),
        }
    }

    /// A layout from an attribute, without opening the file; None where there is none.
    fn attribute(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        attribute: &CStr,
        parse: impl Fn(&[u8]) -> Result<Option<Layout>, LayoutError>,
    ) -> Result<Option<Layout>, LayoutError> {
        loop {
            let buffer = &mut self.buffer.spare_capacity_mut()[..self.value_bytes];
            match xattr::get(dir, name, attribute, buffer) {
                Ok(value) => return parse(value),
                Err(Errno::RANGE) if self.value_bytes < LONGEST => {
                    self.value_bytes = if self.value_bytes < USUAL { USUAL } else { LONGEST };
                    self.buffer.reserve_exact(self.value_bytes);
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

    fn method(&mut self, device: u64) -> Option<Method> {
        if self.layouts.method == LayoutMethod::LustreAttribute {
            let Access::Attribute(name) = lustre::Reader.access() else { return None };
            return Some(Method::Attribute(&lustre::Reader, name));
        }
        match self.method {
            Some((held, method)) if held == device => Some(method),
            _ => {
                let method = match self.layouts.file_systems.known(device)? {
                    Served::By(reader) => match reader.access() {
                        Access::Device => {
                            let target = local::target(major(device), minor(device));
                            Method::Device(self.layouts.number(&target))
                        }
                        Access::Attribute(name) => Method::Attribute(reader, name),
                        Access::Open => Method::Open,
                    },
                    Served::Without | Served::Unknown(_) => Method::Without,
                };
                self.method = Some((device, method));
                Some(method)
            }
        }
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
    fn attributes_longer_than_expected_are_read_in_full_and_raise_the_size_asked_for() {
        let folder = std::env::temp_dir().join(format!("waystage-layouts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let dir = std::fs::File::open(&folder).expect("it opens");
        let layouts = Layouts::new(LayoutMethod::PerFileSystem);
        let mut worker = WorkerLayouts::new(&layouts);
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
            let read = worker.attribute(dir.as_fd(), name, c"user.waystage", |value| {
                assert_eq!(value, vec![7; length]);
                Ok(Some(local::layout(1, 2)))
            });
            assert_eq!(read, Ok(Some(local::layout(1, 2))));
            assert_eq!(worker.value_bytes, asked, "{length}");
        }
        std::fs::remove_dir_all(&folder).expect("it goes");
    }
}
