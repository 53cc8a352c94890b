//! A train: packets of one size at even distances, and the end that sends it.
//!
//! Arrives: how many, how large, how far apart; a line. Leaves: the packets, at their times as nearly as this machine
//! can; how near that was. Must not know: what becomes of them, why they are sent.

use std::num::NonZeroU64;
use std::time::Duration;

use waystage_transport::clock::now_ns;
use waystage_transport::parameters::LARGEST_DATAGRAM;
use waystage_transport::wire::{Malformed, Read, Reader, Writer};

use crate::counting::MOST_PACKETS;
use crate::packet::{Kind, Mark, Packet, HEADER_BYTES};
use crate::probe_socket::ProbeSocket;

/// Packets that are due within this time leave together: a thread that sleeps for less wakes up as late. At 1 Gbit/s 17
/// of 1,500 bytes.
const TOGETHER_NS: u64 = 200_000;

/// One that is behind by more than this gives the time up: made up at once it would be a burst that no rate describes.
const MOST_BEHIND_NS: u64 = 4_000_000;

/// A packet that leaves later than this was late.
pub const LATE_NS: u64 = 1_000_000;

/// Long sleeps are cut into pieces of this, so that a stop need not wait for the next packet.
const STOP_LATENCY_NS: u64 = 50_000_000;

/// Bytes of datagrams that leave together at most.
const MOST_TOGETHER_BYTES: usize = 60_000;

/// Headers of IPv4 and UDP. Rates are of whole packets, as links count them.
pub const HEADERS_IPV4: u32 = 28;

/// Headers of IPv6 and UDP.
pub const HEADERS_IPV6: u32 = 48;

/// What to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Train {
    /// Packets.
    pub packets: u32,
    /// Bytes of each datagram, UDP's and IP's headers not counted.
    pub bytes: u32,
    /// From one packet to the next.
    pub interval_ns: u64,
    /// Whether UDP's checksum is sent. Without it the kernel hands damaged packets over, and packets leave one by one.
    pub checksum: bool,
}

impl Train {
    /// Bits a second of whole packets.
    pub(crate) fn rate_bps(&self, header_bytes: u32) -> f64 {
        f64::from(self.bytes + header_bytes) * 8e9 / self.interval_ns.max(1) as f64
    }

    /// From its first packet to its end.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_nanos(self.interval_ns.saturating_mul(u64::from(self.packets)))
    }

    pub(crate) fn put(&self, out: &mut Writer) {
        out.u32(self.packets).u32(self.bytes).u64(self.interval_ns).u8(u8::from(self.checksum));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let train = Self {
            packets: reader.u32()?,
            bytes: reader.u32()?,
            interval_ns: reader.u64()?,
            checksum: reader.flag()?,
        };
        train.is_possible().then_some(train).ok_or(Malformed)
    }

    /// Whether it can be sent at all.
    pub(crate) fn is_possible(&self) -> bool {
        (1..=MOST_PACKETS).contains(&self.packets)
            && (HEADER_BYTES..=LARGEST_DATAGRAM).contains(&(self.bytes as usize))
            && (1..=60_000_000_000).contains(&self.interval_ns)
    }
}

/// How a train left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets that left.
    pub packets: u64,
    /// Packets that this machine's kernel did not take.
    pub refused: u64,
    /// When the first one left, by the sender's clock.
    pub first_ns: u64,
    /// When the last one left.
    pub last_ns: u64,
    /// Packets that left later than due by more than [`LATE_NS`].
    pub late: u64,
    /// How late the latest was.
    pub latest_ns: u64,
    /// Time given up because this machine, or its network card, was too slow.
    pub given_up_ns: u64,
    /// Whether they left without UDP's checksum.
    pub bare: bool,
}

impl Sent {
    pub(crate) fn put(&self, out: &mut Writer) {
        let Self { packets, refused, first_ns, last_ns, late, latest_ns, given_up_ns, bare } =
            *self;
        for value in [packets, refused, first_ns, last_ns, late, latest_ns, given_up_ns] {
            out.u64(value);
        }
        out.u8(u8::from(bare));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        Ok(Self {
            packets: reader.u64()?,
            refused: reader.u64()?,
            first_ns: reader.u64()?,
            last_ns: reader.u64()?,
            late: reader.u64()?,
            latest_ns: reader.u64()?,
            given_up_ns: reader.u64()?,
            bare: reader.flag()?,
        })
    }
}

/// Send a train; ends early where `stopped` says so.
pub(crate) fn send(
    socket: &ProbeSocket,
    mark: Mark,
    number: u32,
    train: &Train,
    padding: &[u8],
    stopped: &dyn Fn() -> bool,
) -> Sent {
    // Sleeps are to end when they should: the kernel's slack of 50 us is a quarter of a burst.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut sent = Sent { bare: socket.set_checksums(train.checksum), ..Sent::default() };
    let bytes = train.bytes as usize;
    let padding = &padding[..bytes - HEADER_BYTES];
    let most = (MOST_TOGETHER_BYTES / bytes).max(1);
    let most = if sent.bare { most } else { most.min(socket.most_segments()) };
    let together = (TOGETHER_NS / train.interval_ns).clamp(1, most as u64) as u32;
    let mut batch = Vec::with_capacity(bytes * together as usize);
    let (mut began, mut next) = (now_ns(), 0);
    while next < train.packets && !stopped() {
        let due = began + u64::from(next) * train.interval_ns;
        let now = now_ns();
        if now < due {
            std::thread::sleep(Duration::from_nanos((due - now).min(STOP_LATENCY_NS)));
            continue;
        }
        let behind = now - due;
        if behind > MOST_BEHIND_NS {
            began += behind - MOST_BEHIND_NS;
            sent.given_up_ns += behind - MOST_BEHIND_NS;
        }
        let count = together.min(train.packets - next);
        batch.clear();
        for place in next..next + count {
            let packet = Packet {
                kind: Kind::Train,
                train: number,
                number: place,
                sent_ns: now_ns(),
                asked_ns: 0,
                heard_ns: 0,
            };
            mark.write(&packet, padding, &mut batch);
        }
        if sent.packets + sent.refused == 0 {
            sent.first_ns = now;
        }
        sent.last_ns = now;
        sent.latest_ns = sent.latest_ns.max(behind);
        sent.late += if behind > LATE_NS { u64::from(count) } else { 0 };
        let taken = socket.send_batch(bytes, &batch, sent.bare);
        sent.packets += taken;
        sent.refused += u64::from(count) - taken;
        next += count;
    }
    socket.set_checksums(true);
    sent
}
