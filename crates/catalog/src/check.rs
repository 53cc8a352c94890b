//! Whether a file still matches its entry in a catalog: pure, over the entry and the result of statx(2).
//!
//! Arrives: an entry, the file's attributes.
//! Leaves: the differences.
//! Must not know: where entries are kept, how files are opened.
//!
//! The device's number is not compared: each node numbers a network file system's devices for itself. Nor is atime,
//! which reading changes, nor blocks, which delayed allocation changes.

use rustix::fs::Statx;

use crate::batch::{kind, nanoseconds, signed};
use crate::layout::reader_at;

/// One entry of a catalog, in the units of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Index into [`crate::TYPE_LETTERS`].
    pub kind: i8,
    /// Bytes.
    pub size: i64,
    /// Last change of content, ns since 1970.
    pub mtime: i64,
    /// Last change of attributes, ns since 1970; the catalog's null means: as `mtime`.
    pub ctime: i64,
    /// Inode number.
    pub inode: u64,
    /// The layout's generation; None where no layout was recorded or its file system keeps no such number.
    pub generation: Option<u32>,
}

impl Recorded {
    /// The generation to compare, of the columns `layout` (an index into [`crate::layout::READERS`], -1 for none) and
    /// `layout_generation`.
    #[must_use]
    pub fn generation_of(layout: i8, generation: u32) -> Option<u32> {
        reader_at(layout).filter(|reader| reader.keeps_generation()).map(|_| generation)
    }
}

/// The differences between a file and its entry: a set, empty where the entry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Differences(u16);

impl Differences {
    /// The entry holds.
    pub const NONE: Self = Self(0);
    /// A file has become a directory, or the like.
    pub const TYPE: Self = Self(1);
    /// Another number of bytes.
    pub const SIZE: Self = Self(1 << 1);
    /// The content was changed, or the time set.
    pub const MTIME: Self = Self(1 << 2);
    /// Attributes were changed, links made, or the content changed.
    pub const CTIME: Self = Self(1 << 3);
    /// Another file of the same name.
    pub const INODE: Self = Self(1 << 4);
    /// The same file on other targets.
    pub const LAYOUT: Self = Self(1 << 5);
    /// No file has this name.
    pub const MISSING: Self = Self(1 << 6);
    /// A part of the path is a symbolic link or no directory now.
    pub const BLOCKED: Self = Self(1 << 7);
    /// It exists, and stat(2) is refused or fails.
    pub const UNREADABLE: Self = Self(1 << 8);

    /// Every difference with its name. Those that are columns of a catalog have the column's name.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::TYPE, "type"),
        (Self::SIZE, "size"),
        (Self::MTIME, "mtime"),
        (Self::CTIME, "ctime"),
        (Self::INODE, "inode"),
        (Self::LAYOUT, "layout_generation"),
        (Self::MISSING, "missing"),
        (Self::BLOCKED, "blocked"),
        (Self::UNREADABLE, "unreadable"),
    ];

    /// The set as bits, in the order of [`Differences::ALL`].
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Whether the entry holds.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` are among them.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Their names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().filter(move |(one, _)| self.contains(*one)).map(|(_, name)| name)
    }

    fn add(&mut self, other: Self, differs: bool) {
        if differs {
            self.0 |= other.0;
        }
    }
}

/// The differences between an entry and the file. `generation` is the present layout's; pass the recorded one where
/// the layout was not read.
#[must_use]
pub fn compare(recorded: &Recorded, now: &Statx, generation: Option<u32>) -> Differences {
    let mut found = Differences::NONE;
    found.add(Differences::TYPE, recorded.kind != kind(now.stx_mode));
    found.add(Differences::SIZE, recorded.size != signed(now.stx_size));
    found.add(Differences::MTIME, recorded.mtime != nanoseconds(&now.stx_mtime));
    found.add(Differences::CTIME, recorded.ctime != nanoseconds(&now.stx_ctime));
    found.add(Differences::INODE, recorded.inode != now.stx_ino);
    let asked = recorded.generation.is_some();
    found.add(Differences::LAYOUT, asked && recorded.generation != generation);
    found
}

/// The entry that a catalog would record now, without the layout.
#[must_use]
pub fn as_recorded(now: &Statx) -> Recorded {
    Recorded {
        kind: kind(now.stx_mode),
        size: signed(now.stx_size),
        mtime: nanoseconds(&now.stx_mtime),
        ctime: nanoseconds(&now.stx_ctime),
        inode: now.stx_ino,
        generation: None,
    }
}
