//! Outgoing datagrams.

use std::net::SocketAddr;

use super::{CloseReason, Connection, SendLimit, Source, State};
use crate::frame::{data_head_size, put_data_head, Frame};
use crate::packet::{Header, Stamp, HEADER_SIZE, TAG_SIZE};
use crate::segment::{Payload, Segment};
use crate::varint;

/// The smallest room for a data frame.
const MIN_SEGMENT: usize = 32;

/// Pings of the first timeout, and the most of a later one, after four times as many each time: fewer bytes than the
/// two full-sized packets that RFC 9002, section 6.2.4, allows. A burst of losses counted in packets must end before a
/// flow that lost its whole window is heard again.
const PINGS: [u32; 2] = [2, 32];

/// Consecutive timeouts after which the path may have become too narrow for the packets in use.
const BLACK_HOLE_TIMEOUTS: u32 = 3;

/// At most: a kind, an offset and a length.
const CONTROL_HEAD_SIZE: usize = 1 + 8 + 4;

/// The size of a packet with a challenge.
const CHALLENGE_SIZE: usize = HEADER_SIZE + 9 + TAG_SIZE;

impl Connection {
    /// Writes the next datagram into `out` and returns its destination; None when nothing may be sent now.
    pub fn transmit(
        &mut self,
        now_ns: u64,
        source: &mut dyn Source,
        out: &mut Vec<u8>,
    ) -> Option<SocketAddr> {
        out.clear();
        match self.state {
            State::Closed => return None,
            State::Closing { .. } => return self.transmit_close(now_ns, out),
            State::Open => {}
        }
        if now_ns >= self.received_ns + self.config.idle_ns {
            self.end(CloseReason::IdleTimeout);
            return None;
        }
        if self.ends_in_doubt(now_ns) {
            return None;
        }
        if self.recovery.is_in_flight() && now_ns >= self.timeout_at_ns() {
            self.on_timeout(now_ns);
        }
        self.begin(now_ns, out);
        if !self.path.is_validated() {
            return self.transmit_challenge(now_ns, out);
        }
        if self.acks.due_ns().is_some_and(|due| due <= now_ns)
            && self.acks.put(now_ns, self.began_ns, self.reassembly.credit_bytes(), out)
        {
            return Some(self.finish(now_ns, out, Payload::Nothing, false, self.path.peer()));
        }
        if let Some((to, value)) = self.path.response() {
            Frame::Response(value).put(out);
            return Some(self.finish(now_ns, out, Payload::Nothing, false, to));
        }
        if let Some(to) = self.transmit_challenge(now_ns, out) {
            return Some(to);
        }
        if let Some((from, to)) = self.recovery.history_request(now_ns, self.rtt.smoothed_ns()) {
            Frame::HistoryRequest { from, to }.put(out);
            return Some(self.finish(now_ns, out, Payload::Nothing, false, self.path.peer()));
        }
        if self.pings > 0 || now_ns >= self.ping_at_ns() {
            if self.send_limit() == SendLimit::FlowControl {
                self.credit_probes += 1;
            }
            self.pings = self.pings.saturating_sub(1);
            Frame::Ping.put(out);
            return Some(self.finish(now_ns, out, Payload::Nothing, true, self.path.peer()));
        }
        if let Some(to) = self.transmit_control(now_ns, out) {
            return Some(to);
        }
        self.transmit_data(now_ns, source, out)
    }

    /// Asks a peer that may be dead. Whether it took too long, and the connection has ended.
    fn ends_in_doubt(&mut self, now_ns: u64) -> bool {
        let Some(doubt) = &mut self.doubt else { return false };
        if now_ns >= doubt.until_ns {
            self.end(CloseReason::NoAnswer);
            return true;
        }
        if now_ns >= doubt.ping_ns {
            doubt.ping_ns = now_ns + doubt.every_ns;
            self.pings = self.pings.max(1);
        }
        false
    }

    fn transmit_control(&mut self, now_ns: u64, out: &mut Vec<u8>) -> Option<SocketAddr> {
        if !self.may_send_control() {
            return None;
        }
        self.control_pacer.fill(now_ns, self.controller.control().rate_bps);
        if !self.control_pacer.may_send() {
            return None;
        }
        let room = self.mtu.current() - TAG_SIZE - out.len() - CONTROL_HEAD_SIZE;
        let (offset, bytes) = self.control_sender.next(room)?;
        Frame::Control { offset, bytes: &bytes }.put(out);
        self.control_pacer.on_sent(out.len() + TAG_SIZE);
        self.pacer.on_sent(out.len() + TAG_SIZE);
        let payload = Payload::Control(offset..offset + bytes.len() as u64);
        Some(self.finish(now_ns, out, payload, true, self.path.peer()))
    }

    fn transmit_challenge(&mut self, now_ns: u64, out: &mut Vec<u8>) -> Option<SocketAddr> {
        let smoothed_ns = self.rtt.smoothed_ns();
        let (to, value) = self.path.challenge_due(now_ns, smoothed_ns, CHALLENGE_SIZE)?;
        Frame::Challenge(value).put(out);
        Some(self.finish(now_ns, out, Payload::Nothing, false, to))
    }

    fn transmit_data(
        &mut self,
        now_ns: u64,
        source: &mut dyn Source,
        out: &mut Vec<u8>,
    ) -> Option<SocketAddr> {
        let capped = self.limit_bps < self.controller.control().rate_bps;
        self.app_limited = capped || !self.send_buffer.has_work(self.peer_credit_bytes);
        if !self.has_data() || !self.window_is_open(now_ns) {
            return None;
        }
        self.pacer.fill(now_ns, self.pacing_rate_bps());
        if !self.pacer.may_send() {
            return None;
        }
        if let Some(size) = self.mtu.probe(now_ns) {
            self.mtu.on_probe_sent(size);
            Frame::Ping.put(out);
            out.resize(size - TAG_SIZE, 0);
            self.pacer.on_sent(size);
            return Some(self.finish(now_ns, out, Payload::MtuProbe, true, self.path.peer()));
        }
        let payload = self.put_segments(source, out);
        if payload == Payload::Nothing {
            return None;
        }
        self.pacer.on_sent(out.len() + TAG_SIZE);
        Some(self.finish(now_ns, out, payload, true, self.path.peer()))
    }

    /// Fills the packet with segments, retransmissions first, several where they are small.
    fn put_segments(&mut self, source: &mut dyn Source, out: &mut Vec<u8>) -> Payload {
        let end = self.mtu.current() - TAG_SIZE;
        let mut segments: Vec<Segment> = Vec::new();
        let mut payload = Payload::Nothing;
        loop {
            let left = end - out.len();
            // Two bytes of length, if the segment does not fill the packet.
            let room = |extent, offset| left.saturating_sub(data_head_size(extent, offset) + 2);
            if left < MIN_SEGMENT {
                break;
            }
            let Some(segment) = self.send_buffer.next(self.peer_credit_bytes, room) else { break };
            put_segment(segment, source, out);
            match payload {
                Payload::Nothing => payload = Payload::Segment(segment),
                Payload::Segment(first) => {
                    segments.extend([first, segment]);
                    payload = Payload::Segments(Box::default());
                }
                _ => segments.push(segment),
            }
        }
        if segments.is_empty() {
            payload
        } else {
            Payload::Segments(segments.into_boxed_slice())
        }
    }

    fn begin(&self, now_ns: u64, out: &mut Vec<u8>) {
        out.clear();
        let number = self.recovery.next_packet_number();
        let connection = self.config.peer_connection;
        Header { connection, number, stamp: Stamp::of(now_ns) }.put(out);
    }

    fn finish(
        &mut self,
        now_ns: u64,
        out: &mut Vec<u8>,
        payload: Payload,
        ack_eliciting: bool,
        to: SocketAddr,
    ) -> SocketAddr {
        let number = self.recovery.next_packet_number();
        self.protect.seal(number, HEADER_SIZE, out);
        if ack_eliciting && !self.recovery.is_in_flight() {
            self.timeout_from_ns = now_ns;
        }
        self.recovery.on_sent(now_ns, out.len(), payload, ack_eliciting);
        self.sent_ns = now_ns;
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += out.len() as u64;
        to
    }

    fn on_timeout(&mut self, now_ns: u64) {
        self.pings = (PINGS[0] << (2 * self.timeouts).min(8)).min(PINGS[1]);
        self.timeouts += 1;
        self.timeout_from_ns = now_ns;
        if self.timeouts == BLACK_HOLE_TIMEOUTS {
            self.mtu.on_black_hole();
        }
        if self.timeouts >= 2 {
            self.controller.on_timeout(now_ns);
        }
    }

    fn transmit_close(&mut self, now_ns: u64, out: &mut Vec<u8>) -> Option<SocketAddr> {
        let State::Closing { left, next_ns } = self.state else { return None };
        if now_ns < next_ns {
            return None;
        }
        if left == 0 {
            self.end(CloseReason::Local(self.closing.0));
            return None;
        }
        self.begin(now_ns, out);
        let (code, reason) = &self.closing;
        Frame::Close { code: *code, reason }.put(out);
        self.state = State::Closing { left: left - 1, next_ns: now_ns + self.rtt.timeout_ns() };
        Some(self.finish(now_ns, out, Payload::Nothing, false, self.path.peer()))
    }
}

fn put_segment(segment: Segment, source: &mut dyn Source, out: &mut Vec<u8>) {
    let length = segment.length as usize;
    put_data_head(out, segment.extent, segment.offset, segment.last, Some(length));
    debug_assert!(varint::size(length as u64) <= 2, "no packet holds more than 16,383 bytes");
    let at = out.len();
    out.resize(at + length, 0);
    source.read(segment.extent, segment.offset, &mut out[at..]);
}
