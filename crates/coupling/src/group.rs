//! The ranks of an application, and a version that they write or read.
//!
//! Arrives: nothing. Leaves: types. Must not know: the rules of the directory.

use std::collections::BTreeSet;

use crate::request::{Piece, Role, Variable};
use crate::slabs::Slabs;

/// The ranks of an application.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) size: u32,
    /// Ranks that have joined.
    pub(crate) joined: BTreeSet<u32>,
    pub(crate) closed: BTreeSet<u32>,
    /// The rank that died.
    pub(crate) lost: Option<u32>,
}

impl Group {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.len() == self.size as usize
    }
}

/// A version.
#[derive(Debug, Default)]
pub(crate) struct Version {
    pub(crate) variables: Vec<Variable>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) committed: BTreeSet<u32>,
    pub(crate) released: BTreeSet<u32>,
    /// Where its bytes are, if it was written as a file.
    pub(crate) file: Option<Slabs>,
}

impl Version {
    /// Owner and key of everything that it needs.
    pub(crate) fn places(self) -> Vec<(String, u64)> {
        match self.file {
            Some(file) => file.places().cloned().collect(),
            None => self.pieces.into_iter().map(|piece| (piece.owner, piece.key)).collect(),
        }
    }
}

/// A rank.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) role: Role,
    pub(crate) rank: u32,
    /// Versions that this writer has committed.
    pub(crate) commits: usize,
}
