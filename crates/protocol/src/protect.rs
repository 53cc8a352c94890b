//! Packet protection: keys from a TLS 1.3 exporter, a new one every 2^22 packets.
//!
//! Arrives: an exporter secret (RFC 8446, section 7.5) that only the two ends have, and the side of this end.
//! Leaves: sealed packets, or the frames of authentic packets. Must not know: TLS, certificates, frames.
//!
//! The epoch of a key is the packet number divided by 2^22, so a key update needs no signal, and a key seals fewer
//! packets than AES-GCM allows (RFC 9001, appendix B.1.1: 2^28 of up to 2 KiB). Each epoch's secret is derived from
//! the previous one, which is then erased: an attacker who obtains a key cannot read earlier packets.

use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey, AES_256_GCM, CHACHA20_POLY1305, NONCE_LEN};
use ring::hkdf::{KeyType, Prk, HKDF_SHA256};

use crate::packet::TAG_SIZE;

/// Packets sealed by one key, as a power of two.
pub const EPOCH_BITS: u32 = 22;

/// Seals and opens packets. This crate's implementation is [`Sealed`]; simulations use one without ciphers.
pub trait Protect: Send {
    /// Seals `packet[header_size..]` in place and appends the tag.
    fn seal(&mut self, number: u64, header_size: usize, packet: &mut Vec<u8>);

    /// Opens `packet[header_size..]` in place and returns the frames; None for a packet that the peer did not seal.
    fn open<'a>(
        &mut self,
        number: u64,
        header_size: usize,
        packet: &'a mut [u8],
    ) -> Option<&'a [u8]>;
}

/// The side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that was connected to.
    Server,
}

/// The algorithms offered; TLS agrees on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// For processors with AES instructions.
    Aes256Gcm,
    /// For all others.
    Chacha20Poly1305,
}

/// Packet protection with keys from a TLS exporter.
pub struct Sealed {
    sending: Direction,
    receiving: Direction,
}

impl Sealed {
    /// Derives the keys of both directions from the exporter secret.
    #[must_use]
    pub fn new(exporter_secret: &[u8; 32], side: Side, suite: Suite) -> Self {
        let [ours, theirs] = match side {
            Side::Client => ["client", "server"],
            Side::Server => ["server", "client"],
        };
        let secret = |end: &str| expand(exporter_secret, &["waystage 1 ", end]);
        Self {
            sending: Direction::new(secret(ours), suite),
            receiving: Direction::new(secret(theirs), suite),
        }
    }
}

impl Protect for Sealed {
    fn seal(&mut self, number: u64, header_size: usize, packet: &mut Vec<u8>) {
        self.sending.advance(number >> EPOCH_BITS);
        let (header, frames) = packet.split_at_mut(header_size);
        let epoch = &self.sending.current;
        let tag = epoch
            .key
            .seal_in_place_separate_tag(epoch.nonce(number), Aad::from(&*header), frames)
            .expect("a packet is far below the limit of the cipher");
        packet.extend_from_slice(tag.as_ref());
    }

    fn open<'a>(
        &mut self,
        number: u64,
        header_size: usize,
        packet: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let direction = &mut self.receiving;
        let (header, sealed) = packet.split_at_mut(header_size);
        let index = number >> EPOCH_BITS;
        if index == direction.index + 1 {
            // Only a packet that the next key opens updates the keys: a forged number changes nothing.
            let next = Epoch::new(&direction.next_secret, direction.suite);
            let opened =
                next.key.open_in_place(next.nonce(number), Aad::from(&*header), sealed).ok()?.len();
            direction.advance(index);
            return Some(&sealed[..opened]);
        }
        let epoch = match direction.index.checked_sub(index)? {
            0 => &direction.current,
            1 => direction.previous.as_ref()?,
            _ => return None,
        };
        let opened =
            epoch.key.open_in_place(epoch.nonce(number), Aad::from(&*header), sealed).ok()?;
        Some(opened)
    }
}

struct Direction {
    suite: Suite,
    index: u64,
    previous: Option<Epoch>,
    current: Epoch,
    next_secret: [u8; 32],
}

impl Direction {
    fn new(secret: [u8; 32], suite: Suite) -> Self {
        Self {
            suite,
            index: 0,
            previous: None,
            current: Epoch::new(&secret, suite),
            next_secret: expand(&secret, &["waystage 1 next"]),
        }
    }

    fn advance(&mut self, index: u64) {
        while self.index < index {
            let next = Epoch::new(&self.next_secret, self.suite);
            self.previous = Some(std::mem::replace(&mut self.current, next));
            self.next_secret = expand(&self.next_secret, &["waystage 1 next"]);
            self.index += 1;
        }
    }
}

struct Epoch {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

impl Epoch {
    fn new(secret: &[u8; 32], suite: Suite) -> Self {
        let algorithm = match suite {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::Chacha20Poly1305 => &CHACHA20_POLY1305,
        };
        let key: [u8; 32] = expand(secret, &["waystage 1 key"]);
        let key = UnboundKey::new(algorithm, &key).expect("both ciphers take 32 bytes");
        Self { key: LessSafeKey::new(key), iv: expand(secret, &["waystage 1 iv"]) }
    }

    /// The packet number, exclusive-or the initialisation vector (RFC 9001, section 5.3): no nonce repeats with a key.
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand (RFC 5869) with SHA-256.
fn expand<const N: usize>(secret: &[u8; 32], info: &[&str]) -> [u8; N] {
    let info: Vec<&[u8]> = info.iter().map(|part| part.as_bytes()).collect();
    let mut out = [0; N];
    Prk::new_less_safe(HKDF_SHA256, secret)
        .expand(&info, Length(N))
        .and_then(|okm| okm.fill(&mut out))
        .expect("SHA-256 expands to far more than 32 bytes");
    out
}

const _: () = assert!(TAG_SIZE == 16, "both ciphers have tags of 16 bytes");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Header, Stamp, HEADER_SIZE};

    fn pair() -> (Sealed, Sealed) {
        let secret = [7; 32];
        let suite = Suite::Aes256Gcm;
        (Sealed::new(&secret, Side::Client, suite), Sealed::new(&secret, Side::Server, suite))
    }

    fn sealed(by: &mut Sealed, number: u64) -> Vec<u8> {
        let mut packet = Vec::new();
        Header { connection: 1, number, stamp: Stamp::of(0) }.put(&mut packet);
        packet.extend_from_slice(b"frames");
        by.seal(number, HEADER_SIZE, &mut packet);
        packet
    }

    #[test]
    fn a_packet_is_opened_by_the_peer_and_not_by_its_sender() {
        let (mut client, mut server) = pair();
        let packet = sealed(&mut client, 3);
        assert_eq!(server.open(3, HEADER_SIZE, &mut packet.clone()), Some(&b"frames"[..]));
        assert_eq!(client.open(3, HEADER_SIZE, &mut packet.clone()), None);
    }

    #[test]
    fn a_changed_bit_anywhere_is_detected() {
        let (mut client, mut server) = pair();
        let packet = sealed(&mut client, 3);
        for bit in 0..8 * packet.len() {
            let mut forged = packet.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(server.open(3, HEADER_SIZE, &mut forged), None, "bit {bit}");
        }
    }

    #[test]
    fn keys_change_with_the_packet_number_and_late_packets_are_still_opened() {
        let (mut client, mut server) = pair();
        let edge = 1 << EPOCH_BITS;
        let late = sealed(&mut client, edge - 1);
        let first = sealed(&mut client, edge);
        assert!(server.open(edge, HEADER_SIZE, &mut first.clone()).is_some());
        assert!(server.open(edge - 1, HEADER_SIZE, &mut late.clone()).is_some());
        let next = sealed(&mut client, 2 * edge);
        assert!(server.open(2 * edge, HEADER_SIZE, &mut next.clone()).is_some());
        assert!(
            server.open(edge - 1, HEADER_SIZE, &mut late.clone()).is_none(),
            "that key is erased"
        );
    }

    #[test]
    fn a_forged_number_of_the_next_epoch_updates_no_key() {
        let (mut client, mut server) = pair();
        let mut forged = sealed(&mut client, 5);
        assert!(server.open(1 << EPOCH_BITS, HEADER_SIZE, &mut forged).is_none());
        assert_eq!(server.receiving.index, 0);
    }
}
