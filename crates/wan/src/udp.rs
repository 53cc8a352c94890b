//! A connection of the wide-area protocol and the thread that owns it.
//!
//! Arrives: datagrams, messages to send, memory given back, the time. Leaves: datagrams, messages that are whole, what held it back.
//! Must not know: what messages say, TLS.
//!
//! The protocol's core decides everything; this thread only feeds it, and sends what it gives in as few calls as the kernel allows.

mod driver;
pub(crate) mod link;
mod store;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use waystage_protocol::modes::ModeName;
use waystage_protocol::protect::{Side, Suite};

use crate::endpoint::{Endpoint, Post};
use crate::lane::{Holder, Inbox, Message, Status, CONTENT_BYTES};
use crate::socket::Arrived;
use driver::Worker;
use link::Link;

/// Datagrams that may wait for their thread. More are dropped, as a full queue on the way would.
pub(crate) const WAITING_BYTES: usize = 16 << 20;

/// Messages that may be underway: below the extents that a peer may have open.
const MOST_UNDERWAY: usize = 1024;

/// However short the path, so much may wait to be sent: reading must not wait for the network's next turn.
const LEAST_UNDERWAY_BYTES: u64 = 8 * CONTENT_BYTES as u64;

/// Buffers kept for messages to come.
const SPARE_BUFFERS: usize = 32;

/// Jumbo frames; probes find what the path carries.
pub(crate) const LARGEST_DATAGRAM: usize = 8972;

/// Nanoseconds of a clock that never goes back, not zero.
pub(crate) fn now_ns() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let passed = BEGAN.get_or_init(Instant::now).elapsed();
    1_000_000_000 + u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// What both ends have agreed on by TLS.
#[derive(Clone)]
pub(crate) struct Agreed {
    pub(crate) secret: [u8; 32],
    pub(crate) suite: Suite,
    pub(crate) side: Side,
    pub(crate) local_connection: u32,
    pub(crate) peer_connection: u32,
    pub(crate) mode: ModeName,
    /// This end sends no faster.
    pub(crate) rate_bps: f64,
    pub(crate) memory_bytes: u64,
    pub(crate) rtt_ns: u64,
    pub(crate) largest_datagram: usize,
}

/// Where a connection's thread gets what others have for it.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<Mail>,
    wake: Condvar,
    /// Wakes those who wait to send.
    room: Condvar,
}

#[derive(Default)]
struct Mail {
    datagrams: Vec<Arrived>,
    datagram_bytes: usize,
    messages: VecDeque<Vec<u8>>,
    consumed_bytes: u64,
    spare: Vec<Vec<u8>>,
    /// Messages that the peer does not hold yet.
    underway: usize,
    underway_bytes: u64,
    most_underway_bytes: u64,
    senders_waiting: usize,
    close: bool,
    abort: bool,
    sleeping: bool,
    over: bool,
    heard: bool,
    status: Status,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_up(&self, mail: &Mail) {
        if mail.sleeping {
            self.wake.notify_one();
        }
    }
}

impl Post for Mailbox {
    fn datagrams(&self, arrived: Arrived) {
        let mut mail = self.lock();
        if mail.datagram_bytes + arrived.bytes.len() > WAITING_BYTES || mail.over {
            return;
        }
        mail.datagram_bytes += arrived.bytes.len();
        mail.datagrams.push(arrived);
        self.wake_up(&mail);
    }
}

/// The way over UDP.
pub(crate) struct UdpLane {
    mailbox: Arc<Mailbox>,
    endpoint: Arc<Endpoint>,
    number: u32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl UdpLane {
    /// Begin. A client knows the server's address and speaks first; a server learns the client's from the first packet that opens.
    /// None where the connection's number is taken.
    pub(crate) fn start(
        endpoint: Arc<Endpoint>,
        agreed: Agreed,
        peer: Option<SocketAddr>,
        inbox: Arc<Inbox>,
    ) -> Option<Self> {
        let mailbox = Arc::new(Mailbox::default());
        let number = agreed.local_connection;
        mailbox.lock().most_underway_bytes = LEAST_UNDERWAY_BYTES.min(agreed.memory_bytes);
        if !endpoint.add(number, Arc::clone(&mailbox) as Arc<dyn Post>) {
            return None;
        }
        let worker = Worker {
            mailbox: Arc::clone(&mailbox),
            inbox,
            link: Link::new(Arc::clone(endpoint.socket()), agreed, MOST_UNDERWAY),
            held: (now_ns(), [0; Holder::ALL.len()]),
            told: false,
        };
        let spawned = std::thread::Builder::new()
            .name("wan-connection".to_owned())
            .spawn(move || worker.run(peer));
        match spawned {
            Ok(thread) => {
                Some(Self { mailbox, endpoint, number, thread: Mutex::new(Some(thread)) })
            }
            Err(_) => {
                endpoint.remove(number);
                None
            }
        }
    }

    /// Whether a packet of the peer has come within `timeout`.
    pub(crate) fn heard(&self, timeout: Duration) -> bool {
        let mail = self.mailbox.lock();
        let waited =
            self.mailbox.room.wait_timeout_while(mail, timeout, |mail| !mail.heard && !mail.over);
        waited.unwrap_or_else(PoisonError::into_inner).0.heard
    }

    pub(crate) fn send(&self, message: Vec<u8>) -> bool {
        let mut mail = self.mailbox.lock();
        mail.senders_waiting += 1;
        while !mail.over
            && (mail.underway >= MOST_UNDERWAY || mail.underway_bytes >= mail.most_underway_bytes)
        {
            mail = self.mailbox.room.wait(mail).unwrap_or_else(PoisonError::into_inner);
        }
        mail.senders_waiting -= 1;
        if mail.over {
            return false;
        }
        mail.underway += 1;
        mail.underway_bytes += message.len() as u64;
        mail.messages.push_back(message);
        self.mailbox.wake_up(&mail);
        true
    }

    /// Whether the peer holds all messages, or the connection is over.
    pub(crate) fn delivered(&self, timeout: Duration) -> bool {
        let mail = self.mailbox.lock();
        let underway = |mail: &mut Mail| mail.underway > 0 && !mail.over;
        let waited = self.mailbox.room.wait_timeout_while(mail, timeout, underway);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(crate) fn consumed(&self, message: Message) {
        let mut mail = self.mailbox.lock();
        mail.consumed_bytes += message.length as u64;
        if mail.spare.len() < SPARE_BUFFERS {
            mail.spare.push(message.buffer);
        }
        self.mailbox.wake_up(&mail);
    }

    pub(crate) fn status(&self) -> Status {
        self.mailbox.lock().status.clone()
    }

    /// Close when everything has been delivered; returns when that is done, or was given up.
    pub(crate) fn close(&self) {
        let mut mail = self.mailbox.lock();
        mail.close = true;
        self.mailbox.wake_up(&mail);
        drop(mail);
        self.join();
    }

    /// Close at once.
    pub(crate) fn abort(&self) {
        let mut mail = self.mailbox.lock();
        mail.abort = true;
        mail.over = true;
        self.mailbox.room.notify_all();
        self.mailbox.wake_up(&mail);
    }

    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panicked thread has told the process's stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}

impl Drop for UdpLane {
    fn drop(&mut self) {
        self.abort();
        self.join();
        self.endpoint.remove(self.number);
    }
}
