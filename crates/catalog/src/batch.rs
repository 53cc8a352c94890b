//! A batch of entries as columns, which a columnar file takes without a conversion.

use rustix::fs::Statx;

use crate::layouts::Objects;

/// The letters of an entry's type, by its index: regular file, directory, symbolic link, block and character device,
/// FIFO, socket, unknown.
pub const TYPE_LETTERS: [&str; 8] = ["f", "d", "l", "b", "c", "p", "s", "?"];

/// Byte strings one after the other, in Arrow's form: string i is `data[offsets[i]..offsets[i + 1]]`.
#[derive(Debug)]
pub struct Bytes {
    /// One more than there are strings; the first is 0.
    pub offsets: Vec<i32>,
    /// All strings.
    pub data: Vec<u8>,
}

impl Default for Bytes {
    fn default() -> Self {
        Self { offsets: vec![0], data: Vec::new() }
    }
}

impl Bytes {
    /// Append a string.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.offsets.push(position(self.data.len()));
    }

    /// String `index`.
    pub fn get(&self, index: usize) -> &[u8] {
        let at = |i: usize| usize::try_from(self.offsets[i]).unwrap_or(0);
        &self.data[at(index)..at(index + 1)]
    }
}

/// A batch holds at most 65,536 names of at most 255 bytes and as many paths and links of at most 4 KiB or so: it
/// is cut long before a position passes 2^31.
pub(crate) fn position(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

/// What became of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub enum DirectoryState {
    /// It was read.
    Read = 0,
    /// It was as an earlier walk had found it, and was not read.
    Unchanged = 1,
}

/// The directories that a batch has entries of. A directory may be in several batches.
#[derive(Debug, Default)]
pub struct Directories {
    /// Path below the root; the root's own is empty.
    pub path: Bytes,
    /// Inode number when it was opened, as all below.
    pub inode: Vec<u64>,
    /// Device number.
    pub device: Vec<u64>,
    /// Time of the last change of its names, ns since 1970.
    pub mtime: Vec<i64>,
    /// Time of the last change of its attributes or names, ns since 1970.
    pub ctime: Vec<i64>,
    /// Permission bits.
    pub mode: Vec<u16>,
    /// Owner.
    pub uid: Vec<u32>,
    /// Group.
    pub gid: Vec<u32>,
    /// How many of its entries this batch holds.
    pub rows: Vec<i64>,
    /// How many it has altogether, in the batch that ends it; -1 elsewhere.
    pub total: Vec<i64>,
    /// A [`DirectoryState`].
    pub state: Vec<i8>,
}

/// Entries, column by column.
#[derive(Debug, Default)]
pub struct Entries {
    /// Index into the batch's directories.
    pub directory: Vec<i32>,
    /// Name in its directory.
    pub name: Bytes,
    /// Index into [`TYPE_LETTERS`].
    pub kind: Vec<i8>,
    /// Bytes.
    pub size: Vec<i64>,
    /// Last change of content, ns since 1970, as the two below.
    pub mtime: Vec<i64>,
    /// Last change of attributes.
    pub ctime: Vec<i64>,
    /// Last access.
    pub atime: Vec<i64>,
    /// Permission bits, without the type.
    pub mode: Vec<u16>,
    /// Owner.
    pub uid: Vec<u32>,
    /// Group.
    pub gid: Vec<u32>,
    /// Inode number.
    pub inode: Vec<u64>,
    /// Device number, as stat(2) packs it.
    pub device: Vec<u64>,
    /// Hard links.
    pub links: Vec<u32>,
    /// Allocated blocks of 512 bytes.
    pub blocks: Vec<i64>,
    /// Where a symbolic link points; empty for all else.
    pub symlink: Bytes,
    /// Index into [`crate::layout::READERS`], -1 for none.
    pub layout_kind: Vec<i8>,
    /// Bytes of a stripe.
    pub stripe_size: Vec<i64>,
    /// The layout's generation.
    pub generation: Vec<u32>,
    /// Objects of entry i are `objects[i]..objects[i + 1]` of the columns below.
    pub objects: Vec<i32>,
    /// Storage target of each object.
    pub object_target: Vec<u32>,
    /// First byte in the file.
    pub object_offset: Vec<i64>,
    /// Bytes of the file in it.
    pub object_length: Vec<i64>,
    /// Times that the columns above do not reach.
    pub beyond: Beyond,
}

/// Times before 1677 or after 2262, which nanoseconds since 1970 do not reach in 64 bits: few entries have any, so
/// they are listed and no columns. What the column of such a time holds says [`nanoseconds`].
#[derive(Debug, Default)]
pub struct Beyond {
    /// The entry.
    pub row: Vec<i32>,
    /// Which time: an index into [`Attributes::beyond`].
    pub which: Vec<i8>,
    /// Its seconds since 1970.
    pub seconds: Vec<i64>,
}

/// What stat(2) says of an entry. Times are ns since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Type and permission bits.
    pub mode: u16,
    /// Bytes.
    pub size: u64,
    /// Last change of content.
    pub mtime: i64,
    /// Last change of attributes.
    pub ctime: i64,
    /// Last access.
    pub atime: i64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Inode number.
    pub inode: u64,
    /// Device number, as stat(2) packs it.
    pub device: u64,
    /// Hard links.
    pub links: u32,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Seconds since 1970 of `mtime`, `ctime` and `atime`, where nanoseconds do not reach them.
    pub beyond: [Option<i64>; 3],
}

impl From<&Statx> for Attributes {
    fn from(stat: &Statx) -> Self {
        Self {
            mode: stat.stx_mode,
            size: stat.stx_size,
            mtime: nanoseconds(&stat.stx_mtime),
            ctime: nanoseconds(&stat.stx_ctime),
            atime: nanoseconds(&stat.stx_atime),
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            inode: stat.stx_ino,
            device: device(stat),
            links: stat.stx_nlink,
            blocks: stat.stx_blocks,
            beyond: [&stat.stx_mtime, &stat.stx_ctime, &stat.stx_atime].map(beyond),
        }
    }
}

/// Entries, the directories they are in, and what could not be read.
#[derive(Debug, Default)]
pub struct Batch {
    /// The directories.
    pub directories: Directories,
    /// The entries.
    pub entries: Entries,
    /// What could not be read: path, and why.
    pub errors: Vec<(Vec<u8>, String)>,
}

impl Batch {
    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.entries.directory.len()
    }

    /// Whether it says nothing at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.directories.inode.is_empty() && self.errors.is_empty()
    }
}

impl Directories {
    pub(crate) fn push(&mut self, path: &[u8], stat: &Statx) -> usize {
        self.path.push(path);
        self.inode.push(stat.stx_ino);
        self.device.push(device(stat));
        self.mtime.push(nanoseconds(&stat.stx_mtime));
        self.ctime.push(nanoseconds(&stat.stx_ctime));
        self.mode.push(stat.stx_mode & PERMISSIONS);
        self.uid.push(stat.stx_uid);
        self.gid.push(stat.stx_gid);
        self.rows.push(0);
        self.total.push(-1);
        self.state.push(DirectoryState::Read as i8);
        self.inode.len() - 1
    }
}

impl Entries {
    pub(crate) fn push(
        &mut self,
        directory: usize,
        name: &[u8],
        facts: &Attributes,
        symlink: &[u8],
        layout: Option<&Objects>,
    ) {
        for (which, seconds) in facts.beyond.iter().enumerate() {
            if let Some(seconds) = seconds {
                self.beyond.row.push(position(self.directory.len()));
                self.beyond.which.push(which as i8);
                self.beyond.seconds.push(*seconds);
            }
        }
        self.directory.push(position(directory));
        self.name.push(name);
        self.kind.push(kind(facts.mode));
        self.size.push(signed(facts.size));
        self.mtime.push(facts.mtime);
        self.ctime.push(facts.ctime);
        self.atime.push(facts.atime);
        self.mode.push(facts.mode & PERMISSIONS);
        self.uid.push(facts.uid);
        self.gid.push(facts.gid);
        self.inode.push(facts.inode);
        self.device.push(facts.device);
        self.links.push(facts.links);
        self.blocks.push(signed(facts.blocks));
        self.symlink.push(symlink);
        self.layout_kind.push(layout.map_or(-1, |layout| layout.kind));
        self.stripe_size.push(layout.map_or(0, |layout| signed(layout.stripe_size)));
        self.generation.push(layout.map_or(0, |layout| layout.generation));
        if self.objects.is_empty() {
            self.objects.push(0);
        }
        for object in layout.map_or(&[][..], |layout| &layout.objects[..]) {
            self.object_target.push(object.target);
            self.object_offset.push(signed(object.offset));
            self.object_length.push(signed(object.length));
        }
        self.objects.push(position(self.object_target.len()));
    }
}

const PERMISSIONS: u16 = 0o7777;

/// The index into [`TYPE_LETTERS`] of what has this mode.
pub(crate) fn kind(mode: u16) -> i8 {
    match mode & 0o170_000 {
        0o100_000 => 0,
        0o040_000 => 1,
        0o120_000 => 2,
        0o060_000 => 3,
        0o020_000 => 4,
        0o010_000 => 5,
        0o140_000 => 6,
        _ => 7,
    }
}

/// Device numbers are packed as by glibc's makedev(3), so that they equal `st_dev`.
pub(crate) fn device(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

/// A time in nanoseconds since 1970. One that does not fit is within the first or the last second that 64 bits hold,
/// as far behind its beginning as the time is behind its own second: with the seconds of [`Beyond`] it is exact.
pub fn nanoseconds(time: &rustix::fs::StatxTimestamp) -> i64 {
    fitting(time).unwrap_or_else(|| {
        let start = if time.tv_sec < 0 { i64::MIN } else { i64::MAX - 999_999_999 };
        start + i64::from(time.tv_nsec)
    })
}

/// The seconds of a time that nanoseconds do not reach.
pub(crate) fn beyond(time: &rustix::fs::StatxTimestamp) -> Option<i64> {
    fitting(time).is_none().then_some(time.tv_sec)
}

fn fitting(time: &rustix::fs::StatxTimestamp) -> Option<i64> {
    time.tv_sec.checked_mul(1_000_000_000)?.checked_add(i64::from(time.tv_nsec))
}

/// Columns are signed because most readers of Parquet are poor at unsigned ones; no file has 2^63 bytes.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_do_not_fit_are_exact_with_their_seconds() {
        let flags = (rustix::fs::AtFlags::empty(), rustix::fs::StatxFlags::BASIC_STATS);
        let Ok(any) = rustix::fs::statx(rustix::fs::CWD, ".", flags.0, flags.1) else { return };
        let time = |tv_sec: i64, tv_nsec: u32| {
            let mut time = any.stx_mtime;
            (time.tv_sec, time.tv_nsec) = (tv_sec, tv_nsec);
            time
        };
        for (seconds, nsec) in [(0, 0), (-1, 999_999_999), (9_223_372_036, 854_775_807)] {
            let ns = nanoseconds(&time(seconds, nsec));
            assert_eq!(i128::from(ns), i128::from(seconds) * 1_000_000_000 + i128::from(nsec));
            assert_eq!(beyond(&time(seconds, nsec)), None);
        }
        for nsec in [0, 1, 999_999_999] {
            for seconds in [9_223_372_037, i64::MAX] {
                let ns = nanoseconds(&time(seconds, nsec));
                assert_eq!(ns - (i64::MAX - 999_999_999), i64::from(nsec));
                assert_eq!(beyond(&time(seconds, nsec)), Some(seconds));
                let before = nanoseconds(&time(-seconds - 1, nsec));
                assert_eq!(before - i64::MIN, i64::from(nsec));
                assert_eq!(beyond(&time(-seconds - 1, nsec)), Some(-seconds - 1));
            }
        }
    }
}
