//! Messages of collective I/O, as bytes.
//!
//! Arrives: messages to encode; bytes of a peer that may be hostile. Leaves: bytes; messages within bounds, or an error
//! that says what is wrong. Must not know: sockets, files, memory, what an operation is for.
//!
//! [`local`] has the messages between a rank and the aggregator process of its node, over a unix socket; [`peer`] those
//! between the processes, over TCP. Data never travel in local messages: process and ranks share one memory, the
//! *pool*. The data of a [`Window`] form an *image* in it: each byte is at the position of its file offset, so that
//! ranks copy into it side by side and the aggregator writes from it. A [`coverage`] list says which bytes are there.
//! The rejected alternative, a slot for each rank with its pieces packed behind each other, costs a second copy, and a
//! list even where a view says the same.

pub mod coverage;
mod field;
pub mod frame;
pub mod local;
mod message;
pub mod peer;
mod status;
mod window;

pub use field::{FileId, WireError};
pub use status::Status;
pub use window::Window;

/// Version of all messages. Processes of different versions refuse each other.
pub const VERSION: u16 = 5;

#[cfg(test)]
mod tests;
