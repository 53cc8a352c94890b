//! IP packets of a TUN device: splitting, checksums, damage.
//!
//! Arrives: a virtio-net header and the bytes after it. Leaves: headers of parts of it; damaged copies.
//! Must not know: devices, the path.
//!
//! Linux hands a TUN device up to 64 KiB of one flow at once (GSO), without checksums, if the program has declared
//! support. Splitting follows `tcp_gso_segment` and `__udp_gso_segment` (net/ipv4/tcp_offload.c, udp_offload.c); the
//! header is that of Virtual I/O Device 1.2, section 5.1.6.

use crate::frame::Cuts;

/// Bytes of the virtio-net header, `struct virtio_net_hdr`.
pub const VNET_BYTES: usize = 10;
/// The longest headers that are split.
pub const MAX_HEAD: usize = 512;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

/// The kernel's metadata of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// The offsets of the transport header and of the checksum in it, if the checksum is incomplete.
    pub checksum: Option<(usize, usize)>,
    gso: u8,
}

/// Reads the virtio-net header of a packet; `None` for one that cannot be split.
#[must_use]
pub fn read(vnet: &[u8; VNET_BYTES], packet: &[u8]) -> Option<(Cuts, Shape)> {
    let word = |at: usize| usize::from(u16::from_ne_bytes([vnet[at], vnet[at + 1]]));
    let (flags, gso, segment) = (vnet[0], vnet[1], word(4));
    let checksum = (flags & NEEDS_CHECKSUM != 0).then(|| (word(6), word(8)));
    if checksum.is_some_and(|(start, offset)| start + offset + 2 > packet.len()) {
        return None;
    }
    let single = Cuts::single(packet.len(), 0);
    if gso == GSO_NONE {
        return Some((single, Shape { checksum, gso }));
    }
    let (start, _) = checksum?;
    let head = match gso & !GSO_ECN {
        GSO_TCP4 | GSO_TCP6 => start + usize::from(packet.get(start + 12)? >> 4) * 4,
        GSO_UDP_L4 => start + 8,
        _ => return None,
    };
    let fits = start >= 20 && head < packet.len() && head <= MAX_HEAD && segment > 0;
    fits.then_some((Cuts { len: packet.len(), head, segment, unseen: 0 }, Shape { checksum, gso }))
}

/// The virtio-net header, and in `head` the packet headers, of `count` packets from `first` of a frame. Returns the
/// length of the headers as well. The payload is `cuts.payload(first, count)`.
pub fn cut(
    cuts: &Cuts,
    shape: Shape,
    packet: &[u8],
    (first, count): (usize, usize),
    head: &mut [u8; MAX_HEAD],
) -> ([u8; VNET_BYTES], usize) {
    let Some((start, offset)) = shape.checksum.filter(|_| cuts.head > 0) else {
        return (vnet(shape.checksum, GSO_NONE, 0, 0), 0);
    };
    let payload = cuts.payload(first, count);
    let head = &mut head[..cuts.head];
    head.copy_from_slice(&packet[..cuts.head]);
    let total = cuts.head + payload.len();
    if head[0] >> 4 == 4 {
        put(head, 2, total as u16);
        let id = u16::from_be_bytes([head[4], head[5]]).wrapping_add(first as u16);
        put(head, 4, id);
        put(head, 10, 0);
        let sum = !fold(sum(&head[..usize::from(head[0] & 15) * 4]));
        put(head, 10, sum);
    } else {
        put(head, 4, (total - 40) as u16);
    }
    let udp = shape.gso & !GSO_ECN == GSO_UDP_L4;
    if udp {
        put(head, start + 4, (total - start) as u16);
    } else {
        let at = start + 4;
        let sequence = u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let sequence = sequence.wrapping_add((first * cuts.segment) as u32);
        head[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
        if payload.end < cuts.len {
            head[start + 13] &= !0b0000_1001; // FIN and PSH belong to the last one
        }
        if first > 0 {
            head[start + 13] &= !0b1000_0000; // CWR to the first
        }
    }
    let protocol = if udp { UDP } else { TCP };
    let pseudo = fold(pseudo_header(head, protocol, total - start));
    put(head, start + offset, pseudo);
    let (gso, segment) = if count > 1 { (shape.gso, cuts.segment) } else { (GSO_NONE, 0) };
    (vnet(shape.checksum, gso, segment, cuts.head), cuts.head)
}

/// Whether an IP packet has one of the code points ECT(0), ECT(1) and CE (RFC 3168, section 5).
#[must_use]
pub fn ecn_capable(packet: &[u8]) -> bool {
    match packet {
        [first, second, ..] if first >> 4 == 4 => second & 0b11 != 0,
        [first, second, ..] if first >> 4 == 6 => second & 0x30 != 0,
        _ => false,
    }
}

/// Gives an ECN-capable packet, or a frame of such, the code point CE. The checksums of transport do not cover it.
pub fn mark(packet: &mut [u8]) {
    if !ecn_capable(packet) {
        return;
    }
    if packet[0] >> 4 == 6 {
        packet[1] |= 0x30;
        return;
    }
    packet[1] |= 0b11;
    let header = usize::from(packet[0] & 15) * 4;
    if (20..=packet.len()).contains(&header) {
        put(packet, 10, 0);
        let sum = !fold(sum(&packet[..header]));
        put(packet, 10, sum);
    }
}

/// Completes the checksum of a single packet, then flips one bit: of its payload, or without one of its transport
/// header.
pub fn damage(packet: &mut [u8], checksum: Option<(usize, usize)>, flip: u64) {
    if let Some((start, offset)) = checksum {
        // The field holds the sum of the pseudo header.
        let full = !fold(sum(&packet[start..]));
        // RFC 768: a computed zero is sent as all ones, since zero means no checksum.
        put(packet, start + offset, if full == 0 && offset == 6 { 0xFFFF } else { full });
    }
    let (header, payload) = transport(packet);
    let from = if payload < packet.len() { payload } else { header };
    let bits = (packet.len() - from.min(packet.len())) as u64 * 8;
    if bits > 0 {
        let bit = flip % bits;
        packet[from + (bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// The offsets of the transport header and of the payload.
fn transport(packet: &[u8]) -> (usize, usize) {
    let byte = |at: usize| usize::from(packet.get(at).copied().unwrap_or(0));
    let (header, protocol) = match byte(0) >> 4 {
        4 => {
            let fragment = (byte(6) & 0x1F) << 8 | byte(7);
            // A later fragment is all payload.
            ((byte(0) & 15) * 4, if fragment > 0 { 0 } else { byte(9) as u8 })
        }
        6 => (40, byte(6) as u8),
        _ => (0, 0),
    };
    let payload = match protocol {
        TCP => header + (byte(header + 12) >> 4) * 4,
        UDP | ICMP | ICMP6 => header + 8,
        _ => header,
    };
    (header, payload)
}

fn vnet(
    checksum: Option<(usize, usize)>,
    gso: u8,
    segment: usize,
    head: usize,
) -> [u8; VNET_BYTES] {
    let mut header = [0; VNET_BYTES];
    header[1] = gso;
    let mut word = |at: usize, value: usize| {
        header[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
    };
    word(2, head);
    word(4, segment);
    if let Some((start, offset)) = checksum {
        word(6, start);
        word(8, offset);
        header[0] = NEEDS_CHECKSUM;
    }
    header
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn pseudo_header(head: &[u8], protocol: u8, length: usize) -> u64 {
    let addresses = if head[0] >> 4 == 4 { &head[12..20] } else { &head[8..40] };
    sum(addresses) + u64::from(protocol) + length as u64
}

/// RFC 1071.
fn sum(bytes: &[u8]) -> u64 {
    let mut pairs = bytes.chunks_exact(2);
    let sum: u64 =
        pairs.by_ref().map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    sum + pairs.remainder().first().map_or(0, |last| u64::from(*last) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of TCP over IPv4 or UDP over IPv6, as from the kernel.
    fn frame(udp6: bool, payload: usize, segment: u16) -> ([u8; VNET_BYTES], Vec<u8>) {
        let mut packet = vec![0u8; if udp6 { 48 } else { 40 } + payload];
        let len = packet.len();
        for (index, byte) in packet.iter_mut().enumerate() {
            *byte = (index * 7) as u8;
        }
        let (start, offset, gso) = if udp6 {
            packet[0] = 0x60;
            packet[6] = UDP;
            put(&mut packet, 4, (len - 40) as u16);
            put(&mut packet, 44, (len - 40) as u16);
            (40, 6, GSO_UDP_L4)
        } else {
            packet[0] = 0x45;
            packet[9] = TCP;
            put(&mut packet, 2, len as u16);
            put(&mut packet, 4, 0xFFFF);
            packet[6..8].fill(0);
            packet[24..28].copy_from_slice(&(u32::MAX - 100).to_be_bytes());
            packet[32] = 0x50;
            packet[33] = 0b1001_1001;
            (20, 16, GSO_TCP4)
        };
        let pseudo = fold(pseudo_header(&packet, if udp6 { UDP } else { TCP }, len - start));
        put(&mut packet, start + offset, pseudo);
        let head = start + if udp6 { 8 } else { 20 };
        (vnet(Some((start, offset)), gso, usize::from(segment), head), packet)
    }

    /// The packets `first..first + count`, as one.
    fn part(vnet: &[u8; VNET_BYTES], packet: &[u8], first: usize, count: usize) -> (Vec<u8>, u8) {
        let (cuts, shape) = read(vnet, packet).unwrap();
        let mut head = [0; MAX_HEAD];
        let (header, used) = cut(&cuts, shape, packet, (first, count), &mut head);
        let mut made = head[..used].to_vec();
        made.extend_from_slice(&packet[cuts.payload(first, count)]);
        (made, header[1])
    }

    fn checksums_hold(packet: &[u8]) -> bool {
        let (start, protocol) = match packet[0] >> 4 {
            4 => (20, packet[9]),
            _ => (40, packet[6]),
        };
        let header = packet[0] >> 4 == 6 || fold(sum(&packet[..20])) == 0xFFFF;
        let all = pseudo_header(packet, protocol, packet.len() - start) + sum(&packet[start..]);
        header && fold(all) == 0xFFFF
    }

    #[test]
    fn single_packets_equal_those_of_the_kernel() {
        for udp6 in [false, true] {
            let (vnet, packet) = frame(udp6, 2500, 1000);
            let head = packet.len() - 2500;
            let mut payload = Vec::new();
            for index in 0..3 {
                let (mut made, gso) = part(&vnet, &packet, index, 1);
                assert_eq!(gso, GSO_NONE);
                payload.extend_from_slice(&made[head..]);
                let (_, shape) = read(&vnet, &packet).unwrap();
                // Damage completes the checksum; with the bit restored, the packet is valid.
                let sound = {
                    let mut copy = made.clone();
                    damage(&mut copy, shape.checksum, 0);
                    copy[head] ^= 1;
                    copy
                };
                assert!(checksums_hold(&sound), "packet {index}, udp6 {udp6}");
                damage(&mut made, shape.checksum, 12_345);
                assert!(!checksums_hold(&made));
                let changed: u32 = made.iter().zip(&sound).map(|(a, b)| (a ^ b).count_ones()).sum();
                assert_eq!(changed, 1);
                assert_eq!(made[..head], sound[..head], "the bit is of the payload");
            }
            assert_eq!(payload, packet[head..]);
        }
    }

    #[test]
    fn sequence_numbers_identities_and_flags_follow_the_packets() {
        let (vnet, packet) = frame(false, 2500, 1000);
        let parts: Vec<Vec<u8>> = (0..3).map(|index| part(&vnet, &packet, index, 1).0).collect();
        let sequence = |p: &[u8]| u32::from_be_bytes([p[24], p[25], p[26], p[27]]);
        let base = u32::MAX - 100;
        let numbers: Vec<u32> = parts.iter().map(|p| sequence(p)).collect();
        assert_eq!(numbers, [base, base.wrapping_add(1000), base.wrapping_add(2000)]);
        let ids: Vec<u16> = parts.iter().map(|p| u16::from_be_bytes([p[4], p[5]])).collect();
        assert_eq!(ids, [0xFFFF, 0, 1]);
        let flags: Vec<u8> = parts.iter().map(|p| p[33]).collect();
        assert_eq!(flags, [0b1001_0000, 0b0001_0000, 0b0001_1001]);
    }

    #[test]
    fn packets_that_leave_together_are_one_frame_again() {
        let (vnet, packet) = frame(false, 5000, 1000);
        let (all, gso) = part(&vnet, &packet, 0, 5);
        assert_eq!(gso, GSO_TCP4);
        assert_eq!(all[20..], packet[20..]);
        let (middle, _) = part(&vnet, &packet, 1, 2);
        assert_eq!(middle.len(), 2040);
        assert_eq!(u16::from_be_bytes([middle[2], middle[3]]), 2040);
        assert_eq!(middle[40..], packet[1040..3040]);
    }

    #[test]
    fn a_mark_is_for_capable_packets_and_keeps_their_checksums() {
        for udp6 in [false, true] {
            let (vnet, mut packet) = frame(udp6, 2500, 1000);
            let (capable, point) = if udp6 { (0x20, 0x30) } else { (0b10, 0b11) };
            packet[1] &= !point;
            let (mut plain, _) = part(&vnet, &packet, 1, 1);
            assert!(!ecn_capable(&plain));
            let before = plain.clone();
            mark(&mut plain);
            assert_eq!(plain, before);
            packet[1] |= capable;
            let (mut made, _) = part(&vnet, &packet, 1, 1);
            assert!(ecn_capable(&made));
            mark(&mut made);
            assert_eq!(made[1] & point, point);
            let (_, shape) = read(&vnet, &packet).unwrap();
            let head = packet.len() - 2500;
            damage(&mut made, shape.checksum, 0);
            made[head] ^= 1; // the bit that damage has flipped
            assert!(checksums_hold(&made), "udp6 {udp6}");
        }
        for len in 0..40 {
            for first in [0x45, 0x4F, 0x40, 0x60, 0x00] {
                let mut packet = vec![0xFF; len];
                if let Some(byte) = packet.first_mut() {
                    *byte = first;
                }
                mark(&mut packet);
            }
        }
    }

    #[test]
    fn invalid_headers_are_refused() {
        let (mut vnet, packet) = frame(false, 100, 50);
        vnet[6] = 200; // the checksum beyond the end
        assert_eq!(read(&vnet, &packet), None);
        let (mut vnet, packet) = frame(false, 100, 50);
        vnet[4..6].fill(0); // no size
        assert_eq!(read(&vnet, &packet), None);
        let (mut vnet, _) = frame(false, 100, 50);
        vnet[1] = 3; // fragments of UDP, which were not asked for
        assert_eq!(read(&vnet, &packet), None);
    }

    #[test]
    fn any_bytes_can_be_damaged() {
        for len in 0..60 {
            for first in [0x45, 0x4F, 0x60, 0x00, 0xFF] {
                let mut packet = vec![0xFF; len];
                if let Some(byte) = packet.first_mut() {
                    *byte = first;
                }
                damage(&mut packet, None, u64::MAX - 5);
            }
        }
    }
}
