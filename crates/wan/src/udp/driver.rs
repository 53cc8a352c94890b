//! The thread that owns a link for copies: waits for mail and for time, says what held it back.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use waystage_protocol::connection::{codes, Connection, HeldBack};

use super::link::{status_of, Happened, Link};
use super::{now_ns, Mail, Mailbox, LEAST_UNDERWAY_BYTES};
use crate::lane::{Holder, Inbox, Message, Status};
use crate::socket::Arrived;

/// How long a close may take until the peer has answered it.
const CLOSE_TIME: Duration = Duration::from_secs(2);

pub(super) struct Worker {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) link: Link,
    /// Which member of its lane this is.
    pub(super) member: usize,
    /// When it was last looked what holds us back, and for how long what did.
    pub(super) held: (u64, [u64; Holder::ALL.len()]),
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
            let (arrived, messages, consumed, close, abort) = self.mail();
            if self.given_up {
                return self.over("the connection was closed");
            }
            self.arrived(arrived);
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
    #[allow(clippy::type_complexity, reason = "taken apart at once, at the only place that calls")]
    fn mail(&mut self) -> (Vec<Arrived>, VecDeque<Vec<u8>>, u64, bool, bool) {
        let connection = self.link.connection();
        let wake_ns = connection.map_or(u64::MAX, |c| c.wake_ns().unwrap_or(u64::MAX));
        let mailbox = Arc::clone(&self.mailbox);
        let mut mail = mailbox.lock();
        let now = now_ns();
        let quiet = mail.datagrams.is_empty()
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
            mail =
                mailbox.wake.wait_timeout(mail, timeout).unwrap_or_else(PoisonError::into_inner).0;
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
        mail.datagram_bytes = 0;
        (
            std::mem::take(&mut mail.datagrams),
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
        Some(match connection.held_back_by() {
            HeldBack::Credit => Holder::Destination,
            HeldBack::Window => Holder::Path,
            HeldBack::Pace if connection.mode().control().rate_bps > 0.97 * self.link.cap_bps() => {
                Holder::Cap
            }
            HeldBack::Pace => Holder::Path,
            HeldBack::Application if self.mailbox.room.is_wanted() => Holder::Memory,
            HeldBack::Application => Holder::Source,
        })
    }

    /// Time up to now was held by `holder`; work was done in it where nobody is named.
    fn account(&mut self, now: u64, holder: Option<Holder>) {
        let passed = now.saturating_sub(self.held.0);
        self.held.0 = now;
        self.held.1[holder.unwrap_or(Holder::Processor) as usize] += passed;
    }

    fn publish(&self, connection: &Connection, mail: &mut Mail) {
        let control = connection.mode().control();
        // What is underway on the path, twice over, and something to be sent in the meantime.
        let most = (2 * control.window_bytes.min(1 << 40) + LEAST_UNDERWAY_BYTES)
            .min(self.link.agreed().memory_bytes);
        let grew = std::mem::replace(&mut mail.most_underway_bytes, most) < most;
        if grew && self.mailbox.room.is_wanted() {
            self.mailbox.room.ring();
        }
        mail.status = Status { held_ns: self.held.1, ..status_of(connection) };
    }

    fn arrived(&mut self, arrived: Vec<Arrived>) {
        for arrived in arrived {
            if self.link.arrived(arrived) {
                self.mailbox.lock().heard = true;
                self.mailbox.heard.notify_all();
            }
        }
    }

    fn events(&mut self) {
        let (mut delivered, mut delivered_bytes) = (0, 0);
        while let Some(happened) = self.link.next() {
            match happened {
                Happened::Delivered(message) => {
                    delivered += 1;
                    delivered_bytes += message.len() as u64;
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
