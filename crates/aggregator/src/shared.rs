//! What the event loop shares with other threads.
//!
//! Arrives: commands. Leaves: status, notices, the end. Must not know: who reads them.

use std::net::TcpStream;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::effect::Notice;
use crate::status::Status;

/// What other threads ask of the loop.
pub(crate) enum Command {
    /// A process of another node was admitted.
    Accepted(TcpStream),
    /// A connection was made, or was not.
    Connected(Arc<str>, Option<TcpStream>),
    SetServerMap(String, Vec<String>),
    Grant(String, u32, u64),
    SetScheduled(String, bool),
    Stop,
}

/// Notices that wait for the control plane; older ones are dropped.
const MOST_NOTICES: usize = 10_000;

#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) commands: Mutex<Vec<Command>>,
    pub(crate) status: Mutex<Status>,
    pub(crate) notices: Mutex<Vec<Notice>>,
    pub(crate) end: Mutex<Option<Result<(), String>>>,
    pub(crate) ended: Condvar,
}

impl Shared {
    pub(crate) fn notice(&self, notice: Notice) {
        let mut notices = self.notices.lock();
        if notices.len() < MOST_NOTICES {
            notices.push(notice);
        }
    }
}
