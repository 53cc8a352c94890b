//! The next datagram to send.

use std::net::SocketAddr;

use super::{CloseReason, Connection, Source, State};
use crate::frame::{data_head_size, put_data_head, Frame};
use crate::loss_recovery::{Payload, Segment};
use crate::packet::{Header, Stamp, HEADER_SIZE, TAG_SIZE};
use crate::varint;

/// A data frame is not begun for fewer bytes than this.
const LEAST_PIECE: usize = 32;

/// Silent time-outs after which the path may have become too narrow for our packets.
const BLACK_HOLE_TIMEOUTS: u32 = 3;

impl Connection {
    /// Writes the next datagram into `out` and returns where it goes; None when nothing may be sent now.
    pub fn transmit(
        &mut self,
        now_ns: u64,
        source: &mut dyn Source,
        out: &mut Vec<u8>,
    ) -> Option<SocketAddr> {
        out.clear();
        match self.state {
            State::Closed => return None,
            State::Closing { .. } => return self.put_close(now_ns, out),
            State::Open => {}
        }
        if now_ns >= self.heard_ns + self.config.idle_ns {
            self.end(CloseReason::IdleTimeout);
            return None;
        }
        if self.recovery.is_waiting() && now_ns >= self.timeout_ns() {
            self.timed_out(now_ns);
        }
        self.begin(now_ns, out);
        if !self.path.is_proved() {
            let size = HEADER_SIZE + 9 + TAG_SIZE;
            let (to, value) = self.path.challenge_due(now_ns, self.rtt.smoothed_ns(), size)?;
            Frame::Challenge(value).put(out);
            return Some(self.finish(now_ns, out, Payload::Nothing, false, to));
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
        let size = HEADER_SIZE + 9 + TAG_SIZE;
        if let Some((to, value)) = self.path.challenge_due(now_ns, self.rtt.smoothed_ns(), size) {
            Frame::Challenge(value).put(out);
            return Some(self.finish(now_ns, out, Payload::Nothing, false, to));
        }
        if let Some((from, to)) = self.recovery.question(now_ns, self.rtt.smoothed_ns()) {
            Frame::Ask { from, to }.put(out);
            return Some(self.finish(now_ns, out, Payload::Nothing, false, self.path.peer()));
        }
        let quiet_ns = self.heard_ns.max(self.spoke_ns) + self.config.keep_alive_ns;
        if self.pings > 0 || now_ns >= quiet_ns {
            self.pings = self.pings.saturating_sub(1);
            Frame::Ping.put(out);
            return Some(self.finish(now_ns, out, Payload::Nothing, true, self.path.peer()));
        }
        self.transmit_data(now_ns, source, out)
    }

    fn transmit_data(
        &mut self,
        now_ns: u64,
        source: &mut dyn Source,
        out: &mut Vec<u8>,
    ) -> Option<SocketAddr> {
        let held = self.limit_bps < self.controller.control().rate_bps;
        self.app_limited = held || !self.send_buffer.has_work(self.peer_credit_bytes);
        if !self.may_send_data() {
            return None;
        }
        self.pacer.fill(now_ns, self.pacing_rate_bps());
        if !self.pacer.may_send() {
            return None;
        }
        if let Some(size) = self.mtu.probe(now_ns) {
            self.mtu.sent(self.recovery.next_number(), size);
            Frame::Ping.put(out);
            out.resize(size - TAG_SIZE, 0);
            self.pacer.sent(size);
            return Some(self.finish(now_ns, out, Payload::SizeProbe, true, self.path.peer()));
        }
        let payload = self.put_pieces(source, out);
        if payload == Payload::Nothing {
            return None;
        }
        self.pacer.sent(out.len() + TAG_SIZE);
        Some(self.finish(now_ns, out, payload, true, self.path.peer()))
    }

    /// Fills the packet with segments of extents, retransmissions first, several where they are small.
    fn put_pieces(&mut self, source: &mut dyn Source, out: &mut Vec<u8>) -> Payload {
        let end = self.mtu.current() - TAG_SIZE;
        let mut segments: Vec<Segment> = Vec::new();
        let mut payload = Payload::Nothing;
        loop {
            let left = end - out.len();
            // Two bytes of length, should the segment not fill the packet.
            let room = |extent, offset| left.saturating_sub(data_head_size(extent, offset) + 2);
            if left < LEAST_PIECE {
                break;
            }
            let Some(segment) = self.send_buffer.next(self.peer_credit_bytes, room) else { break };
            put_piece(segment, source, out);
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
        let number = self.recovery.next_number();
        let connection = self.config.peer_connection;
        Header { connection, number, stamp: Stamp::of(now_ns) }.put(out);
    }

    fn finish(
        &mut self,
        now_ns: u64,
        out: &mut Vec<u8>,
        payload: Payload,
        watched: bool,
        to: SocketAddr,
    ) -> SocketAddr {
        let number = self.recovery.next_number();
        self.protect.seal(number, HEADER_SIZE, out);
        if watched && !self.recovery.is_waiting() {
            self.timeout_from_ns = now_ns;
        }
        self.recovery.sent(now_ns, out.len(), payload, watched);
        self.spoke_ns = now_ns;
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += out.len() as u64;
        to
    }

    fn timed_out(&mut self, now_ns: u64) {
        self.timeouts += 1;
        self.timeout_from_ns = now_ns;
        self.pings = 2;
        if self.timeouts == BLACK_HOLE_TIMEOUTS {
            self.mtu.black_hole();
        }
        if self.timeouts >= 2 {
            self.controller.on_timeout(now_ns);
        }
    }

    fn put_close(&mut self, now_ns: u64, out: &mut Vec<u8>) -> Option<SocketAddr> {
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

fn put_piece(segment: Segment, source: &mut dyn Source, out: &mut Vec<u8>) {
    let length = segment.length as usize;
    put_data_head(out, segment.extent, segment.offset, segment.last, Some(length));
    debug_assert!(varint::size(length as u64) <= 2, "no packet holds so many bytes");
    let at = out.len();
    out.resize(at + length, 0);
    source.read(segment.extent, segment.offset, &mut out[at..]);
}
