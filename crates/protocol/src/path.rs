//! Path validation: the peer's address, and proof that it is the peer's.
//!
//! Arrives: the addresses of authenticated packets. Leaves: challenges to send; the address to use. Must not know:
//! sockets, rates.
//!
//! A packet from a new address does not prove that the peer is there: it may be a copy. The new address is sent a
//! challenge, and at most three times the bytes that came from it, until it returns the challenge (RFC 9000, section
//! 8.2).

use std::net::SocketAddr;

use ring::digest::{Context, SHA256};

/// An address that is not validated gets at most this many times the bytes that came from it (RFC 9000, section 8).
const AMPLIFICATION: u64 = 3;

/// Unanswered challenges after which a new address is forgotten.
const MAX_CHALLENGES: u32 = 5;

#[derive(Clone, Copy, Debug)]
struct Candidate {
    address: SocketAddr,
    challenge: u64,
    from_bytes: u64,
    to_bytes: u64,
    challenges: u32,
    next_ns: u64,
}

/// The path to the peer.
#[derive(Debug)]
pub struct Path {
    peer: SocketAddr,
    /// Whether the address is validated.
    validated: bool,
    candidate: Option<Candidate>,
    responses: Vec<(SocketAddr, u64)>,
    secret: [u8; 32],
    made: u64,
}

impl Path {
    /// The peer's address; `validated` where the handshake has validated it. `secret` makes challenges that cannot be
    /// guessed.
    #[must_use]
    pub fn new(peer: SocketAddr, validated: bool, secret: [u8; 32]) -> Self {
        Self { peer, validated, candidate: None, responses: Vec::new(), secret, made: 0 }
    }

    /// The peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether it is validated. If not, only challenges may be sent there.
    #[must_use]
    pub fn is_validated(&self) -> bool {
        self.validated
    }

    /// Processes the address of an authenticated packet; `newest` is whether its number is the largest so far.
    pub fn on_packet(&mut self, now_ns: u64, from: SocketAddr, bytes: usize, newest: bool) {
        if from == self.peer && self.validated {
            // The peer is still there: the packet from elsewhere was a copy, or the peer moved back.
            if newest {
                self.candidate = None;
            }
            return;
        }
        match &mut self.candidate {
            Some(candidate) if candidate.address == from => candidate.from_bytes += bytes as u64,
            _ if newest => {
                let challenge = self.challenge();
                self.candidate = Some(Candidate {
                    address: from,
                    challenge,
                    from_bytes: bytes as u64,
                    to_bytes: 0,
                    challenges: 0,
                    next_ns: now_ns,
                });
            }
            _ => {}
        }
    }

    /// Processes a challenge of the peer, to be returned to its address.
    pub fn on_challenge(&mut self, from: SocketAddr, value: u64) {
        if self.responses.len() < 4 {
            self.responses.push((from, value));
        }
    }

    /// Processes the response to a challenge. True where it validates a new address of the peer.
    pub fn on_response(&mut self, from: SocketAddr, value: u64) -> bool {
        match self.candidate {
            Some(candidate) if candidate.address == from && candidate.challenge == value => {
                self.peer = from;
                self.validated = true;
                self.candidate = None;
                true
            }
            _ => false,
        }
    }

    /// The next response to send, and its destination.
    pub fn response(&mut self) -> Option<(SocketAddr, u64)> {
        self.responses.pop()
    }

    /// The challenge to send now, if any: destination and value. `size` is the size of its packet.
    pub fn challenge_due(
        &mut self,
        now_ns: u64,
        rtt_ns: u64,
        size: usize,
    ) -> Option<(SocketAddr, u64)> {
        let candidate = self.candidate.as_mut().filter(|candidate| candidate.next_ns <= now_ns)?;
        if candidate.challenges >= MAX_CHALLENGES {
            self.candidate = None;
            return None;
        }
        candidate.next_ns = now_ns + 2 * rtt_ns;
        if candidate.to_bytes + size as u64 > AMPLIFICATION * candidate.from_bytes {
            return None;
        }
        candidate.challenges += 1;
        candidate.to_bytes += size as u64;
        Some((candidate.address, candidate.challenge))
    }

    /// When the next challenge or response is due.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        if self.responses.is_empty() {
            self.challenge_due_ns()
        } else {
            Some(0)
        }
    }

    /// When the next challenge is due.
    #[must_use]
    pub fn challenge_due_ns(&self) -> Option<u64> {
        self.candidate.map(|candidate| candidate.next_ns)
    }

    fn challenge(&mut self) -> u64 {
        self.made += 1;
        let mut context = Context::new(&SHA256);
        context.update(&self.secret);
        context.update(&self.made.to_be_bytes());
        let digest = context.finish();
        let mut word = [0; 8];
        word.copy_from_slice(&digest.as_ref()[..8]);
        u64::from_be_bytes(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 1000;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn a_new_address_is_used_once_it_returns_the_challenge() {
        let mut path = Path::new(address(1), true, [7; 32]);
        path.on_packet(0, address(2), 100, true);
        let (to, value) = path.challenge_due(0, RTT_NS, 37).unwrap();
        assert_eq!((to, path.peer()), (address(2), address(1)));
        assert!(!path.on_response(address(3), value), "from another address");
        assert!(!path.on_response(address(2), value ^ 1), "another value");
        assert!(path.on_response(address(2), value));
        assert_eq!(path.peer(), address(2));
    }

    #[test]
    fn an_address_that_is_not_validated_gets_three_times_its_bytes_and_five_challenges() {
        let mut path = Path::new(address(1), true, [7; 32]);
        path.on_packet(0, address(2), 30, true);
        assert!(path.challenge_due(0, RTT_NS, 60).is_some());
        assert!(path.challenge_due(2 * RTT_NS, RTT_NS, 60).is_none(), "90 bytes are allowed");
        path.on_packet(3 * RTT_NS, address(2), 1000, false);
        let sent = (4..100).filter(|at| path.challenge_due(at * RTT_NS, RTT_NS, 60).is_some());
        assert_eq!(sent.count(), 4);
        assert_eq!(path.due_ns(), None, "forgotten");
    }

    #[test]
    fn a_packet_from_the_old_address_withdraws_the_new_one() {
        let mut path = Path::new(address(1), true, [7; 32]);
        path.on_packet(0, address(2), 100, true);
        path.on_packet(1, address(1), 100, true);
        assert_eq!(path.challenge_due(2, RTT_NS, 37), None);
    }
}
