//! Where a connection may go: decisions without sockets.
//!
//! Arrives: a peer's offer, rules, the addresses of a name. Leaves: a destination, the addresses to try, the reply to
//! an error. Must not know: sockets, sessions.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use waystage_protocol::protect::Side;

use crate::destination::{Destination, Offer};
use crate::rules::Rules;
use crate::socks::replies;

/// Where a stream that the peer offers is from and to; else a reply and the reason. A server takes destinations of its
/// client, a client only the numbers of its reverse forwards.
pub(super) fn requested(
    side: Side,
    offer: &[u8],
    reverse: &[Destination],
) -> Result<(String, Destination), (u8, &'static str)> {
    let offer = Offer::read(offer).map_err(|_| (replies::FAILURE, "the offer cannot be read"))?;
    match (side, offer) {
        (Side::Server, Offer::Forward { destination, origin }) => Ok((origin, destination)),
        (Side::Client, Offer::Reverse { index, origin }) => {
            let destination = reverse.get(index as usize).cloned();
            let destination =
                destination.ok_or((replies::FAILURE, "there is no such reverse forward"))?;
            Ok((origin, destination))
        }
        _ => Err((replies::NOT_ALLOWED, "this end does not let its peer choose destinations")),
    }
}

/// The addresses of a destination that may be connected to, in order; None for a destination that no rule is about.
/// Without any, how to have one allowed. What is judged is what is connected to: an IPv4 address inside an IPv6 one is
/// the IPv4 address.
pub(super) fn allowed(
    rules: &Rules,
    destination: Option<&Destination>,
    found: Vec<SocketAddr>,
    is_local: &dyn Fn(IpAddr) -> bool,
) -> Result<VecDeque<SocketAddr>, String> {
    let mut remedy = String::new();
    let mut may = |address: &SocketAddr| {
        let Some(destination) = destination else { return true };
        let judged = rules.judge(&destination.host, Some(address.ip()), address.port(), is_local);
        if judged.verdict != rules.here {
            remedy = judged.remedy();
        }
        judged.verdict == rules.here
    };
    let plain = found.into_iter().map(|found| match found.ip().to_canonical() {
        four @ IpAddr::V4(_) => SocketAddr::new(four, found.port()),
        // With its zone.
        IpAddr::V6(_) => found,
    });
    let allowed: VecDeque<SocketAddr> = plain.filter(|address| may(address)).collect();
    if allowed.is_empty() {
        return Err(remedy);
    }
    Ok(allowed)
}

/// The reply that fits an error (RFC 1928, section 6).
pub(super) fn reply_to(error: &std::io::Error) -> u8 {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => replies::REFUSED,
        std::io::ErrorKind::NetworkUnreachable => replies::NETWORK_UNREACHABLE,
        std::io::ErrorKind::TimedOut => replies::TTL_EXPIRED,
        std::io::ErrorKind::HostUnreachable => replies::HOST_UNREACHABLE,
        _ => replies::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::Host;
    use crate::rules::Verdict;

    fn destination(name: &str) -> Destination {
        Destination { host: Host::Name(name.to_owned()), port: 80 }
    }

    fn addresses(all: &[&str]) -> Vec<SocketAddr> {
        all.iter().map(|one| one.parse().unwrap()).collect()
    }

    fn rules(lines: &[&str]) -> Rules {
        let rules = lines.iter().map(|line| line.parse().unwrap()).collect();
        Rules { rules, otherwise: Verdict::Deny, here: Verdict::Allow }
    }

    #[test]
    fn each_side_takes_the_offers_of_its_peer_alone() {
        let forward =
            Offer::Forward { destination: destination("a"), origin: "here".into() }.encode();
        let reverse = |index| Offer::Reverse { index, origin: "there".into() }.encode();
        let known = [destination("b")];
        let (origin, to) = requested(Side::Server, &forward, &known).unwrap();
        assert_eq!((origin.as_str(), to.to_string()), ("here", destination("a").to_string()));
        let (_, to) = requested(Side::Client, &reverse(0), &known).unwrap();
        assert_eq!(to.to_string(), destination("b").to_string());
        let code = |side, offer: &[u8]| requested(side, offer, &known).unwrap_err().0;
        assert_eq!(code(Side::Client, &forward), replies::NOT_ALLOWED);
        assert_eq!(code(Side::Server, &reverse(0)), replies::NOT_ALLOWED);
        assert_eq!(code(Side::Client, &reverse(1)), replies::FAILURE);
        assert_eq!(code(Side::Server, b"?"), replies::FAILURE);
    }

    #[test]
    fn only_addresses_that_rules_allow_are_tried_and_as_they_were_judged() {
        let rules = rules(&["allow 192.0.2.0/24"]);
        let found = addresses(&["198.51.100.1:80", "[::ffff:192.0.2.7]:80", "192.0.2.8:80"]);
        let name = destination("a");
        let tried = allowed(&rules, Some(&name), found.clone(), &|_| false).unwrap();
        assert_eq!(Vec::from(tried), addresses(&["192.0.2.7:80", "192.0.2.8:80"]));
        let denied = allowed(&rules, Some(&name), addresses(&["198.51.100.1:80"]), &|_| false);
        assert!(denied.is_err());
        // What a client chose itself is not judged.
        assert_eq!(allowed(&rules, None, found, &|_| false).unwrap().len(), 3);
    }
}
