//! The thread that owns a link for copies: waits for mail and for time, says what held it back.

use parking_lot::MutexGuard;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystage_protocol::connection::{codes, Connection, SendLimit};

use super::link::{status_of, Happened, Link};
use super::{now_ns, Mail, Mailbox, LEAST_UNDERWAY_BYTES};
use crate::lane::{Holder, Inbox, Message, Status};
use crate::seat::Seat;

/// How long a close may take until the peer has answered it.
const CLOSE_TIME: Duration = Duration::from_secs(2);

pub(super) struct Worker {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) link: Link,
    pub(super) seat: Seat,
    /// Which member of its lane this is.
    pub(super) member: usize,
    /// When it was last looked what holds us back, and for how long what did.
    pub(super) held: (u64, [u64; Holder::ALL.len()]),
    /// Whether more datagrams may be there than were taken in.
    pub(super) more: bool,
    /// Whether the connection was told to close.
    pub(super) told: bool,
    /// Whether another way was taken.
    pub(super) given_up: bool,
}

impl Worker {
    pub(super) fn run(mut self, peer: Option<SocketAddr>) {
        // Sleeps are to end when they should: the kernel's slack of 50 us is a fifth of a burst.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        if let Some(peer) = peer {
            self.link.call(peer);
        }
        let mut closing: Option<Instant> = None;
        loop {
            let (messages, consumed, close, abort) = self.mail();
            if self.given_up {
                return self.over("the connection was closed");
            }
            self.receive();
            if self.link.connection().is_none() {
                if abort || close {
                    return self.over("the connection was closed");
                }
                continue;
            }
            for message in messages {
                self.link.send(message);
            }
            self.link.consumed(consumed);
            if let Some(how) = self.link.broken() {
                self.over(&format!("the other end broke the protocol: {how}"));
            }
            self.events();
            self.link.transmit();
            if abort || close {
                closing.get_or_insert_with(Instant::now);
            }
            let Some(connection) = self.link.connection() else { continue };
            let (over, delivered) = (connection.is_closed(), connection.all_delivered());
            if !self.told && (abort || (close && delivered)) {
                self.told = true;
                self.link.close(if abort { 2 } else { codes::CLEAN }, "");
            }
            if over || closing.is_some_and(|since| since.elapsed() > CLOSE_TIME) {
                self.events();
                return self.over("the connection was closed");
            }
        }
    }

    /// What others have brought; sleeps until there is something or the connection wants to be called.
    fn mail(&mut self) -> (VecDeque<Vec<u8>>, u64, bool, bool) {
        let connection = self.link.connection();
        let wake_ns = connection.map_or(u64::MAX, |c| c.wake_ns().unwrap_or(u64::MAX));
        let mailbox = Arc::clone(&self.mailbox);
        self.seat.bell().silence();
        let mut mail = mailbox.lock();
        let now = now_ns();
        let quiet = !self.more
            && !self.seat.has_letters()
            && !mail.given_up
            && mail.messages.is_empty()
            && mail.consumed_bytes == 0
            && (self.told
                || !(mail.abort || mail.close && connection.is_none_or(Connection::all_delivered)));
        let slept = quiet && wake_ns > now;
        let holder = connection.and_then(|c| self.holder(c, slept));
        if let Some(connection) = connection {
            self.publish(connection, &mut mail);
        }
        self.account(now, None);
        if slept {
            // Whatever else happens, somebody looks after a while.
            let timeout = Duration::from_nanos(wake_ns.saturating_sub(now).min(100_000_000));
            mail.sleeping = true;
            drop(mail);
            self.seat.wait(timeout);
            mail = mailbox.lock();
            mail.sleeping = false;
            self.account(now_ns(), holder);
        } else if let Some(Holder::Processor) = holder {
            self.held.0 = now;
        }
        if let Some(agreed) = mail.settled.take() {
            self.link.settle(*agreed);
        }
        self.given_up = mail.given_up;
        if let Some(limit) = mail.limit.take() {
            self.link.limit(limit);
        }
        self.link.spare(std::mem::take(&mut mail.spare));
        (
            std::mem::take(&mut mail.messages),
            std::mem::take(&mut mail.consumed_bytes),
            mail.close,
            mail.abort,
        )
    }

    /// Whose the time from now on is.
    fn holder(&self, connection: &Connection, slept: bool) -> Option<Holder> {
        if !slept {
            return Some(Holder::Processor);
        }
        Some(match connection.send_limit() {
            SendLimit::FlowControl => Holder::Destination,
            SendLimit::CongestionWindow => Holder::Path,
            SendLimit::Pacing
                if connection.controller().control().rate_bps > 0.97 * self.link.cap_bps() =>
            {
                Holder::Cap
            }
            SendLimit::Pacing => Holder::Path,
            SendLimit::Application if self.mailbox.room.is_wanted() => Holder::Memory,
            SendLimit::Application => Holder::Source,
        })
    }

    /// Time up to now was held by `holder`; work was done in it where nobody is named.
    fn account(&mut self, now: u64, holder: Option<Holder>) {
        let passed = now.saturating_sub(self.held.0);
        self.held.0 = now;
        self.held.1[holder.unwrap_or(Holder::Processor) as usize] += passed;
    }

    fn publish(&self, connection: &Connection, mail: &mut Mail) {
        let control = connection.controller().control();
        let queued: u64 = mail.messages.iter().map(|message| message.len() as u64).sum();
        let unsent = (connection.unsent_bytes() + queued).min(mail.underway_bytes);
        let window = control.window_bytes.min(1 << 40);
        mail.most_underway_bytes = most_underway_bytes(mail.underway_bytes - unsent, window)
            .min(self.link.agreed().memory_bytes);
        if mail.underway_bytes < mail.most_underway_bytes && self.mailbox.room.is_wanted() {
            self.mailbox.room.ring();
        }
        mail.status = Status {
            held_ns: self.held.1,
            memory_bytes: self.link.agreed().memory_bytes,
            ..status_of(connection)
        };
    }

    fn receive(&mut self) {
        let received = self.seat.receive(&mut self.link);
        self.more = received.more;
        if received.heard {
            self.mailbox.lock().heard = true;
            self.mailbox.heard.notify_all();
        }
    }

    fn events(&mut self) {
        let (mut delivered, mut delivered_bytes) = (0, 0);
        while let Some(happened) = self.link.next() {
            match happened {
                Happened::Delivered(message) => {
                    delivered += 1;
                    delivered_bytes += message.len() as u64;
                    self.mailbox.room.keep(message);
                }
                Happened::Came(message) => {
                    let mut mail = self.mailbox.lock();
                    if !std::mem::replace(&mut mail.came, true) {
                        // From now on messages may go back by the same way.
                        self.mailbox.room.ring();
                    }
                    drop(mail);
                    self.inbox.put(Message { by: Some(self.member), ..message });
                }
                Happened::Ended(why) => drop(self.ended(&why)),
            }
        }
        if delivered > 0 {
            let mut mail = self.mailbox.lock();
            mail.underway -= delivered;
            mail.underway_bytes -= delivered_bytes;
            drop(mail);
            self.mailbox.heard.notify_all();
            self.mailbox.room.ring();
        }
    }

    /// Nothing comes in any more. What goes wrong before UDP was heard is no end of the lane.
    fn ended(&self, why: &str) -> MutexGuard<'_, Mail> {
        let mail = self.mailbox.lock();
        if mail.heard && !mail.given_up {
            self.inbox.end(why);
        }
        mail
    }

    /// Nothing more is sent or comes in.
    fn over(&self, why: &str) {
        self.ended(why).over = true;
        self.mailbox.heard.notify_all();
        self.mailbox.room.ring();
    }
}

/// So many bytes of messages may be given to a connection and not be whole at the peer, where it has sent so many of them.
///
/// What the next window holds and something to be sent meanwhile, whatever waits for repairs: on a path that loses every tenth packet the last
/// packet of a message arrives after four or five round trips, so that several windows are sent and not whole.
fn most_underway_bytes(sent_bytes: u64, window_bytes: u64) -> u64 {
    sent_bytes + window_bytes + LEAST_UNDERWAY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSS: f64 = 0.1;
    const PACKET: f64 = 1400.0;

    /// Round trips until a message is whole, where each repairs all that was lost in the one before.
    fn round_trips_of(message_bytes: u64) -> u64 {
        (message_bytes as f64 / PACKET).log(1.0 / LOSS).ceil() as u64 + 1
    }

    #[test]
    fn a_lossy_path_is_filled_while_messages_wait_for_repairs() {
        // 1 Gbit/s, 200 ms.
        let window = 25_000_000;
        let message = crate::lane::CONTENT_BYTES as u64;
        let mut sent: Vec<(u64, u64)> = Vec::new();
        for round_trip in 0..20 {
            sent.retain(|(whole, _)| *whole > round_trip);
            let not_whole: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
            let room = most_underway_bytes(not_whole, window) - not_whole;
            assert!(room >= window, "round trip {round_trip}: {room} bytes of {window}");
            sent.push((round_trip + round_trips_of(message), room.min(window)));
        }
    }
}
