//! What the event loop shares with other threads.
//!
//! Arrives: commands. Leaves: status, notices, the end. Must not know: who reads them.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::event::{eventfd, EventfdFlags};

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

pub(crate) struct Shared {
    pub(crate) commands: Mutex<Vec<Command>>,
    pub(crate) status: Mutex<Status>,
    notices: Mutex<Vec<Notice>>,
    /// An eventfd that can be read while notices wait.
    noticed: OwnedFd,
    pub(crate) end: Mutex<Option<Result<(), String>>>,
    pub(crate) ended: Condvar,
}

impl Shared {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            commands: Mutex::default(),
            status: Mutex::default(),
            notices: Mutex::default(),
            noticed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            end: Mutex::default(),
            ended: Condvar::default(),
        })
    }

    pub(crate) fn notice(&self, notice: Notice) {
        let mut notices = self.notices.lock();
        if notices.len() < MOST_NOTICES {
            notices.push(notice);
        }
        // It fails where the counter is full, and then the descriptor can be read.
        let _ = rustix::io::write(&self.noticed, &1_u64.to_ne_bytes());
    }

    pub(crate) fn take_notices(&self) -> Vec<Notice> {
        let mut notices = self.notices.lock();
        let _ = rustix::io::read(&self.noticed, &mut [0_u8; 8]);
        std::mem::take(&mut *notices)
    }

    pub(crate) fn noticed(&self) -> BorrowedFd<'_> {
        self.noticed.as_fd()
    }
}
