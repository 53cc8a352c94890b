//! The format of a packet.
//!
//! ```text
//! magic u32 | run u32 | stream u32 | kind u32 | sequence u64 | sent_ns u64, big-endian, then padding
//! ```
//! `run` differs between runs, so that a packet of an earlier run is not counted.

/// "WSPB".
const MAGIC: u32 = 0x5753_5042;

/// The shortest packet that holds the header.
pub(crate) const HEADER_BYTES: usize = 32;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sent before the counted packets, to test the path.
    WarmUp,
    /// A counted packet.
    Counted,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) run: u32,
    pub(crate) stream: u32,
    pub(crate) kind: Kind,
    pub(crate) sequence: u64,
    /// The time since the epoch of the meter, which both ends share.
    pub(crate) sent_ns: u64,
}

impl Header {
    /// Writes the header into the first `HEADER_BYTES` of `packet`.
    pub(crate) fn write(&self, packet: &mut [u8]) {
        packet[0..4].copy_from_slice(&MAGIC.to_be_bytes());
        packet[4..8].copy_from_slice(&self.run.to_be_bytes());
        packet[8..12].copy_from_slice(&self.stream.to_be_bytes());
        let kind: u32 = match self.kind {
            Kind::WarmUp => 0,
            Kind::Counted => 1,
        };
        packet[12..16].copy_from_slice(&kind.to_be_bytes());
        packet[16..24].copy_from_slice(&self.sequence.to_be_bytes());
        packet[24..32].copy_from_slice(&self.sent_ns.to_be_bytes());
    }

    /// Reads the header of `packet`; `None` for a packet of another program.
    pub(crate) fn read(packet: &[u8]) -> Option<Self> {
        if word(packet, 0)? != MAGIC {
            return None;
        }
        let kind = match word(packet, 12)? {
            0 => Kind::WarmUp,
            1 => Kind::Counted,
            _ => return None,
        };
        Some(Self {
            run: word(packet, 4)?,
            stream: word(packet, 8)?,
            kind,
            sequence: long(packet, 16)?,
            sent_ns: long(packet, 24)?,
        })
    }
}

fn word(packet: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?))
}

fn long(packet: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(packet.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_is_read_as_written(run: u32, stream: u32, counted: bool, sequence: u64, sent_ns: u64) {
            let kind = if counted { Kind::Counted } else { Kind::WarmUp };
            let header = Header { run, stream, kind, sequence, sent_ns };
            let mut packet = [0xAA; 64];
            header.write(&mut packet);
            prop_assert_eq!(Header::read(&packet), Some(header));
        }

        #[test]
        fn foreign_bytes_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let own = bytes.len() >= HEADER_BYTES && bytes[0..4] == MAGIC.to_be_bytes();
            prop_assert!(own || Header::read(&bytes).is_none());
        }
    }
}
