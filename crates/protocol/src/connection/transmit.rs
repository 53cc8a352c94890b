//! The next datagram to send.

use std::net::SocketAddr;

use super::{Connection, Ending, Source, State};
use crate::frame::{data_head_size, put_data_head, Frame};
use crate::packet::{Header, Stamp, HEADER_SIZE, TAG_SIZE};
use crate::sent::{Cargo, Piece};
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
            self.end(Ending::Silent);
            return None;
        }
        if self.sent.is_waiting() && now_ns >= self.timeout_ns() {
            self.timed_out(now_ns);
        }
        self.begin(now_ns, out);
        if !self.path.is_proved() {
            let size = HEADER_SIZE + 9 + TAG_SIZE;
            let (to, value) = self.path.challenge_due(now_ns, self.rtt.smoothed_ns(), size)?;
            Frame::Challenge(value).put(out);
            return Some(self.finish(now_ns, out, Cargo::Nothing, false, to));
        }
        if self.acks.due_ns().is_some_and(|due| due <= now_ns)
            && self.acks.put(now_ns, self.began_ns, self.incoming.credit_bytes(), out)
        {
            return Some(self.finish(now_ns, out, Cargo::Nothing, false, self.path.peer()));
        }
        if let Some((to, value)) = self.path.response() {
            Frame::Response(value).put(out);
            return Some(self.finish(now_ns, out, Cargo::Nothing, false, to));
        }
        let size = HEADER_SIZE + 9 + TAG_SIZE;
        if let Some((to, value)) = self.path.challenge_due(now_ns, self.rtt.smoothed_ns(), size) {
            Frame::Challenge(value).put(out);
            return Some(self.finish(now_ns, out, Cargo::Nothing, false, to));
        }
        if let Some((from, to)) = self.sent.question(now_ns, self.rtt.smoothed_ns()) {
            Frame::Ask { from, to }.put(out);
            return Some(self.finish(now_ns, out, Cargo::Nothing, false, self.path.peer()));
        }
        let quiet_ns = self.heard_ns.max(self.spoke_ns) + self.config.keep_alive_ns;
        if self.pings > 0 || now_ns >= quiet_ns {
            self.pings = self.pings.saturating_sub(1);
            Frame::Ping.put(out);
            return Some(self.finish(now_ns, out, Cargo::Nothing, true, self.path.peer()));
        }
        self.transmit_data(now_ns, source, out)
    }

    fn transmit_data(
        &mut self,
        now_ns: u64,
        source: &mut dyn Source,
        out: &mut Vec<u8>,
    ) -> Option<SocketAddr> {
        let held = self.limit_bps < self.mode.control().rate_bps;
        self.app_limited = held || !self.outgoing.has_work(self.peer_credit_bytes);
        if !self.may_send_data() {
            return None;
        }
        self.pacer.fill(now_ns, self.paced_bps());
        if !self.pacer.may_send() {
            return None;
        }
        if let Some(size) = self.mtu.probe(now_ns) {
            self.mtu.sent(self.sent.next_number(), size);
            Frame::Ping.put(out);
            out.resize(size - TAG_SIZE, 0);
            self.pacer.sent(size);
            return Some(self.finish(now_ns, out, Cargo::SizeProbe, true, self.path.peer()));
        }
        let cargo = self.put_pieces(source, out);
        if cargo == Cargo::Nothing {
            return None;
        }
        self.pacer.sent(out.len() + TAG_SIZE);
        Some(self.finish(now_ns, out, cargo, true, self.path.peer()))
    }

    /// Fills the packet with pieces of extents, repairs first, several where they are small.
    fn put_pieces(&mut self, source: &mut dyn Source, out: &mut Vec<u8>) -> Cargo {
        let end = self.mtu.current() - TAG_SIZE;
        let mut pieces: Vec<Piece> = Vec::new();
        let mut cargo = Cargo::Nothing;
        loop {
            let left = end - out.len();
            // Two bytes of length, should the piece not fill the packet.
            let room = |extent, offset| left.saturating_sub(data_head_size(extent, offset) + 2);
            if left < LEAST_PIECE {
                break;
            }
            let Some(piece) = self.outgoing.next(self.peer_credit_bytes, room) else { break };
            put_piece(piece, source, out);
            match cargo {
                Cargo::Nothing => cargo = Cargo::Piece(piece),
                Cargo::Piece(first) => {
                    pieces.extend([first, piece]);
                    cargo = Cargo::Pieces(Box::default());
                }
                _ => pieces.push(piece),
            }
        }
        if pieces.is_empty() {
            cargo
        } else {
            Cargo::Pieces(pieces.into_boxed_slice())
        }
    }

    fn begin(&self, now_ns: u64, out: &mut Vec<u8>) {
        out.clear();
        let number = self.sent.next_number();
        let connection = self.config.peer_connection;
        Header { connection, number, stamp: Stamp::of(now_ns) }.put(out);
    }

    fn finish(
        &mut self,
        now_ns: u64,
        out: &mut Vec<u8>,
        cargo: Cargo,
        watched: bool,
        to: SocketAddr,
    ) -> SocketAddr {
        let number = self.sent.next_number();
        self.protect.seal(number, HEADER_SIZE, out);
        if watched && !self.sent.is_waiting() {
            self.timeout_from_ns = now_ns;
        }
        self.sent.sent(now_ns, out.len(), cargo, watched);
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
            self.mode.on_silence(now_ns);
        }
    }

    fn put_close(&mut self, now_ns: u64, out: &mut Vec<u8>) -> Option<SocketAddr> {
        let State::Closing { left, next_ns } = self.state else { return None };
        if now_ns < next_ns {
            return None;
        }
        if left == 0 {
            self.end(Ending::Here(self.closing.0));
            return None;
        }
        self.begin(now_ns, out);
        let (code, reason) = &self.closing;
        Frame::Close { code: *code, reason }.put(out);
        self.state = State::Closing { left: left - 1, next_ns: now_ns + self.rtt.timeout_ns() };
        Some(self.finish(now_ns, out, Cargo::Nothing, false, self.path.peer()))
    }
}

fn put_piece(piece: Piece, source: &mut dyn Source, out: &mut Vec<u8>) {
    let length = piece.length as usize;
    put_data_head(out, piece.extent, piece.offset, piece.last, Some(length));
    debug_assert!(varint::size(length as u64) <= 2, "no packet holds so many bytes");
    let at = out.len();
    out.resize(at + length, 0);
    source.read(piece.extent, piece.offset, &mut out[at..]);
}
