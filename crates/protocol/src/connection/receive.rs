//! A datagram arrives.

use std::net::SocketAddr;

use super::{AckEvent, Arrival, CloseReason, Connection, Event, Sink, State};
use crate::frame::{Ack, Frame};
use crate::loss_recovery::{Outcome, Payload};
use crate::packet::{Header, HEADER_SIZE};
use crate::reassembly::Broken;
use crate::varint::Reader;

/// What a peer may say of the spread of delays: a minute.
const MOST_SPREAD_US: u64 = 60_000_000;

impl Connection {
    /// Takes in a datagram; `marked` is whether the network marked it for congestion (ECN). A datagram that is not the
    /// peer's, or came before, is dropped without a word.
    pub fn receive(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        marked: bool,
        datagram: &mut [u8],
        sink: &mut dyn Sink,
    ) {
        if self.state == State::Closed {
            return;
        }
        let size = datagram.len();
        let expected = self.acks.received().end();
        let header = match Header::read(datagram, expected) {
            Ok(header)
                if header.connection == self.config.local_connection
                    && self.acks.received().is_new(header.number) =>
            {
                header
            }
            _ => {
                self.counters.discarded_packets += 1;
                return;
            }
        };
        let Some(frames) = self.protect.open(header.number, HEADER_SIZE, datagram) else {
            self.counters.discarded_packets += 1;
            return;
        };
        self.counters.received_packets += 1;
        self.heard_ns = now_ns;
        let mut reader = Reader::new(frames);
        let (mut wants_ack, mut keep) = (false, true);
        while !reader.is_empty() {
            match Frame::read(&mut reader) {
                Ok(frame) => {
                    wants_ack |= frame.wants_ack();
                    keep &= self.handle(now_ns, from, &frame, sink);
                }
                // Sealed by the peer, and still nonsense: it speaks another language.
                Err(malformed) => return self.broken(now_ns, malformed.0),
            }
            if self.state == State::Closed {
                return;
            }
        }
        if !keep {
            return;
        }
        self.acks.arrived(now_ns, header.number, header.stamp, size, marked);
        if wants_ack {
            self.acks.wanted(now_ns, self.rtt.ack_interval_ns(), self.rtt.busy_ack_interval_ns());
        }
        self.path.heard(now_ns, from, size, header.number >= expected);
    }

    /// Handles a frame. False if the packet must not be acknowledged.
    fn handle(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        frame: &Frame<'_>,
        sink: &mut dyn Sink,
    ) -> bool {
        match frame {
            Frame::Padding | Frame::Ping => {}
            Frame::Data { extent, offset, last, bytes } => {
                let taken = match self.reassembly.take(*extent, *offset, bytes.len() as u64, *last)
                {
                    Ok(taken) => taken,
                    Err(rule) => {
                        self.broken(now_ns, name(rule));
                        return true;
                    }
                };
                for new in &taken.new {
                    let part = (new.start - offset) as usize..(new.end - offset) as usize;
                    sink.write(*extent, new.start, &bytes[part]);
                }
                if let Some(length) = taken.complete {
                    self.events.push_back(Event::Complete { extent: *extent, length });
                }
                return !taken.dropped;
            }
            Frame::Ack(ack) => self.acknowledged(now_ns, ack),
            Frame::History(bitmap) => {
                let mut outcome = Outcome::default();
                if self.recovery.acknowledged(now_ns, bitmap, true, &mut outcome) {
                    self.learned(now_ns, outcome, None, None, (0, 0));
                } else {
                    self.broken(now_ns, "it acknowledged packets that were never sent");
                }
            }
            Frame::Ask { from, to } => self.acks.asked(*from, *to),
            Frame::Close { code, reason } => {
                let reason = String::from_utf8_lossy(reason).into_owned();
                match self.state {
                    State::Open => {
                        self.closing = (*code, Vec::new());
                        // Answered once, so that the peer need not repeat itself.
                        self.state = State::Closing { left: 1, next_ns: now_ns };
                        self.tell_end(CloseReason::Peer(*code, reason));
                    }
                    _ => self.end(CloseReason::Local(self.closing.0)),
                }
            }
            Frame::Challenge(value) => self.path.challenged(from, *value),
            Frame::Response(value) => {
                if self.path.answered(from, *value) {
                    self.events.push_back(Event::PeerMigrated(from));
                    self.on_path_change(now_ns);
                }
            }
        }
        true
    }

    fn acknowledged(&mut self, now_ns: u64, ack: &Ack<'_>) {
        let mut outcome = Outcome::default();
        if !self.recovery.acknowledged(now_ns, &ack.bitmap, false, &mut outcome) {
            return self.broken(now_ns, "it acknowledged packets that were never sent");
        }
        self.peer_credit_bytes = self.peer_credit_bytes.max(ack.credit_bytes);
        let rtt_ns = ack.echo.age_ns(now_ns).saturating_sub(ack.echo_held_us * 1000).max(1000);
        // A stamp older than the connection is nonsense, and would be believed for half a minute.
        let rtt_ns = (rtt_ns < now_ns - self.began_ns + 1_000_000).then_some(rtt_ns);
        if let Some(rtt_ns) = rtt_ns {
            self.rtt.measured(now_ns, rtt_ns);
        }
        let (bytes_before, at_before_us) = self.peer_received;
        let mut arrival = None;
        if ack.received_bytes > bytes_before && ack.received_at_us >= at_before_us {
            arrival = Some(Arrival {
                bytes: ack.received_bytes - bytes_before,
                span_ns: (ack.received_at_us - at_before_us) * 1000,
                burst_bytes: ack.burst_bytes,
                burst_ns: ack.burst_us * 1000,
            });
            self.peer_received = (ack.received_bytes, ack.received_at_us);
        }
        let marked = ack.marked_packets.saturating_sub(self.peer_marked_packets);
        self.peer_marked_packets = self.peer_marked_packets.max(ack.marked_packets);
        self.learned(
            now_ns,
            outcome,
            rtt_ns,
            arrival,
            (marked, ack.spread_us.min(MOST_SPREAD_US) * 1000),
        );
    }

    fn learned(
        &mut self,
        now_ns: u64,
        mut outcome: Outcome,
        rtt_ns: Option<u64>,
        arrival: Option<Arrival>,
        (marked_packets, spread_ns): (u64, u64),
    ) {
        let smoothed_ns = self.rtt.smoothed_ns();
        self.recovery.find_lost(now_ns, smoothed_ns, &mut outcome);
        if outcome.late_packets == 0 && now_ns >= self.narrow_ns {
            self.recovery.narrow();
            // Reordering comes in spells: the window stays as wide as it had to be for sixteen round trips or a second.
            self.narrow_ns = now_ns + (16 * smoothed_ns).max(1_000_000_000);
        }
        self.mtu.large(outcome.arrived_large, outcome.lost_large);
        for payload in &outcome.arrived {
            if *payload == Payload::SizeProbe {
                if let Some((_, size)) = self.mtu.underway() {
                    self.mtu.arrived(size);
                }
            }
            for segment in payload.segments() {
                if let Some(extent) = self.send_buffer.arrived(*segment) {
                    self.events.push_back(Event::Delivered(extent));
                }
            }
        }
        for payload in &outcome.lost {
            if *payload == Payload::SizeProbe {
                self.mtu.lost();
            }
            for segment in payload.segments() {
                self.send_buffer.lost(*segment);
            }
        }
        if !outcome.arrived.is_empty() {
            self.timeouts = 0;
            self.timeout_from_ns = now_ns;
        }
        self.counters.lost_packets += outcome.lost_packets;
        self.counters.late_packets += outcome.late_packets;
        self.controller.on_ack(&AckEvent {
            now_ns,
            rtt_ns,
            spread_ns,
            base_rtt_ns: self.rtt.base_ns(),
            smoothed_rtt_ns: self.rtt.smoothed_ns(),
            arrived_bytes: outcome.arrived_bytes,
            arrived_packets: outcome.arrived.len() as u64,
            lost_packets: outcome.lost_packets,
            newest_lost: outcome.newest_lost,
            late_packets: outcome.late_packets,
            marked_packets,
            newest_spoken_of: self.recovery.covered_to(),
            next_number: self.recovery.next_number(),
            in_flight_bytes: self.recovery.in_flight_bytes(),
            arrival,
            limited: self.app_limited,
        });
    }
}

fn name(rule: Broken) -> &'static str {
    match rule {
        Broken::Credit => "it sent more than it had credit for",
        Broken::TooManyExtents => "it began more extents than allowed",
        Broken::TwoEnds => "it gave an extent two ends",
    }
}
