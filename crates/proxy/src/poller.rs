//! Waiting for many sockets at once, to the microsecond.
//!
//! Arrives: sockets with their numbers. Leaves: which of them are ready. Must not know: what they are for.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Sockets looked at in one go.
const EVENTS: usize = 256;

pub(super) struct Poller {
    epoll: OwnedFd,
}

/// A socket is ready.
pub(super) struct Ready {
    pub(super) token: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) failed: bool,
}

impl Poller {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Tell when it can be read, as long as it can.
    pub(super) fn watch_level(&self, of: impl AsFd, token: u64) -> std::io::Result<()> {
        Ok(epoll::add(&self.epoll, of, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Tell once when it becomes ready for anything.
    pub(super) fn watch_edge(&self, of: impl AsFd, token: u64) -> std::io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, of, EventData::new_u64(token), flags)?)
    }

    /// Those that close their descriptor need not be forgotten.
    pub(super) fn forget(&self, of: impl AsFd) {
        // It fails where it was not watched, which is what is wanted.
        let _ = epoll::delete(&self.epoll, of);
    }

    /// Wait, at most for `timeout` if there is one. `epoll_wait` alone counts milliseconds.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Vec<Ready> {
        if timeout != Some(Duration::ZERO) {
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let mut fds = [PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN)];
            let _ = poll(&mut fds, timeout.as_ref());
        }
        let mut room = [std::mem::MaybeUninit::<Event>::uninit(); EVENTS];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, Some(&none)) else {
            return Vec::new();
        };
        let ready = |event: &Event| {
            let flags = event.flags;
            Ready {
                token: event.data.u64(),
                readable: flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP),
                writable: flags.intersects(EventFlags::OUT | EventFlags::HUP),
                failed: flags.contains(EventFlags::ERR),
            }
        };
        events.iter().map(ready).collect()
    }
}
