//! Messages: written and read, and foreign bytes.

use proptest::prelude::*;

use super::*;
use crate::request::{Piece, Slab, Variable};

fn slabs() -> Vec<Slab> {
    let place = ("h|p|a:1".to_owned(), 7);
    vec![
        Slab { first: 0, units: 2, place: Some(place.clone()), base: None, shared: true },
        Slab { first: 2, units: 1, place: None, base: Some(place), shared: false },
    ]
}

fn messages() -> Vec<Message> {
    let region = Region::new(&[1, 2], &[3, 4]).unwrap();
    let variable =
        Variable { name: "x".into(), element: "<f8".into(), element_bytes: 8, shape: vec![10, 10] };
    let piece = Piece { variable: 0, region: region.clone(), owner: "h|p|a:1".into(), key: 7 };
    let ask = |request| Message::Ask { number: 3, request };
    let reply = |answer| Message::Reply { number: 3, answer };
    let name = "flow".to_owned();
    vec![
        Message::Challenge { version: 1, nonce: [3; TOKEN_BYTES] },
        Message::Hello { version: 1, name: name.clone(), proof: [1; TOKEN_BYTES] },
        Message::Welcome { address: "h|p|a:1".into() },
        Message::Introduce { name: name.clone(), token: [9; TOKEN_BYTES], home: true },
        Message::Hold { name, segment: 1, bytes: 1 << 40, attached: true },
        Message::Held { segment: 1, key: 2 },
        Message::Reuse { segment: 1 },
        ask(Request::Join { role: Role::Reader, rank: 1, size: 4, depth: 2 }),
        ask(Request::Admit { version: 1 }),
        ask(Request::Commit {
            version: 1,
            variables: vec![variable.clone()],
            pieces: vec![piece.clone()],
        }),
        ask(Request::Find { version: 1, variable: "x".into(), region: Some(region.clone()) }),
        ask(Request::Find { version: 1, variable: "x".into(), region: None }),
        ask(Request::Next { after: None }),
        ask(Request::Next { after: Some(4) }),
        ask(Request::Release { version: 1 }),
        ask(Request::Cancel { request: 1 }),
        ask(Request::Close),
        ask(Request::Drain),
        ask(Request::Open { version: 1 }),
        ask(Request::Locate { version: 1, first: 2, units: 3, write: None }),
        ask(Request::Locate { version: 1, first: 2, units: 3, write: Some(9) }),
        ask(Request::Provide { version: 1, first: 2, owner: "h|p|a:1".into(), key: 7 }),
        ask(Request::Resize { version: 1, bytes: 1 << 40 }),
        ask(Request::CommitFile { version: 1, keep: true }),
        reply(Answer::Slabs(Found { bytes: 9, end: 3, slabs: slabs() })),
        Message::Write { key: 1, runs: vec![(0, 4), (4096, 1)] },
        Message::Written,
        reply(Answer::Done),
        reply(Answer::Version(3)),
        reply(Answer::Found(variable, vec![piece])),
        reply(Answer::Failed(Why::Lost, "writer 3 has died".into())),
        Message::Free { keys: vec![1, 2, 3] },
        Message::Map { key: 1 },
        Message::Mapped { segment: 1, bytes: 4096, attached: false },
        Message::Pull { key: 1, region: region.clone(), cut: region, element_bytes: 8 },
        Message::Data { bytes: 3 },
        Message::Refused { why: Why::Argument, text: "no".into() },
    ]
}

#[test]
fn every_message_is_read_as_it_was_written() {
    for message in messages() {
        let frame = message.frame();
        assert_eq!(Message::parse(&frame[4..]), Ok(message));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Message::parse(&bytes);
    }

    #[test]
    fn a_damaged_message_is_another_or_none(
        which in 0_usize..37, at in any::<prop::sample::Index>(), byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut body = messages().swap_remove(which).frame().split_off(4);
        let at = at.index(body.len());
        body[at] = byte;
        let _ = Message::parse(&body);
        body.truncate(cut.index(body.len()));
        let _ = Message::parse(&body);
    }
}
