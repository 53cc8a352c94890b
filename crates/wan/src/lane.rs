//! Messages to and from the other end, whichever way they take.
//!
//! Arrives: messages to send, what came in. Leaves: messages, each once and whole, in any order; an end of the connection.
//! Must not know: what messages say.
//!
//! A lane has one or several members, each a connection of its own. Over UDP each message is an extent of the protocol; where UDP is
//! blocked they follow one another on the member's TLS connection. What has come in and was not given back by [`Lane::done`]
//! counts against the memory that the other end may fill.

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::bell::Bell;
use crate::error::WanError;
use crate::member::{Member, Room, Way};

/// Bytes of contents in a message at most; also what is sent again of a large file after a crash, for each worker.
pub(crate) const CONTENT_BYTES: usize = 4 << 20;

/// No message is longer.
pub(crate) const MOST_BYTES: usize = CONTENT_BYTES + (1 << 20);

/// Memory in front of the disk, at the end that receives, if nobody said otherwise.
pub const MEMORY_BYTES: u64 = 256 << 20;

/// Connections of one copy have at least so much each: several messages at a time.
const LEAST_MEMORY_BYTES: u64 = 16 << 20;

/// What each of several connections has of the memory of one.
pub(crate) fn memory_of_each(bytes: u64, connections: u32) -> u64 {
    (bytes / u64::from(connections.max(1))).max(LEAST_MEMORY_BYTES.min(bytes))
}

/// What to do when a copy's connection is lost.
pub(crate) const GO_ON: &str = "the same command goes on where it stopped";

/// Whoever waits looks again this often: a guard against a wake-up that comes between.
const LOOK_ROUND: Duration = Duration::from_millis(200);

/// A message that came in. Its buffer may be longer, so that the next one need not be made and cleared.
pub(crate) struct Message {
    pub(crate) buffer: Vec<u8>,
    pub(crate) length: usize,
    /// The member by whose UDP it came; None where it came over TLS.
    pub(crate) by: Option<usize>,
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// What came in and waits.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
    wake: Condvar,
    /// Rung beside `wake`, for one who waits for sockets as well.
    bell: OnceLock<Arc<Bell>>,
    /// Memory that what comes in may fill; 0 for what is usual.
    most_bytes: AtomicU64,
}

#[derive(Default)]
struct InboxState {
    waiting: VecDeque<Message>,
    /// Bytes of messages handed in and not done with.
    held_bytes: u64,
    ended: Option<String>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock()
    }

    pub(crate) fn put(&self, message: Message) {
        let mut state = self.lock();
        state.held_bytes += message.length as u64;
        state.waiting.push_back(message);
        drop(state);
        self.wake.notify_one();
        self.ring();
    }

    /// What waits here waits there from now on.
    pub(crate) fn pass_on(&self, other: &Self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        for message in waiting {
            self.done(message.length);
            other.put(message);
        }
    }

    /// From now on this bell is rung when something has come, or there is room to send more.
    pub(crate) fn ring_at(&self, bell: Arc<Bell>) {
        let _ = self.bell.set(bell);
        self.ring();
    }

    pub(crate) fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    /// Limit received messages to `bytes`; what is kept of them until the copy ends may take about as much again.
    pub(crate) fn allow(&self, bytes: u64) {
        self.most_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Memory that what comes in may fill.
    pub(crate) fn most_bytes(&self) -> u64 {
        match self.most_bytes.load(Ordering::Relaxed) {
            0 => MEMORY_BYTES,
            bytes => bytes,
        }
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    /// Nothing comes any more: why. The first reason stays.
    pub(crate) fn end(&self, why: &str) {
        self.lock().ended.get_or_insert_with(|| why.to_owned());
        self.wake.notify_all();
        self.ring();
    }

    pub(crate) fn ended(&self) -> Option<String> {
        self.lock().ended.clone()
    }

    pub(crate) fn take(&self, timeout: Duration) -> Option<Message> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(message) = state.waiting.pop_front() {
                return Some(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.ended.is_some() || left.is_zero() {
                return None;
            }
            self.wake.wait_for(&mut state, left);
        }
    }

    pub(crate) fn done(&self, bytes: usize) {
        self.lock().held_bytes -= bytes as u64;
    }
}

/// How a lane is doing, for statistics and reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    pub(crate) udp: bool,
    pub(crate) rtt_ns: u64,
    pub(crate) rate_bps: f64,
    pub(crate) datagram_bytes: u64,
    pub(crate) sent_packets: u64,
    pub(crate) lost_packets: u64,
    pub(crate) repaired_bytes: u64,
    /// Bytes that came in although they were there already.
    pub(crate) duplicate_bytes: u64,
    pub(crate) refused_packets: u64,
    /// What may be underway by what both ends have agreed on.
    pub(crate) memory_bytes: u64,
    /// Nanoseconds spent held back, by [`Holder`].
    pub(crate) held_ns: [u64; Holder::ALL.len()],
}

/// What holds sending back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Source,
    Destination,
    Cap,
    Path,
    Memory,
    Processor,
}

impl Holder {
    pub(crate) const ALL: [Self; 6] =
        [Self::Source, Self::Destination, Self::Cap, Self::Path, Self::Memory, Self::Processor];

    /// Its name for programs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Cap => "cap",
            Self::Path => "path",
            Self::Memory => "memory",
            Self::Processor => "processor",
        }
    }
}

impl Status {
    /// Numbers by name, for people and programs.
    pub(crate) fn numbers(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("udp", f64::from(u8::from(self.udp))),
            ("round_trip_ms", self.rtt_ns as f64 / 1e6),
            ("rate_bytes_per_s", self.rate_bps / 8.0),
            ("datagram_bytes", self.datagram_bytes as f64),
            ("sent_packets", self.sent_packets as f64),
            ("lost_packets", self.lost_packets as f64),
            ("repaired_bytes", self.repaired_bytes as f64),
            ("duplicate_bytes", self.duplicate_bytes as f64),
            ("refused_packets", self.refused_packets as f64),
            ("memory_bytes", self.memory_bytes as f64),
        ]
    }

    /// Two connections of one copy together.
    fn joined(mut self, other: Self) -> Self {
        self.udp |= other.udp;
        self.rtt_ns = self.rtt_ns.max(other.rtt_ns);
        self.rate_bps += other.rate_bps;
        self.datagram_bytes = match (self.datagram_bytes, other.datagram_bytes) {
            (0, one) | (one, 0) => one,
            (one, another) => one.min(another),
        };
        self.sent_packets += other.sent_packets;
        self.lost_packets += other.lost_packets;
        self.repaired_bytes += other.repaired_bytes;
        self.duplicate_bytes += other.duplicate_bytes;
        self.refused_packets += other.refused_packets;
        self.memory_bytes += other.memory_bytes;
        // A copy lasts as long as its slowest connection; its source is what it waits for only while all of them wait for that.
        for holder in Holder::ALL {
            let (one, another) =
                (&mut self.held_ns[holder as usize], other.held_ns[holder as usize]);
            *one = if holder == Holder::Source { another.min(*one) } else { another.max(*one) };
        }
        self
    }

    /// What held sending back the longest; None where there is nothing to tell.
    pub(crate) fn limit(&self) -> Option<Holder> {
        let longest =
            Holder::ALL.into_iter().max_by_key(|holder| self.held_ns[*holder as usize])?;
        (self.held_ns[longest as usize] > 0).then_some(longest)
    }
}

/// Messages both ways.
pub(crate) struct Lane {
    inbox: Arc<Inbox>,
    room: Arc<Room>,
    members: RwLock<Vec<Arc<Member>>>,
}

impl Lane {
    /// A lane of one member; what it receives goes to `inbox`, and its room is told in `room`.
    pub(crate) fn new(inbox: Arc<Inbox>, room: Arc<Room>, first: Member) -> Self {
        Self { inbox, room, members: RwLock::new(vec![Arc::new(first)]) }
    }

    /// One more member, made with its number.
    pub(crate) fn add(
        &self,
        make: impl FnOnce(usize) -> Result<Member, WanError>,
    ) -> Result<Arc<Member>, WanError> {
        let mut members = self.members.write();
        let member = Arc::new(make(members.len())?);
        members.push(Arc::clone(&member));
        drop(members);
        if self.inbox.ended().is_some() {
            member.abort();
        }
        self.room.ring();
        Ok(member)
    }

    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    fn members(&self) -> Vec<Arc<Member>> {
        self.members.read().clone()
    }

    /// The first member, which is always there.
    pub(crate) fn first(&self) -> Arc<Member> {
        Arc::clone(&self.members.read()[0])
    }

    /// Send a message; waits until it is known which way is open, and while too much is underway.
    pub(crate) fn send(&self, message: Vec<u8>) -> Result<(), WanError> {
        self.give(message, false)
    }

    /// The same for what the other end waits for at the very beginning: a little of it goes over TLS at once.
    pub(crate) fn say(&self, message: Vec<u8>) -> Result<(), WanError> {
        self.give(message, true)
    }

    fn give(&self, mut message: Vec<u8>, early: bool) -> Result<(), WanError> {
        debug_assert!(message.len() <= MOST_BYTES);
        loop {
            let seen = self.room.seen();
            let members = self.members();
            let best = (members.iter().filter_map(|member| Some((member.load(early)?, member))))
                .min_by(|one, other| one.0.total_cmp(&other.0));
            if let Some((_, member)) = best {
                match member.offer(message) {
                    None => return Ok(()),
                    Some(back) => message = back,
                }
            }
            if self.inbox.ended().is_some() {
                return Err(self.lost());
            }
            self.room.wait(seen, LOOK_ROUND);
        }
    }

    /// Whether the other end holds all that was sent, waiting for it for at most `timeout`.
    pub(crate) fn delivered(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        self.members().iter().all(|member| member.delivered(left()))
    }

    /// The next message; None where none came in time.
    pub(crate) fn receive(&self, timeout: Duration) -> Result<Option<Message>, WanError> {
        match self.inbox.take(timeout.min(LOOK_ROUND)) {
            Some(message) => Ok(Some(message)),
            None if self.inbox.ended().is_some() => Err(self.lost()),
            None => Ok(None),
        }
    }

    /// A message is done with; its memory may be filled again.
    pub(crate) fn done(&self, message: Message) {
        self.inbox.done(message.length);
        let members = self.members.read();
        match message.by.and_then(|by| members.get(by)) {
            Some(member) => member.consumed(message),
            // All TLS connections fill the same memory.
            None => members.iter().for_each(|member| member.look()),
        }
    }

    /// Send no faster than so many bytes a second from now on; None for as fast as was agreed.
    pub(crate) fn limit(&self, bytes_per_s: Option<u64>) {
        let members = self.members();
        let count = members.len() as u64;
        let part = bytes_per_s.map(|rate| (rate / count.max(1)).max(1));
        members.iter().for_each(|member| member.limit(part));
    }

    /// How many connections it has by now.
    pub(crate) fn size(&self) -> usize {
        self.members.read().len()
    }

    /// Nothing is received or sent from now on.
    pub(crate) fn end(&self, why: &str) {
        self.inbox.end(why);
        self.members().iter().for_each(|member| member.abort());
        self.room.ring();
    }

    /// Close in good order, all having been said.
    pub(crate) fn close(&self) {
        // First, so that who still looks for a way stops looking.
        self.inbox.end("the connection was closed");
        self.members().iter().for_each(|member| member.close());
    }

    pub(crate) fn status(&self) -> Status {
        let members = self.members();
        let mut all = members.iter().map(|member| member.status());
        let first = all.next().unwrap_or_default();
        all.fold(first, Status::joined)
    }

    /// By which way messages are sent, for people.
    pub(crate) fn way_name(&self) -> &'static str {
        if self.members().iter().all(|member| member.way() == Way::Tcp) {
            "TCP"
        } else {
            "UDP"
        }
    }

    fn lost(&self) -> WanError {
        let why = self.inbox.ended().unwrap_or_else(|| "the connection was lost".to_owned());
        WanError::lost(format!("{why}: {GO_ON}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_longest_is_said_to_limit() {
        let mut status = Status::default();
        assert_eq!(status.limit(), None);
        status.held_ns[Holder::Path as usize] = 5;
        status.held_ns[Holder::Source as usize] = 4;
        assert_eq!(status.limit(), Some(Holder::Path));
    }

    #[test]
    fn connections_that_have_sent_their_share_do_not_hide_what_limits_the_last() {
        let status = |source, cap| {
            let mut status = Status::default();
            status.held_ns[Holder::Source as usize] = source;
            status.held_ns[Holder::Cap as usize] = cap;
            status
        };
        let joined = status(2, 9).joined(status(8, 3)).joined(status(8, 3));
        assert_eq!(joined.limit(), Some(Holder::Cap));
        assert_eq!(status(8, 3).joined(status(7, 4)).limit(), Some(Holder::Source));
    }

    #[test]
    fn what_came_before_it_was_known_where_to_is_passed_on_in_order() {
        let (early, inbox) = (Inbox::default(), Inbox::default());
        for byte in [1, 2] {
            early.put(Message { buffer: vec![byte; 8], length: 3, by: None });
        }
        early.pass_on(&inbox);
        assert_eq!((early.held_bytes(), inbox.held_bytes()), (0, 6));
        assert!(early.take(Duration::ZERO).is_none());
        let came = [(); 2].map(|()| inbox.take(Duration::ZERO).unwrap()[0]);
        assert_eq!(came, [1, 2]);
    }

    #[test]
    fn messages_that_came_before_the_end_are_still_handed_out() {
        let inbox = Inbox::default();
        inbox.put(Message { buffer: vec![1, 2, 3], length: 2, by: None });
        inbox.end("over");
        inbox.end("once more");
        let message = inbox.take(Duration::ZERO).unwrap();
        assert_eq!((&message[..], inbox.held_bytes()), (&[1, 2][..], 2));
        inbox.done(2);
        assert_eq!((inbox.held_bytes(), inbox.ended().as_deref()), (0, Some("over")));
        assert!(inbox.take(Duration::from_secs(60)).is_none());
    }
}
