//! The messages between the two ends of a probe, on the TLS connection.
//!
//! Arrives: values, or bytes of the peer. Leaves: bytes, or values that were checked. Must not know: sockets.
//! The form is in `docs/reference/probe.md`, "What the ends say".

use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::wire::{Read, Reader, Writer};

use crate::train::{Sent, Train};

/// The version of what is said after the handshake.
pub(crate) const VERSION: u32 = 1;

/// What names a session, for its streams.
pub(crate) type Token = [u8; 16];

/// Kinds of messages; 3 is a refusal, as in copies.
pub(crate) mod kinds {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const WELCOME: u8 = 2;
    pub(crate) const REACH: u8 = 4;
    pub(crate) const HEARD: u8 = 5;
    pub(crate) const CALLED: u8 = 6;
    pub(crate) const ARM: u8 = 7;
    pub(crate) const ARMED: u8 = 8;
    pub(crate) const SENT: u8 = 9;
    pub(crate) const COUNT: u8 = 10;
    pub(crate) const SEND: u8 = 11;
    pub(crate) const STREAM: u8 = 12;
    pub(crate) const STREAMED: u8 = 13;
    pub(crate) const BYE: u8 = 14;
}

/// The client's first words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The user to act as; empty for the owner of the key.
    pub user: String,
    /// Where it listens for UDP.
    pub port: u16,
}

impl Hello {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(VERSION).bytes(env!("CARGO_PKG_VERSION").as_bytes()).bytes(self.user.as_bytes());
        out.u32(u32::from(self.port));
        out.0
    }

    /// From bytes. A client of another version learns which one the server speaks.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        let first = |reader: &mut Reader<'_>| -> Read<(u32, String)> {
            Ok((reader.u32()?, reader.text()?))
        };
        let (version, software) = first(&mut reader).map_err(|_| protocol_violation())?;
        if version != VERSION {
            let ours = env!("CARGO_PKG_VERSION");
            return Err(Error::Denied(format!(
                    "the client (Waystage {software}) probes by version {version} and the server (Waystage {ours}) by version \
                     {VERSION}: bring the older of them up to date"
                ),
            ));
        }
        let mut rest = || -> Read<(String, u32)> { Ok((reader.text()?, reader.u32()?)) };
        let (user, port) = rest().map_err(|_| protocol_violation())?;
        Ok(Self { user, port: u16::try_from(port).map_err(|_| protocol_violation())? })
    }
}

/// The server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// The number of the server's packets and of the client's.
    pub(crate) connection: u32,
    /// Whether the server has UDP at all.
    pub(crate) udp: bool,
    /// Bytes a second, in each direction.
    pub(crate) rate: u64,
    /// How long the session may last.
    pub(crate) seconds: u32,
    pub(crate) token: Token,
}

impl Welcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(self.connection).u8(u8::from(self.udp)).u64(self.rate).u32(self.seconds);
        out.u128(u128::from_be_bytes(self.token));
        out.0
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        let mut read = || -> Read<Self> {
            Ok(Self {
                connection: reader.u32()?,
                udp: reader.flag()?,
                rate: reader.u64()?,
                seconds: reader.u32()?,
                token: reader.u128()?.to_be_bytes(),
            })
        };
        read().map_err(|_| protocol_violation())
    }
}

/// A train with its number, as it is asked for.
pub(crate) fn train(number: u32, train: &Train) -> Vec<u8> {
    let mut out = Writer::default();
    out.u32(number);
    train.put(&mut out);
    out.0
}

/// See [`train`].
pub(crate) fn read_train(bytes: &[u8]) -> Result<(u32, Train), Error> {
    let mut reader = Reader(bytes);
    let mut read = || -> Read<(u32, Train)> {
        let found = (reader.u32()?, Train::read(&mut reader)?);
        reader.end()?;
        Ok(found)
    };
    read().map_err(|_| protocol_violation())
}

/// How a train left, and for how long nothing must come until it is over.
pub(crate) fn sent(sent: &Sent, quiet_ms: u32) -> Vec<u8> {
    let mut out = Writer::default();
    out.u32(quiet_ms);
    sent.put(&mut out);
    out.0
}

/// See [`sent`].
pub(crate) fn read_sent(bytes: &[u8]) -> Result<(Sent, u32), Error> {
    let mut reader = Reader(bytes);
    let mut read = || -> Read<(Sent, u32)> {
        let quiet_ms = reader.u32()?;
        let found = (Sent::read(&mut reader)?, quiet_ms);
        reader.end()?;
        Ok(found)
    };
    read().map_err(|_| protocol_violation())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stream::{Order, Streamed};

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Hello::read(&bytes);
            let _ = Welcome::read(&bytes);
            let _ = read_train(&bytes);
            let _ = read_sent(&bytes);
            let _ = Order::read(&bytes);
            let _ = Streamed::read(&bytes);
        }

        #[test]
        fn trains_are_read_as_they_were_written_and_bounded(
            number in any::<u32>(), packets in any::<u32>(), bytes in 0_u32..10_000, interval_ns in any::<u64>(),
            checksum in any::<bool>(),
        ) {
            let asked = Train { packets, bytes, interval_ns, checksum };
            match read_train(&train(number, &asked)) {
                Ok(found) => prop_assert_eq!(found, (number, asked)),
                Err(_) => prop_assert!(!asked.is_possible()),
            }
        }

        #[test]
        fn greetings_are_read_as_they_were_written(
            user in "[a-z]{0,9}", port in any::<u16>(), connection in any::<u32>(), udp in any::<bool>(),
            rate in any::<u64>(), seconds in any::<u32>(), token in any::<Token>(),
        ) {
            let hello = Hello { user, port };
            prop_assert_eq!(Hello::read(&hello.encode()).unwrap(), hello);
            let welcome = Welcome { connection, udp, rate, seconds, token };
            prop_assert_eq!(Welcome::read(&welcome.encode()).unwrap(), welcome);
        }
    }

    #[test]
    fn another_version_is_an_error_that_names_both() {
        let mut bytes = Hello { user: "ada".to_owned(), port: 1 }.encode();
        bytes[0] = 9;
        assert!(Hello::read(&bytes).unwrap_err().to_string().contains("probes by version 9"));
    }
}
