//! Incoming datagrams.

use std::net::SocketAddr;

use super::{CloseReason, Connection, Event, Sink, State};
use crate::congestion::controller::{AckEvent, Delivery};
use crate::error::Error;
use crate::frame::{Ack, Frame};
use crate::loss_recovery::Outcome;
use crate::mtu::MIN_DATAGRAM;
use crate::packet::{Header, HEADER_SIZE};
use crate::segment::Payload;
use crate::varint::Reader;

/// The largest plausible spread of delays: a minute.
const MAX_SPREAD_US: u64 = 60_000_000;

/// Packets before a ping that its answer covers.
const PING_ANSWER: u64 = 64;

const NEVER_SENT: Error = Error::Violation("it acknowledged packets that were never sent");

/// The measurements of an acknowledgement, beside the packets that it covers.
#[derive(Default)]
struct Measured {
    rtt_ns: Option<u64>,
    rtt_spread_ns: u64,
    longer_ns: u64,
    return_delay_ns: u64,
    delivery: Option<Delivery>,
    marked_packets: u64,
}

impl Connection {
    /// Processes a datagram; `marked` is whether it has an ECN mark. One that is not the peer's, or that has arrived
    /// before, is discarded silently.
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
        self.received_ns = now_ns;
        let mut reader = Reader::new(frames);
        let (mut ack_eliciting, mut keep, mut pinged) = (false, true, false);
        while !reader.is_empty() {
            match Frame::read(&mut reader) {
                Ok(frame) => {
                    ack_eliciting |= frame.is_ack_eliciting();
                    pinged |= frame == Frame::Ping;
                    keep &= self.on_frame(now_ns, from, &frame, sink);
                }
                // The peer sealed it, so the peer is at fault.
                Err(error) => return self.on_violation(now_ns, &error),
            }
            if self.state == State::Closed {
                return;
            }
        }
        if !keep {
            return;
        }
        self.ack_gaps.on_packet(now_ns, header.number, expected);
        self.acks.on_packet(now_ns, header.number, header.stamp, size, marked);
        // Probes of the packet size are pings, too.
        if pinged && size < MIN_DATAGRAM {
            // The peer may have heard nothing for long. On a path whose bursts of losses are counted in packets they
            // end only if packets go back, so each ping has an answer, at once.
            self.acks
                .on_history_request(header.number.saturating_sub(PING_ANSWER), header.number + 1);
        }
        if ack_eliciting {
            self.acks.schedule(now_ns, self.rtt.ack_interval_ns(), self.rtt.busy_ack_interval_ns());
        }
        self.path.on_packet(now_ns, from, size, header.number >= expected);
    }

    /// Processes a frame. False if the packet must not be acknowledged.
    fn on_frame(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        frame: &Frame<'_>,
        sink: &mut dyn Sink,
    ) -> bool {
        match frame {
            Frame::Padding | Frame::Ping => {}
            Frame::Data { extent, offset, last, bytes } => {
                let length = bytes.len() as u64;
                let inserted = match self.reassembly.insert(*extent, *offset, length, *last) {
                    Ok(inserted) => inserted,
                    Err(error) => {
                        self.on_violation(now_ns, &error);
                        return true;
                    }
                };
                for new in &inserted.new {
                    let part = (new.start - offset) as usize..(new.end - offset) as usize;
                    sink.write(*extent, new.start, &bytes[part]);
                }
                if let Some(length) = inserted.complete {
                    self.events.push_back(Event::Complete { extent: *extent, length });
                }
                return !inserted.dropped;
            }
            Frame::Ack(ack) => self.on_ack(now_ns, ack),
            Frame::History(bitmap) => {
                let mut outcome = Outcome::default();
                if self.recovery.on_bitmap(now_ns, bitmap, true, &mut outcome) {
                    self.on_acknowledged(now_ns, outcome, Measured::default());
                } else {
                    self.on_violation(now_ns, &NEVER_SENT);
                }
            }
            Frame::HistoryRequest { from, to } => self.acks.on_history_request(*from, *to),
            Frame::Close { code, reason } => {
                let reason = String::from_utf8_lossy(reason).into_owned();
                match self.state {
                    State::Open => {
                        self.closing = (*code, Vec::new());
                        // One answer, so that the peer need not repeat itself.
                        self.state = State::Closing { left: 1, next_ns: now_ns };
                        self.report_end(CloseReason::Peer(*code, reason));
                    }
                    _ => self.end(CloseReason::Local(self.closing.0)),
                }
            }
            Frame::Control { offset, bytes } => {
                match self.control_receiver.insert(*offset, bytes) {
                    Ok(bytes) if bytes.is_empty() => {}
                    Ok(bytes) => self.events.push_back(Event::Control(bytes)),
                    Err(error) => self.on_violation(now_ns, &error),
                }
            }
            Frame::Challenge(value) => self.path.on_challenge(from, *value),
            Frame::Response(value) => {
                if self.path.on_response(from, *value) {
                    self.events.push_back(Event::PeerMigrated(from));
                    self.on_path_change(now_ns);
                }
            }
        }
        true
    }

    fn on_ack(&mut self, now_ns: u64, ack: &Ack<'_>) {
        let mut outcome = Outcome::default();
        if !self.recovery.on_bitmap(now_ns, &ack.bitmap, false, &mut outcome) {
            return self.on_violation(now_ns, &NEVER_SENT);
        }
        if ack.credit_bytes > self.peer_credit_bytes {
            (self.peer_credit_bytes, self.credit_probes) = (ack.credit_bytes, 0);
        }
        let rtt_ns = ack.echo.age_ns(now_ns).saturating_sub(ack.echo_held_us * 1000).max(1000);
        // A stamp older than the connection is invalid, and would set the minimum for half a minute.
        let rtt_ns = (rtt_ns < now_ns - self.began_ns + 1_000_000).then_some(rtt_ns);
        let mut longer_ns = 0;
        if let Some(rtt_ns) = rtt_ns {
            self.rtt.on_sample(now_ns, rtt_ns);
            let sent_ns = now_ns.saturating_sub(ack.echo.age_ns(now_ns));
            let step_ns = self.delay_steps.on_sample(sent_ns, rtt_ns, self.rtt.min_ns());
            longer_ns = step_ns.unwrap_or(0);
            if longer_ns > 0 {
                self.rtt.lengthen(longer_ns);
            }
        }
        let (bytes_before, at_before_us) = self.peer_received;
        let mut delivery = None;
        let mut return_delay_ns = 0;
        if ack.received_bytes > bytes_before && ack.received_at_us >= at_before_us {
            delivery = Some(Delivery {
                bytes: ack.received_bytes - bytes_before,
                interval_ns: (ack.received_at_us - at_before_us) * 1000,
                burst_bytes: ack.burst_bytes,
                burst_ns: ack.burst_us * 1000,
            });
            let peer_ns = ack.received_at_us.saturating_mul(1000);
            return_delay_ns = self.return_delay.on_ack(now_ns, peer_ns);
            self.peer_received = (ack.received_bytes, ack.received_at_us);
        }
        let marked_packets = ack.marked_packets.saturating_sub(self.peer_marked_packets);
        self.peer_marked_packets = self.peer_marked_packets.max(ack.marked_packets);
        let rtt_spread_ns = ack.spread_us.min(MAX_SPREAD_US) * 1000;
        let measured = Measured {
            rtt_ns,
            rtt_spread_ns,
            longer_ns,
            return_delay_ns,
            delivery,
            marked_packets,
        };
        self.on_acknowledged(now_ns, outcome, measured);
    }

    fn on_acknowledged(&mut self, now_ns: u64, mut outcome: Outcome, measured: Measured) {
        let smoothed_ns = self.rtt.smoothed_ns();
        self.recovery.detect_losses(now_ns, smoothed_ns, &mut outcome);
        if outcome.late_packets == 0 && now_ns >= self.narrow_ns {
            self.recovery.narrow_window();
            // Reordering comes in spells: the window stays as wide as it had to be for sixteen round trips or a second.
            self.narrow_ns = now_ns + (16 * smoothed_ns).max(1_000_000_000);
        }
        self.mtu.on_large_packets(outcome.acked_large, outcome.lost_large);
        for payload in &outcome.acked {
            match payload {
                Payload::MtuProbe => self.mtu.on_probe_acked(),
                Payload::Control(range) => self.control_sender.acknowledge(range.clone()),
                _ => {}
            }
            for segment in payload.segments() {
                if let Some(extent) = self.send_buffer.acknowledge(*segment) {
                    self.events.push_back(Event::Delivered(extent));
                }
            }
        }
        for payload in &outcome.lost {
            match payload {
                Payload::MtuProbe => self.mtu.on_probe_lost(),
                Payload::Control(range) => self.control_sender.mark_lost(range.clone()),
                _ => {}
            }
            for segment in payload.segments() {
                self.send_buffer.mark_lost(*segment);
            }
        }
        let largest = self.recovery.largest_acknowledged();
        self.doubt.take_if(|doubt| largest >= Some(doubt.first_number));
        if !outcome.acked.is_empty() {
            self.timeouts = 0;
            self.timeout_from_ns = now_ns;
        }
        self.counters.lost_packets += outcome.lost_packets;
        self.counters.late_packets += outcome.late_packets;
        self.controller.on_ack(&AckEvent {
            now_ns,
            rtt_ns: measured.rtt_ns,
            rtt_spread_ns: measured.rtt_spread_ns,
            min_rtt_ns: self.rtt.min_ns(),
            longer_ns: measured.longer_ns,
            return_delay_ns: measured.return_delay_ns,
            smoothed_rtt_ns: self.rtt.smoothed_ns(),
            acked_bytes: outcome.acked_bytes,
            acked_packets: outcome.acked.len() as u64,
            lost_packets: outcome.lost_packets,
            lost_squares: outcome.lost_squares,
            largest_lost: outcome.largest_lost,
            late_packets: outcome.late_packets,
            marked_packets: measured.marked_packets,
            largest_acknowledged: self.recovery.largest_acknowledged(),
            next_packet_number: self.recovery.next_packet_number(),
            bytes_in_flight: self.recovery.bytes_in_flight(),
            delivery: measured.delivery,
            app_limited: self.app_limited,
        });
    }
}
