//! What an address means to the host that would connect to it: how it may be written, which IPv4 addresses it holds,
//! and whether it leads to the host itself or its surroundings.
//!
//! Arrives: text, addresses. Leaves: one canonical address, its readings, the special network it is in. Must not know:
//! rules, sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// An IPv4-mapped network is one of IPv4. None where the address has fewer bits.
    pub(super) fn new(address: IpAddr, bits: u8) -> Option<Self> {
        match (address, address.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(four)) if bits >= 96 => {
                (bits <= 128).then_some(Self { address: four.into(), bits: bits - 96 })
            }
            (address, _) => (u32::from(bits) <= width(address)).then_some(Self { address, bits }),
        }
    }

    /// One address.
    pub(super) fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, bits: width(address) as u8 }
    }

    const fn v4(octets: [u8; 4], bits: u8) -> Self {
        let [a, b, c, d] = octets;
        Self { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), bits }
    }

    const fn v6(groups: [u16; 8], bits: u8) -> Self {
        let [a, b, c, d, e, f, g, h] = groups;
        Self { address: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), bits }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let (address, network, width) = match (address, self.address) {
            (IpAddr::V4(a), IpAddr::V4(n)) => {
                (u128::from(a.to_bits()), u128::from(n.to_bits()), 32)
            }
            (IpAddr::V6(a), IpAddr::V6(n)) => (a.to_bits(), n.to_bits(), 128),
            _ => return false,
        };
        let rest = width - u32::from(self.bits);
        address.checked_shr(rest).unwrap_or(0) == network.checked_shr(rest).unwrap_or(0)
    }

    /// Whether all of its addresses are in `other`.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        self.bits >= other.bits && other.contains(self.address)
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() {
        32
    } else {
        128
    }
}

/// An IPv4 address in any form that `inet_aton` and so `getaddrinfo` take: one to four numbers, decimal, octal or
/// hexadecimal, the last of which fills what is left.
pub(super) fn loose_ipv4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = text.split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    if first.len() > 3 || first.iter().any(|part| *part > 0xff) {
        return None;
    }
    let left = 8 * (4 - first.len() as u32);
    if *last >> left != 0 {
        return None;
    }
    let high = first.iter().fold(0, |high, part| high << 8 | part);
    u32::try_from(high.checked_shl(left).unwrap_or(0) | last).ok().map(Ipv4Addr::from_bits)
}

/// At most 2^40, so that sums stay in bounds.
fn number(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match (hexadecimal, text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some("")) => ("0", 10),
        (None, Some(digits)) => (digits, 8),
        (None, None) => (text, 10),
    };
    // A sign is none of the digits, which the library would take.
    let digital = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    let value = u64::from_str_radix(digits, radix).ok().filter(|_| digital)?;
    (value <= 1 << 40).then_some(value)
}

/// Whether each label is a number: such a name is an IPv4 address or a mistake, and no name server is to be asked for
/// it.
pub(super) fn is_numeric(name: &str) -> bool {
    let numeric = |label: &str| match label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"))
    {
        Some(digits) => digits.chars().all(|digit| digit.is_ascii_hexdigit()),
        None => !label.is_empty() && label.chars().all(|digit| digit.is_ascii_digit()),
    };
    name.split('.').all(numeric)
}

const NAT64: Network = Network::v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const LOCAL_NAT64: Network = Network::v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48);
const COMPATIBLE: Network = Network::v6([0; 8], 96);
const TRANSLATED: Network = Network::v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96);
const SIX_TO_FOUR: Network = Network::v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16);
const TEREDO: Network = Network::v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32);

/// IPv4 addresses inside one of IPv6, to which a translator or a tunnel on the way may bring what is sent there.
pub(super) fn embedded(address: IpAddr) -> Vec<IpAddr> {
    let IpAddr::V6(six) = address else { return Vec::new() };
    let octets = six.octets();
    let at = |places: [usize; 4]| Ipv4Addr::from(places.map(|place| octets[place]));
    let last = at([12, 13, 14, 15]);
    if six.is_unspecified() || six.is_loopback() {
        return Vec::new();
    }
    let mut found: Vec<Ipv4Addr> = Vec::new();
    // RFC 4291, section 2.5.5; RFC 2765, section 2.1; RFC 6052, section 2.1.
    if COMPATIBLE.contains(address) || TRANSLATED.contains(address) || NAT64.contains(address) {
        found.push(last);
    }
    // RFC 8215 leaves the length of the prefix open: RFC 6052, section 2.2, has the places. Zeros are none of them.
    if LOCAL_NAT64.contains(address) {
        let others = [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12]].map(at);
        found.extend(others.into_iter().filter(|four| four.octets()[0] != 0));
        found.push(last);
    }
    // RFC 3056, section 2.
    if SIX_TO_FOUR.contains(address) {
        found.push(at([2, 3, 4, 5]));
    }
    // RFC 4380, section 4: the server, and the client with its bits turned.
    if TEREDO.contains(address) {
        found.extend([at([4, 5, 6, 7]), Ipv4Addr::from_bits(!last.to_bits())]);
    }
    // ISATAP: RFC 5214, section 6.1.
    if [[0, 0, 0x5e, 0xfe], [2, 0, 0x5e, 0xfe]]
        .contains(&[octets[8], octets[9], octets[10], octets[11]])
    {
        found.push(last);
    }
    found.into_iter().map(IpAddr::V4).collect()
}

/// A network that a rule has to name, and what it is.
pub(super) struct Special {
    pub(super) network: Network,
    pub(super) what: &'static str,
}

const fn special(network: Network, what: &'static str) -> Special {
    Special { network, what }
}

const METADATA: &str = "a cloud's metadata service";

/// Narrow ones before those that they are in. From IANA's registries of special-purpose addresses, and the clouds'
/// manuals.
static SPECIAL: [Special; 20] = [
    special(Network::v4([169, 254, 169, 254], 32), METADATA),
    special(Network::v4([169, 254, 170, 2], 32), METADATA),
    special(Network::v4([169, 254, 0, 23], 32), METADATA),
    special(Network::v4([100, 100, 100, 200], 32), METADATA),
    special(Network::v4([168, 63, 129, 16], 32), METADATA),
    special(Network::v4([192, 0, 0, 192], 32), METADATA),
    special(Network::v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), METADATA),
    special(Network::v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), METADATA),
    special(Network::v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), METADATA),
    special(Network::v6([0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128), METADATA),
    special(Network::v4([127, 0, 0, 0], 8), "loopback"),
    special(Network::v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    // Linux takes connections to it for some to the host itself.
    special(Network::v4([0, 0, 0, 0], 8), "unspecified"),
    special(Network::v6([0; 8], 128), "unspecified"),
    special(Network::v4([169, 254, 0, 0], 16), "link-local"),
    special(Network::v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    special(Network::v4([224, 0, 0, 0], 4), "multicast"),
    special(Network::v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
    special(Network::v4([255, 255, 255, 255], 32), "broadcast"),
    special(Network::v4([240, 0, 0, 0], 4), "reserved"),
];

/// The narrowest special network that the address itself is in.
pub(super) fn special_of(address: IpAddr) -> Option<&'static Special> {
    SPECIAL.iter().find(|special| special.network.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_that_the_resolver_takes_is_one_address() {
        for text in
            ["127.0.0.1", "127.1", "127.0.1", "0177.1", "0x7f.1", "2130706433", "017700000001"]
        {
            assert_eq!(loose_ipv4(text), Some(Ipv4Addr::LOCALHOST), "{text}");
        }
        for text in ["0x7F000001", "0X7f.0.0.0x1", "127.0x1", "0177.0.0.01"] {
            assert_eq!(loose_ipv4(text), Some(Ipv4Addr::LOCALHOST), "{text}");
        }
        for text in ["0", "0.0", "0x0", "00", "0.0.0.0"] {
            assert_eq!(loose_ipv4(text), Some(Ipv4Addr::UNSPECIFIED), "{text}");
        }
        assert_eq!(loose_ipv4("255.255.255.255"), Some(Ipv4Addr::BROADCAST));
        assert_eq!(loose_ipv4("4294967295"), Some(Ipv4Addr::BROADCAST));
        for bad in [
            "",
            ".",
            "1.",
            "1..2",
            "256.1",
            "1.2.3.256",
            "1.2.65536",
            "4294967296",
            "08",
            "0x",
            "+1",
            "-1",
            "1.2.3.4.5",
            "a.b",
            "1e3",
            " 1",
            "18446744073709551617",
            "0x1ffffffff",
        ] {
            assert_eq!(loose_ipv4(bad), None, "{bad}");
        }
    }

    #[test]
    fn addresses_inside_addresses_are_found() {
        for (text, inside) in [
            ("::127.0.0.1", vec!["127.0.0.1"]),
            ("::ffff:0:127.0.0.1", vec!["127.0.0.1"]),
            ("64:ff9b::7f00:1", vec!["127.0.0.1"]),
            ("64:ff9b:1::10.0.0.1", vec!["10.0.0.1"]),
            ("64:ff9b:1:7f00:0:100::", vec!["127.0.0.1", "0.0.0.0"]),
            ("2002:7f00:1::9", vec!["127.0.0.1"]),
            ("2001:0:a00:1::80ff:fffe", vec!["10.0.0.1", "127.0.0.1"]),
            ("fe80::5efe:7f00:1", vec!["127.0.0.1"]),
            ("2001:db8::1", vec![]),
            ("::1", vec![]),
            ("::", vec![]),
        ] {
            let inside: Vec<IpAddr> = inside.iter().map(|four| four.parse().unwrap()).collect();
            assert_eq!(embedded(text.parse().unwrap()), inside, "{text}");
        }
    }

    #[test]
    fn a_narrow_special_network_comes_before_the_one_around_it() {
        for (number, special) in SPECIAL.iter().enumerate() {
            for later in &SPECIAL[number + 1..] {
                assert!(!later.network.is_within(&special.network), "{:?}", later.network);
            }
            assert_eq!(
                special_of(special.network.address).map(|found| found.what),
                Some(special.what)
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[0-9a-fxX.+-]{0,30}") {
            let _ = (loose_ipv4(&text), is_numeric(&text));
        }

        #[test]
        fn a_network_has_the_addresses_with_its_bits(six in any::<u128>(), bits in 0_u8..=128, other in any::<u128>()) {
            let network = Network::new(Ipv6Addr::from(six).into(), bits);
            prop_assume!(network.is_some_and(|network| network.address.is_ipv6()));
            let network = network.unwrap();
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            let within = (six & mask) | (other & !mask);
            prop_assert!(network.contains(Ipv6Addr::from(within).into()));
            prop_assert_eq!(network.contains(Ipv6Addr::from(other).into()), other & mask == six & mask);
        }
    }
}
