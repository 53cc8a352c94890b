//! Where a connection is to lead: a host and a port, and how an offer of a stream says so.
//!
//! Arrives: text, or bytes of the peer or of a SOCKS client. Leaves: a checked destination, or bytes.
//! Must not know: sockets, rules.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use waystage_transport::wire::{Malformed, Read, Reader, Writer};

use crate::address::{is_numeric, loose_ipv4};

/// Resolver of hosts, and what is between their dots, are not longer (RFC 1035, section 2.3.4).
const LONGEST_NAME: usize = 255;
const LONGEST_LABEL: usize = 63;

/// What a log shows of who asked is not longer.
const LONGEST_ORIGIN: usize = 64;

/// A host by its address or its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    Address(IpAddr),
    /// In small queue, without a dot at its end.
    Name(String),
}

impl Host {
    /// What a resolver would take for an address counts as one in whatever form, so that rules on addresses are about
    /// it. Zones (`fe80::1%eth0`) and queue beyond ASCII are refused: other names are written in their ASCII form
    /// (`xn--`).
    pub(crate) fn read(bytes: &[u8]) -> Read<Self> {
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed)?;
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if let Some(address) = loose_ipv4(&name) {
            return Ok(Self::Address(address.into()));
        }
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let label =
            |label: &str| (1..=LONGEST_LABEL).contains(&label.len()) && label.chars().all(good);
        if name.len() > LONGEST_NAME || !name.split('.').all(label) || is_numeric(&name) {
            return Err(Malformed);
        }
        Ok(Self::Name(name))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A host and a port of TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Address(address.ip().to_canonical()), port: address.port() }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for Destination {
    type Err = String;

    /// `HOST:PORT`, an IPv6 address in brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no HOST:PORT, such as db.example.org:5432 or [::1]:80");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bare.is_none() && host.contains(':') {
            return Err(wrong());
        }
        let host = Host::read(bare.unwrap_or(host).as_bytes()).map_err(|_| wrong())?;
        let port = port.parse().map_err(|_| wrong())?;
        Ok(Self { host, port })
    }
}

/// What a stream is asked for with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Offer {
    /// To a destination at the peer, for a program here.
    Forward { destination: Destination, origin: String },
    /// To what the client named as its reverse forward of this number.
    Reverse { index: u32, origin: String },
}

mod kinds {
    pub(super) const FORWARD: u8 = 1;
    pub(super) const REVERSE: u8 = 2;
}

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Forward { destination, origin } => {
                let mut out = Writer::new(kinds::FORWARD);
                out.u32(u32::from(destination.port));
                match &destination.host {
                    Host::Address(address) => out.bytes(address.to_string().as_bytes()),
                    Host::Name(name) => out.bytes(name.as_bytes()),
                };
                out.bytes(origin.as_bytes());
                out.0
            }
            Self::Reverse { index, origin } => {
                let mut out = Writer::new(kinds::REVERSE);
                out.u32(*index).bytes(origin.as_bytes());
                out.0
            }
        }
    }

    pub(crate) fn read(bytes: &[u8]) -> Read<Self> {
        let mut reader = Reader(bytes);
        let offer = match reader.u8()? {
            kinds::FORWARD => {
                let port = u16::try_from(reader.u32()?).map_err(|_| Malformed)?;
                let host = Host::read(reader.bytes()?)?;
                let destination = Destination { host, port };
                Self::Forward { destination, origin: origin(&mut reader)? }
            }
            kinds::REVERSE => Self::Reverse { index: reader.u32()?, origin: origin(&mut reader)? },
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(offer)
    }
}

fn origin(reader: &mut Reader<'_>) -> Read<String> {
    let text = reader.text()?;
    (text.len() <= LONGEST_ORIGIN).then_some(text).ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn destinations_are_read_from_text() {
        for (text, shown) in [
            ("Example.org.:80", "example.org:80"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("[::1]:22", "[::1]:22"),
            ("[::ffff:10.0.0.1]:22", "10.0.0.1:22"),
            ("0:22", "0.0.0.0:22"),
            ("127.1.:22", "127.0.0.1:22"),
            ("0X7F.1:22", "127.0.0.1:22"),
            ("017700000001:22", "127.0.0.1:22"),
            ("XN--Bcher-KVA.example:22", "xn--bcher-kva.example:22"),
            ("1a.2b:22", "1a.2b:22"),
        ] {
            assert_eq!(text.parse::<Destination>().map(|d| d.to_string()), Ok(shown.to_owned()));
        }
        for bad in [
            "",
            "host",
            "host:",
            ":1",
            "host:65536",
            "::1:22",
            "a b:1",
            "a\n:1",
            "[::1]",
            "[fe80::1%lo]:1",
            "::1%lo:1",
            "a..b:1",
            "a..:1",
            ".a:1",
            ".:1",
            "256.1:1",
            "1.2.3.4.5:1",
            "08.1:1",
            "127.0.0.1..:1",
            "b\u{fc}cher:1",
            "\u{ff11}27.0.0.1:1",
            "a%00:1",
            "a/b:1",
            "4294967296:1",
            "0x:1",
        ] {
            assert!(bad.parse::<Destination>().is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(offer) = Offer::read(&bytes) {
                prop_assert_eq!(Offer::read(&offer.encode()), Ok(offer));
            }
        }

        #[test]
        fn offers_are_read_as_they_were_written(
            port in any::<u16>(), index in any::<u32>(), address in any::<u128>(), name in "[a-z][a-z0-9-]{0,20}(\\.[a-z]{2,5}){0,3}",
            origin in "[ -~]{0,60}",
        ) {
            let address: IpAddr = std::net::Ipv6Addr::from(address).into();
            for host in [Host::Name(name.clone()), Host::Address(address.to_canonical())] {
                let destination = Destination { host, port };
                prop_assert_eq!(destination.to_string().parse(), Ok(destination.clone()));
                let offer = Offer::Forward { destination, origin: origin.clone() };
                prop_assert_eq!(Offer::read(&offer.encode()), Ok(offer));
            }
            let offer = Offer::Reverse { index, origin };
            prop_assert_eq!(Offer::read(&offer.encode()), Ok(offer));
        }
    }
}
