//! Contents on the path in fewer bytes: messages of a copy, compressed one by one (LZ4's block format).
//!
//! Arrives: messages with contents; a peer's bytes. Leaves: a shorter message where there is one; a message of the
//! length that the peer declared, and no longer than the channel's. Must not know: files.
//!
//! Contents that do not become shorter are sent as they are, and ever fewer of those that follow are tried, so that
//! a copy of images or archives costs what it costs without compression.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use waystage_transport::control::Control;
use waystage_transport::control_messages;
use waystage_transport::message::MOST_BYTES;
use waystage_transport::wire::{Malformed, Read, Reader, Writer};

use crate::entry::kinds;

/// From this version of the protocol on ends read compressed messages.
const COMPRESSION_VERSION: u32 = 7;

/// Shorter messages are one packet or few.
const LEAST_BYTES: usize = 4096;

/// A message has to become shorter by this part of its length: less saves the path little and costs the receiver time.
const LEAST_GAIN: usize = 16;

/// After contents that did not become shorter, at most as many messages are passed over: 60 MiB of a large file.
const MOST_PASSED: u32 = 15;

/// LZ4 makes a byte of at most as many as this.
const MOST_EXPANSION: usize = 256;

/// Whether a sender compresses, and what it has found.
#[derive(Debug, Default)]
pub(crate) struct Compression {
    is_on: AtomicBool,
    /// Messages that are still passed over, and how many were at a time.
    left: AtomicU32,
    passed: AtomicU32,
}

impl Compression {
    /// Let contents come compressed from a server of this version, or go there with `push`; why they do not.
    pub(crate) fn agree(&self, control: &Control, push: bool, version: u32) -> Option<String> {
        if version < COMPRESSION_VERSION {
            return Some(format!(
                "the server speaks version {version} of the protocol, which has no compression: contents cross the path \
                 as they are"
            ));
        }
        if push {
            self.turn_on();
        } else {
            control.send(control_messages::kinds::COMPRESS, &[]);
        }
        None
    }

    /// The peer reads compressed messages.
    pub(crate) fn turn_on(&self) {
        self.is_on.store(true, Ordering::SeqCst);
    }

    /// A shorter message that says the same; None where there is none, or that was not tried.
    pub(crate) fn shorter(&self, message: &[u8]) -> Option<Vec<u8>> {
        let has_contents = matches!(message.first(), Some(&(kinds::PACK | kinds::PART)));
        if !self.is_on.load(Ordering::Relaxed) || !has_contents || message.len() < LEAST_BYTES {
            return None;
        }
        let order = Ordering::Relaxed;
        if self.left.fetch_update(order, order, |left| left.checked_sub(1)).is_ok() {
            return None;
        }
        let mut out = Writer::new(kinds::COMPRESSED);
        out.count(message.len());
        let begin = out.written();
        out.0.resize(begin + get_maximum_output_size(message.len()), 0);
        let count = compress_into(message, &mut out.0[begin..]).ok()?;
        if begin + count > message.len() - message.len() / LEAST_GAIN {
            let passed = (self.passed.load(order) * 2 + 1).min(MOST_PASSED);
            self.passed.store(passed, order);
            self.left.store(passed, order);
            return None;
        }
        self.passed.store(0, order);
        out.0.truncate(begin + count);
        Some(out.0)
    }
}

/// The message that a peer has compressed, in memory that may be filled again: one with contents.
pub(crate) fn read_compressed(reader: Reader<'_>, message: &mut Vec<u8>) -> Read<()> {
    let mut reader = reader;
    let length = reader.u32()? as usize;
    // Memory only for what the bytes that came can become.
    if length > MOST_BYTES || length > reader.0.len().saturating_mul(MOST_EXPANSION) {
        return Err(Malformed);
    }
    message.resize(length, 0);
    match decompress_into(reader.0, message) {
        Ok(count) if count == length => {}
        _ => return Err(Malformed),
    }
    match message.first() {
        Some(&(kinds::PACK | kinds::PART)) => Ok(()),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn on() -> Compression {
        let compression = Compression::default();
        compression.turn_on();
        compression
    }

    fn text(length: usize) -> Vec<u8> {
        let mut message = vec![kinds::PART];
        let lines = (0_u32..).flat_map(|number| format!("step {number} done\n").into_bytes());
        message.extend(lines.take(length));
        message
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let mut message = vec![kinds::PART];
        message.extend((0..length).map(|_| byte()));
        message
    }

    fn back(compressed: &[u8]) -> Read<Vec<u8>> {
        let mut message = Vec::new();
        assert_eq!(compressed[0], kinds::COMPRESSED);
        read_compressed(Reader(&compressed[1..]), &mut message).map(|()| message)
    }

    /// A message that declares this length and has these bytes.
    fn declared(length: usize, bytes: &[u8]) -> Vec<u8> {
        let mut out = Writer::new(kinds::COMPRESSED);
        out.count(length).array(bytes);
        out.0
    }

    #[test]
    fn text_becomes_shorter_and_comes_back_and_nothing_is_compressed_unasked() {
        let message = text(1 << 20);
        let compressed = on().shorter(&message).unwrap();
        assert!(compressed.len() < message.len() / 2);
        assert_eq!(back(&compressed).unwrap(), message);
        assert_eq!(Compression::default().shorter(&message), None);
        assert_eq!(on().shorter(&text(100)), None, "short");
        let offer = [&[kinds::OFFER][..], &text(1 << 16)[1..]].concat();
        assert_eq!(on().shorter(&offer), None, "no contents");
    }

    #[test]
    fn contents_that_stay_as_long_are_tried_ever_less_and_text_after_them_is_compressed() {
        let compression = on();
        let (noise, text) = (noise(1 << 16), text(1 << 16));
        let mut tried = 0;
        for _ in 0..200 {
            tried += u32::from(compression.left.load(Ordering::Relaxed) == 0);
            assert_eq!(compression.shorter(&noise), None);
        }
        assert!((10..20).contains(&tried), "{tried}");
        let waits = (0..100).take_while(|_| compression.shorter(&text).is_none()).count();
        assert!(waits <= MOST_PASSED as usize);
        assert!(
            (0..100).all(|_| compression.shorter(&text).is_some()),
            "each of them from then on"
        );
    }

    #[test]
    fn a_message_that_becomes_longer_than_it_declares_is_refused() {
        let bomb = on().shorter(&[&[kinds::PART][..], &vec![0; MOST_BYTES - 1]].concat()).unwrap();
        let inner = &bomb[5..];
        assert_eq!(back(&bomb).unwrap().len(), MOST_BYTES);
        for length in [0, 1, MOST_BYTES - 1, MOST_BYTES + 1, u32::MAX as usize] {
            assert_eq!(back(&declared(length, inner)), Err(Malformed), "{length}");
        }
        // Nor does a declaration alone take memory.
        let mut message = Vec::new();
        let small = declared(MOST_BYTES, &[0; 16]);
        assert_eq!(read_compressed(Reader(&small[1..]), &mut message), Err(Malformed));
        assert_eq!(message.capacity(), 0);
    }

    #[test]
    fn only_contents_come_compressed() {
        let mut nested = on().shorter(&text(1 << 16)).unwrap();
        for kind in [kinds::COMPRESSED, kinds::OFFER, kinds::DONE, 0, 255] {
            nested.resize(1 << 16, 0);
            nested[0] = kind;
            let packed = lz4_flex::block::compress(&nested);
            assert_eq!(back(&declared(nested.len(), &packed)), Err(Malformed), "{kind}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_compressed_comes_back(
            pieces in prop::collection::vec((any::<u8>(), 1_usize..3000), 1..20), kind in kinds::PACK..=kinds::PART,
        ) {
            let mut message = vec![kind];
            pieces.iter().for_each(|(byte, count)| message.extend(vec![*byte; *count]));
            if let Some(compressed) = on().shorter(&message) {
                prop_assert!(compressed.len() < message.len());
                prop_assert_eq!(back(&compressed), Ok(message));
            }
        }

        #[test]
        fn foreign_bytes_are_contents_or_malformed(
            length in 0_usize..100_000, bytes in prop::collection::vec(any::<u8>(), 0..400),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let _ = back(&declared(length, &bytes));
            let mut compressed = on().shorter(&text(20_000)).unwrap();
            for (at, byte) in damage {
                let at = 1 + at.index(compressed.len() - 1);
                compressed[at] = byte;
            }
            let read = back(&compressed);
            prop_assert!(read.is_err() || matches!(read, Ok(whole) if whole.len() <= MOST_BYTES));
        }
    }
}
