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
        // SAFETY: a prefetch reads nothing that the program could see, whatever the address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                line.as_ptr().cast(),
            );
        }
    }
}
