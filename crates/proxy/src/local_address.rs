//! Whether an address is this host's own, asked of the kernel at the moment it matters: addresses come and go.
//!
//! Arrives: an address. Leaves: whether packets to it stay here. Must not know: rules, connections.
//!
//! The kernel's routing decides that (`RTM_GETROUTE`, rtnetlink(7)), so that routes of the type `local` and secondary
//! addresses count too; a list of interfaces' addresses would miss the former. No packet is sent.

use std::net::IpAddr;

use nix::errno::Errno;
use nix::sys::socket::{
    recv, sendto, socket, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType,
};

/// From <linux/netlink.h> and <linux/rtnetlink.h>.
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const HEADER_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;

/// Where `struct rtmsg` has the type of the route: local, broadcast, anycast and multicast ones lead to this host, or
/// to it too.
const TYPE_AT: usize = HEADER_BYTES + 7;
const TO_THIS_HOST: std::ops::RangeInclusive<u8> = 2..=5;

/// Whether what is sent there comes to this host. Where the kernel cannot be asked, the addresses of interfaces say;
/// where nothing does, yes: the answer keeps others out.
pub(super) fn is_local(address: IpAddr) -> bool {
    let address = address.to_canonical();
    routed_here(address).or_else(|_| on_an_interface(address)).unwrap_or(true)
}

fn routed_here(address: IpAddr) -> Result<bool, Errno> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&netlink);
    sendto(fd, &question(address), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 4096];
    // The kernel has answered before it returned.
    let length = recv(fd, &mut answer, MsgFlags::MSG_DONTWAIT)?;
    understood(&answer[..length]).ok_or(Errno::EBADMSG)
}

fn question(address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(four) => (libc::AF_INET, four.octets().to_vec()),
        IpAddr::V6(six) => (libc::AF_INET6, six.octets().to_vec()),
    };
    let attribute = 4 + octets.len();
    let length = HEADER_BYTES + ROUTE_BYTES + attribute;
    let mut out = Vec::with_capacity(length);
    out.extend((length as u32).to_ne_bytes());
    out.extend(RTM_GETROUTE.to_ne_bytes());
    out.extend(NLM_F_REQUEST.to_ne_bytes());
    out.extend([0; 8]);
    out.extend([family as u8, 8 * octets.len() as u8]);
    out.extend([0; ROUTE_BYTES - 2]);
    out.extend((attribute as u16).to_ne_bytes());
    out.extend(RTA_DST.to_ne_bytes());
    out.extend(octets);
    out
}

/// An error is the one that a connection would meet, such as no route: nothing of this host is there. None where it
/// cannot be read.
fn understood(answer: &[u8]) -> Option<bool> {
    let kind = u16::from_ne_bytes([*answer.get(4)?, *answer.get(5)?]);
    match kind {
        RTM_NEWROUTE => Some(TO_THIS_HOST.contains(answer.get(TYPE_AT)?)),
        NLMSG_ERROR => Some(false),
        _ => None,
    }
}

fn on_an_interface(address: IpAddr) -> Result<bool, Errno> {
    let has = |found: nix::ifaddrs::InterfaceAddress| {
        let storage = found.address?;
        let four = storage.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
        four.or_else(|| storage.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())))
    };
    Ok(nix::ifaddrs::getifaddrs()?.filter_map(has).any(|own| own.to_canonical() == address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_asking_know_this_host() {
        let here: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(routed_here(here), Ok(true));
        assert_eq!(on_an_interface(here), Ok(true));
        let mapped: IpAddr = "::ffff:127.0.0.9".parse().unwrap();
        assert!(is_local(mapped));
        // For documentation (RFC 5737): of no host.
        let elsewhere: IpAddr = "192.0.2.1".parse().unwrap();
        assert!(!is_local(elsewhere));
        assert_eq!(on_an_interface(elsewhere), Ok(false));
    }

    #[test]
    fn short_answers_are_no_answers() {
        let mut answer = vec![0; TYPE_AT + 1];
        answer[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
        answer[TYPE_AT] = 2;
        assert_eq!(understood(&answer), Some(true));
        for cut in 0..answer.len() {
            assert_eq!(understood(&answer[..cut]), None, "cut at {cut}");
        }
    }
}
