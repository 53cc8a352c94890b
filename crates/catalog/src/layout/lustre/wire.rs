//! The fields of `lustre.lov`, all of them, so that it can be written back.
//!
//! Names are those of Lustre's `lustre_user.h` without their prefixes.

use super::super::LayoutError;

/// What is stored first, which tells the form.
pub(super) mod magic {
    /// A plain file.
    pub const V1: u32 = 0x0BD1_0BD0;
    /// A file of several joined ones; Lustre dropped it in 2.0.
    pub const JOIN: u32 = 0x0BD2_0BD0;
    /// A plain file whose targets are of a pool.
    pub const V3: u32 = 0x0BD3_0BD0;
    /// As V3, the targets having been named one by one.
    pub const SPECIFIC: u32 = 0x0BD5_0BD0;
    /// Components.
    pub const COMPOSITE: u32 = 0x0BD6_0BD0;
    /// Something that is kept elsewhere.
    pub const FOREIGN: u32 = 0x0BD7_0BD0;
    /// Components that can be extended.
    pub const EXTENDABLE: u32 = 0x0BD8_0BD0;
}

/// How a component keeps its data: bits of a plain structure's `pattern`.
pub mod pattern {
    /// Stripes round objects.
    pub const RAID0: u32 = 1;
    /// Data on the metadata target.
    pub const MDT: u32 = 0x100;
    /// Several objects may lie on one target.
    pub const OVERSTRIPED: u32 = 0x200;
    /// Data elsewhere.
    pub const FOREIGN: u32 = 0x400;
    /// Some objects were lost.
    pub const HOLE: u32 = 0x4000_0000;
    /// Data in the archive.
    pub const RELEASED: u32 = 0x8000_0000;
    pub(crate) const KNOWN: u32 = RAID0 | MDT | OVERSTRIPED | FOREIGN | 0xFFFF_0000;
}

/// Bits of a component's `flags`.
pub mod entry_flag {
    /// Another mirror was written since.
    pub const STALE: u32 = 1;
    /// To be read first.
    pub const PREF_RD: u32 = 2;
    /// To be written first.
    pub const PREF_WR: u32 = 4;
    /// Out of service.
    pub const OFFLINE: u32 = 8;
    /// Its objects were made.
    pub const INIT: u32 = 0x10;
    /// Not brought up to date with the others.
    pub const NOSYNC: u32 = 0x20;
    /// Room to grow.
    pub const EXTENSION: u32 = 0x40;
}

pub(super) const V1_BYTES: usize = 32;
pub(super) const V3_BYTES: usize = 48;
pub(super) const OBJECT_BYTES: usize = 24;
pub(super) const COMPOSITE_BYTES: usize = 32;
pub(super) const ENTRY_BYTES: usize = 48;
pub(super) const FOREIGN_BYTES: usize = 16;
/// A stripe count from here on is not a number: it means all targets, or all but a few.
pub(super) const ALL_TARGETS: u16 = 0xFFE0;

/// The order of bytes in a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As Lustre stores it.
    Little,
    /// As a client of the other order may hand it out: the magic is byte-reversed.
    Big,
}

/// The content of `lustre.lov`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Md {
    /// One striping for the whole file.
    Plain(Plain),
    /// Components: by offset, and in several mirrors.
    Composite {
        /// Whether components can be extended.
        extendable: bool,
        /// Changes with the layout.
        generation: u32,
        /// How far mirrors agree: 1 they do, 2 being written, 3 being brought up to date.
        state: u16,
        /// Mirrors less one.
        extra_mirrors: u16,
        /// The components, in the order stored.
        entries: Vec<Entry>,
    },
    /// Something that is kept elsewhere.
    Foreign {
        /// What sort.
        sort: u32,
        /// Its flags.
        flags: u32,
        /// What the keeper stored.
        value: Vec<u8>,
    },
}

/// One component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number; the upper half is the mirror's.
    pub id: u32,
    /// Bits of [`entry_flag`].
    pub flags: u32,
    /// The first byte of the file in it.
    pub start: u64,
    /// The byte after the last, or all ones.
    pub end: u64,
    /// The generation in which it was made.
    pub generation: u32,
    /// When its mirror went stale, in seconds since 1970; else 0.
    pub timestamp: u64,
    /// Its striping.
    pub body: Body,
}

impl Entry {
    /// The number of its mirror.
    #[must_use]
    pub fn mirror(&self) -> u32 {
        (self.id & 0x7FFF_0000) >> 16
    }
}

/// What a component's blob is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Stripes, a metadata target's data, or an archived component.
    Plain(Plain),
    /// Something that is kept elsewhere.
    Foreign {
        /// What sort.
        sort: u32,
        /// Its flags.
        flags: u32,
        /// What the keeper stored.
        value: Vec<u8>,
    },
}

/// One striping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Bits of [`pattern`].
    pub pattern: u32,
    /// The file's own identity, as two words.
    pub file_id: (u64, u64),
    /// Bytes of a stripe; of an extension, KiB by which it is extended.
    pub stripe_size: u32,
    /// Objects, or how many there are to be.
    pub stripe_count: u16,
    /// The layout's generation; in a template the first target, all ones for any.
    pub generation: u16,
    /// The pool's name, ended by a zero; None in the form V1.
    pub pool: Option<[u8; 16]>,
    /// Whether the targets were named one by one.
    pub specific: bool,
    /// The objects, in the order of their turns.
    pub objects: Vec<OstObject>,
}

/// One object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OstObject {
    /// Its identity on the target, as two words.
    pub id: (u64, u64),
    /// The generation of the target's index.
    pub generation: u32,
    /// The index of the target.
    pub ost: u32,
}

impl Plain {
    /// A plain striping over these targets, its objects numbered from `first_id` on.
    #[must_use]
    pub fn striped(stripe_size: u32, osts: &[u32], first_id: u64) -> Self {
        let objects = (first_id..).zip(osts);
        Self {
            pattern: pattern::RAID0,
            file_id: (0, 0),
            stripe_size,
            stripe_count: u16::try_from(osts.len()).unwrap_or(u16::MAX),
            generation: 0,
            pool: None,
            specific: false,
            objects: objects
                .map(|(id, ost)| OstObject { id: (id, 0), generation: 0, ost: *ost })
                .collect(),
        }
    }

    /// The same, of a pool: its form is then V3.
    ///
    /// # Errors
    /// Where the name is longer than the 15 bytes there are.
    pub fn in_pool(mut self, name: &str) -> Result<Self, LayoutError> {
        let mut pool = [0; 16];
        let room = pool[..15].get_mut(..name.len()).ok_or_else(|| {
            LayoutError::invalid(format!("the name of pool {name:?} is longer than 15 bytes"))
        })?;
        room.copy_from_slice(name.as_bytes());
        self.pool = Some(pool);
        Ok(self)
    }

    /// The pool's name, where there is one.
    #[must_use]
    pub fn pool_name(&self) -> Option<Box<str>> {
        let name = self.pool.as_ref()?.split(|byte| *byte == 0).next()?;
        (!name.is_empty()).then(|| String::from_utf8_lossy(name).into())
    }

    /// Whether this is the template of new files, which has no objects.
    #[must_use]
    pub fn is_template(&self) -> bool {
        self.objects.is_empty() && self.pattern & (pattern::RELEASED | pattern::MDT) == 0
    }
}
