//! A flow of the wide-area protocol, which runs the protocol's code at both ends.
//!
//! Arrives: a mode, the extents to send. Leaves: packets. Must not know: the path.

use std::net::{Ipv4Addr, SocketAddr};

use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::congestion::Mode;
use waystage_protocol::connection::{Config, Connection, Event, Sink, Source};
use waystage_protocol::packet::TAG_SIZE;
use waystage_protocol::protect::{Protect, Sealed, Side, Suite};

use crate::simulation::{Body, End, Flow, Packet};

/// Headers of IPv4 and UDP.
pub const IP_UDP_BYTES: usize = 28;

/// The description of a flow.
#[derive(Clone, Debug)]
pub struct BulkSpec {
    /// The congestion controller.
    pub mode: Mode,
    /// The connections that take the share of one together with this one.
    pub group: Option<Group>,
    /// The rate that the server grants.
    pub rate_cap_bps: f64,
    /// The lengths of the extents to send.
    pub extents: Vec<u64>,
    /// The round trip that a handshake would have measured.
    pub initial_rtt_ns: u64,
    /// The largest UDP payload of the hosts' links.
    pub largest_datagram: usize,
    /// The rate of the receiver's disk; None for no limit.
    pub disk_bps: Option<f64>,
    /// The receiver's memory for bytes that wait for the disk.
    pub memory_bytes: u64,
    /// Whether packets are sealed and every byte is checked. Both cost time and change no decision.
    pub verify: bool,
}

impl BulkSpec {
    /// One extent that never ends.
    #[must_use]
    pub fn endless(mode: Mode, initial_rtt_ns: u64) -> Self {
        Self {
            mode,
            group: None,
            rate_cap_bps: 10e9,
            extents: vec![1 << 50],
            initial_rtt_ns,
            largest_datagram: 1472,
            disk_bps: None,
            memory_bytes: 1 << 30,
            verify: false,
        }
    }
}

/// The flow: two connections.
pub struct Bulk {
    sender: Connection,
    receiver: Connection,
    content: Content,
    disk_bps: Option<f64>,
    written_ns: u64,
    unwritten: f64,
    free: Vec<Vec<u8>>,
    events: [Vec<Event>; 2],
    addresses: [SocketAddr; 2],
}

/// A tag of zeros, for simulations whose time the ciphers would dominate.
struct Unsealed;

impl Protect for Unsealed {
    fn seal(&mut self, _number: u64, _header_size: usize, packet: &mut Vec<u8>) {
        packet.extend_from_slice(&[0; TAG_SIZE]);
    }

    fn open<'a>(
        &mut self,
        _number: u64,
        header_size: usize,
        packet: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let frames = packet.get_mut(header_size..)?;
        let length = frames.len().checked_sub(TAG_SIZE)?;
        frames[length..].iter().all(|&byte| byte == 0).then_some(&frames[..length])
    }
}

/// Bytes that are a function of their offset, so that the receiver can check each of them.
#[derive(Default)]
struct Content {
    verify: bool,
    wrong_bytes: u64,
    received_bytes: u64,
}

fn byte_at(extent: u64, offset: u64) -> u8 {
    (waystage_flowsim::seeded::mix((extent << 40) ^ (offset / 8)) >> (8 * (offset % 8))) as u8
}

impl Source for Content {
    fn read(&mut self, extent: u64, offset: u64, into: &mut [u8]) {
        if self.verify {
            for (index, byte) in into.iter_mut().enumerate() {
                *byte = byte_at(extent, offset + index as u64);
            }
        }
    }
}

impl Sink for Content {
    fn write(&mut self, extent: u64, offset: u64, bytes: &[u8]) {
        self.received_bytes += bytes.len() as u64;
        if self.verify {
            let wrong =
                |(index, byte): (usize, &u8)| *byte != byte_at(extent, offset + index as u64);
            self.wrong_bytes += bytes.iter().enumerate().filter(|&each| wrong(each)).count() as u64;
        }
    }
}

impl Bulk {
    /// Both ends, after their handshake.
    #[must_use]
    pub fn new(now_ns: u64, spec: &BulkSpec) -> Self {
        let addresses = [1, 2].map(|host| SocketAddr::from((Ipv4Addr::new(192, 0, 2, host), 7000)));
        let end = |side: Side, peer: SocketAddr, local: u32| {
            let mut config = Config::new(peer, spec.initial_rtt_ns);
            config.local_connection = local;
            config.peer_connection = 3 - local;
            config.largest_datagram = spec.largest_datagram;
            config.limits.unconsumed_bytes = spec.memory_bytes;
            config.secret = [local as u8; 32];
            let protect: Box<dyn Protect> = if spec.verify {
                Box::new(Sealed::new(&[9; 32], side, Suite::Aes256Gcm))
            } else {
                Box::new(Unsealed)
            };
            let mode = spec.mode.start(spec.initial_rtt_ns, spec.rate_cap_bps);
            match (&spec.group, side) {
                (Some(group), Side::Client) => {
                    Connection::new(config, now_ns, protect, Box::new(group.join(mode)))
                }
                _ => Connection::new(config, now_ns, protect, mode),
            }
        };
        let mut sender = end(Side::Client, addresses[1], 1);
        for &length in &spec.extents {
            sender.send(length);
        }
        Self {
            sender,
            receiver: end(Side::Server, addresses[0], 2),
            content: Content { verify: spec.verify, ..Content::default() },
            disk_bps: spec.disk_bps,
            written_ns: now_ns,
            unwritten: 0.0,
            free: Vec::new(),
            events: [Vec::new(), Vec::new()],
            addresses,
        }
    }

    /// One end's connection.
    #[must_use]
    pub fn end(&self, end: End) -> &Connection {
        match end {
            End::Sender => &self.sender,
            End::Receiver => &self.receiver,
        }
    }

    /// One end's connection, to change it.
    pub fn end_mut(&mut self, end: End) -> &mut Connection {
        match end {
            End::Sender => &mut self.sender,
            End::Receiver => &mut self.receiver,
        }
    }

    /// The events of one end's application so far.
    #[must_use]
    pub fn events(&self, end: End) -> &[Event] {
        &self.events[end as usize]
    }

    /// Moves the sender to another address, as a change of network or of a NAT's port does.
    pub fn move_sender(&mut self, to: SocketAddr) {
        self.addresses[0] = to;
    }

    /// Bytes received that differ from those sent.
    #[must_use]
    pub fn wrong_bytes(&self) -> u64 {
        self.content.wrong_bytes
    }

    fn write_to_disk(&mut self, now_ns: u64) {
        let before = self.receiver.counters().unique_bytes;
        let waiting = (before as f64 - self.unwritten).max(0.0);
        let passed_s = (now_ns - self.written_ns) as f64 / 1e9;
        self.written_ns = now_ns;
        let written = self.disk_bps.map_or(waiting, |bps| (bps / 8.0 * passed_s).min(waiting));
        if written >= 1.0 {
            self.unwritten += written.floor();
            self.receiver.consumed(now_ns, written as u64);
        }
    }
}

impl Flow for Bulk {
    fn on_packet(&mut self, now_ns: u64, end: End, packet: Packet) {
        let Body::Datagram(mut bytes) = packet.body else { return };
        let (connection, from) = match end {
            End::Sender => (&mut self.sender, self.addresses[1]),
            End::Receiver => (&mut self.receiver, self.addresses[0]),
        };
        connection.receive(now_ns, from, packet.marked, &mut bytes, &mut self.content);
        self.free.push(bytes);
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<(End, Packet)>) {
        self.write_to_disk(now_ns);
        for end in [End::Sender, End::Receiver] {
            let connection = match end {
                End::Sender => &mut self.sender,
                End::Receiver => &mut self.receiver,
            };
            loop {
                let mut bytes = self.free.pop().unwrap_or_default();
                let Some(to) = connection.transmit(now_ns, &mut self.content, &mut bytes) else {
                    self.free.push(bytes);
                    break;
                };
                // A packet to an address without a host is lost.
                if self.addresses.contains(&to) {
                    let size = bytes.len() + IP_UDP_BYTES;
                    out.push((
                        end,
                        Packet { bytes: size, body: Body::Datagram(bytes), marked: false },
                    ));
                }
            }
            while let Some(event) = connection.next_event() {
                self.events[end as usize].push(event);
            }
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        let disk_ns = self.disk_bps.map(|_| self.written_ns + 1_000_000);
        [self.sender.wake_ns(), self.receiver.wake_ns(), disk_ns].into_iter().flatten().min()
    }

    fn delivered_bytes(&self) -> u64 {
        self.content.received_bytes
    }
}
