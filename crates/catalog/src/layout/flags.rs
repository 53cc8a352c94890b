//! The state of a component or an extent, in terms of any file system.

use std::ops::{BitOr, BitOrAssign};

/// A set of states. The empty set is an ordinary, current copy on a known target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    /// No state.
    pub const NONE: Self = Self(0);
    /// An outdated copy: another mirror was written since.
    pub const STALE: Self = Self(1);
    /// Its targets are out of service.
    pub const OFFLINE: Self = Self(1 << 1);
    /// The copy to read first.
    pub const PREFERRED: Self = Self(1 << 2);
    /// No object exists yet: it reads as zeros.
    pub const UNWRITTEN: Self = Self(1 << 3);
    /// The data is in an archive, and the first read fetches it.
    pub const RELEASED: Self = Self(1 << 4);
    /// The data is outside this file system.
    pub const FOREIGN: Self = Self(1 << 5);
    /// The object is missing; reading fails.
    pub const LOST: Self = Self(1 << 6);
    /// There is data, but its target is unknown.
    pub const UNLOCATED: Self = Self(1 << 7);
    /// Bytes are spread over several bricks by an erasure code: only the file system can read them.
    pub const CODED: Self = Self(1 << 8);
    /// Space for the previous component to extend into; it holds no data.
    pub const EXTENSION: Self = Self(1 << 9);
    /// Several objects may be on one target.
    pub const OVERSTRIPED: Self = Self(1 << 10);
    /// The copy is not brought up to date with the others.
    pub const NOSYNC: Self = Self(1 << 11);
    /// The data is on the metadata target.
    pub const ON_MDT: Self = Self(1 << 12);

    const NAMES: [(Self, &'static str); 13] = [
        (Self::STALE, "stale"),
        (Self::OFFLINE, "offline"),
        (Self::PREFERRED, "preferred"),
        (Self::UNWRITTEN, "unwritten"),
        (Self::RELEASED, "released"),
        (Self::FOREIGN, "foreign"),
        (Self::LOST, "lost"),
        (Self::UNLOCATED, "unlocated"),
        (Self::CODED, "coded"),
        (Self::EXTENSION, "extension"),
        (Self::OVERSTRIPED, "overstriped"),
        (Self::NOSYNC, "nosync"),
        (Self::ON_MDT, "on-mdt"),
    ];

    /// Whether all of `other` are set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is set.
    #[must_use]
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The flags as a number, for a column of a catalog.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// `flag` where `set`, else nothing.
    #[must_use]
    pub fn when(set: bool, flag: Self) -> Self {
        if set {
            flag
        } else {
            Self::NONE
        }
    }

    /// The names of those that are set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(flag, _)| self.contains(*flag)).map(|(_, name)| name)
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}
