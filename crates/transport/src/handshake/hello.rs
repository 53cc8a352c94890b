//! The first messages of both ends: versions, the client's user and requests, what the server grants.
//!
//! Arrives: values, or bytes of the peer. Leaves: bytes, or values; or which versions meet. Must not know: connections.
//! The words are specified in `docs/reference/wide-area-copy.md`.

use waystage_protocol::congestion::Mode;

use crate::error::{protocol_violation, Error};
use crate::handshake::version::{apart, highest_common, MOST_VERSIONS, SOFTWARE, SPOKEN};
use crate::wire::{at_place, place_of, Malformed, Read, Reader, Writer};

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A copy.
    Copy,
    /// A proxy session.
    Proxy,
    /// One more connection of a copy that another one has begun.
    More,
}

const PURPOSES: [Purpose; 3] = [Purpose::Copy, Purpose::Proxy, Purpose::More];

/// The client's first words. What they ask for may follow at once, where they name one version.
#[derive(Debug, Clone)]
pub struct Hello {
    /// The user to act as; empty for the owner of the key.
    pub user: String,
    /// The congestion controller that the sender uses.
    pub mode: Mode,
    /// Bytes a second that the client wants at most; 0 for no limit.
    pub rate: u64,
    /// Bytes that this end holds for received messages.
    pub memory: u64,
    /// Whether this end uses UDP.
    pub udp: bool,
    /// The round trip as the handshake found it.
    pub rtt_ns: u64,
    /// What the connection is for.
    pub purpose: Purpose,
    /// How the client calls the copy, so that other connections can name the same copy.
    pub copy: [u8; 16],
    /// Connections that the client wants for it.
    pub connections: u32,
}

impl Hello {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_of(&SPOKEN, SOFTWARE)
    }

    fn encode_of(&self, versions: &[u32], software: &str) -> Vec<u8> {
        let mut out = Writer::default();
        // Later versions add what is theirs behind all of this.
        out.u32(versions.iter().copied().max().unwrap_or(0)).bytes(software.as_bytes());
        out.count(versions.len());
        for version in versions {
            out.u32(*version);
        }
        out.bytes(self.user.as_bytes()).bytes(self.mode.to_string().as_bytes());
        out.u64(self.rate).u64(self.memory).u8(u8::from(self.udp)).u64(self.rtt_ns);
        out.u8(place_of(&PURPOSES, &self.purpose)).array(&self.copy).u32(self.connections);
        out.0
    }

    /// The hello and the version to go on in. A client of other versions learns which ones the server speaks.
    pub fn read(bytes: &[u8]) -> Result<(Self, u32), Error> {
        let mut reader = Reader(bytes);
        let (software, versions) = read_versions(&mut reader).map_err(|_| protocol_violation())?;
        let version = highest_common(&SPOKEN, &versions)
            .ok_or_else(|| apart((&software, &versions), (SOFTWARE, &SPOKEN)))?;
        let rest = |reader: &mut Reader<'_>| -> Read<Self> {
            Ok(Self {
                user: reader.text()?,
                mode: reader.text()?.parse().map_err(|_| Malformed)?,
                rate: reader.u64()?,
                memory: reader.u64()?,
                udp: reader.flag()?,
                rtt_ns: reader.u64()?,
                purpose: at_place(&PURPOSES, reader.u8()?)?,
                copy: reader.array()?,
                connections: reader.u32()?,
            })
        };
        rest(&mut reader).map(|hello| (hello, version)).map_err(|_| protocol_violation())
    }
}

/// The software and the versions of a hello. One of version 1 names only that.
fn read_versions(reader: &mut Reader<'_>) -> Read<(String, Vec<u32>)> {
    let (highest, software) = (reader.u32()?, reader.text()?);
    if highest < 2 {
        return Ok((software, vec![highest]));
    }
    let count = reader.count(4)?;
    if count == 0 || count > MOST_VERSIONS {
        return Err(Malformed);
    }
    let versions = (0..count).map(|_| reader.u32()).collect::<Read<_>>()?;
    Ok((software, versions))
}

/// The server's answer to it.
#[derive(Debug, Clone)]
pub struct Welcome {
    /// The version that both go on in.
    pub version: u32,
    /// The congestion controller that the sender uses.
    pub mode: Mode,
    /// One sentence where the mode is not the one asked for.
    pub note: String,
    /// Bytes a second that either end may send at most.
    pub rate: u64,
    /// Bytes that this end holds for received messages.
    pub memory: u64,
    /// Whether this end uses UDP.
    pub udp: bool,
    /// Connections that the copy may have.
    pub connections: u32,
}

impl Welcome {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(self.version).bytes(self.mode.to_string().as_bytes()).bytes(self.note.as_bytes());
        out.u64(self.rate).u64(self.memory).u8(u8::from(self.udp)).u32(self.connections);
        out.0
    }

    /// From bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        let mut read = || -> Read<Self> {
            let version = reader.u32()?;
            if !SPOKEN.contains(&version) {
                return Err(Malformed);
            }
            Ok(Self {
                version,
                mode: reader.text()?.parse().map_err(|_| Malformed)?,
                note: reader.text()?,
                rate: reader.u64()?,
                memory: reader.u64()?,
                udp: reader.flag()?,
                connections: reader.u32()?,
            })
        };
        read().map_err(|_| protocol_violation())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control_messages::refusal;

    fn hello() -> Hello {
        Hello {
            user: "ada".to_owned(),
            mode: Mode::Modest,
            rate: 5,
            memory: 6,
            udp: true,
            rtt_ns: 200_000_000,
            purpose: Purpose::Copy,
            copy: *b"0123456789abcdef",
            connections: 3,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_words_are_those_that_are_specified() {
        let page = include_str!("../../../../docs/reference/wide-area-copy.md");
        let welcome = Welcome {
            version: 2,
            mode: Mode::Fair,
            note: String::new(),
            rate: 1000,
            memory: 1 << 24,
            udp: true,
            connections: 2,
        };
        for (name, bytes) in [
            ("hello", hello().encode_of(&[2], "0.9")),
            ("hello of versions 2 and 3", hello().encode_of(&[2, 3], "0.9")),
            ("welcome", welcome.encode()),
            ("refused", refusal(&Error::Stopped("the copy was stopped".into()))),
            ("way", vec![1]),
        ] {
            let line = format!("{name} = {}", hex(&bytes));
            assert!(page.lines().any(|found| found == line), "{line}");
        }
        let read = Welcome::read(&welcome.encode()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{welcome:?}"));
    }

    #[test]
    fn the_highest_common_version_is_taken_and_none_in_common_is_an_error() {
        let newest = SPOKEN[0];
        let later = [newest + 1, newest + 2];
        for (versions, common) in [
            (&[2][..], 2),
            (&[2, 3], 3),
            (&[later[0], 2, 1], 2),
            (&[later[1], 4, 3], 4),
            (&[later[1], newest, 4], newest),
        ] {
            let (read, version) = Hello::read(&hello().encode_of(versions, "0.9")).unwrap();
            assert_eq!((read.user.as_str(), version), ("ada", common));
            assert_eq!(format!("{read:?}"), format!("{:?}", hello()));
        }
        let newer = Hello::read(&hello().encode_of(&later, "0.9")).unwrap_err().to_string();
        let names = format!("versions {} and {}", later[0], later[1]);
        assert!(newer.contains(&names) && newer.contains("of the server"));
        // As version 1 began, whatever came behind it.
        let mut one = Writer::default();
        one.u32(1).bytes(b"0.1").bytes(b"ada");
        let older = Hello::read(&one.0).unwrap_err().to_string();
        assert!(older.contains("version 1") && older.contains("of the client"));
        let none = Hello::read(&hello().encode_of(&[], "0.9")).unwrap_err();
        assert!(matches!(none, Error::Denied(_)), "no end speaks version 0");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Hello::read(&bytes);
            let _ = Welcome::read(&bytes);
        }

        #[test]
        fn a_hello_that_was_damaged_is_read_or_refused_but_never_taken_for_more(
            versions in prop::collection::vec(any::<u32>(), 0..80),
            at in any::<prop::sample::Index>(),
            value in any::<u8>(),
            length in any::<prop::sample::Index>(),
        ) {
            let mut bytes = hello().encode_of(&versions, "0.9");
            if let Ok((_, version)) = Hello::read(&bytes) {
                prop_assert!(versions.contains(&version) && SPOKEN.contains(&version));
            }
            let at = at.index(bytes.len());
            bytes[at] = value;
            let _ = Hello::read(&bytes);
            let _ = Hello::read(&bytes[..length.index(bytes.len())]);
        }
    }
}
