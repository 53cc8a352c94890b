//! How many windows of an operation are in work at a time: as many as fit into two of `cb_buffer_size`, up to eight.

#![allow(clippy::unwrap_used)]

use std::ops::Range;

use proptest::prelude::*;
use waystage_aggregator::aggregator::Aggregator;
use waystage_aggregator::coverage::Coverage;
use waystage_aggregator::effect::{Effect, LinkId, Outcome, OWN};
use waystage_aggregator::room::Room;
use waystage_collective::{Placement, ServerMap};
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Status, Window};

const MIB: u64 = 1 << 20;
const OTHER: LinkId = 5;
const FILE: FileId = FileId([1; 16]);
const LATER_FILE: FileId = FileId([2; 16]);
const MOST_WINDOWS: usize = 8;

/// A window that has an image.
struct InWork {
    file: FileId,
    pull: u64,
    link: LinkId,
    window: Window,
    job: Option<u64>,
}

/// An aggregator whose storage ends requests when the test says so.
struct Storage {
    aggregator: Aggregator,
    in_work: Vec<InWork>,
    ended: Vec<FileId>,
}

impl Storage {
    fn new(memory: u64) -> Self {
        let aggregator = Aggregator::new(Room::new(0, memory));
        Self { aggregator, in_work: Vec::new(), ended: Vec::new() }
    }

    /// A write of two nodes: what the own one keeps, and what the other one has in the file domain.
    fn write(&mut self, file: FileId, buffer: u64, kept: Range<u64>, exchanged: Range<u64>) {
        let map = ServerMap {
            epoch: 1,
            unit: MIB,
            placement: Placement::Blocks,
            aggregators: vec!["own".into()],
        };
        let mut out = Vec::new();
        for (link, node) in [(OWN, 0), (OTHER, 1)] {
            let attach = Peer::Attach {
                file,
                path: b"/f".to_vec(),
                flags: 4,
                app: "app".into(),
                node,
                nodes: 2,
                window_bytes: buffer,
            };
            self.aggregator.message(link, attach, &mut out);
        }
        if !kept.is_empty() {
            self.aggregator.keep(file, 1, kept);
        }
        for (link, hull) in [(OWN, 0..0), (OTHER, exchanged)] {
            let announce = Peer::Announce {
                file,
                op: 1,
                map: map.encode(),
                index: 0,
                write: true,
                hull_lo: hull.start,
                hull_hi: hull.end,
                behind: false,
                views: None,
                inline: Vec::new(),
            };
            self.aggregator.message(link, announce, &mut out);
        }
        self.aggregator.opened(file, Outcome::ok(), &mut out);
        self.carry_out(out);
    }

    /// Nodes answer each pull at once, with all bytes of the window.
    fn carry_out(&mut self, mut effects: Vec<Effect>) {
        while !effects.is_empty() {
            let mut out = Vec::new();
            for effect in effects {
                let (file, pull, link, window) = match effect {
                    Effect::PullOwn { file, pull, window, .. } => (file, pull, OWN, window),
                    Effect::ToNode(link, Peer::Pull { file, pull, window, .. }) => {
                        (file, pull, link, window)
                    }
                    Effect::ToNode(OTHER, Peer::OpDone { file, status, .. }) => {
                        assert_eq!(status, Status::Ok);
                        self.ended.push(file);
                        continue;
                    }
                    Effect::Transfer(transfer) => {
                        let of = self.in_work.iter_mut().find(|of| {
                            of.job.is_none()
                                && (of.file, of.window) == (transfer.file, transfer.window)
                        });
                        of.unwrap().job = Some(transfer.job);
                        continue;
                    }
                    _ => continue,
                };
                self.in_work.push(InWork { file, pull, link, window, job: None });
            }
            let unanswered = self.in_work.iter().filter(|of| of.job.is_none());
            for (link, pull, window) in
                unanswered.map(|of| (of.link, of.pull, of.window)).collect::<Vec<_>>()
            {
                let mut all = Coverage::new(window.bytes());
                all.add(0, window.bytes());
                self.aggregator.data(link, pull, all, window.hi, &mut out);
            }
            effects = out;
        }
    }

    /// The storage has written one of the windows; that one.
    fn end_one(&mut self, which: usize) -> Window {
        let ended = self.in_work.swap_remove(which);
        let mut out = Vec::new();
        self.aggregator.transferred(ended.job.unwrap(), Outcome::ok(), u64::MAX, &mut out);
        self.carry_out(out);
        ended.window
    }

    fn bytes(&self) -> u64 {
        self.in_work.iter().map(|of| of.window.bytes()).sum()
    }
}

fn in_work(buffer: u64, kept: Range<u64>, exchanged: Range<u64>) -> (usize, u64) {
    let mut storage = Storage::new(256 * MIB);
    storage.write(FILE, buffer, kept, exchanged);
    (storage.in_work.len(), storage.aggregator.image_bytes())
}

#[test]
fn small_windows_use_the_memory_of_two_large_ones() {
    // A quarter of the data each; all of it fits.
    assert_eq!(in_work(16 * MIB, 0..0, 0..32 * MIB), (4, 32 * MIB));
    // More data, larger windows, the same memory.
    assert_eq!(in_work(16 * MIB, 0..0, 0..48 * MIB), (2, 24 * MIB));
    assert_eq!(in_work(16 * MIB, 0..0, 0..64 << 30), (2, 32 * MIB));
    // Ten windows of at most 2 MiB would fit: half a MiB before the first unit, and as much behind the last one.
    let part = |begin: u64| begin + MIB / 2..begin + 8 * MIB + MIB / 2;
    assert_eq!(in_work(16 * MIB, part(0), part(64 * MIB)).0, MOST_WINDOWS);
}

#[test]
fn a_second_operation_gets_the_room_that_becomes_free_for_its_first_window() {
    let mut storage = Storage::new(32 * MIB);
    storage.write(FILE, 16 * MIB, 0..0, 0..256 * MIB);
    storage.write(LATER_FILE, 16 * MIB, 0..0, 0..64 * MIB);
    assert!(storage.in_work.iter().all(|of| of.file == FILE));
    storage.end_one(0);
    let files: Vec<_> = storage.in_work.iter().map(|of| of.file).collect();
    assert_eq!(files, [FILE, LATER_FILE]);
    while !storage.in_work.is_empty() {
        storage.end_one(0);
    }
    assert_eq!(storage.ended.len(), 2);
}

proptest! {
    #[test]
    fn an_operation_has_as_many_windows_in_work_as_fit_into_two_buffers_and_eight_at_most(
        buffer in prop::sample::select(vec![1_u64, 2, 3, 5, 16, 32]),
        kept in (0..40 * MIB, 0..70 * MIB),
        exchanged in (0..40 * MIB, 1..70 * MIB),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        let buffer = buffer * MIB;
        let (kept, exchanged) = (kept.0..kept.0 + kept.1, exchanged.0..exchanged.0 + exchanged.1);
        let mut storage = Storage::new(256 * MIB);
        storage.write(FILE, buffer, kept.clone(), exchanged.clone());
        let (mut written, mut picks) = (0, picks.into_iter().cycle());
        while !storage.in_work.is_empty() {
            let (before, bytes) = (storage.in_work.len(), storage.bytes());
            prop_assert!(before <= MOST_WINDOWS && bytes <= 2 * buffer);
            prop_assert!(storage.aggregator.image_bytes() < bytes + before as u64 * 4096);
            let ended = storage.end_one(picks.next().unwrap().index(before));
            written += ended.bytes();
            // What begins only now had no place beside what was in work.
            if let Some(begun) = storage.in_work.get(before - 1) {
                let fits = before < MOST_WINDOWS && bytes + begun.window.bytes() <= 2 * buffer;
                prop_assert!(!fits, "{begun} waited", begun = begun.window.bytes());
            }
        }
        prop_assert_eq!(written, kept.end - kept.start + exchanged.end - exchanged.start);
        prop_assert_eq!(storage.ended, [FILE]);
        prop_assert_eq!(storage.aggregator.image_bytes(), 0);
    }
}
