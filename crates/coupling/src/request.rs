//! What ranks ask of the directory of a coupled name, and what it answers.
//!
//! Arrives: nothing. Leaves: types. Must not know: the rules of the directory, how messages are encoded.

use crate::region::Region;

/// Most pieces of a version.
pub const PIECES_MOST: usize = 1 << 20;
/// Most variables of a version.
pub const VARIABLES_MOST: usize = 1 << 16;
/// Most versions that may be held.
pub const DEPTH_MOST: u32 = 1 << 16;

/// A connection of a rank.
pub type Connection = u64;

/// What a rank does with the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Puts and commits.
    Writer,
    /// Gets and releases.
    Reader,
}

impl Role {
    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Reader => "reader",
        }
    }
}

/// An array of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Type of an element, as NumPy's `dtype.str`, e.g. `<f8`; the directory only compares it.
    pub element: String,
    /// Bytes of an element.
    pub element_bytes: u32,
    /// Cells in each dimension, of all ranks together.
    pub shape: Vec<u64>,
}

/// A box of an array that one process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The variable, by its place in the commit or in the answer.
    pub variable: u32,
    /// Its cells, which are stored in C order.
    pub region: Region,
    /// Address of the process that holds it.
    pub owner: String,
    /// Its key there.
    pub key: u64,
}

/// What a rank asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Be `rank` of `size` writers or readers; `depth` is the first writer's.
    Join {
        /// Writer or reader.
        role: Role,
        /// Rank in its application.
        rank: u32,
        /// Ranks of its application.
        size: u32,
        /// Versions that may be held, at least 1.
        depth: u32,
    },
    /// A writer is about to put into `version`.
    Admit {
        /// The version.
        version: u64,
    },
    /// A writer has put all that it has of `version`.
    Commit {
        /// The version.
        version: u64,
        /// The arrays.
        variables: Vec<Variable>,
        /// The boxes.
        pieces: Vec<Piece>,
    },
    /// A reader needs a box of a variable.
    Find {
        /// The version; it is waited for.
        version: u64,
        /// The variable.
        variable: String,
        /// The box; None for the variable alone.
        region: Option<Region>,
    },
    /// A reader needs the first version above `after`, the oldest for None.
    Next {
        /// A version.
        after: Option<u64>,
    },
    /// A reader has read `version`.
    Release {
        /// The version.
        version: u64,
    },
    /// A writer writes a version as a file. It waits until all writers have committed the version before.
    Open {
        /// The version, to which the writer was admitted.
        version: u64,
    },
    /// Where the bytes of a version are that is a file; see [`crate::slabs`].
    Locate {
        /// The version.
        version: u64,
        /// The first unit.
        first: u64,
        /// How many units.
        units: u64,
        /// A writer is about to write up to this byte: units that no process holds are given to it.
        write: Option<u64>,
    },
    /// A writer has memory for units that it was given.
    Provide {
        /// The version.
        version: u64,
        /// The first of these units.
        first: u64,
        /// Address of the process that holds them.
        owner: String,
        /// Their key there.
        key: u64,
    },
    /// A writer sets the number of bytes of a version that is a file.
    Resize {
        /// The version.
        version: u64,
        /// How many.
        bytes: u64,
    },
    /// A writer has written all that it has of a version that is a file.
    CommitFile {
        /// The version.
        version: u64,
        /// Whether the next version begins with the bytes of this one.
        keep: bool,
    },
    /// The rank does not wait any longer for the answer to an earlier request.
    Cancel {
        /// Number of that request.
        request: u64,
    },
    /// A writer waits until no version is held that readers still need.
    Drain,
    /// The rank has finished.
    Close,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The request makes no sense.
    Argument,
    /// A rank died.
    Lost,
    /// No such variable in the version, or the version has left.
    NoSuchVariable,
    /// All writers have closed and the version will not come.
    Ended,
    /// The process of the node may not hold more.
    Memory,
}

/// Consecutive units of a version's bytes, in the memory of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slab {
    /// The first unit.
    pub first: u64,
    /// How many units.
    pub units: u64,
    /// Address of the process that holds them, and their key there; None for units that the asking writer was given.
    pub place: Option<(String, u64)>,
    /// Of units that the asking writer was given: where their bytes are so far.
    pub base: Option<(String, u64)>,
    /// Whether they belong to an earlier version too: a writer that looks again may find them elsewhere.
    pub shared: bool,
}

/// What a version that is a file has of the units that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the version.
    pub bytes: u64,
    /// What follows holds up to this unit: behind it, the asking rank has to ask again.
    pub end: u64,
    /// Held units, in order. The others have never been written: they are 0.
    pub slabs: Vec<Slab>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// The next version; of a commit, the version that it completed.
    Version(u64),
    /// A variable and the pieces of the box asked for.
    Found(Variable, Vec<Piece>),
    /// Bytes of a version that is a file.
    Slabs(Found),
    /// It failed.
    Failed(Why, String),
}

/// What the caller carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer request `request` of a connection.
    Answer(Connection, u64, Answer),
    /// The pieces with these keys are no longer needed at `owner`.
    Free {
        /// Address of the process.
        owner: String,
        /// Keys there.
        keys: Vec<u64>,
    },
}
