//! A job's ticket: proof that a service of the same cluster gave a user a job's number.
//!
//! Arrives: the cluster's key, a number, a user. Leaves: a ticket, or whether one is genuine. Must not know: sockets.

/// Number, user and serial number of a job, and the code that only holders of the key can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    pub(crate) uid: u64,
    /// Nanoseconds since 1970 when it was made.
    pub(crate) serial: u64,
    pub(crate) code: [u8; 32],
}

impl Ticket {
    pub(crate) fn new(key: &[u8; 32], number: u64, uid: u64, serial: u64) -> Self {
        Self { number, uid, serial, code: *code(key, number, uid, serial).as_bytes() }
    }

    /// Whether it was made with this key. Takes the same time wherever it differs.
    pub(crate) fn is_genuine(&self, key: &[u8; 32]) -> bool {
        code(key, self.number, self.uid, self.serial) == self.code
    }
}

fn code(key: &[u8; 32], number: u64, uid: u64, serial: u64) -> blake3::Hash {
    let mut text = [0; 24];
    for (part, value) in text.chunks_exact_mut(8).zip([number, uid, serial]) {
        part.copy_from_slice(&value.to_le_bytes());
    }
    blake3::keyed_hash(key, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_ticket_is_not_genuine() {
        let key = [7; 32];
        let ticket = Ticket::new(&key, 3, 1000, 99);
        assert!(ticket.is_genuine(&key));
        assert!(!Ticket { number: 4, ..ticket }.is_genuine(&key));
        assert!(!Ticket { uid: 1001, ..ticket }.is_genuine(&key));
        assert!(!Ticket { serial: 100, ..ticket }.is_genuine(&key));
        assert!(!ticket.is_genuine(&[8; 32]));
    }
}
