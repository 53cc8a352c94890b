//! The packets that measure: what they say, and what can be said of one that was damaged.
//!
//! Arrives: values, or datagrams of any host. Leaves: datagrams, or values, or that one was damaged or a stranger's.
//! Must not know: sockets, clocks. The form is in `docs/reference/probe.md`, "Packets".

/// The first byte: packets that measure, version 1. QUIC has bit 0x40 set, the wide-area protocol begins with 0x11.
pub(crate) const FIRST: u8 = waystage_transport::endpoint::PROBE_PACKET;

/// Bytes in front of the filling.
pub(crate) const HEADER_BYTES: usize = 52;

/// Where the checksum is: CRC-32C (RFC 9260, appendix A) of everything in front of it and behind it.
const CRC: std::ops::Range<usize> = 48..52;

/// A tag with at most this number of wrong bits is ours, and damaged: a guess comes as near once in 2^48 times.
const NEAR_BITS: u32 = 3;

/// What a packet is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To be answered at once.
    Echo = 1,
    /// The answer to it.
    Answer = 2,
    /// To be counted.
    Train = 3,
    /// From a server to an address from which nothing was heard.
    Call = 4,
}

/// What a packet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) kind: Kind,
    /// Of which train.
    pub(crate) train: u32,
    /// Its place in it.
    pub(crate) number: u32,
    /// When it was sent, by its sender's clock.
    pub(crate) sent_ns: u64,
    /// In an answer: when the echo was sent, by the clock of who asked.
    pub(crate) asked_ns: u64,
    /// In an answer: when the echo came, by the clock of who answers.
    pub(crate) heard_ns: u64,
}

/// What a datagram was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    Whole(Packet),
    /// One of ours, but some of its bits were others.
    Damaged,
    /// None of ours.
    Strange,
}

/// What marks the packets of one direction of a session.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    /// By which a server with several connections sorts them.
    pub(crate) connection: u32,
    /// A secret.
    pub(crate) tag: u64,
}

impl Mark {
    /// Append a packet with its filling.
    pub(crate) fn write(self, packet: &Packet, padding: &[u8], out: &mut Vec<u8>) {
        let begin = out.len();
        out.push(FIRST);
        out.extend_from_slice(&self.connection.to_be_bytes());
        out.extend_from_slice(&[packet.kind as u8, 0, 0]);
        out.extend_from_slice(&self.tag.to_be_bytes());
        out.extend_from_slice(&packet.train.to_be_bytes());
        out.extend_from_slice(&packet.number.to_be_bytes());
        out.extend_from_slice(&packet.sent_ns.to_be_bytes());
        out.extend_from_slice(&packet.asked_ns.to_be_bytes());
        out.extend_from_slice(&packet.heard_ns.to_be_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&out[begin..]), padding);
        out.extend_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(padding);
    }

    /// What a datagram is.
    pub(crate) fn read(self, datagram: &[u8]) -> Opened {
        if datagram.len() < HEADER_BYTES {
            return Opened::Strange;
        }
        let (header, padding) = datagram.split_at(HEADER_BYTES);
        let tag = u64_at(header, 8);
        if (tag ^ self.tag).count_ones() > NEAR_BITS {
            return Opened::Strange;
        }
        let sum = crc32c::crc32c_append(crc32c::crc32c(&header[..CRC.start]), padding);
        let known = tag == self.tag
            && sum == u32_at(header, CRC.start)
            && header[0] == FIRST
            && u32_at(header, 1) == self.connection;
        let kind = match header[5] {
            _ if !known => None,
            1 => Some(Kind::Echo),
            2 => Some(Kind::Answer),
            3 => Some(Kind::Train),
            4 => Some(Kind::Call),
            _ => None,
        };
        let Some(kind) = kind else { return Opened::Damaged };
        Opened::Whole(Packet {
            kind,
            train: u32_at(header, 16),
            number: u32_at(header, 20),
            sent_ns: u64_at(header, 24),
            asked_ns: u64_at(header, 32),
            heard_ns: u64_at(header, 40),
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARK: Mark = Mark { connection: 0x0102_0304, tag: 0x1122_3344_5566_7788 };

    fn packet() -> impl Strategy<Value = Packet> {
        let kinds = prop::sample::select(vec![Kind::Echo, Kind::Answer, Kind::Train, Kind::Call]);
        (kinds, any::<(u32, u32, u64, u64, u64)>()).prop_map(|(kind, rest)| {
            let (train, number, sent_ns, asked_ns, heard_ns) = rest;
            Packet { kind, train, number, sent_ns, asked_ns, heard_ns }
        })
    }

    fn bytes(mark: Mark, packet: &Packet, padding: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        mark.write(packet, padding, &mut out);
        out
    }

    /// The vector of `docs/reference/probe.md`.
    #[test]
    fn the_form_is_the_one_that_is_documented() {
        let packet = Packet {
            kind: Kind::Train,
            train: 7,
            number: 9,
            sent_ns: 10,
            asked_ns: 0,
            heard_ns: 0,
        };
        let hex: String =
            bytes(MARK, &packet, b"ab").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "2101020304030000112233445566778800000007000000090000000000\
             00000a0000000000000000000000000000000003b781596162"
        );
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283, "CRC-32C's check value");
    }

    proptest! {
        #[test]
        fn packets_are_read_as_they_were_written(
            packet in packet(), padding in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            prop_assert_eq!(MARK.read(&bytes(MARK, &packet, &padding)), Opened::Whole(packet));
        }

        #[test]
        fn no_bytes_are_taken_for_a_packet(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(MARK.read(&bytes), Opened::Strange);
        }

        #[test]
        fn changed_bits_are_seen_wherever_they_are(
            packet in packet(), padding in prop::collection::vec(any::<u8>(), 0..300),
            flips in prop::collection::vec(any::<prop::sample::Index>(), 1..=3),
        ) {
            let mut changed = bytes(MARK, &packet, &padding);
            let bits = changed.len() * 8;
            let flips: std::collections::BTreeSet<usize> =
                flips.iter().map(|flip| flip.index(bits)).collect();
            for bit in flips {
                changed[bit / 8] ^= 1 << (bit % 8);
            }
            prop_assert_eq!(MARK.read(&changed), Opened::Damaged);
        }

        #[test]
        fn what_was_cut_or_is_of_another_session_or_direction_is_not_taken(
            packet in packet(), padding in prop::collection::vec(any::<u8>(), 1..300), tag in any::<u64>(),
            connection in any::<u32>(), cut in any::<prop::sample::Index>(),
        ) {
            let whole = bytes(MARK, &packet, &padding);
            prop_assert!(!matches!(MARK.read(&whole[..cut.index(whole.len())]), Opened::Whole(_)));
            prop_assume!(tag != MARK.tag && connection != MARK.connection);
            let other = Mark { tag, ..MARK };
            prop_assert!(!matches!(other.read(&whole), Opened::Whole(_)));
            let other = Mark { connection, ..MARK };
            prop_assert_eq!(other.read(&whole), Opened::Damaged);
        }
    }
}
