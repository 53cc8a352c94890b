//! The files to read, as columns, and where the bytes of each lie.
//!
//! A catalog names millions of files, so nothing here is allocated for one of them. A file without a known layout is
//! one object on the last target, [`Files::UNKNOWN`].

use std::collections::HashMap;
use std::ffi::OsStr;
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use twox_hash::XxHash3_64;
use waystage_catalog::check::Recorded;

use crate::error::LoadError;
use extents::Group;
pub(crate) use extents::{groups, Object};

mod extents;

pub use extents::{Extent, Extents};

/// The index of regular files in [`waystage_catalog::TYPE_LETTERS`].
const REGULAR: i8 = 0;

/// Bytes of a path that need no memory elsewhere.
const SHORT_PATH: usize = 256;

/// Byte strings one after the other: string i is `data[ends[i - 1]..ends[i]]`.
#[derive(Clone, Debug, Default)]
struct Strings {
    ends: Vec<u64>,
    data: Vec<u8>,
}

impl Strings {
    fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.data[start as usize..self.ends[index] as usize]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.ends.push(self.data.len() as u64);
    }

    /// Append strings in Arrow's form, which begin at `offsets[0]` in `data`.
    fn extend(&mut self, offsets: &[i32], data: &[u8]) -> Result<(), LoadError> {
        let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
            return Ok(());
        };
        let sound = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        let (Ok(from), Ok(to)) = (usize::try_from(first), usize::try_from(last)) else {
            return Err(LoadError::Columns("a name begins before its column"));
        };
        let bytes = data.get(from..to).filter(|_| sound);
        let bytes = bytes.ok_or(LoadError::Columns("a name ends outside its column"))?;
        let base = self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        self.ends
            .extend(offsets[1..].iter().map(|&end| base + (end - first).unsigned_abs() as u64));
        Ok(())
    }
}

/// Columns of entries as they arrive; the objects of entry i are those from `objects[i]` to `objects[i + 1]`.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// Paths of directories below the root.
    pub directories: (&'a [i32], &'a [u8]),
    /// For each entry the index of its directory.
    pub directory: &'a [i32],
    /// The type of each entry; those that are no regular files are left out.
    pub kind: &'a [i8],
    /// Names.
    pub names: (&'a [i32], &'a [u8]),
    /// Bytes.
    pub size: &'a [i64],
    /// Last change of content, ns since 1970.
    pub mtime: &'a [i64],
    /// Last change of attributes, ns since 1970.
    pub ctime: &'a [i64],
    /// Inode number.
    pub inode: &'a [u64],
    /// The kind of the layout, as in [`waystage_catalog::layout::READERS`]; -1 for none.
    pub layout: &'a [i8],
    /// Generation of the layout.
    pub generation: &'a [u32],
    /// Where the objects of each file begin; one more than there are files.
    pub objects: &'a [i32],
    /// The number of the target of each object.
    pub object_target: &'a [u32],
    /// The first byte of the file in it.
    pub object_offset: &'a [i64],
    /// How many bytes of the file it holds.
    pub object_length: &'a [i64],
}

/// Files, in the order in which they were added.
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
    directories: Strings,
    directory: Vec<u32>,
    names: Strings,
    recorded: Vec<Recorded>,
    /// One more than there are files.
    first_object: Vec<u64>,
    objects: Vec<Object>,
    /// The index of each object's target.
    target_of: Vec<u16>,
    targets: Vec<u32>,
    index_of: HashMap<u32, u16>,
}

impl Files {
    /// The number of an unknown target.
    pub const UNKNOWN: u32 = u32::MAX;

    /// No file yet, below `root`.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            directories: Strings::default(),
            directory: Vec::new(),
            names: Strings::default(),
            recorded: Vec::new(),
            first_object: vec![0],
            objects: Vec::new(),
            target_of: Vec::new(),
            targets: Vec::new(),
            index_of: HashMap::new(),
        }
    }

    /// Append files.
    ///
    /// # Errors
    /// Where the columns do not fit together, or name more than 65,535 targets or 2^32 files.
    pub fn extend(&mut self, columns: &Columns<'_>) -> Result<(), LoadError> {
        let count = columns.size.len();
        let lengths = [
            columns.directory.len(),
            columns.kind.len(),
            columns.mtime.len(),
            columns.ctime.len(),
            columns.inode.len(),
            columns.layout.len(),
            columns.generation.len(),
        ];
        if lengths != [count; 7] {
            return Err(LoadError::Columns("columns of different lengths"));
        }
        if columns.names.0.len() != count + 1 || columns.objects.len() != count + 1 {
            return Err(LoadError::Columns("offsets that are not one more than there are files"));
        }
        if u32::try_from(self.len() + count).is_err() {
            return Err(LoadError::Columns("more than 2^32 files"));
        }
        let base = self.directories.ends.len();
        self.directories.extend(columns.directories.0, columns.directories.1)?;
        let all = columns.kind.iter().all(|kind| *kind == REGULAR);
        if all {
            self.names.extend(columns.names.0, columns.names.1)?;
        }
        self.directory.reserve(count);
        self.recorded.reserve(count);
        self.first_object.reserve(count);
        for file in (0..count).filter(|file| columns.kind[*file] == REGULAR) {
            if !all {
                self.names.extend(&columns.names.0[file..=file + 1], columns.names.1)?;
            }
            let directory = usize::try_from(columns.directory[file]).map(|index| base + index);
            let directory = directory.ok().filter(|at| *at < self.directories.ends.len());
            let directory = directory.and_then(|at| u32::try_from(at).ok());
            self.directory.push(directory.ok_or(LoadError::Columns("a directory that is none"))?);
            let size = u64::try_from(columns.size[file])
                .map_err(|_| LoadError::Columns("a file of less than 0 bytes"))?;
            self.recorded.push(Recorded {
                kind: REGULAR,
                size: columns.size[file],
                mtime: columns.mtime[file],
                ctime: columns.ctime[file],
                inode: columns.inode[file],
                generation: Recorded::generation_of(columns.layout[file], columns.generation[file]),
            });
            self.add_objects(columns, file, size)?;
        }
        Ok(())
    }

    fn add_objects(
        &mut self,
        columns: &Columns<'_>,
        file: usize,
        size: u64,
    ) -> Result<(), LoadError> {
        let range = (columns.objects[file], columns.objects[file + 1]);
        let (Ok(from), Ok(to)) = (usize::try_from(range.0), usize::try_from(range.1)) else {
            return Err(LoadError::Columns("objects before their column"));
        };
        let targets = columns.object_target.get(from..to);
        let offsets = columns.object_offset.get(from..to);
        let lengths = columns.object_length.get(from..to);
        let (Some(targets), Some(offsets), Some(lengths)) = (targets, offsets, lengths) else {
            return Err(LoadError::Columns("objects outside their column"));
        };
        let negative = |numbers: &[i64]| numbers.iter().any(|number| *number < 0);
        if negative(offsets) || negative(lengths) {
            return Err(LoadError::Columns("an object of less than 0 bytes"));
        }
        if let ([target], [0], [length]) = (targets, offsets, lengths) {
            // Most files: nothing to work out, and nothing to allocate.
            if length.unsigned_abs() == size {
                self.add_object(*target, Object { offset: 0, length: size, unit: size, count: 1 })?;
                self.first_object.push(self.objects.len() as u64);
                return Ok(());
            }
        }
        match groups(offsets, lengths, size) {
            Some(groups) => {
                for Group { first, count, unit } in groups {
                    for i in first..first + count {
                        let (offset, length) =
                            (offsets[i].unsigned_abs(), lengths[i].unsigned_abs());
                        self.add_object(targets[i], Object { offset, length, unit, count })?;
                    }
                }
            }
            // How the objects take turns is unknown: the first one's target stands for all.
            None => {
                let target = targets.first().copied().unwrap_or(Self::UNKNOWN);
                self.add_object(target, Object { offset: 0, length: size, unit: size, count: 1 })?;
            }
        }
        self.first_object.push(self.objects.len() as u64);
        Ok(())
    }

    fn add_object(&mut self, target: u32, object: Object) -> Result<(), LoadError> {
        let index = match self.index_of.get(&target) {
            Some(index) => *index,
            None => {
                let index = u16::try_from(self.targets.len());
                let index = index.map_err(|_| LoadError::Columns("more than 65,535 targets"))?;
                self.targets.push(target);
                self.index_of.insert(target, index);
                index
            }
        };
        if u32::try_from(self.objects.len()).is_err() {
            return Err(LoadError::Columns("more than 2^32 objects"));
        }
        self.target_of.push(index);
        self.objects.push(object);
        Ok(())
    }

    /// The same files by directory and name, so that those of two walks have the same numbers.
    #[must_use]
    pub fn sorted(&self) -> Self {
        let mut order: Vec<u32> = (0..u32::try_from(self.len()).unwrap_or(u32::MAX)).collect();
        let key = |file: &u32| {
            let index = *file as usize;
            (self.directories.get(self.directory[index] as usize), self.names.get(index))
        };
        order.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        let mut sorted = Self::new(self.root.clone());
        sorted.directories = self.directories.clone();
        for file in order.into_iter().map(|file| file as usize) {
            sorted.directory.push(self.directory[file]);
            sorted.names.push(self.names.get(file));
            sorted.recorded.push(self.recorded[file]);
            for object in self.first_object[file] as usize..self.first_object[file + 1] as usize {
                // It was there before, so there is room for it.
                let target = self.targets[usize::from(self.target_of[object])];
                let _ = sorted.add_object(target, self.objects[object]);
            }
            sorted.first_object.push(sorted.objects.len() as u64);
        }
        sorted
    }

    /// A number that differs between different files in all likelihood: of their paths, sizes and times.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hash = XxHash3_64::with_seed(0);
        for file in 0..self.len() {
            let Recorded { size, mtime, .. } = self.recorded[file];
            hash.write(self.directories.get(self.directory[file] as usize));
            hash.write(b"/");
            hash.write(self.names.get(file));
            hash.write(&size.to_le_bytes());
            hash.write(&mtime.to_le_bytes());
        }
        hash.finish()
    }

    /// How many files there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.recorded.len()
    }

    /// Whether there is no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.recorded.is_empty()
    }

    /// How many objects all files have; each has one at least.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// The numbers of the targets, in the order in which they were first met.
    #[must_use]
    pub fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// What all paths are below.
    #[must_use]
    pub fn root(&self) -> &std::path::Path {
        &self.root
    }

    /// The path of a file below the root.
    #[must_use]
    pub fn path(&self, file: u32) -> PathBuf {
        self.with_path(file, |path| PathBuf::from(OsStr::from_bytes(path)))
    }

    /// Do `work` with the path of a file below the root, made on the stack where it is short.
    pub fn with_path<T>(&self, file: u32, work: impl FnOnce(&[u8]) -> T) -> T {
        let directory = self.directories.get(self.directory[file as usize] as usize);
        let name = self.names.get(file as usize);
        let slash = usize::from(!directory.is_empty());
        let length = directory.len() + slash + name.len();
        let (mut short, mut long) = ([0; SHORT_PATH], Vec::new());
        let path = match short.get_mut(..length) {
            Some(path) => path,
            None => {
                long.resize(length, 0);
                &mut long[..]
            }
        };
        let (before, after) = path.split_at_mut(directory.len());
        before.copy_from_slice(directory);
        if let [start, ..] = &mut after[..slash] {
            *start = b'/';
        }
        after[slash..].copy_from_slice(name);
        work(path)
    }

    /// What is known of a file: as a catalog says, or as a walk just saw it.
    #[must_use]
    pub fn recorded(&self, file: u32) -> &Recorded {
        &self.recorded[file as usize]
    }

    /// How many bytes a file has, as far as is known.
    #[must_use]
    pub fn size(&self, file: u32) -> u64 {
        self.recorded[file as usize].size.unsigned_abs()
    }

    /// The file of an object.
    #[must_use]
    pub fn file_of(&self, object: u32) -> u32 {
        let after = self.first_object.partition_point(|&first| first <= u64::from(object));
        u32::try_from(after - 1).unwrap_or(u32::MAX)
    }

    /// The target of an object, by its index, and how many bytes it holds.
    #[must_use]
    pub fn object(&self, object: u32) -> (u16, u64) {
        (self.target_of[object as usize], self.objects[object as usize].length)
    }

    /// The target that holds the first bytes of a file, by its index.
    #[must_use]
    pub fn first_target(&self, file: u32) -> u16 {
        self.target_of[self.first_object[file as usize] as usize]
    }

    /// Each object of a file: its target, by index, and its bytes.
    pub fn held_by_targets(&self, file: u32) -> impl Iterator<Item = (u16, u64)> + '_ {
        let index = file as usize;
        let objects = self.first_object[index]..self.first_object[index + 1];
        objects.map(|object| {
            let at = object as usize;
            (self.target_of[at], self.objects[at].length)
        })
    }

    /// The extents of one object, cut to at most `most` bytes each.
    #[must_use]
    pub fn extents_of(&self, object: u32, most: u64) -> Extents {
        let index = object as usize;
        self.objects[index].extents(self.target_of[index], most)
    }

    /// All extents of a file, by object, cut to at most `most` bytes each.
    pub fn extents(&self, file: u32, most: u64) -> impl Iterator<Item = Extent> + '_ {
        let index = file as usize;
        let objects = self.first_object[index]..self.first_object[index + 1];
        let objects = objects.filter_map(|object| u32::try_from(object).ok());
        objects.flat_map(move |object| self.extents_of(object, most))
    }
}

#[cfg(test)]
mod tests;
