//! Messages between a rank and the aggregator process of its node.
//!
//! Arrives: messages to encode; foreign bytes. Leaves: bytes; messages. Must not know: sockets, memory, MPI.
//!
//! The rank connects and sends `Hello`; the process answers `Welcome`, with the pool's descriptor by SCM_RIGHTS (one
//! memfd, sealed against any change of its size, `pool_bytes` long, to be mapped shared), or `Refused` and closes.
//!
//! For each file: `Attach`, then `SetView` (optional), then operations. An operation: rank 0 asks `ControlPoint`; each
//! rank sends `Adopt` where the map is new to it, then `Announce`, and serves `Pack` and `Unpack` until `Done`. All
//! ranks of the file announce the same operation numbers in the same order; an operation that is repeated after
//! [`Status::Again`] has a new number. A rank that waits and hears nothing for its lease gives the process up.

use crate::message::messages;
use crate::{FileId, Status, Window};

/// A bit of `Attach`'s flags: the rank had attached the file to a process that has ended since.
pub const REATTACHED: u32 = 1 << 16;

/// Data of a rank that go with its announcement: a copy of them costs less than another question and its answer.
pub const INLINE_BYTES: u64 = 8 << 10;

messages! {
    /// From a rank to the process of its node.
    pub enum ToNode {
        /// The first message.
        1 => Hello {
            /// [`crate::VERSION`].
            version: u16,
            /// The value of WAYSTAGE_IO_TOKEN.
            token: String,
            /// The value of WAYSTAGE_IO_APP: the application, as policies know it. Empty: the process's own.
            app: String,
        },
        /// Open a file. Rank 0 creates it where `create` says so, and the others attach after it.
        2 => Attach {
            /// Chosen by rank 0.
            file: FileId,
            /// The absolute path.
            path: Vec<u8>,
            /// Bits of `enum ws_io_flags`.
            flags: u32,
            /// In the file's communicator.
            rank: u32,
            /// Ranks of the file.
            size: u32,
            /// Ranks of the file on this node.
            local_ranks: u32,
            /// This node's index in `addresses`.
            node: u32,
            /// The index of rank 0's node.
            root: u32,
            /// Addresses of the nodes' processes, in the same order on all ranks.
            addresses: Vec<String>,
            /// Hints, as (key, value).
            hints: Vec<(String, String)>,
        },
        /// A view of this rank: `waystage_collective`'s encoding. `view` numbers the rank's views.
        3 => SetView {
            /// The file.
            file: FileId,
            /// Chosen by the rank.
            view: u32,
            /// The encoded view.
            encoded: Vec<u8>,
        },
        /// Rank 0 asks for the server map and, where applications are scheduled, for a grant.
        4 => ControlPoint {
            /// The file.
            file: FileId,
            /// The epoch that was adopted last; 0: none.
            epoch: u64,
            /// Whether the operation writes.
            write: bool,
            /// Estimated bytes of the operation; 0: unknown.
            bytes: u64,
        },
        /// The server map, as `Control` had it and rank 0 has broadcast it.
        5 => Adopt {
            /// The file.
            file: FileId,
            /// The encoded map.
            map: Vec<u8>,
        },
        /// This rank has entered an operation.
        6 => Announce {
            /// The file.
            file: FileId,
            /// The operation's number.
            op: u64,
            /// Of the adopted map.
            epoch: u64,
            /// Whether it writes.
            write: bool,
            /// The rank attached the file anew since its last operation: others may have been in this operation at the
            /// predecessor of the process, so it ends with [`Status::Again`] on all nodes.
            renewed: bool,
            /// The view by which the process may compute the rank's runs (view-based exchange); None: list-based,
            /// `Packed` has lists.
            view: Option<u32>,
            /// The first byte of the operation's data in the view; bytes of data.
            data_offset: u64,
            /// Bytes of this rank's data.
            bytes: u64,
            /// The first byte of the file that the operation touches; with `hull_hi == hull_lo` none.
            hull_lo: u64,
            /// Behind the last byte of the file.
            hull_hi: u64,
            /// All data of the rank, where a view is given and they are at most [`INLINE_BYTES`]; else empty. It may be
            /// asked for them all the same.
            inline: Vec<u8>,
        },
        /// `Pack` was served: the rank's bytes at positions `[from, upto)` are in the image (of a write), and their
        /// runs are in the list (unless the exchange is view-based).
        7 => Packed {
            /// Of the `Pack`.
            request: u64,
            /// Bytes of the list.
            list_bytes: u32,
            /// The position that was reached: the image's size, or less where the list was full.
            upto: u64,
            /// The file offset of the rank's first byte at or after the window's `hi`; u64::MAX: none.
            next: u64,
        },
        /// `Unpack` was served.
        8 => Unpacked {
            /// Of the `Unpack`.
            request: u64,
        },
        /// Rank 0: all ranks have ended the operation.
        9 => Finished {
            /// The file.
            file: FileId,
            /// Whether it wrote.
            write: bool,
            /// Bytes that it moved.
            bytes: u64,
        },
        /// fsync at every aggregator that may have written. Ranks of a node with the same number share one.
        10 => Sync {
            /// The file.
            file: FileId,
            /// Numbers the syncs of the file, the same on all ranks.
            number: u64,
        },
        /// Give up the file.
        11 => Close {
            /// The file.
            file: FileId,
        },
        /// All that was acknowledged is to be in the file.
        12 => Settle {
            /// The file.
            file: FileId,
        },
    }
}

messages! {
    /// From the process to a rank.
    pub enum ToRank {
        /// The answer to `Hello`, with the descriptor of the pool.
        1 => Welcome {
            /// [`crate::VERSION`].
            version: u16,
            /// Where aggregators of other nodes reach this process.
            address: String,
            /// Bytes of the pool.
            pool_bytes: u64,
        },
        /// The answer to a `Hello` that is not admitted. The connection ends.
        2 => Refused {
            /// Version, Refused or Memory.
            status: Status,
            /// A sentence.
            message: String,
        },
        /// The answer to `Attach`.
        3 => Attached {
            /// The file.
            file: FileId,
            /// How the open ended.
            status: Status,
            /// A sentence, where it failed.
            message: String,
            /// Hints in force, as (key, value).
            hints: Vec<(String, String)>,
        },
        /// The answer to `ControlPoint`.
        4 => Control {
            /// The file.
            file: FileId,
            /// How it ended.
            status: Status,
            /// A sentence, where it failed.
            message: String,
            /// The encoded server map.
            map: Vec<u8>,
        },
        /// Copy this rank's bytes of the window into the image (write), and tell their runs (list-based exchange).
        5 => Pack {
            /// To be repeated in `Packed`.
            request: u64,
            /// The file.
            file: FileId,
            /// The operation.
            op: u64,
            /// The window.
            window: Window,
            /// Where the image begins in the pool. No image for a read: only runs are asked for.
            image: Option<u64>,
            /// Where the list goes in the pool.
            list: u64,
            /// Bytes that the list may have; 0: no list is wanted (view-based exchange).
            list_capacity: u32,
            /// The position in the image to go on from.
            from: u64,
        },
        /// Copy this rank's bytes of the window out of the image (read).
        6 => Unpack {
            /// To be repeated in `Unpacked`.
            request: u64,
            /// The file.
            file: FileId,
            /// The operation.
            op: u64,
            /// The window.
            window: Window,
            /// Where the image begins in the pool.
            image: u64,
        },
        /// The operation has ended. After [`Status::Again`] nothing of the image may be touched.
        7 => Done {
            /// The file.
            file: FileId,
            /// The operation.
            op: u64,
            /// How it ended.
            status: Status,
            /// A sentence, where it failed.
            message: String,
            /// Where the file ended, if a read met its end; bytes from there on were not read. u64::MAX: it did not.
            eof: u64,
        },
        /// `Sync` has ended.
        8 => Synced {
            /// The file.
            file: FileId,
            /// Of the `Sync`.
            number: u64,
            /// How it ended.
            status: Status,
            /// A sentence, where it failed.
            message: String,
        },
        /// `Close` has ended.
        9 => Closed {
            /// The file.
            file: FileId,
            /// How it ended.
            status: Status,
            /// A sentence, where it failed.
            message: String,
        },
        /// Sent every quarter of a second to a rank that waits for `Control`, `Done`, `Synced` or `Settled`.
        10 => Alive {},
        /// The answer to `Settle`.
        11 => Settled {
            /// The file.
            file: FileId,
            /// What became of bytes that were acknowledged before they were in the file.
            status: Status,
            /// A sentence, where they could not be written.
            message: String,
        },
    }
}
