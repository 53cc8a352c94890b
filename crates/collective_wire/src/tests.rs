//! Messages and lists: what is written is read back, and foreign bytes do no harm.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use crate::frame::{framed, Frames, MOST_BODY_BYTES};
use crate::local::{ToNode, ToRank};
use crate::peer::{Peer, RankRange};
use crate::{coverage, FileId, Status, Window, WireError};

fn window() -> impl Strategy<Value = Window> {
    (0..1_u64 << 40, 1..1_u64 << 20, 1..5000_u64, 0..5000_u64).prop_map(
        |(lo, length, block, gap)| Window::new(lo, lo + length, block, block + gap).unwrap(),
    )
}

fn local_samples() -> Vec<ToNode> {
    let file = FileId([7; 16]);
    vec![
        ToNode::Hello { version: 1, token: "ab".repeat(32), app: "a".into() },
        ToNode::Attach {
            file,
            path: b"/tmp/\xff".to_vec(),
            flags: 12,
            rank: 3,
            size: 9,
            local_ranks: 4,
            node: 1,
            root: 0,
            addresses: vec!["h:1".into(), "i:2".into()],
            hints: vec![("cb_nodes".into(), "2".into())],
        },
        ToNode::SetView { file, view: 2, encoded: vec![1; 99] },
        ToNode::ControlPoint { file, epoch: 5, write: true, bytes: 9 },
        ToNode::Adopt { file, map: vec![3, 4] },
        ToNode::Announce {
            file,
            op: 9,
            epoch: 5,
            write: true,
            renewed: true,
            view: Some(2),
            data_offset: 8,
            bytes: 64,
            hull_lo: 5,
            hull_hi: 900,
            inline: vec![7; 64],
        },
        ToNode::Packed { request: 1, list_bytes: 8, upto: 9, next: u64::MAX },
        ToNode::Unpacked { request: 4 },
        ToNode::Finished { file, write: false, bytes: 1 },
        ToNode::Sync { file, number: 2 },
        ToNode::Close { file },
        ToNode::Settle { file },
    ]
}

fn rank_samples() -> Vec<ToRank> {
    let file = FileId([9; 16]);
    let window = Window::new(0, 4096, 512, 2048).unwrap();
    let (status, message) = (Status::NoSpace, "full".to_owned());
    vec![
        ToRank::Welcome { version: 1, address: "h:9".into(), pool_bytes: 1 << 30 },
        ToRank::Refused { status, message: message.clone() },
        ToRank::Attached { file, status, message: message.clone(), hints: vec![] },
        ToRank::Control { file, status, message: message.clone(), map: vec![1] },
        ToRank::Pack {
            request: 1,
            file,
            op: 2,
            window,
            image: Some(4096),
            list: 0,
            list_capacity: 64,
            from: 0,
        },
        ToRank::Unpack { request: 1, file, op: 2, window, image: 0 },
        ToRank::Done { file, op: 2, status, message: message.clone(), eof: 77 },
        ToRank::Synced { file, number: 1, status, message: message.clone() },
        ToRank::Closed { file, status, message: message.clone() },
        ToRank::Alive {},
        ToRank::Settled { file, status, message },
    ]
}

fn peer_samples() -> Vec<Peer> {
    let file = FileId([1; 16]);
    let (status, message) = (Status::Io, "broken".to_owned());
    let range = RankRange { view: 1, data_offset: 2, bytes: 3 };
    vec![
        Peer::Hello { version: 1, nonce: [1; 32], address: "h:1".into() },
        Peer::Challenge { version: 1, nonce: [2; 32], proof: [3; 32] },
        Peer::Proof { proof: [4; 32] },
        Peer::Ping {},
        Peer::Attach {
            file,
            path: b"/x".to_vec(),
            flags: 2,
            app: "a".into(),
            node: 1,
            nodes: 2,
            window_bytes: 9,
        },
        Peer::View { file, view: 1, encoded: vec![1, 2] },
        Peer::Announce {
            file,
            op: 1,
            map: vec![1],
            index: 0,
            write: true,
            hull_lo: 1,
            hull_hi: 2,
            behind: true,
            views: Some(vec![range, range]),
            inline: vec![1, 2],
        },
        Peer::Pull { file, op: 1, pull: 2, window: Window::range(5, 10).unwrap() },
        Peer::Data { pull: 2, coverage: Some(vec![0, 5]), next: 11, bytes: 5 },
        Peer::ReadData { pull: 2, bytes: 5 },
        Peer::OpDone { file, op: 1, status, message: message.clone(), eof: 3 },
        Peer::Sync { file, number: 1 },
        Peer::Synced { file, number: 1, status, message: message.clone() },
        Peer::Detach { file },
        Peer::Suspect { file, address: "h:2".into() },
        Peer::Fence { file, epoch: 3 },
        Peer::Fenced { file, epoch: 3 },
        Peer::Abort { file, op: 3 },
        Peer::Offer {
            file,
            copy: 4,
            epoch: 3,
            owner: "h:1".into(),
            window: Window::new(0, 4096, 512, 2048).unwrap(),
            coverage: vec![0, 5],
            bytes: 5,
        },
        Peer::Taken { file, copy: 4, taken: true },
        Peer::Copy { file, copy: 4, bytes: 5 },
        Peer::Kept { file, copy: 4 },
        Peer::Written { file, copy: 4, status, message: message.clone() },
        Peer::Settle { file, number: 1, epoch: 3, lost: vec!["h:2".into()] },
        Peer::Settled { file, number: 1, status, message },
    ]
}

#[test]
fn messages_are_read_as_they_were_written_and_no_part_of_one_is_a_message() {
    fn check<T: PartialEq + std::fmt::Debug>(
        samples: &[T],
        encode: impl Fn(&T) -> Vec<u8>,
        decode: impl Fn(&[u8]) -> Result<T, WireError>,
    ) {
        for sample in samples {
            let bytes = encode(sample);
            assert_eq!(decode(&bytes).as_ref(), Ok(sample));
            for cut in 0..bytes.len() {
                assert!(decode(&bytes[..cut]).is_err(), "{sample:?} cut at {cut}");
            }
            let longer = [bytes.as_slice(), &[0]].concat();
            assert_eq!(decode(&longer), Err(WireError::Long));
        }
    }
    check(&local_samples(), ToNode::encode, ToNode::decode);
    check(&rank_samples(), ToRank::encode, ToRank::decode);
    check(&peer_samples(), Peer::encode, Peer::decode);
}

#[test]
fn a_list_that_claims_many_entries_allocates_nothing() {
    let mut bytes = ToNode::Close { file: FileId::default() }.encode();
    bytes[0] = 2;
    // Attach with a path of 4 GiB.
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(ToNode::decode(&bytes), Err(WireError::Wrong("length of bytes")));
}

#[test]
fn an_error_of_the_storage_outweighs_a_repetition() {
    assert_eq!(Status::Again.worse(Status::NoSpace), Status::NoSpace);
    assert_eq!(Status::NoSpace.worse(Status::Again), Status::NoSpace);
    assert_eq!(Status::Ok.worse(Status::Again), Status::Again);
    assert_eq!(Status::from_errno(28), Status::NoSpace);
    assert!(
        (-15..=0).all(|code| Status::from_code(code).is_some_and(|status| status.code() == code))
    );
    assert_eq!(Status::from_code(-16), None);
}

proptest! {
    #[test]
    fn foreign_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for first in 0..28_u8 {
            let mut bytes = bytes.clone();
            if let Some(kind) = bytes.first_mut() {
                *kind = first;
            }
            if let Ok(found) = ToNode::decode(&bytes) {
                prop_assert_eq!(found.encode(), bytes.clone());
            }
            if let Ok(found) = ToRank::decode(&bytes) {
                prop_assert_eq!(found.encode(), bytes.clone());
            }
            if let Ok(found) = Peer::decode(&bytes) {
                prop_assert_eq!(found.encode(), bytes);
            }
        }
    }

    #[test]
    fn damaged_messages_are_messages_or_errors(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut all: Vec<Vec<u8>> = local_samples().iter().map(ToNode::encode).collect();
        all.extend(rank_samples().iter().map(ToRank::encode));
        all.extend(peer_samples().iter().map(Peer::encode));
        let which = which.index(all.len());
        let bytes = &mut all[which];
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = (ToNode::decode(bytes), ToRank::decode(bytes), Peer::decode(bytes));
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 0..8),
        piece in 1..64_usize,
    ) {
        let stream: Vec<u8> = bodies.iter().flat_map(|body| framed(body)).collect();
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        for bytes in stream.chunks(piece) {
            frames.push(bytes);
            while let Some(body) = frames.next_body(MOST_BODY_BYTES).unwrap() {
                found.push(body);
            }
        }
        prop_assert_eq!(found, bodies);
        prop_assert!(frames.is_empty());
    }

    #[test]
    fn a_foreign_stream_holds_no_more_than_a_frame(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut frames = Frames::default();
        frames.push(&bytes);
        while let Ok(Some(body)) = frames.next_body(32) {
            prop_assert!(body.len() <= 32);
        }
    }

    #[test]
    fn positions_count_the_bytes_of_the_window(window in window(), at in 0..1_u64 << 20) {
        let at = window.lo + at % (window.hi - window.lo);
        let small = Window { hi: window.hi.min(window.lo + 20_000), ..window };
        let inside = |o: u64| o >= small.lo && o < small.hi && (o - small.lo) % small.stride < small.block;
        let all: Vec<u64> = (small.lo..small.hi).filter(|o| inside(*o)).collect();
        prop_assert_eq!(small.bytes(), all.len() as u64);
        for (position, offset) in all.iter().enumerate().step_by(97) {
            prop_assert_eq!(small.position(*offset), position as u64);
            prop_assert_eq!(small.offset(position as u64), *offset);
        }
        prop_assert!(window.position(at) <= window.bytes());
        let listed: Vec<u64> =
            small.ranges(0, small.bytes()).flat_map(|(offset, bytes)| offset..offset + bytes).collect();
        prop_assert_eq!(listed, all);
    }

    #[test]
    fn runs_are_read_as_they_were_written(
        gaps in prop::collection::vec((0..300_u64, 1..300_u64), 0..100),
        capacity in coverage::LEAST_CAPACITY..2000,
    ) {
        let (mut writer, mut at, mut model) = (coverage::Writer::new(capacity), 0, Vec::new());
        for (gap, bytes) in gaps {
            at += gap;
            if !writer.push(at, bytes) {
                break;
            }
            model.extend(at..at + bytes);
            at += bytes;
        }
        let list = writer.finish();
        prop_assert!(list.len() <= capacity);
        let found: Result<Vec<_>, _> = coverage::runs(&list, at.max(1)).collect();
        let found: Vec<u64> = found.unwrap().into_iter().flat_map(|(p, n)| p..p + n).collect();
        prop_assert_eq!(found, model);
    }

    #[test]
    fn foreign_coverage_lists_stay_in_the_image(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        image in 1..100_000_u64,
    ) {
        let mut end = 0;
        for run in coverage::runs(&bytes, image) {
            let Ok((position, length)) = run else { break };
            prop_assert!(position >= end && length > 0 && position + length <= image);
            end = position + length;
        }
    }
}
