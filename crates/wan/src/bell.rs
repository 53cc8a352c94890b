//! A bell that one thread waits for together with sockets, and that others ring.
//!
//! Arrives: rings. Leaves: a descriptor that is readable since the first of them. Must not know: what for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{eventfd, EventfdFlags};

pub(crate) struct Bell {
    descriptor: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> std::io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor, rung: AtomicBool::new(false) })
    }

    /// There is something to look at.
    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            // Only a counter that is full fails, and then the descriptor is readable anyway.
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// To be called before looking at what it was rung for.
    pub(crate) fn silence(&self) {
        if self.rung.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.descriptor, &mut [0_u8; 8]);
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
