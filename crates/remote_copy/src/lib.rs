//! Copies of files between two hosts, over a channel of `waystage_transport`.
//!
//! Arrives: a server, two paths, options; or a client's request and the directory granted to it. Leaves: a copy whose
//! files are visible under their names only when complete, at either end; counts, problems, the bottleneck. Must not
//! know: sockets, keys, how the protocol decides what to send when.
//!
//! A copy travels in *messages* of some megabytes, each complete in itself, so that nothing waits for data that was
//! lost. The messages are specified in `docs/reference/wide-area-copy.md`.

mod channel;
mod client;
mod compression;
mod controls;
mod copy_state;
mod endpoints;
mod entry;
mod error;
mod external_sort;
mod far;
mod far_delete;
mod far_remove;
mod files;
mod list;
mod privileges;
mod receive;
mod receive_limits;
mod receiver_state;
mod request_filter;
mod send;
mod send_queue;
mod serve;
mod serving;
mod session;
mod tree;
mod tree_client;
mod tree_messages;
mod tree_pages;
mod verdict;
mod wire_parts;

pub use channel::Channel;
pub use client::{Client, Ends, Request};
pub use copy_state::CopyState;
pub use error::WanError;
pub use far_delete::delete;
pub use far_remove::{remove, Selected};
pub use files::{receive_files, send_files};
pub use serve::{names_of, serve};
pub use serving::{Granted, Serving};
pub use session::{CopyOptions, Dry};
pub use tree_client::TreeSession;
pub use tree_messages::{Chosen, TreeAnswer, TreeEntry, TreeRequest};
pub use verdict::Verdict;
