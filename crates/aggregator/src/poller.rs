//! Waits for many sockets, and is woken by other threads.
//!
//! Arrives: sockets with their numbers. Leaves: which are ready. Must not know: what they are for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{eventfd, EventfdFlags, Timespec};

/// Sockets handled in one go.
const EVENTS: usize = 128;

/// The number of the waker.
const WAKER: u64 = u64::MAX;

/// Wakes a poller.
#[derive(Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Wake it.
    pub fn wake(&self) {
        // It fails where the counter is full, and then the poller is awake.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// Waits for sockets.
pub struct Poller {
    epoll: OwnedFd,
    waker: Waker,
}

impl Poller {
    /// A poller with its waker.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &*event, EventData::new_u64(WAKER), EventFlags::IN)?;
        Ok(Self { epoll, waker: Waker(event) })
    }

    /// For other threads.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn flags(write: bool) -> EventFlags {
        if write {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        }
    }

    /// Report when it can be read, and written if asked.
    pub fn add(&self, of: impl AsFd, number: u64, write: bool) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, of, EventData::new_u64(number), Self::flags(write))?)
    }

    /// Change what is reported.
    pub fn change(&self, of: impl AsFd, number: u64, write: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, of, EventData::new_u64(number), Self::flags(write))?)
    }

    /// Numbers of sockets that are ready, with whether they can be read and written.
    pub fn wait(&self, timeout: Duration) -> Vec<(u64, bool, bool)> {
        let mut room = [std::mem::MaybeUninit::<Event>::uninit(); EVENTS];
        let timeout = Timespec::try_from(timeout).ok();
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, timeout.as_ref()) else {
            return Vec::new();
        };
        let mut ready = Vec::with_capacity(events.len());
        for event in events.iter() {
            let (flags, number) = (event.flags, event.data.u64());
            if number == WAKER {
                let _ = rustix::io::read(&*self.waker.0, &mut [0_u8; 8]);
                continue;
            }
            let ended = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            ready.push((
                number,
                ended || flags.contains(EventFlags::IN),
                ended || flags.contains(EventFlags::OUT),
            ));
        }
        ready
    }
}
