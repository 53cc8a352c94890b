//! Where the peer is, and proof of it.
//!
//! Arrives: the addresses that authenticated packets came from. Leaves: challenges to send; the address to use.
//! Must not know: sockets, rates.
//!
//! A packet from a new address is no proof that the peer is there: it may have been copied. The new address is sent a
//! challenge, and at most three times the bytes that came from it, until the challenge comes back (RFC 9000, section 8.2).

use std::net::SocketAddr;

use ring::digest::{Context, SHA256};

/// A new address gets at most this many times what came from it, until it has answered.
const AMPLIFICATION: u64 = 3;

/// After how many unanswered challenges a new address is forgotten.
const MOST_CHALLENGES: u32 = 5;

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
    /// Whether the peer has shown that it is there.
    proved: bool,
    candidate: Option<Candidate>,
    responses: Vec<(SocketAddr, u64)>,
    secret: [u8; 32],
    made: u64,
}

impl Path {
    /// The peer's address; `proved` where the handshake has shown that it is there. `secret` makes challenges that nobody can guess.
    #[must_use]
    pub fn new(peer: SocketAddr, proved: bool, secret: [u8; 32]) -> Self {
        Self { peer, proved, candidate: None, responses: Vec::new(), secret, made: 0 }
    }

    /// Where the peer is.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether more may be sent there than challenges.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        self.proved
    }

    /// An authenticated packet came from here; `newest` is whether no packet with a larger number came before.
    pub fn heard(&mut self, now_ns: u64, from: SocketAddr, bytes: usize, newest: bool) {
        if from == self.peer && self.proved {
            // The peer is where it was: what came from elsewhere was a copy, or it moved back.
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

    /// The peer wants this sent back to where it came from.
    pub fn challenged(&mut self, from: SocketAddr, value: u64) {
        if self.responses.len() < 4 {
            self.responses.push((from, value));
        }
    }

    /// A challenge came back. True where the peer's address is another one now.
    pub fn answered(&mut self, from: SocketAddr, value: u64) -> bool {
        match self.candidate {
            Some(candidate) if candidate.address == from && candidate.challenge == value => {
                self.peer = from;
                self.proved = true;
                self.candidate = None;
                true
            }
            _ => false,
        }
    }

    /// A response that is to be sent, and where to.
    pub fn response(&mut self) -> Option<(SocketAddr, u64)> {
        self.responses.pop()
    }

    /// The challenge to send now, if any: where to and what; `size` is that of its packet.
    pub fn challenge_due(
        &mut self,
        now_ns: u64,
        rtt_ns: u64,
        size: usize,
    ) -> Option<(SocketAddr, u64)> {
        let candidate = self.candidate.as_mut().filter(|candidate| candidate.next_ns <= now_ns)?;
        if candidate.challenges >= MOST_CHALLENGES {
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

    /// When something is to be sent because of an address.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        if self.responses.is_empty() {
            self.challenge_due_ns()
        } else {
            Some(0)
        }
    }

    /// When a new address is to be challenged.
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
