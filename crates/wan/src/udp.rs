//! A connection of the wide-area protocol and the thread that owns it.
//!
//! Arrives: datagrams, messages to send, memory given back, the time. Leaves: datagrams, messages that are whole, what held it back.
//! Must not know: what messages say, TLS.
//!
//! The protocol's core decides everything; this thread only feeds it, and sends what it gives in as few calls as the kernel allows.

mod driver;
pub(crate) mod link;
mod store;

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::congestion::{Controller, Mode};
use waystage_protocol::protect::{Side, Suite};

use crate::bell::Bell;
use crate::endpoint::Endpoint;
use crate::lane::{Holder, Inbox, Message, Status, CONTENT_BYTES, MOST_BYTES};
use crate::member::Room;
use crate::seat::Seat;
use crate::socket::Socket;
use driver::Worker;
use link::Link;

/// Messages that may be underway: below the extents that a peer may have open.
const MOST_UNDERWAY: usize = 1024;

/// However short the path, so much may wait to be sent: reading must not wait for the network's next turn.
const LEAST_UNDERWAY_BYTES: u64 = 8 * CONTENT_BYTES as u64;

/// Buffers kept for messages to come, at most: what they take is memory of the connection as well.
const SPARE_BUFFERS: usize = 32;

/// As many as a connection of this memory keeps.
fn spare_buffers(memory_bytes: u64) -> usize {
    let fit = memory_bytes / 8 / MOST_BYTES as u64;
    usize::try_from(fit).unwrap_or(SPARE_BUFFERS).clamp(1, SPARE_BUFFERS)
}

const DAY: Duration = Duration::from_secs(86_400);

/// Jumbo frames; probes find what the path carries.
pub(crate) const LARGEST_DATAGRAM: usize = 8972;

/// Nanoseconds of a clock that never goes back, not zero. It began as the time of day (UTC), so that flows of hosts that know it look at a path
/// at the same moments; a clock that is set later changes nothing here.
pub(crate) fn now_ns() -> u64 {
    static BEGAN: OnceLock<(Instant, Duration)> = OnceLock::new();
    let (began, offset) = BEGAN.get_or_init(|| {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let of_day = since_epoch.as_nanos() % DAY.as_nanos();
        (Instant::now(), DAY + Duration::from_nanos(of_day as u64))
    });
    u64::try_from((*offset + began.elapsed()).as_nanos()).unwrap_or(u64::MAX / 2)
}

/// What both ends have agreed on by TLS.
#[derive(Clone)]
pub(crate) struct Agreed {
    pub(crate) secret: [u8; 32],
    pub(crate) suite: Suite,
    pub(crate) side: Side,
    pub(crate) local_connection: u32,
    pub(crate) peer_connection: u32,
    pub(crate) mode: Mode,
    /// This end sends no faster.
    pub(crate) rate_bps: f64,
    pub(crate) memory_bytes: u64,
    pub(crate) rtt_ns: u64,
    pub(crate) largest_datagram: usize,
    /// At a server: the address that the client has shown to be at. Another one has to be shown first; None where any is believed.
    pub(crate) proved: Option<IpAddr>,
    /// The connections with which this one takes what one would; None where it takes its own share.
    pub(crate) group: Option<Group>,
}

impl Agreed {
    /// What decides how fast to send, on a path of this round trip.
    fn mode(&self, rtt_ns: u64) -> Box<dyn Controller> {
        let mode = self.mode.start(rtt_ns.max(10_000), self.rate_bps);
        match &self.group {
            Some(group) => Box::new(group.join(mode)),
            None => mode,
        }
    }
}

/// Where a connection's thread gets what others have for it.
pub(crate) struct Mailbox {
    state: Mutex<Mail>,
    /// Wakes the thread.
    bell: Arc<Bell>,
    /// Wakes those who wait for the peer: to be heard, to hold everything.
    heard: Condvar,
    /// Wakes those who wait to send.
    room: Arc<Room>,
}

#[derive(Default)]
struct Mail {
    messages: VecDeque<Vec<u8>>,
    consumed_bytes: u64,
    spare: Vec<Vec<u8>>,
    most_spare: usize,
    /// Messages that the peer does not hold yet.
    underway: usize,
    underway_bytes: u64,
    most_underway_bytes: u64,
    /// What was agreed on since the connection began.
    settled: Option<Box<Agreed>>,
    close: bool,
    abort: bool,
    /// Another way is taken: nobody is told of the end.
    given_up: bool,
    sleeping: bool,
    /// A limit that the thread does not know yet.
    limit: Option<Option<u64>>,
    over: bool,
    heard: bool,
    /// Whether a message has come.
    came: bool,
    status: Status,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.state.lock()
    }

    fn wake_up(&self, mail: &Mail) {
        if mail.sleeping {
            self.bell.ring();
        }
    }
}

/// The way over UDP.
pub(crate) struct UdpLane {
    mailbox: Arc<Mailbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Who waits for messages and for room, and which member of the lane this is.
pub(crate) type To = (Arc<Inbox>, Arc<Room>, usize);

impl UdpLane {
    /// A client's, which knows the server's address and speaks first.
    pub(crate) fn call(
        socket: Socket,
        agreed: Agreed,
        server: SocketAddr,
        to: To,
    ) -> io::Result<Self> {
        Self::start(Seat::own(socket, Arc::new(Bell::new()?)), agreed, Some(server), to)
    }

    /// A server's, which learns the client's address from the first packet that opens. Fails where the connection's number is taken.
    pub(crate) fn answer(endpoint: Arc<Endpoint>, agreed: Agreed, to: To) -> io::Result<Self> {
        let seat = Seat::at(endpoint, agreed.local_connection, Arc::new(Bell::new()?))?;
        Self::start(seat, agreed, None, to)
    }

    fn start(
        seat: Seat,
        agreed: Agreed,
        peer: Option<SocketAddr>,
        (inbox, room, member): To,
    ) -> io::Result<Self> {
        let bell = Arc::clone(seat.bell());
        let most_underway_bytes = LEAST_UNDERWAY_BYTES.min(agreed.memory_bytes);
        let most_spare = spare_buffers(agreed.memory_bytes);
        let state = Mutex::new(Mail { most_underway_bytes, most_spare, ..Mail::default() });
        let mailbox = Arc::new(Mailbox { state, bell, heard: Condvar::new(), room });
        let worker = Worker {
            mailbox: Arc::clone(&mailbox),
            inbox,
            link: Link::new(Arc::clone(seat.socket()), agreed, MOST_UNDERWAY),
            seat,
            member,
            held: (now_ns(), [0; Holder::ALL.len()]),
            more: false,
            told: false,
            given_up: false,
        };
        let thread = std::thread::Builder::new()
            .name("wan-connection".to_owned())
            .spawn(move || worker.run(peer))?;
        Ok(Self { mailbox, thread: Mutex::new(Some(thread)) })
    }

    /// Whether a packet of the peer has come within `timeout`.
    pub(crate) fn heard(&self, timeout: Duration) -> bool {
        let mut mail = self.mailbox.lock();
        let waiting = |mail: &mut Mail| !mail.heard && !mail.over;
        self.mailbox.heard.wait_while_for(&mut mail, waiting, timeout);
        mail.heard
    }

    /// Whether a message of the peer has come.
    pub(crate) fn has_come(&self) -> bool {
        self.mailbox.lock().came
    }

    /// The other end has told how fast to send, and what memory it has. Before the first message.
    pub(crate) fn settle(&self, agreed: Agreed) {
        let mut mail = self.mailbox.lock();
        mail.settled = Some(Box::new(agreed));
        self.mailbox.wake_up(&mail);
    }

    /// How much of what may be underway is.
    pub(crate) fn load(&self) -> f64 {
        let mail = self.mailbox.lock();
        let messages = mail.underway as f64 / MOST_UNDERWAY as f64;
        messages.max(mail.underway_bytes as f64 / mail.most_underway_bytes.max(1) as f64)
    }

    /// Take the message to send it, or give it back where too much is underway.
    pub(crate) fn offer(&self, message: Vec<u8>) -> Option<Vec<u8>> {
        let mut mail = self.mailbox.lock();
        let full =
            mail.underway >= MOST_UNDERWAY || mail.underway_bytes >= mail.most_underway_bytes;
        if mail.over || full {
            return Some(message);
        }
        mail.underway += 1;
        mail.underway_bytes += message.len() as u64;
        mail.messages.push_back(message);
        self.mailbox.wake_up(&mail);
        None
    }

    /// Whether the peer holds all messages, or the connection is over.
    pub(crate) fn delivered(&self, timeout: Duration) -> bool {
        let mut mail = self.mailbox.lock();
        let underway = |mail: &mut Mail| mail.underway > 0 && !mail.over;
        !self.mailbox.heard.wait_while_for(&mut mail, underway, timeout).timed_out()
    }

    pub(crate) fn consumed(&self, message: Message) {
        let mut mail = self.mailbox.lock();
        mail.consumed_bytes += message.length as u64;
        if mail.spare.len() < mail.most_spare {
            mail.spare.push(message.buffer);
        }
        self.mailbox.wake_up(&mail);
    }

    /// Send no faster than so many bytes a second.
    pub(crate) fn limit(&self, bytes_per_s: Option<u64>) {
        let mut mail = self.mailbox.lock();
        mail.limit = Some(bytes_per_s);
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
        self.mailbox.wake_up(&mail);
        drop(mail);
        self.mailbox.heard.notify_all();
        self.mailbox.room.ring();
    }

    /// Another way is taken: it ends without a word.
    pub(crate) fn give_up(&self) {
        self.mailbox.lock().given_up = true;
        self.abort();
    }

    fn join(&self) {
        let thread = self.thread.lock().take();
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
    }
}
