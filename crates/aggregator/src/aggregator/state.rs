//! What an aggregator holds of a file and of its operation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use waystage_collective::behind::{Behind, Entry};
use waystage_collective::{Domains, ServerMap, View};
use waystage_collective_wire::peer::RankRange;
use waystage_collective_wire::Window;

use crate::coverage::Coverage;
use crate::effect::{LinkId, Outcome};

/// A file as nodes attached it.
pub(super) struct File {
    pub(super) path: Vec<u8>,
    pub(super) flags: u32,
    pub(super) app: Arc<str>,
    pub(super) nodes: u32,
    pub(super) window_bytes: u64,
    pub(super) links: HashMap<LinkId, u32>,
    pub(super) views: HashMap<(LinkId, u32), Arc<View>>,
    /// None until it has been opened.
    pub(super) open: Option<Outcome>,
    pub(super) op: Option<Op>,
    /// Nodes whose connection ended without a farewell, since when (0: since the last tick).
    pub(super) absent: BTreeMap<u32, u64>,
    /// The last operation that ended, for nodes that announce it late.
    pub(super) ended: Option<(u64, Outcome)>,
    /// Nodes that have lost a rank, with a sentence.
    pub(super) bereft: BTreeMap<u32, String>,
    /// Storage requests that hang: nothing newer may be written before they end.
    pub(super) hung: HashSet<u64>,
    /// What the own node keeps to this aggregator, of the operation of this number.
    pub(super) kept: Option<(u64, Part)>,
    /// Operations of these epochs are refused.
    pub(super) fenced: u64,
    /// The last read's hull and direction, for what is read ahead.
    pub(super) last_read: Option<Range<u64>>,
    /// Windows that are acknowledged before they are in the file, and copies of others'.
    pub(super) behind: Behind,
    /// Their memory.
    pub(super) unwritten: BTreeMap<Entry, Unwritten>,
    /// An error of acknowledged bytes, and the nodes that have been answered with it.
    pub(super) failed: Option<(Outcome, HashSet<LinkId>)>,
}

/// A window whose bytes are in memory until they are in the file.
pub(super) struct Unwritten {
    pub(super) window: Window,
    pub(super) image: u64,
    pub(super) coverage: Coverage,
    pub(super) bytes: u64,
    /// See `Transfer`.
    pub(super) piece: u64,
    pub(super) aggregators: usize,
    pub(super) job: Option<u64>,
}

/// What a node announced.
pub(super) struct Part {
    pub(super) hull: Range<u64>,
    pub(super) views: Option<Vec<RankRange>>,
    /// All bytes of `views`, where nothing is to be pulled; else empty.
    pub(super) inline: Vec<u8>,
    /// No byte of the node at or after the windows pulled so far is before this offset.
    pub(super) reach: u64,
}

pub(super) struct Op {
    pub(super) number: u64,
    pub(super) map: ServerMap,
    pub(super) index: usize,
    pub(super) write: bool,
    /// Whether its windows may be acknowledged before they are in the file.
    pub(super) behind: bool,
    pub(super) parts: BTreeMap<LinkId, Part>,
    pub(super) domains: Option<Domains>,
    /// The bytes that the own node keeps to this aggregator; those before `kept_at` have been pulled.
    pub(super) kept: Option<Part>,
    pub(super) kept_at: u64,
    /// Windows before this offset have been pulled.
    pub(super) at: u64,
    pub(super) windows: Vec<OpWindow>,
    pub(super) outcome: Outcome,
    pub(super) eof: u64,
    /// Since when announcements are missing (0: since the last tick).
    pub(super) since_ns: u64,
}

pub(super) struct OpWindow {
    pub(super) pull: u64,
    pub(super) window: Window,
    /// Whether it is of `Op::kept`.
    pub(super) kept: bool,
    pub(super) image: u64,
    /// Nodes whose answer is missing.
    pub(super) waiting: HashSet<LinkId>,
    /// Nodes whose bytes are on their way into the image.
    pub(super) receiving: HashSet<LinkId>,
    pub(super) coverage: Coverage,
    /// Of a read: what each node wants.
    pub(super) wanted: HashMap<LinkId, Coverage>,
    pub(super) phase: Phase,
}

#[derive(PartialEq, Eq, Clone, Copy)]
pub(super) enum Phase {
    Pulling,
    /// Another aggregator gets a copy.
    Copying,
    Storage,
    Delivering,
}
