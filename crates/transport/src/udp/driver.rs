//! The thread that drives a connection: waits for commands, datagrams and time, and accounts for what limits the rate.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystage_protocol::connection::{codes, Connection, SendLimit};

use super::commands::{CommandQueue, PendingCommands};
use crate::clock::now_ns;
use crate::datagram_receiver::DatagramReceiver;
use crate::link::{status_of, Link, MessageEvent, GAVE_UP};
use crate::message::{Message, CONTENT_BYTES};
use crate::message_queue::MessageQueue;
use crate::stats::{Bottleneck, Status};

/// Bytes that may be unsent on the shortest path: reading must not wait for the network's next turn.
pub(super) const LEAST_IN_FLIGHT_BYTES: u64 = 8 * CONTENT_BYTES as u64;

/// How long a close may take until the peer has answered it.
const CLOSE_TIME: Duration = Duration::from_secs(2);

pub(super) struct Driver {
    pub(super) commands: Arc<CommandQueue>,
    pub(super) incoming: Arc<MessageQueue>,
    pub(super) link: Link,
    pub(super) receiver: DatagramReceiver,
    /// Which member of its channel this is.
    pub(super) member: usize,
    /// When it was last looked what holds us back, and for how long what did.
    pub(super) limited: (u64, [u64; Bottleneck::ALL.len()]),
    /// Whether more datagrams may be there than were taken in.
    pub(super) more: bool,
    /// Whether the connection was closed here.
    pub(super) told: bool,
    /// Whether another way was taken.
    pub(super) given_up: bool,
}

impl Driver {
    pub(super) fn run(mut self, peer: Option<SocketAddr>) {
        // Sleeps are to end when they should: the kernel's slack of 50 us is a fifth of a burst.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        if let Some(peer) = peer {
            self.link.call(peer);
        }
        let mut closing: Option<Instant> = None;
        loop {
            let (messages, consumed, close, abort) = self.take_commands();
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
                self.over(&format!("the peer broke the protocol: {how}"));
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
                self.link.close(if abort { GAVE_UP } else { codes::CLEAN }, "");
            }
            if over || closing.is_some_and(|since| since.elapsed() > CLOSE_TIME) {
                self.events();
                return self.over("the connection was closed");
            }
        }
    }

    /// What others have brought; sleeps until there is something or the connection wants to be called.
    fn take_commands(&mut self) -> (VecDeque<Vec<u8>>, u64, bool, bool) {
        let connection = self.link.connection();
        let wake_ns = connection.map_or(u64::MAX, |c| c.wake_ns().unwrap_or(u64::MAX));
        let commands = Arc::clone(&self.commands);
        self.receiver.waker().clear();
        let mut pending = commands.lock();
        let now = now_ns();
        let quiet = !self.more
            && !self.receiver.has_queued()
            && !pending.given_up
            && pending.messages.is_empty()
            && (connection.is_none() || pending.control.is_empty() && !pending.expect_answer)
            && pending.consumed_bytes == 0
            && (self.told
                || !(pending.abort
                    || pending.close && connection.is_none_or(Connection::all_delivered)));
        let slept = quiet && wake_ns > now;
        let bottleneck = connection.and_then(|c| self.bottleneck(c, slept));
        if let Some(connection) = connection {
            self.publish(connection, &mut pending);
        }
        self.account(now, None);
        if slept {
            // Statistics are published at least ten times a second.
            let timeout = Duration::from_nanos(wake_ns.saturating_sub(now).min(100_000_000));
            pending.sleeping = true;
            drop(pending);
            self.receiver.wait(timeout);
            pending = commands.lock();
            pending.sleeping = false;
            self.account(now_ns(), bottleneck);
        } else if let Some(Bottleneck::Processor) = bottleneck {
            self.limited.0 = now;
        }
        if let Some(parameters) = pending.settled.take() {
            self.link.update_parameters(*parameters);
        }
        self.given_up = pending.given_up;
        if let Some(mode) = pending.mode.take() {
            self.link.set_mode(mode);
        }
        if let Some(limit) = pending.limit.take() {
            self.link.limit(limit);
        }
        if self.link.connection().is_some() {
            self.link.send_control(&std::mem::take(&mut pending.control));
            if std::mem::take(&mut pending.expect_answer) {
                self.link.expect_answer();
            }
        }
        self.link.spare(std::mem::take(&mut pending.spare));
        (
            std::mem::take(&mut pending.messages),
            std::mem::take(&mut pending.consumed_bytes),
            pending.close,
            pending.abort,
        )
    }

    /// Whose the time from now on is.
    fn bottleneck(&self, connection: &Connection, slept: bool) -> Option<Bottleneck> {
        if !slept {
            return Some(Bottleneck::Processor);
        }
        Some(match connection.send_limit() {
            SendLimit::FlowControl => Bottleneck::Destination,
            SendLimit::CongestionWindow => Bottleneck::Path,
            SendLimit::Pacing
                if connection.controller().control().rate_bps > 0.97 * self.link.cap_bps() =>
            {
                Bottleneck::Cap
            }
            SendLimit::Pacing => Bottleneck::Path,
            SendLimit::Application if self.commands.backpressure.is_blocking() => {
                Bottleneck::Memory
            }
            SendLimit::Application => Bottleneck::Source,
        })
    }

    /// Account the time up to now to `bottleneck`; to the processor where it is None.
    fn account(&mut self, now: u64, bottleneck: Option<Bottleneck>) {
        let passed = now.saturating_sub(self.limited.0);
        self.limited.0 = now;
        self.limited.1[bottleneck.unwrap_or(Bottleneck::Processor) as usize] += passed;
    }

    fn publish(&self, connection: &Connection, pending: &mut PendingCommands) {
        let control = connection.controller().control();
        let queued: u64 = pending.messages.iter().map(|message| message.len() as u64).sum();
        let unsent = (connection.unsent_bytes() + queued).min(pending.in_flight_bytes);
        let window = control.window_bytes.min(1 << 40);
        let was_full = pending.is_full();
        pending.most_in_flight_bytes =
            most_in_flight_bytes(pending.in_flight_bytes - unsent, window)
                .min(self.link.parameters().memory_bytes);
        if was_full && !pending.is_full() {
            self.commands.backpressure.notify();
        }
        pending.status = Status {
            held_ns: self.limited.1,
            memory_bytes: self.link.parameters().memory_bytes,
            ..status_of(connection)
        };
    }

    fn receive(&mut self) {
        let received = self.link.receive_from(&mut self.receiver);
        self.more = received.more;
        if received.heard {
            self.commands.lock().heard = true;
            self.commands.heard.notify_all();
        }
    }

    fn events(&mut self) {
        let (mut delivered, mut delivered_bytes) = (0, 0);
        while let Some(happened) = self.link.next_event() {
            match happened {
                MessageEvent::Delivered(message) => {
                    delivered += 1;
                    delivered_bytes += message.len() as u64;
                    self.commands.backpressure.recycle(message);
                }
                MessageEvent::Received(message) => {
                    let mut pending = self.commands.lock();
                    if !std::mem::replace(&mut pending.came, true) {
                        // From now on messages may go back by the same way.
                        self.commands.backpressure.notify();
                    }
                    drop(pending);
                    self.incoming.put(Message { by: Some(self.member), ..message });
                }
                MessageEvent::Control(bytes) => self.commands.control_bytes(bytes),
                MessageEvent::Closed(why, silent) => self.ended(&why, silent),
            }
        }
        if delivered > 0 {
            let mut pending = self.commands.lock();
            pending.in_flight -= delivered;
            pending.in_flight_bytes -= delivered_bytes;
            drop(pending);
            self.commands.heard.notify_all();
            self.commands.backpressure.notify();
        }
    }

    /// Nothing more comes in. What goes wrong before UDP was heard is no end of the channel.
    fn ended(&self, why: &str, silent: bool) {
        let pending = self.commands.lock();
        if !pending.heard || pending.given_up {
            return;
        }
        let sink = pending.control_sink.clone().and_then(|sink| sink.upgrade());
        drop(pending);
        self.incoming.end(why);
        if let Some(sink) = sink {
            sink.udp_ended(why, silent);
        }
    }

    /// Nothing more is sent or comes in.
    fn over(&self, why: &str) {
        self.ended(why, false);
        self.commands.lock().over = true;
        self.commands.heard.notify_all();
        self.commands.backpressure.notify();
    }
}

/// The bytes of messages that may be incomplete at the peer, `sent_bytes` of which were sent: these, the next window
/// and a reserve.
///
/// On a path that loses every tenth packet the last packet of a message arrives after four or five round trips, so that
/// several windows are sent and incomplete.
fn most_in_flight_bytes(sent_bytes: u64, window_bytes: u64) -> u64 {
    sent_bytes + window_bytes + LEAST_IN_FLIGHT_BYTES
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
        let message = CONTENT_BYTES as u64;
        let mut sent: Vec<(u64, u64)> = Vec::new();
        for round_trip in 0..20 {
            sent.retain(|(whole, _)| *whole > round_trip);
            let not_whole: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
            let room = most_in_flight_bytes(not_whole, window) - not_whole;
            assert!(room >= window, "round trip {round_trip}: {room} bytes of {window}");
            sent.push((round_trip + round_trips_of(message), room.min(window)));
        }
    }
}
