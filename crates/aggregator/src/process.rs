//! The running process: a thread with the event loop around [`Node`], and the handle of it.
//!
//! Arrives: options; settings of the control plane. Leaves: the process's status, notices, its end. Must not know: what
//! the state machines decide.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::clock::now_ns;
use crate::effect::Notice;
use crate::event_loop::EventLoop;
use crate::options::Options;
use crate::poller::Waker;
use crate::shared::{Command, Shared};
use crate::status::Status;

/// A running aggregator process.
pub struct Aggregator {
    shared: Arc<Shared>,
    waker: Waker,
    address: String,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Aggregator {
    /// Bind the sockets and start. Errors name the socket and what to do.
    pub fn start(options: Options) -> io::Result<Self> {
        let shared = Arc::new(Shared::new()?);
        let mut event_loop = EventLoop::new(options, Arc::clone(&shared))?;
        let (waker, address) = (event_loop.waker(), event_loop.address().to_owned());
        let of = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("ws-aggregator".into()).spawn(move || {
            let end = event_loop.run().map_err(|error| error.to_string());
            drop(event_loop);
            *of.end.lock() = Some(end);
            of.ended.notify_all();
        })?;
        Ok(Self { shared, waker, address, thread: Mutex::new(Some(thread)) })
    }

    /// Where processes of other nodes reach it: `NAME@HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn command(&self, command: Command) {
        self.shared.commands.lock().push(command);
        self.waker.wake();
    }

    /// Wait for the end, at most for `timeout`: None while it runs.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), String>> {
        let until = Instant::now().checked_add(timeout);
        let mut end = self.shared.end.lock();
        while end.is_none() {
            let late = match until {
                Some(until) => self.shared.ended.wait_until(&mut end, until).timed_out(),
                None => {
                    self.shared.ended.wait(&mut end);
                    false
                }
            };
            if late {
                break;
            }
        }
        end.clone()
    }

    /// End it. Operations in progress fail at their ranks.
    pub fn cancel(&self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// What it does at the time.
    pub fn status(&self) -> Status {
        self.shared.status.lock().clone()
    }

    /// What has happened since the last call.
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.take_notices()
    }

    /// A descriptor that can be read while notices wait; never read it.
    pub fn noticed(&self) -> BorrowedFd<'_> {
        self.shared.noticed()
    }

    /// Aggregators of the application's next operations, by name or address; none: the default.
    pub fn set_server_map(&self, app: &str, aggregators: Vec<String>) {
        self.command(Command::SetServerMap(app.to_owned(), aggregators));
    }

    /// Let one operation of the application begin until `until_ns` (CLOCK_MONOTONIC), with this weight.
    pub fn grant(&self, app: &str, weight: u32, until_ns: u64) {
        self.command(Command::Grant(app.to_owned(), weight, until_ns));
    }

    /// Whether the application's operations wait for grants; to be repeated within 30 s.
    pub fn set_scheduled(&self, app: &str, scheduled: bool) {
        self.command(Command::SetScheduled(app.to_owned(), scheduled));
    }

    /// The clock of [`Aggregator::grant`].
    pub fn now_ns() -> u64 {
        now_ns()
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        self.cancel();
    }
}
