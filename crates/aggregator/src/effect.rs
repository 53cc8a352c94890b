//! What the state machines want done.
//!
//! Leaves: messages to ranks and processes, data to move, storage requests. Must not know: sockets, files, memory.

use std::sync::Arc;

use waystage_collective_wire::local::ToRank;
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Status, Window};

use crate::coverage::Coverage;

/// A rank's connection.
pub type RankId = u64;

/// The connection of another node's process to this aggregator. [`OWN`] is this process's gatherer.
pub type LinkId = u64;

/// This process as one of its aggregator's nodes.
pub const OWN: LinkId = 0;

/// A storage request: bytes of an image, at their offsets in the file.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// To be repeated in the answer.
    pub job: u64,
    /// The file.
    pub file: FileId,
    /// The application, for its weight.
    pub app: Arc<str>,
    /// Whether it writes.
    pub write: bool,
    /// The window.
    pub window: Window,
    /// Where the image begins in the pool.
    pub image: u64,
    /// What to move.
    pub coverage: Coverage,
    /// Its bytes.
    pub bytes: u64,
    /// Storage requests end at multiples of it in the file.
    pub piece: u64,
    /// How many aggregators share the storage's targets.
    pub aggregators: usize,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send a rank a message.
    ToRank(RankId, ToRank),
    /// End the connection of a rank that broke the protocol.
    DropRank(RankId, &'static str),
    /// Send the aggregator at an address a message; connect if needed.
    ToAggregator(Arc<str>, Peer),
    /// Send a node a message on the connection it made.
    ToNode(LinkId, Peer),
    /// End the connection of a node that broke the protocol.
    DropNode(LinkId, &'static str),
    /// Send an aggregator `Data` with these runs of the image behind it, then report `data_sent(address, pull)`.
    SendData {
        /// The aggregator.
        address: Arc<str>,
        /// The message.
        message: Peer,
        /// Its pull.
        pull: u64,
        /// Where the image begins in the pool.
        image: u64,
        /// The runs.
        coverage: Coverage,
    },
    /// Send another aggregator `Copy` with these runs of the image behind it.
    SendCopy {
        /// The aggregator.
        address: Arc<str>,
        /// The message.
        message: Peer,
        /// Where the image begins in the pool.
        image: u64,
        /// The runs.
        coverage: Coverage,
    },
    /// Send a node `ReadData` with these runs of the image behind it, then report `delivered(link, pull)`.
    SendRead {
        /// The node.
        link: LinkId,
        /// The message.
        message: Peer,
        /// The pull.
        pull: u64,
        /// Where the image begins in the pool.
        image: u64,
        /// The runs.
        coverage: Coverage,
    },
    /// An aggregator of this process pulls from this node's ranks, straight into its image.
    PullOwn {
        /// The file.
        file: FileId,
        /// The operation.
        op: u64,
        /// The pull.
        pull: u64,
        /// The window.
        window: Window,
        /// Where the image begins in the pool.
        image: u64,
    },
    /// Put bytes that came with an announcement into an image.
    Fill {
        /// Where the image begins in the pool.
        image: u64,
        /// (position, bytes) in the image.
        runs: Vec<(u64, u64)>,
        /// Their bytes, one run after the other.
        data: Vec<u8>,
    },
    /// This node's bytes of the operation that it announces next go by the own aggregator, in any domain.
    KeepOwn {
        /// The file.
        file: FileId,
        /// The operation.
        op: u64,
        /// From the first to past the last of them.
        hull: std::ops::Range<u64>,
    },
    /// This node's answer to a pull of the own aggregator: everything is in the image.
    DataOwn {
        /// The pull.
        pull: u64,
        /// What there is.
        coverage: Coverage,
        /// See [`Peer::Data`].
        next: u64,
    },
    /// The own aggregator has read for this node.
    ReadOwn {
        /// The pull.
        pull: u64,
    },
    /// This node's ranks have copied what was read.
    ReadTaken {
        /// The pull.
        pull: u64,
    },
    /// Open a file for its ranks, and say how it went: `opened`.
    Open {
        /// The file.
        file: FileId,
        /// The path.
        path: Vec<u8>,
        /// Bits of `enum ws_io_flags`.
        flags: u32,
    },
    /// Forget an open file.
    Forget(FileId),
    /// Create a file for the rank that opens it, then `created`.
    Create {
        /// The rank.
        rank: RankId,
        /// The file.
        file: FileId,
        /// The path.
        path: Vec<u8>,
        /// Bits of `enum ws_io_flags`.
        flags: u32,
    },
    /// Delete a file that was closed.
    Unlink(Vec<u8>),
    /// Move data, then `transferred`; `late` before it where the storage hangs.
    Transfer(Transfer),
    /// Begin no further request of a transfer, whose operation has ended.
    Cancel(u64),
    /// fsync, then `synced`.
    Fsync {
        /// To be repeated in the answer.
        job: u64,
        /// The file.
        file: FileId,
    },
    /// Read ahead, if the storage can.
    Prefetch {
        /// The file.
        file: FileId,
        /// The first byte.
        lo: u64,
        /// Behind the last byte.
        hi: u64,
    },
    /// Try to reach the aggregator at an address, then `reached` or `aggregator_lost`.
    Probe(Arc<str>),
    /// For the control plane.
    Notice(Notice),
}

/// Times of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// From the request to the grant.
    pub waited_ns: u64,
    /// From then to the end on all ranks.
    pub took_ns: u64,
}

/// What the control plane learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The first rank of an application has come.
    AppStarted(Arc<str>),
    /// Its last rank has gone.
    AppFinished(Arc<str>),
    /// An application is at a control point (START_IO).
    Requested {
        /// The application.
        app: Arc<str>,
        /// The path.
        path: Vec<u8>,
        /// Whether it writes.
        write: bool,
        /// Estimated bytes; 0: unknown.
        bytes: u64,
    },
    /// It has ended the operation (FINISH_IO).
    Completed {
        /// The application.
        app: Arc<str>,
        /// Whether it wrote.
        write: bool,
        /// Bytes moved.
        bytes: u64,
        /// How long it waited and took.
        times: Times,
    },
    /// A server map came into force.
    MapAdopted {
        /// The application.
        app: Arc<str>,
        /// The epoch.
        epoch: u64,
        /// The aggregators.
        aggregators: Vec<String>,
    },
    /// An aggregator does not answer.
    AggregatorLost {
        /// Its address.
        address: Arc<str>,
    },
}

/// How something ended, with a sentence where it failed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Outcome {
    /// How.
    pub status: Status,
    /// A sentence.
    pub message: String,
}

impl Outcome {
    /// Done.
    pub fn ok() -> Self {
        Self::default()
    }

    /// Failed.
    pub fn failed(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The worse of two outcomes of parts of one operation.
    pub fn combine(&mut self, other: Self) {
        if self.status.worse(other.status) != self.status {
            *self = other;
        }
    }
}
