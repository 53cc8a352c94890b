//! The messages of a connection, as the protocol reads and writes them: extents by their numbers.

use std::collections::HashMap;

use waystage_protocol::connection::{Sink, Source};

use crate::message::MOST_BYTES;

/// The messages of a connection: those going out until the peer holds them, those coming in until they are whole.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) outgoing: HashMap<u64, Vec<u8>>,
    pub(crate) incoming: HashMap<u64, Coming>,
    /// Up to their highest bytes, those coming in together.
    pub(crate) coming_bytes: u64,
    pub(crate) most_coming_bytes: u64,
    pub(crate) spare: Vec<Vec<u8>>,
    pub(crate) most_spare: usize,
    /// The peer broke a rule of messages: which.
    pub(crate) broken: Option<&'static str>,
}

/// A message that is not whole yet.
#[derive(Default)]
pub(crate) struct Coming {
    pub(crate) buffer: Vec<u8>,
    /// Behind the highest byte that has come.
    pub(crate) end: usize,
}

impl Source for Store {
    fn read(&mut self, extent: u64, offset: u64, into: &mut [u8]) {
        let at = offset as usize;
        let end = at + into.len();
        let Some(message) = self.outgoing.get(&extent) else { return };
        if let Some(bytes) = message.get(at..end) {
            into.copy_from_slice(bytes);
        }
        // What is read next: it comes while this is sealed.
        fetch(&message[message.len().min(end)..message.len().min(end + into.len())]);
    }
}

impl Sink for Store {
    fn write(&mut self, extent: u64, offset: u64, bytes: &[u8]) {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > MOST_BYTES as u64 {
            self.broken = Some("a message was too long");
            return;
        }
        let (at, end) = (offset as usize, end as usize);
        let spare = &mut self.spare;
        let coming = self
            .incoming
            .entry(extent)
            .or_insert_with(|| Coming { buffer: spare.pop().unwrap_or_default(), end: 0 });
        if end > coming.end {
            self.coming_bytes += (end - coming.end) as u64;
            coming.end = end;
            // Few bytes, far apart: they would take more memory than was agreed on.
            if self.coming_bytes > self.most_coming_bytes {
                self.broken = Some("too many messages were begun at a time");
                return;
            }
        }
        let message = &mut coming.buffer;
        if message.len() < end {
            // By doubling, so that a message that comes in order is not cleared over and over.
            let room = end.max(2 * message.len()).min(MOST_BYTES);
            message.resize(room, 0);
        }
        message[at..end].copy_from_slice(bytes);
    }
}

/// Let the processor fetch these bytes, without waiting for them.
fn fetch(bytes: &[u8]) {
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        #[allow(unsafe_code)]
        // SAFETY: a prefetch reads nothing that the program could see, at any address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                line.as_ptr().cast(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_message_too_long_takes_no_memory() {
        for offset in [MOST_BYTES as u64, u64::MAX] {
            let mut store = Store { most_coming_bytes: u64::MAX, ..Store::default() };
            store.write(1, offset, &[0]);
            assert_eq!(store.broken, Some("a message was too long"));
            assert!(store.incoming.is_empty());
        }
    }

    #[test]
    fn a_few_bytes_far_apart_count_as_the_memory_that_they_take() {
        let mut store = Store { most_coming_bytes: 3 << 20, ..Store::default() };
        for extent in 0..3 {
            store.write(extent, (1 << 20) - 1, &[1]);
            assert_eq!(store.broken, None);
        }
        store.write(3, 0, &[1]);
        assert_eq!(store.broken, Some("too many messages were begun at a time"));
        assert!(store.incoming[&3].buffer.is_empty());
    }

    proptest! {
        #[test]
        fn a_message_is_complete_in_whatever_order_its_bytes_come(
            message in prop::collection::vec(any::<u8>(), 1..300),
            piece in 1_usize..50,
            swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..9),
        ) {
            let mut store = Store { most_coming_bytes: 300, ..Store::default() };
            store.spare.push(vec![9; 100]);
            let mut pieces: Vec<(usize, &[u8])> = message.chunks(piece).enumerate().collect();
            for (a, b) in &swaps {
                let (a, b) = (a.index(pieces.len()), b.index(pieces.len()));
                pieces.swap(a, b);
            }
            for (number, bytes) in pieces.iter().chain(&pieces[..1]) {
                store.write(7, (number * piece) as u64, bytes);
            }
            prop_assert_eq!(store.broken, None);
            prop_assert_eq!(store.coming_bytes, message.len() as u64);
            let Coming { buffer, end } = &store.incoming[&7];
            prop_assert_eq!(&buffer[..*end], &message[..]);
        }

        #[test]
        fn reads_beyond_a_message_leave_the_rest_alone(
            offset in 0_u64..20,
            length in 0_usize..20,
        ) {
            let mut store = Store::default();
            store.outgoing.insert(1, vec![1; 10]);
            let mut into = vec![0; length];
            store.read(1, offset, &mut into);
            let inside = offset as usize + length <= 10;
            prop_assert_eq!(into, vec![u8::from(inside); length]);
        }
    }
}
