//! An eventfd that wakes a thread which polls it together with sockets.
//!
//! Arrives: calls of [`Waker::wake`]. Leaves: a descriptor that is readable from the first of them on. Must not know:
//! what for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{eventfd, EventfdFlags};

/// Wakes the thread that polls it.
pub struct Waker {
    descriptor: OwnedFd,
    woken: AtomicBool,
}

impl Waker {
    /// One that is not readable yet.
    pub fn new() -> std::io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor, woken: AtomicBool::new(false) })
    }

    /// Make it readable.
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            // Only a full counter fails, and then the descriptor is readable anyway.
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// Make it unreadable. Call this before checking for work, so that no wake-up is lost in between.
    pub fn clear(&self) {
        if self.woken.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.descriptor, &mut [0_u8; 8]);
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
