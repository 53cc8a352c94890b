//! What objects lie on.

use std::fmt;

use super::Flags;

/// A kind of file system, by the way it tells layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Lustre, and what answers `lustre.lov` in its form.
    Lustre,
    /// CephFS.
    Ceph,
    /// GlusterFS.
    Gluster,
    /// Gfarm.
    Gfarm,
    /// BeeGFS.
    BeeGfs,
    /// A file system on a device of this machine.
    Local,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Lustre, Self::Ceph, Self::Gluster, Self::Gfarm, Self::BeeGfs, Self::Local];

    /// The name that files, Python and the command line use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lustre => "lustre",
            Self::Ceph => "ceph",
            Self::Gluster => "gluster",
            Self::Gfarm => "gfarm",
            Self::BeeGfs => "beegfs",
            Self::Local => "local",
        }
    }

    /// Whether it keeps a number that changes whenever a file is laid out anew, its inode and times staying as they were.
    #[must_use]
    pub fn keeps_generation(self) -> bool {
        self == Self::Lustre
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Something that serves objects at its own pace: what a loader binds to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// A Lustre object storage target, by index.
    Ost(u32),
    /// The metadata target of a Lustre file; its layout does not say which.
    Mdt,
    /// A pool of CephFS, which places each object by its name.
    Pool(Box<str>),
    /// A GlusterFS brick.
    Brick {
        /// The server.
        host: Box<str>,
        /// The brick's folder there; names are bytes.
        root: Box<[u8]>,
    },
    /// A set of GlusterFS bricks under an erasure code, by the volume's name for it.
    Disperse(Box<str>),
    /// A storage node, by name.
    Host(Box<str>),
    /// A BeeGFS storage target.
    BeeGfs {
        /// The target's number.
        target: u16,
        /// The number of its node.
        node: u16,
        /// The name of its node.
        host: Box<str>,
    },
    /// A block device of this machine.
    Device {
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ost(index) => write!(f, "ost:{index}"),
            Self::Mdt => f.write_str("mdt"),
            Self::Pool(name) => write!(f, "pool:{name}"),
            Self::Brick { host, root } => {
                write!(f, "brick:{host}:{}", String::from_utf8_lossy(root))
            }
            Self::Disperse(name) => write!(f, "disperse:{name}"),
            Self::Host(name) => write!(f, "host:{name}"),
            Self::BeeGfs { target, host, .. } => write!(f, "beegfs:{target}@{host}"),
            Self::Device { major, minor } => write!(f, "device:{major}:{minor}"),
        }
    }
}

/// How the target calls an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ObjectId {
    /// It follows from the file, or is not told.
    #[default]
    Implied,
    /// A Lustre `ost_id` as its two words.
    Lustre(u64, u64),
    /// A path on the target.
    Path(Box<[u8]>),
}

/// A piece of a file as its target stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where it lies; None where `flags` say why there is no such place.
    pub target: Option<Target>,
    /// What it is called there.
    pub id: ObjectId,
    /// What is the matter with it alone.
    pub flags: Flags,
}

impl Object {
    /// An object on `target` whose name is implied.
    #[must_use]
    pub fn on(target: Target) -> Self {
        Self { target: Some(target), id: ObjectId::Implied, flags: Flags::NONE }
    }

    /// No object, and why.
    #[must_use]
    pub fn absent(flags: Flags) -> Self {
        Self { target: None, id: ObjectId::Implied, flags }
    }
}
