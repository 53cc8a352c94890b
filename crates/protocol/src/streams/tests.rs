//! Two ends, and a network between them that reorders messages.

use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits { streams: 64, memory_bytes: 4 << 20 };

struct End {
    streams: Streams,
    in_flight: Vec<Vec<u8>>,
}

impl End {
    fn new(side: Side) -> Self {
        Self { streams: Streams::new(side, LIMITS, 10_000_000), in_flight: Vec::new() }
    }

    /// Sends every message without bytes, and bytes of `content` for the stream whose turn it is.
    fn send(&mut self, content: &HashMap<u64, Vec<u8>>, at: &mut HashMap<u64, usize>, most: usize) {
        while let Some(message) = self.streams.next_message() {
            self.in_flight.push(message);
        }
        if let Some((stream, room)) = self.streams.turn() {
            let from = at.entry(stream).or_default();
            let left = &content[&stream][*from..];
            let count = left.len().min(room as usize).min(most);
            let mut message = Vec::new();
            self.streams.put_head(stream, &mut message);
            message.extend_from_slice(&left[..count]);
            self.streams.sent(stream, count as u64);
            *from += count;
            if *from == content[&stream].len() {
                self.streams.end(stream);
            } else {
                self.streams.wants_to_send(stream);
            }
            if count > 0 {
                self.in_flight.push(message);
            }
        }
    }
}

fn deliver(from: &mut End, to: &mut End, pick: usize, now_ns: u64) {
    if !from.in_flight.is_empty() {
        let at = pick % from.in_flight.len();
        let message = from.in_flight.swap_remove(at);
        let length = message.len();
        to.streams.receive(now_ns, message, length).unwrap();
    }
}

fn content(stream: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 + stream as usize * 13) as u8).collect()
}

proptest! {
    /// Streams from both sides, over a network that reorders: each byte arrives once, in order, and within the memory.
    #[test]
    fn streams_arrive_complete_whatever_the_order_of_messages(
        lengths in prop::collection::vec((0_usize..400_000, any::<bool>()), 1..8),
        picks in prop::collection::vec((0_u8..4, any::<u16>(), 1_usize..60_000), 50..400),
    ) {
        let mut ends = [End::new(Side::Client), End::new(Side::Server)];
        let mut contents = [HashMap::new(), HashMap::new()];
        for (length, from_server) in &lengths {
            let stream = ends[usize::from(*from_server)].streams.open(0, b"target");
            for content_of in &mut contents {
                content_of.insert(stream, content(stream, *length));
            }
        }
        let mut at = [HashMap::new(), HashMap::new()];
        let mut received: [HashMap<u64, Vec<u8>>; 2] = [HashMap::new(), HashMap::new()];
        let mut now_ns = 0;
        for (kind, pick, size) in picks.into_iter().cycle().take(200_000) {
            now_ns += 100_000;
            let (left, right) = ends.split_at_mut(1);
            let (left, right) = (&mut left[0], &mut right[0]);
            match kind {
                0 => left.send(&contents[0], &mut at[0], size),
                1 => right.send(&contents[1], &mut at[1], size),
                2 => deliver(left, right, usize::from(pick), now_ns),
                _ => deliver(right, left, usize::from(pick), now_ns),
            }
            for (side, end) in ends.iter_mut().enumerate() {
                while let Some(event) = end.streams.next_event() {
                    match event {
                        Event::Offered { stream, target } => {
                            prop_assert_eq!(target, b"target".to_vec());
                            prop_assert!(end.streams.accept(stream));
                            end.streams.wants_to_send(stream);
                        }
                        Event::Opened(stream) => end.streams.wants_to_send(stream),
                        Event::Readable(_) => {}
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
                let streams: Vec<u64> = end.streams.streams.keys().copied().collect();
                for stream in streams {
                    let front = end.streams.front(stream);
                    let count = front.len().min(size);
                    received[side].entry(stream).or_default().extend_from_slice(&front[..count]);
                    end.streams.taken(now_ns, stream, count);
                    let done = end.streams.is_finished(stream)
                        && end.streams.streams[&stream].end_sent;
                    if done {
                        end.streams.close(stream, 0);
                    }
                }
                prop_assert!(end.streams.promised_bytes() <= LIMITS.memory_bytes);
            }
            if ends.iter().all(|end| end.streams.count() == 0) {
                break;
            }
        }
        for received in &received {
            prop_assert_eq!(received.len(), lengths.len());
            for (stream, bytes) in received {
                prop_assert!(*bytes == contents[0][stream], "stream {}", stream);
            }
        }
        for end in &ends {
            prop_assert_eq!((end.streams.promised_bytes(), end.streams.waiting_chunks, end.streams.offered), (0, 0, 0));
        }
    }

    /// Any message of a peer, in any order: no panic, and no more memory than allowed.
    #[test]
    fn arbitrary_messages_violate_the_protocol_at_worst(
        messages in prop::collection::vec((0_u8..8, 0_u64..6, 0_u64..3000, 0_usize..2000), 1..200),
    ) {
        let mut streams = Streams::new(Side::Server, LIMITS, 1000);
        streams.open(0, b"x");
        for (kind, stream, number, length) in messages {
            let bytes = vec![0; length];
            let mut message = Vec::new();
            match kind {
                0 => Message::Open { stream, window: number, target: b"" },
                1 => Message::Opened { stream, window: number },
                2 => Message::Refused { stream, code: number, reason: b"" },
                3 => Message::End { stream, length: number },
                4 => Message::Window { stream, limit: number },
                5 => Message::Reset { stream, code: number },
                _ => Message::Data { stream, offset: number, bytes: &bytes },
            }.put(&mut message);
            let length = message.len();
            if streams.receive(0, message, length).is_err() {
                break;
            }
            while let Some(event) = streams.next_event() {
                if let Event::Offered { stream, .. } = event {
                    streams.accept(stream);
                }
            }
            prop_assert!(streams.promised_bytes() <= LIMITS.memory_bytes);
            let waiting: usize = streams.streams.values().map(|found| found.assembler.waiting_chunks()).sum();
            prop_assert_eq!(waiting, streams.waiting_chunks);
        }
    }
}

fn exchange(from: &mut Streams, to: &mut Streams) {
    while let Some(message) = from.next_message() {
        let length = message.len();
        to.receive(0, message, length).unwrap();
    }
}

fn opened() -> (Streams, Streams, u64) {
    let mut client = Streams::new(Side::Client, LIMITS, 1000);
    let mut server = Streams::new(Side::Server, LIMITS, 1000);
    let stream = client.open(0, b"");
    exchange(&mut client, &mut server);
    assert!(server.accept(stream));
    exchange(&mut server, &mut client);
    (client, server, stream)
}

fn data(streams: &mut Streams, stream: u64, bytes: usize) -> Vec<u8> {
    let mut message = Vec::new();
    streams.put_head(stream, &mut message);
    message.resize(message.len() + bytes, 7);
    streams.sent(stream, bytes as u64);
    message
}

#[test]
fn streams_that_want_to_send_take_turns() {
    let mut client = Streams::new(Side::Client, LIMITS, 1000);
    let mut server = Streams::new(Side::Server, LIMITS, 1000);
    let all: Vec<u64> = (0..10).map(|_| client.open(0, b"")).collect();
    exchange(&mut client, &mut server);
    for stream in &all {
        server.accept(*stream);
    }
    exchange(&mut server, &mut client);
    for stream in &all {
        client.wants_to_send(*stream);
    }
    let mut count: HashMap<u64, u32> = HashMap::new();
    for _ in 0..50 {
        let (stream, _) = client.turn().unwrap();
        *count.entry(stream).or_default() += 1;
        client.sent(stream, 1000);
        client.wants_to_send(stream);
    }
    assert!(all.iter().all(|stream| count[stream] == 5), "{count:?}");
}

#[test]
fn a_stream_without_a_window_waits_and_others_do_not() {
    let (mut client, mut server, stalled) = opened();
    let other = client.open(0, b"");
    exchange(&mut client, &mut server);
    server.accept(other);
    exchange(&mut server, &mut client);
    client.wants_to_send(stalled);
    let (_, room) = client.turn().unwrap();
    let message = data(&mut client, stalled, room as usize);
    let length = message.len();
    server.receive(0, message, length).unwrap();
    client.wants_to_send(stalled);
    client.wants_to_send(other);
    assert_eq!(client.turn().map(|(stream, _)| stream), Some(other));
    assert_eq!(client.turn(), None);
    server.taken(0, stalled, room as usize);
    exchange(&mut server, &mut client);
    assert_eq!(client.turn().map(|(stream, _)| stream), Some(stalled));
}

#[test]
fn a_window_that_limits_a_stream_grows_and_a_slow_reader_s_does_not() {
    for (passed_ns, grows) in [(1000, true), (1_000_000_000, false)] {
        let (mut client, mut server, stream) = opened();
        let (mut now_ns, mut rooms) = (0, Vec::new());
        for _ in 0..4 {
            client.wants_to_send(stream);
            let (_, room) = client.turn().unwrap();
            rooms.push(room);
            let message = data(&mut client, stream, room as usize);
            let length = message.len();
            now_ns += passed_ns;
            server.receive(now_ns, message, length).unwrap();
            server.taken(now_ns, stream, room as usize);
            exchange(&mut server, &mut client);
        }
        assert_eq!(rooms[3] > rooms[0], grows, "{rooms:?}");
    }
}

#[test]
fn a_peer_that_exceeds_its_window_is_detected() {
    let (mut client, mut server, stream) = opened();
    client.wants_to_send(stream);
    let (_, room) = client.turn().unwrap();
    let mut message = Vec::new();
    client.put_head(stream, &mut message);
    message.resize(message.len() + room as usize + 1, 0);
    let length = message.len();
    assert!(server.receive(0, message, length).is_err());
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let mut client = Streams::new(Side::Client, LIMITS, 1000);
    let mut server = Streams::new(Side::Server, LIMITS, 1000);
    for _ in 0..=LIMITS.streams {
        client.open(0, b"");
    }
    exchange(&mut client, &mut server);
    exchange(&mut server, &mut client);
    let refused = std::iter::from_fn(|| client.next_event());
    assert_eq!(
        refused
            .filter(|event| matches!(event, Event::Refused { code: codes::TOO_MANY, .. }))
            .count(),
        1
    );
}

#[test]
fn a_stream_cancelled_before_the_answer_is_reset_with_it() {
    let mut client = Streams::new(Side::Client, LIMITS, 1000);
    let mut server = Streams::new(Side::Server, LIMITS, 1000);
    let stream = client.open(0, b"");
    client.close(stream, 9);
    exchange(&mut client, &mut server);
    server.accept(stream);
    exchange(&mut server, &mut client);
    exchange(&mut client, &mut server);
    assert_eq!((client.count(), server.count()), (0, 0));
    assert_eq!(client.next_event(), None);
    let events: Vec<Event> = std::iter::from_fn(|| server.next_event()).collect();
    assert_eq!(events.last(), Some(&Event::Reset { stream, code: 9 }));
}

proptest! {
    /// Damaged and random messages: an error or nothing, never a panic.
    #[test]
    fn fuzz_damaged_messages_cause_an_error_or_nothing(
        picks in prop::collection::vec((any::<bool>(), any::<u16>(), prop::option::of((any::<u16>(), any::<u8>(), any::<u16>()))), 1..60),
        random in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut ends = [End::new(Side::Client), End::new(Side::Server)];
        let mut contents = HashMap::new();
        for _ in 0..3 {
            let stream = ends[0].streams.open(0, b"target");
            contents.insert(stream, content(stream, 5000));
        }
        let (mut at, mut now_ns) = (HashMap::new(), 0);
        for (is_random, pick, damage) in picks {
            now_ns += 1_000_000;
            ends[0].send(&contents, &mut at, 700);
            let in_flight = &mut ends[0].in_flight;
            let mut message = if is_random || in_flight.is_empty() {
                random.clone()
            } else {
                let chosen = usize::from(pick) % in_flight.len();
                in_flight.swap_remove(chosen)
            };
            if let (Some((place, to, cut)), false) = (damage, message.is_empty()) {
                let length = message.len();
                message[usize::from(place) % length] = to;
                message.truncate(usize::from(cut) % (length + 1));
            }
            let length = message.len();
            if ends[1].streams.receive(now_ns, message, length).is_err() {
                break;
            }
            while ends[1].streams.next_message().is_some() {}
        }
    }
}
