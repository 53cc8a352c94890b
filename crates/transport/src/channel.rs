//! A channel: messages to and from the peer over one or several connections.
//!
//! Arrives: messages to send, what came in. Leaves: messages, each once and whole, in any order; an end of the
//! connection. Must not know: what messages say.
//!
//! A channel has one or several members, each its own connection. Over UDP each message is an extent of the protocol;
//! where UDP is blocked they follow one another on the member's TLS connection. What has come in and was not given back
//! by [`Channel::done`] counts against the memory that the peer may fill.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use waystage_protocol::congestion::Mode;

use crate::backpressure::Backpressure;
use crate::channel_connection::ChannelConnection;
use crate::control::RESUME_ADVICE;
use crate::error::Error;
use crate::message::{Message, MOST_BYTES};
use crate::message_queue::MessageQueue;
use crate::route::Way;
use crate::stats::Status;

/// Messages both ways.
pub struct Channel {
    incoming: Arc<MessageQueue>,
    backpressure: Arc<Backpressure>,
    members: RwLock<Vec<Arc<ChannelConnection>>>,
    /// The rate limit of all members together.
    rate: Mutex<Option<u64>>,
    /// The mode that was chosen after the start.
    mode: Mutex<Option<Mode>>,
}

impl Channel {
    /// A channel of one connection, which puts received messages into `incoming` and notifies `backpressure`.
    pub fn new(
        incoming: Arc<MessageQueue>,
        backpressure: Arc<Backpressure>,
        first: ChannelConnection,
    ) -> Self {
        incoming.notify_senders(Arc::clone(&backpressure));
        Self {
            incoming,
            backpressure,
            members: RwLock::new(vec![Arc::new(first)]),
            rate: Mutex::new(None),
            mode: Mutex::new(None),
        }
    }

    /// One more member, made with its number.
    pub fn add(
        &self,
        make: impl FnOnce(usize) -> Result<ChannelConnection, Error>,
    ) -> Result<Arc<ChannelConnection>, Error> {
        let mut members = self.members.write();
        let member = Arc::new(make(members.len())?);
        members.push(Arc::clone(&member));
        drop(members);
        if self.incoming.ended().is_some() {
            member.abort();
        }
        let rate = self.rate.lock();
        if rate.is_some() {
            self.share(*rate);
        }
        drop(rate);
        if let Some(mode) = *self.mode.lock() {
            member.set_mode(mode);
        }
        self.backpressure.notify();
        Ok(member)
    }

    /// Where its senders wait.
    pub fn backpressure(&self) -> &Arc<Backpressure> {
        &self.backpressure
    }

    /// Received messages.
    pub fn incoming(&self) -> &Arc<MessageQueue> {
        &self.incoming
    }

    fn members(&self) -> Vec<Arc<ChannelConnection>> {
        self.members.read().clone()
    }

    /// The first member, which is always there.
    pub fn first(&self) -> Arc<ChannelConnection> {
        Arc::clone(&self.members.read()[0])
    }

    /// Send a message; waits until it is known which way is open, and while too much is in flight.
    pub fn send(&self, message: Vec<u8>) -> Result<(), Error> {
        self.give(message, false)
    }

    /// The same for what the peer waits for at the very beginning: a little of it goes over TLS at once.
    pub fn say(&self, message: Vec<u8>) -> Result<(), Error> {
        self.give(message, true)
    }

    fn give(&self, mut message: Vec<u8>, early: bool) -> Result<(), Error> {
        debug_assert!(message.len() <= MOST_BYTES);
        loop {
            let seen = self.backpressure.notices();
            let members = self.members();
            let best = (members.iter().filter_map(|member| Some((member.load(early)?, member))))
                .min_by(|one, other| one.0.total_cmp(&other.0));
            if let Some((_, member)) = best {
                match member.offer(message) {
                    None => return Ok(()),
                    Some(back) => message = back,
                }
            }
            if self.incoming.ended().is_some() {
                return Err(self.lost());
            }
            self.backpressure.wait(seen);
        }
    }

    /// Wait until the peer holds all that was sent, or the connection is over; false after [`Self::interrupt`].
    pub fn delivered(&self) -> bool {
        self.members().iter().all(|member| member.delivered())
    }

    /// The next message; None where none came in time.
    pub fn receive(&self, timeout: Duration) -> Result<Option<Message>, Error> {
        match self.incoming.take(timeout) {
            Some(message) => Ok(Some(message)),
            None if self.incoming.ended().is_some() => Err(self.lost()),
            None => Ok(None),
        }
    }

    /// The next message; None once `is_over` says so, which [`Self::interrupt`] has it asked.
    pub fn receive_unless(&self, is_over: impl Fn() -> bool) -> Result<Option<Message>, Error> {
        match self.incoming.take_unless(&is_over) {
            None if !is_over() => Err(self.lost()),
            message => Ok(message),
        }
    }

    /// Let all threads in [`Self::receive_unless`] ask again whether it is over, and one in [`Self::delivered`] return,
    /// now or when it next waits.
    pub fn interrupt(&self) {
        self.incoming.interrupt();
        self.members().iter().for_each(|member| member.interrupt());
    }

    /// A message is done with; its memory may be filled again.
    pub fn done(&self, message: Message) {
        self.incoming.done(message.length);
        let members = self.members.read();
        match message.by.and_then(|by| members.get(by)) {
            Some(member) => member.consumed(message),
            // All TLS connections fill the same memory.
            None => members.iter().for_each(|member| member.look()),
        }
    }

    /// Go on with another congestion controller. Members that are added later have it as well.
    pub fn set_mode(&self, mode: Mode) {
        let mut held = self.mode.lock();
        *held = Some(mode);
        self.members().iter().for_each(|member| member.set_mode(mode));
    }

    /// Limit the rate from now on; None for what was agreed on, 0 for a pause. Members that are added later get their
    /// part.
    pub fn limit(&self, bytes_per_s: Option<u64>) {
        let mut rate = self.rate.lock();
        *rate = bytes_per_s;
        self.share(bytes_per_s);
    }

    fn share(&self, bytes_per_s: Option<u64>) {
        let members = self.members();
        let count = members.len() as u64;
        // A part of a pause is a pause, and of little is at least 1 byte/s.
        let part = bytes_per_s.map(|rate| (rate / count.max(1)).max(u64::from(rate > 0)));
        members.iter().for_each(|member| member.limit(part));
    }

    /// Nothing is received or sent from now on.
    pub fn end(&self, why: &str) {
        self.incoming.end(why);
        self.members().iter().for_each(|member| member.abort());
        self.backpressure.notify();
    }

    /// Close in good order, all having been said.
    pub fn close(&self) {
        // First, so that who still looks for a way stops looking.
        self.incoming.end("the connection was closed");
        self.members().iter().for_each(|member| member.close());
    }

    /// Statistics of all connections together.
    pub fn status(&self) -> Status {
        let members = self.members();
        let mut all = members.iter().map(|member| member.status());
        let first = all.next().unwrap_or_default();
        all.fold(first, Status::joined)
    }

    /// By which way messages are sent, for people.
    pub fn way_name(&self) -> &'static str {
        if self.members().iter().all(|member| member.way() == Way::Tcp) {
            "TCP"
        } else {
            "UDP"
        }
    }

    fn lost(&self) -> Error {
        let why = self.incoming.ended().unwrap_or_else(|| "the connection was lost".to_owned());
        Error::lost(format!("{why}: {RESUME_ADVICE}"))
    }
}
