//! Messages between aggregator processes.
//!
//! Arrives: messages to encode; foreign bytes. Leaves: bytes; messages. Must not know: sockets, storage.
//!
//! The process that connects sends `Hello`; the other answers `Challenge`; then `Proof`. A proof is BLAKE3, keyed by
//! the token, over both nonces, so that the token is never on the wire. From then on both may send any message. `Data`,
//! `ReadData` and `Copy` are followed by `bytes` raw bytes, those of the coverage in order.

pub use crate::field::RankRange;
use crate::message::messages;
use crate::{FileId, Status, Window};

messages! {
    /// From a process to another.
    pub enum Peer {
        /// The first message of the process that connects.
        1 => Hello {
            /// [`crate::VERSION`].
            version: u16,
            /// Random.
            nonce: [u8; 32],
            /// Where it is reached itself.
            address: String,
        },
        /// The answer: proves the token over the nonce of `Hello`.
        2 => Challenge {
            /// [`crate::VERSION`].
            version: u16,
            /// Random.
            nonce: [u8; 32],
            /// Keyed BLAKE3 of "accept", both nonces.
            proof: [u8; 32],
        },
        /// Keyed BLAKE3 of "connect", both nonces, the address of `Hello`.
        3 => Proof {
            /// The proof.
            proof: [u8; 32],
        },
        /// Sent where nothing else is to be said, so that the other knows this process alive.
        4 => Ping {},
        /// Node to aggregator: a file that the next messages are about. Repeated on each new connection.
        5 => Attach {
            /// The file.
            file: FileId,
            /// Its path.
            path: Vec<u8>,
            /// Bits of `enum ws_io_flags`; the file exists.
            flags: u32,
            /// The application.
            app: String,
            /// The sender's index.
            node: u32,
            /// Nodes of the file.
            nodes: u32,
            /// Bytes of a window.
            window_bytes: u64,
        },
        /// Node to aggregator: a view of its ranks.
        6 => View {
            /// The file.
            file: FileId,
            /// The node's number of it.
            view: u32,
            /// The encoded view.
            encoded: Vec<u8>,
        },
        /// Node to aggregator: all ranks of the node have entered the operation.
        7 => Announce {
            /// The file.
            file: FileId,
            /// The operation.
            op: u64,
            /// The encoded server map, whose epoch is that of the operation.
            map: Vec<u8>,
            /// This aggregator's index in the map.
            index: u32,
            /// Whether it writes.
            write: bool,
            /// The hull of the node's ranks; empty where `hi == lo`.
            hull_lo: u64,
            /// Behind the last byte.
            hull_hi: u64,
            /// Whether it may be acknowledged with a copy at another aggregator, before it is in the file.
            behind: bool,
            /// The ranks' data by their views, where all of the node's exchange is view-based.
            views: Option<Vec<RankRange>>,
            /// The bytes of `views`, one range after the other, where nothing is to be pulled; else empty.
            inline: Vec<u8>,
        },
        /// Aggregator to node: send what your ranks have in the window (write), or its coverage (read).
        8 => Pull {
            /// The file.
            file: FileId,
            /// The operation.
            op: u64,
            /// Numbers the pulls of the aggregator.
            pull: u64,
            /// The window.
            window: Window,
        },
        /// Node to aggregator: the answer, with the bytes of a write behind it.
        9 => Data {
            /// Of the `Pull`.
            pull: u64,
            /// What the node's ranks have; None where the aggregator computes it by views. Empty: nothing; else a byte,
            /// 0 or 1, and a coverage list or a bitmap with a bit for each position, lowest first.
            coverage: Option<Vec<u8>>,
            /// The file offset of the first byte that the node has at or after the window's `hi`; u64::MAX: none.
            next: u64,
            /// Raw bytes behind this message.
            bytes: u64,
        },
        /// Aggregator to node: what was read, in the order of the coverage.
        10 => ReadData {
            /// Of the `Pull`.
            pull: u64,
            /// Raw bytes behind this message.
            bytes: u64,
        },
        /// Aggregator to node: its part of the operation has ended.
        11 => OpDone {
            /// The file.
            file: FileId,
            /// The operation.
            op: u64,
            /// How.
            status: Status,
            /// A sentence, where it failed.
            message: String,
            /// Where a read met the end of the file; u64::MAX: nowhere.
            eof: u64,
        },
        /// Node to aggregator: fsync.
        12 => Sync {
            /// The file.
            file: FileId,
            /// Its number.
            number: u64,
        },
        /// The answer to `Sync`.
        13 => Synced {
            /// The file.
            file: FileId,
            /// Its number.
            number: u64,
            /// How.
            status: Status,
            /// A sentence, where it failed.
            message: String,
        },
        /// Node to aggregator: no more of this file.
        14 => Detach {
            /// The file.
            file: FileId,
        },
        /// Node to the node of rank 0: this aggregator was lost.
        15 => Suspect {
            /// The file.
            file: FileId,
            /// Its address.
            address: String,
        },
        /// Node of rank 0 to an aggregator that is left out: write nothing more of epochs up to this one.
        16 => Fence {
            /// The file.
            file: FileId,
            /// The last epoch that ends.
            epoch: u64,
        },
        /// The answer to `Fence`, once no write of these epochs is in progress.
        17 => Fenced {
            /// The file.
            file: FileId,
            /// The epoch.
            epoch: u64,
        },
        /// Node to aggregator: end the operation; answered by `OpDone` once no write of it is in progress.
        18 => Abort {
            /// The file.
            file: FileId,
            /// The operation.
            op: u64,
        },
        /// Node to aggregator: a rank of the file has ended without closing it. Operations end with
        /// [`Status::Lost`], until the node announces one itself.
        19 => RankLost {
            /// The file.
            file: FileId,
            /// A sentence.
            message: String,
        },
        /// Aggregator to aggregator: keep a copy of this window until it is written.
        20 => Offer {
            /// The file.
            file: FileId,
            /// Numbers the copies of this connection.
            copy: u64,
            /// The epoch of the operation.
            epoch: u64,
            /// The sender's address.
            owner: String,
            /// The window.
            window: Window,
            /// What of it there is; see `Data`.
            coverage: Vec<u8>,
            /// Bytes of that.
            bytes: u64,
        },
        /// The answer to `Offer`; or to `Copy`, where its bytes are no longer wanted.
        21 => Taken {
            /// The file.
            file: FileId,
            /// Of the `Offer`.
            copy: u64,
            /// Whether there is room for it.
            taken: bool,
        },
        /// The bytes of an offer that was taken, in the order of the coverage.
        22 => Copy {
            /// The file.
            file: FileId,
            /// Of the `Offer`.
            copy: u64,
            /// Raw bytes behind this message.
            bytes: u64,
        },
        /// The answer to `Copy`: all bytes are there.
        23 => Kept {
            /// The file.
            file: FileId,
            /// Of the `Offer`.
            copy: u64,
        },
        /// The copy is needed no longer.
        24 => Written {
            /// The file.
            file: FileId,
            /// Of the `Offer`.
            copy: u64,
            /// How the write ended.
            status: Status,
            /// A sentence, where it failed.
            message: String,
        },
        /// Node to aggregator: write what is behind, and the copies of aggregators that were lost.
        25 => Settle {
            /// The file.
            file: FileId,
            /// Its number.
            number: u64,
            /// The last epoch that the node knows.
            epoch: u64,
            /// Addresses of aggregators that do not answer.
            lost: Vec<String>,
        },
        /// The answer to `Settle`, once nothing is behind.
        26 => Settled {
            /// The file.
            file: FileId,
            /// Its number.
            number: u64,
            /// What became of acknowledged bytes, since the last answer to this node.
            status: Status,
            /// A sentence, where they could not be written.
            message: String,
        },
    }
}
