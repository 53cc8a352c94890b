//! SOCKS version 5 (RFC 1928), as far as a server without authentication speaks it: CONNECT alone.
//!
//! Arrives: the first bytes of a connection. Leaves: what they ask for and how long they were, or that more must come.
//! Must not know: sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::destination::{Destination, Host};

const VERSION: u8 = 5;
const CONNECT: u8 = 1;
const NO_AUTHENTICATION: u8 = 0;

/// The longest request: a name of 255 bytes.
pub(crate) const LONGEST: usize = 4 + 1 + 255 + 2;

/// Replies of section 6.
pub(crate) mod replies {
    pub(crate) const SUCCEEDED: u8 = 0;
    pub(crate) const FAILURE: u8 = 1;
    pub(crate) const NOT_ALLOWED: u8 = 2;
    pub(crate) const NETWORK_UNREACHABLE: u8 = 3;
    pub(crate) const HOST_UNREACHABLE: u8 = 4;
    pub(crate) const REFUSED: u8 = 5;
    pub(crate) const TTL_EXPIRED: u8 = 6;
    pub(crate) const COMMAND_NOT_SUPPORTED: u8 = 7;
    pub(crate) const ADDRESS_NOT_SUPPORTED: u8 = 8;
}

/// What is not SOCKS 5, or asks for what is not there; with the bytes to answer before the end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Odd(pub(crate) Vec<u8>);

/// Section 3: how many bytes the greeting has; None where it is not whole.
pub(crate) fn greeting(bytes: &[u8]) -> Result<Option<usize>, Odd> {
    let Some(version) = bytes.first() else { return Ok(None) };
    if *version != VERSION {
        return Err(Odd(Vec::new()));
    }
    let Some(count) = bytes.get(1) else { return Ok(None) };
    let length = 2 + usize::from(*count);
    let Some(methods) = bytes.get(2..length) else { return Ok(None) };
    if !methods.contains(&NO_AUTHENTICATION) {
        return Err(Odd(vec![VERSION, 0xff]));
    }
    Ok(Some(length))
}

/// The answer to a greeting.
pub(crate) const GREETED: [u8; 2] = [VERSION, NO_AUTHENTICATION];

/// Section 4: how many bytes the request has and where to; None where it is not whole.
pub(crate) fn request(bytes: &[u8]) -> Result<Option<(usize, Destination)>, Odd> {
    if bytes.first().is_some_and(|version| *version != VERSION) {
        return Err(Odd(Vec::new()));
    }
    if bytes.get(1).is_some_and(|command| *command != CONNECT) {
        return Err(Odd(reply(replies::COMMAND_NOT_SUPPORTED)));
    }
    let Some(kind) = bytes.get(3) else { return Ok(None) };
    let (at, length) = match kind {
        1 => (4, 4),
        4 => (4, 16),
        3 => match bytes.get(4) {
            Some(length) => (5, usize::from(*length)),
            None => return Ok(None),
        },
        _ => return Err(Odd(reply(replies::ADDRESS_NOT_SUPPORTED))),
    };
    let end = at + length;
    let (Some(host), Some(port)) = (bytes.get(at..end), bytes.get(end..end + 2)) else {
        return Ok(None);
    };
    let address = |address: IpAddr| Host::Address(address.to_canonical());
    let host = match *kind {
        3 => Host::read(host).map_err(|_| Odd(reply(replies::HOST_UNREACHABLE)))?,
        1 => address(Ipv4Addr::new(host[0], host[1], host[2], host[3]).into()),
        _ => {
            let mut octets = [0; 16];
            octets.copy_from_slice(host);
            address(Ipv6Addr::from(octets).into())
        }
    };
    let port = u16::from_be_bytes([port[0], port[1]]);
    Ok(Some((end + 2, Destination { host, port })))
}

/// Section 6: the answer to a request. The bound address is not reported: it is the server's.
pub(crate) fn reply(code: u8) -> Vec<u8> {
    vec![VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_of_each_kind_of_address_are_read() {
        let asks =
            |bytes: &[u8]| request(bytes).map(|found| found.map(|(n, d)| (n, d.to_string())));
        let four = [5, 1, 0, 1, 127, 0, 0, 1, 0, 80, 99];
        assert_eq!(asks(&four), Ok(Some((10, "127.0.0.1:80".to_owned()))));
        let name = b"\x05\x01\x00\x03\x0bExample.org\x1f\x90rest";
        assert_eq!(asks(name), Ok(Some((18, "example.org:8080".to_owned()))));
        let mut six = vec![5, 1, 0, 4];
        six.extend([0; 15]);
        six.extend([1, 0, 22]);
        assert_eq!(asks(&six), Ok(Some((22, "[::1]:22".to_owned()))));
        let named_address = b"\x05\x01\x00\x03\x0910.0.0.13\x00\x16";
        assert_eq!(asks(named_address), Ok(Some((16, "10.0.0.13:22".to_owned()))));
        for whole in [&four[..10], &name[..18], &six] {
            for cut in 0..whole.len() {
                assert_eq!(asks(&whole[..cut]), Ok(None), "cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_answered_as_the_standard_says() {
        assert_eq!(greeting(&[5, 2, 2, 0, 5]), Ok(Some(4)));
        assert_eq!(greeting(&[5, 1, 2]), Err(Odd(vec![5, 0xff])));
        assert_eq!(greeting(b"GET / HTTP/1.1"), Err(Odd(Vec::new())));
        assert_eq!(request(&[5, 2]), Err(Odd(reply(replies::COMMAND_NOT_SUPPORTED))));
        assert_eq!(request(&[5, 1, 0, 9]), Err(Odd(reply(replies::ADDRESS_NOT_SUPPORTED))));
        assert_eq!(
            request(b"\x05\x01\x00\x03\x01\n\x00\x16"),
            Err(Odd(reply(replies::HOST_UNREACHABLE)))
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), good in any::<bool>()) {
            let mut bytes = bytes;
            if good && bytes.len() > 4 {
                bytes[..3].copy_from_slice(&[5, 1, 0]);
                bytes[3] %= 5;
            }
            if let Ok(Some(length)) = greeting(&bytes) {
                prop_assert!(length <= bytes.len());
            }
            if let Ok(Some((length, _))) = request(&bytes) {
                prop_assert!(length <= bytes.len() && length <= LONGEST);
            }
        }
    }
}
