//! The ring against a naive model, and against foreign bytes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;

use crate::abi;
use crate::event::parse;
use crate::ring::RingReader;
use crate::segment::{Shape, Words};

const SHAPE: Shape = Shape { rings: 2, ring_bytes: 1 << 16 };
const RING: usize = 1;

struct Memory(Vec<AtomicU64>);

impl Memory {
    fn new() -> Self {
        Self((0..SHAPE.bytes() / 8).map(|_| AtomicU64::new(0)).collect())
    }

    fn words(&self) -> Words<'_> {
        Words(&self.0)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        &self.0[(SHAPE.words_of(RING) + offset) / 8]
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let at = SHAPE.data_of(RING) + usize::try_from(at).unwrap();
        for (word, chunk) in self.0[at / 8..].iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
    }
}

fn record(kind: u8, token: u64, path: &[u8]) -> Vec<u8> {
    let bytes = (abi::RECORD_BYTES + path.len()).next_multiple_of(16);
    let mut record = u32::try_from(bytes).unwrap().to_ne_bytes().to_vec();
    record.extend(u16::try_from(path.len()).unwrap().to_ne_bytes());
    record.extend([kind, 0]);
    record.extend(token.to_ne_bytes());
    record.extend(path);
    record.resize(bytes, 0);
    record
}

/// What shim/posix/ring.c does, without its lock; false where there is no room.
fn write(memory: &Memory, record: &[u8]) -> bool {
    let size = SHAPE.ring_bytes as u64;
    let longest = abi::LONGEST as u64;
    let head = memory.word(abi::HEAD).load(Ordering::Relaxed) & !15;
    let used = head.wrapping_sub(memory.word(abi::TAIL).load(Ordering::Relaxed));
    let at = head % size;
    let skipped = if size - at < longest { size - at } else { 0 };
    if used > size || size - used < skipped + longest {
        return false;
    }
    if skipped > 0 {
        let mut skip = u32::try_from(skipped).unwrap().to_ne_bytes().to_vec();
        skip.extend([0, 0, abi::SKIP, 0]);
        memory.put(at, &skip);
    }
    memory.put((at + skipped) % size, record);
    memory.word(abi::HEAD).store(head + skipped + record.len() as u64, Ordering::Release);
    true
}

fn drain(memory: &Memory, reader: &mut RingReader) -> (Vec<Vec<u8>>, u64) {
    let mut records = Vec::new();
    let drained = reader.drain(&memory.words(), |record| {
        assert!(record.len() >= abi::RECORD_BYTES && record.len() <= abi::LONGEST);
        records.push(record.to_vec());
        parse(record).is_some()
    });
    (records, drained.damaged)
}

#[derive(Debug, Clone)]
enum Step {
    Write {
        length: usize,
    },
    Drain,
    /// A writer that was killed after some bytes, before it said so.
    Die {
        bytes: Vec<u8>,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => prop_oneof![1..200usize, 1..=8_192usize].prop_map(|length| Step::Write { length }),
        1 => Just(Step::Drain),
        1 => vec(any::<u8>(), 1..64).prop_map(|bytes| Step::Die { bytes }),
    ];
    vec(step, 1..200)
}

/// `make fuzz` wants more than the hundred that a moment allows.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn what_is_written_is_read_once_and_in_order(steps in steps()) {
        let memory = Memory::new();
        let mut reader = RingReader::new(SHAPE, RING);
        let mut model = VecDeque::new();
        let mut number = 0_u64;
        for step in steps {
            match step {
                Step::Write { length } => {
                    number += 1;
                    let path: Vec<u8> = std::iter::once(b'/').chain((1..length).map(|_| b'p')).collect();
                    let record = record(abi::OPENED, number, &path);
                    if write(&memory, &record) {
                        model.push_back(record);
                    } else {
                        // There is always room once it was read.
                        let (records, damaged) = drain(&memory, &mut reader);
                        prop_assert_eq!(damaged, 0);
                        prop_assert_eq!(records, model.drain(..).collect::<Vec<_>>());
                        prop_assert!(write(&memory, &record));
                        model.push_back(record);
                    }
                }
                Step::Drain => {
                    let (records, damaged) = drain(&memory, &mut reader);
                    prop_assert_eq!(damaged, 0);
                    prop_assert_eq!(records, model.drain(..).collect::<Vec<_>>());
                }
                Step::Die { bytes } => {
                    let head = memory.word(abi::HEAD).load(Ordering::Relaxed);
                    let at = head % SHAPE.ring_bytes as u64;
                    let room = SHAPE.ring_bytes as u64 - (head - memory.word(abi::TAIL).load(Ordering::Relaxed));
                    let end = SHAPE.ring_bytes as u64 - at;
                    if room >= abi::LONGEST as u64 && end >= 64 {
                        memory.put(at, &bytes);
                    }
                }
            }
        }
        let (records, damaged) = drain(&memory, &mut reader);
        prop_assert_eq!(damaged, 0);
        prop_assert_eq!(records, model.drain(..).collect::<Vec<_>>());
    }

    #[test]
    fn foreign_bytes_are_survived_and_later_records_are_read(
        blows in vec((any::<u16>(), any::<u64>()), 0..200),
        positions in vec((prop_oneof![Just(abi::HEAD), Just(abi::TAIL), Just(abi::LOCK)],
                          prop_oneof![any::<u64>(), 0..1_u64 << 18]), 1..8),
        headers in vec((any::<u16>(), 0..40_000_u32, any::<u16>(), 0..12_u8), 0..40),
    ) {
        let memory = Memory::new();
        let mut reader = RingReader::new(SHAPE, RING);
        let first = SHAPE.data_of(RING) / 8;
        for (at, value) in blows {
            memory.0[first + usize::from(at) % (SHAPE.ring_bytes / 8)].store(value, Ordering::Relaxed);
        }
        for (at, bytes, path, kind) in headers {
            let mut header = bytes.to_ne_bytes().to_vec();
            header.extend(path.to_ne_bytes());
            header.extend([kind, 0]);
            memory.put(u64::from(at) & !15, &header);
        }
        for (word, value) in positions {
            memory.word(word).store(value, Ordering::Relaxed);
            drain(&memory, &mut reader);
        }
        let head = memory.word(abi::HEAD).load(Ordering::Relaxed);
        prop_assert_eq!(memory.word(abi::TAIL).load(Ordering::Relaxed), head & !15);
        let honest = record(abi::REMOVED, 0, b"/honest");
        prop_assert!(write(&memory, &honest));
        let (records, damaged) = drain(&memory, &mut reader);
        prop_assert_eq!(damaged, 0);
        prop_assert_eq!(records, vec![honest]);
    }

    #[test]
    fn any_bytes_are_an_event_or_none(bytes in vec(any::<u8>(), 0..200), kind in 0..14_u8, length in 0..220_u16) {
        let mut bytes = bytes;
        if bytes.len() > 7 {
            bytes[6] = kind;
            bytes[4..6].copy_from_slice(&length.to_ne_bytes());
        }
        let _ = parse(&bytes);
    }
}

#[test]
fn a_tail_that_a_program_wrote_does_not_move_the_reader() {
    let memory = Memory::new();
    let mut reader = RingReader::new(SHAPE, RING);
    assert!(write(&memory, &record(abi::MADE, 0, b"/one")));
    assert_eq!(drain(&memory, &mut reader).0.len(), 1);
    memory.word(abi::TAIL).store(0, Ordering::Relaxed);
    assert_eq!(drain(&memory, &mut reader).0.len(), 0);
    assert!(write(&memory, &record(abi::MADE, 0, b"/two")));
    assert_eq!(drain(&memory, &mut reader).0.len(), 1);
}

#[test]
fn the_numbers_are_those_of_the_header() {
    let header = include_str!("../../../shim/include/waystage_ring.h");
    let number = |name: &str| {
        let rest = header.split_once(name).map_or("", |(_, rest)| rest);
        let word = rest.trim_start_matches([' ', '=']).split([' ', ',', '\n', ';']).next();
        word.unwrap_or("").parse::<usize>().unwrap_or(usize::MAX)
    };
    for (name, value) in [
        ("RING_SKIP", abi::SKIP),
        ("RING_OPENED", abi::OPENED),
        ("RING_CLOSED", abi::CLOSED),
        ("RING_MOVED", abi::MOVED),
        ("RING_REMOVED", abi::REMOVED),
        ("RING_LINKED", abi::LINKED),
        ("RING_SYMLINK", abi::SYMLINK),
        ("RING_MADE", abi::MADE),
        ("RING_TRUNCATED", abi::TRUNCATED),
        ("RING_ATTRIBUTES", abi::ATTRIBUTES),
    ] {
        assert_eq!(number(name), usize::from(value), "{name}");
    }
    assert_eq!(number("#define RING_PROCESSES"), abi::PROCESSES);
    assert_eq!(number("#define RING_VERSION"), usize::try_from(abi::VERSION).unwrap());
    assert!(header.contains(&format!("{:x}", abi::MAGIC)));
}
