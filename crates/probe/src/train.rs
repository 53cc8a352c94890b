//! A train: packets of one size at even distances, and the end that sends it.
//!
//! Arrives: how many, how large, how far apart; a line. Leaves: the packets, at their times as nearly as this machine
//! can; how near that was. Must not know: what becomes of them, why they are sent.

use std::num::NonZeroU64;
use std::ops::Range;
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

/// When the packets of a train leave, and how they did. Times are by the sender's clock.
struct Schedule<'a> {
    train: &'a Train,
    /// Packets that leave together.
    together: u32,
    /// When the first packet was due; later by the time that was given up.
    began_ns: u64,
    /// The number of the next packet.
    next: u32,
    sent: Sent,
}

impl<'a> Schedule<'a> {
    /// At most `most_together` packets leave in one call of the kernel.
    fn new(train: &'a Train, most_together: usize, bare: bool, now_ns: u64) -> Self {
        let together = (TOGETHER_NS / train.interval_ns).clamp(1, most_together as u64) as u32;
        let sent = Sent { bare, ..Sent::default() };
        Self { train, together, began_ns: now_ns, next: 0, sent }
    }

    fn is_complete(&self) -> bool {
        self.next >= self.train.packets
    }

    fn due_ns(&self) -> u64 {
        self.began_ns + u64::from(self.next) * self.train.interval_ns
    }

    /// How long to sleep before asking again; zero where packets are due.
    fn wait(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.due_ns().saturating_sub(now_ns).min(STOP_LATENCY_NS))
    }

    /// The numbers of the packets that leave now, when they are due.
    fn take(&mut self, now_ns: u64) -> Range<u32> {
        let behind = now_ns - self.due_ns();
        let given_up = behind.saturating_sub(MOST_BEHIND_NS);
        self.began_ns += given_up;
        let count = self.together.min(self.train.packets - self.next);
        let sent = &mut self.sent;
        sent.given_up_ns += given_up;
        if self.next == 0 {
            sent.first_ns = now_ns;
        }
        sent.last_ns = now_ns;
        sent.latest_ns = sent.latest_ns.max(behind);
        sent.late += if behind > LATE_NS { u64::from(count) } else { 0 };
        self.next += count;
        self.next - count..self.next
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
    let bare = socket.set_checksums(train.checksum);
    let bytes = train.bytes as usize;
    let padding = &padding[..bytes - HEADER_BYTES];
    let most = (MOST_TOGETHER_BYTES / bytes).max(1);
    let most = if bare { most } else { most.min(socket.most_segments()) };
    let mut schedule = Schedule::new(train, most, bare, now_ns());
    let mut batch = Vec::with_capacity(bytes * schedule.together as usize);
    while !schedule.is_complete() && !stopped() {
        let now = now_ns();
        let wait = schedule.wait(now);
        if !wait.is_zero() {
            std::thread::sleep(wait);
            continue;
        }
        batch.clear();
        let numbers = schedule.take(now);
        let count = numbers.len() as u64;
        for place in numbers {
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
        let taken = socket.send_batch(bytes, &batch, bare);
        schedule.sent.packets += taken;
        schedule.sent.refused += count - taken;
    }
    socket.set_checksums(true);
    schedule.sent
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START_NS: u64 = 1_000_000_000;

    fn train(packets: u32, interval_ns: u64) -> Train {
        Train { packets, bytes: 1000, interval_ns, checksum: true }
    }

    /// Run a train on a machine that wakes up `lag(n)` late after its nth sleep: when each packet left.
    fn run(train: &Train, most: usize, lag: impl Fn(usize) -> u64) -> (Vec<u64>, Sent) {
        let mut schedule = Schedule::new(train, most, false, START_NS);
        let (mut now, mut sleeps, mut left) = (START_NS, 0, Vec::new());
        while !schedule.is_complete() {
            let wait = schedule.wait(now);
            assert!(wait <= Duration::from_nanos(STOP_LATENCY_NS), "a stop has to wait");
            if wait.is_zero() {
                let numbers = schedule.take(now);
                assert_eq!(numbers.start as usize, left.len());
                assert!((1..=most).contains(&numbers.len()));
                left.extend(numbers.map(|_| now));
            } else {
                now += wait.as_nanos() as u64 + lag(sleeps);
                sleeps += 1;
            }
        }
        (left, schedule.sent)
    }

    #[test]
    fn packets_leave_one_by_one_at_their_times_where_the_interval_is_long() {
        let (left, sent) = run(&train(4, 120_000_000), 64, |_| 0);
        assert_eq!(left, [0, 1, 2, 3].map(|number| START_NS + number * 120_000_000));
        assert_eq!((sent.first_ns, sent.last_ns), (left[0], left[3]));
        assert_eq!((sent.late, sent.latest_ns, sent.given_up_ns), (0, 0, 0));
    }

    #[test]
    fn packets_of_a_short_interval_leave_together_and_keep_the_rate() {
        let (left, _) = run(&train(1000, 10_000), 64, |_| 0);
        for (number, at) in left.iter().enumerate() {
            assert_eq!(*at, START_NS + number as u64 / 20 * 200_000, "packet {number}");
        }
    }

    #[test]
    fn a_short_delay_is_made_up_and_a_long_one_is_given_up() {
        let interval = 1_000_000;
        let (left, sent) =
            run(&train(100, interval), 64, |sleep| [0, 3_000_000][usize::from(sleep == 9)]);
        assert_eq!((sent.late, sent.latest_ns, sent.given_up_ns), (2, 3_000_000, 0));
        assert_eq!(left[99], START_NS + 99 * interval);
        let (left, sent) =
            run(&train(100, interval), 64, |sleep| [0, 30_000_000][usize::from(sleep == 9)]);
        assert_eq!((sent.latest_ns, sent.given_up_ns), (30_000_000, 30_000_000 - MOST_BEHIND_NS));
        let at_once = left.iter().filter(|at| **at == left[10]).count() as u64;
        assert_eq!(at_once, 1 + MOST_BEHIND_NS / interval, "a burst that no rate describes");
    }

    proptest! {
        #[test]
        fn every_packet_leaves_once_and_never_before_it_is_due(
            packets in 1_u32..400,
            interval_ns in 1_u64..2_000_000,
            most in 1_usize..70,
            lags in prop::collection::vec(0_u64..20_000_000, 1..20),
        ) {
            let train = train(packets, interval_ns);
            let (left, sent) = run(&train, most, |sleep| lags[sleep % lags.len()]);
            prop_assert_eq!(left.len(), packets as usize);
            let due = |number: usize| START_NS + number as u64 * interval_ns;
            for (number, at) in left.iter().enumerate() {
                prop_assert!(*at + TOGETHER_NS >= due(number));
            }
            prop_assert!(sent.last_ns <= due(left.len()) + sent.given_up_ns + MOST_BEHIND_NS);
            prop_assert!(sent.late <= u64::from(packets));
        }
    }
}
