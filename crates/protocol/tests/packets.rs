//! The wire: the test vectors of the specification, random and damaged bytes.

use proptest::prelude::*;
use waystage_protocol::congestion::Mode;
use waystage_protocol::connection::{Config, Connection, Sink, Source};
use waystage_protocol::frame::{Ack, Bitmap, Frame, MAX_REASON};
use waystage_protocol::packet::{Header, Stamp, HEADER_SIZE};
use waystage_protocol::protect::{Protect, Sealed, Side, Suite};
use waystage_protocol::streams::message::Message;
use waystage_protocol::varint::Reader;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// A vector of the reference page: a line `name = hex` in the block called vectors.
fn vector(name: &str) -> Vec<u8> {
    let page = include_str!("../../../docs/reference/wide-area-protocol.md");
    page.lines()
        .skip_while(|line| *line != "```vectors")
        .filter_map(|line| line.split_once(" = "))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| unhex(value))
        .unwrap_or_else(|| panic!("the page has no vector {name}"))
}

fn frames(bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut reader = Reader::new(bytes);
    let mut frames = Vec::new();
    while !reader.is_empty() {
        frames.push(Frame::read(&mut reader).expect("a frame that was written"));
    }
    frames
}

fn example_ack(bits: &[u8]) -> Frame<'_> {
    Frame::Ack(Ack {
        echo: Stamp::from_bits(0x0001f4),
        echo_held_us: 250,
        received_bytes: 1_000_000,
        received_at_us: 20_000,
        burst_bytes: 14_720,
        burst_us: 1_178,
        spread_us: 640,
        marked_packets: 0,
        credit_bytes: 1 << 28,
        bitmap: Bitmap { from: 990, count: 12, bits },
    })
}

#[test]
fn frames_are_those_of_the_specification() {
    let data = Frame::Data { extent: 3, offset: 70_000, last: true, bytes: b"waystage" };
    for (name, frame) in [
        ("data", data),
        ("ack", example_ack(&[0xff, 0x0d])),
        ("history request", Frame::HistoryRequest { from: 5, to: 500 }),
        ("close", Frame::Close { code: 0, reason: b"done" }),
        ("challenge", Frame::Challenge(0x0102_0304_0506_0708)),
    ] {
        let mut out = Vec::new();
        frame.put(&mut out);
        assert_eq!(hex(&out), hex(&vector(name)), "{name}");
        assert_eq!(frames(&vector(name)), [frame], "{name}");
    }
}

#[test]
fn a_sealed_packet_is_that_of_the_specification() {
    let secret: [u8; 32] = vector("exporter secret").try_into().unwrap();
    for (suite, name) in
        [(Suite::Aes256Gcm, "aes packet"), (Suite::Chacha20Poly1305, "chacha packet")]
    {
        let mut packet = Vec::new();
        let header =
            Header { connection: 0x0a0b_0c0d, number: 0x0102, stamp: Stamp::from_bits(0x0001f4) };
        header.put(&mut packet);
        Frame::Data { extent: 3, offset: 70_000, last: true, bytes: b"waystage" }.put(&mut packet);
        Sealed::new(&secret, Side::Client, suite).seal(header.number, HEADER_SIZE, &mut packet);
        assert_eq!(hex(&packet), hex(&vector(name)), "{name}");
        let read = Header::read(&packet, 0x0100).unwrap();
        assert_eq!(read, header);
        let opened = Sealed::new(&secret, Side::Server, suite)
            .open(read.number, HEADER_SIZE, &mut packet)
            .map(hex);
        assert_eq!(opened, Some(hex(&vector("data"))), "{name}");
    }
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let number = 0_u64..1 << 40;
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    (0..9, number.clone(), number, any::<bool>(), bytes).prop_map(|(kind, a, b, flag, bytes)| {
        let mut out = Vec::new();
        let mut bits = bytes.clone();
        bits.push(1);
        let count = 8 * bits.len() as u64 - 7;
        let bitmap = Bitmap { from: a, count, bits: &bits };
        match kind {
            0 => Frame::Padding,
            1 => Frame::Ping,
            2 => Frame::Data { extent: a, offset: b, last: flag, bytes: &bytes },
            3 => Frame::Ack(Ack {
                echo: Stamp::from_bits(a),
                echo_held_us: b,
                received_bytes: a,
                received_at_us: b,
                burst_bytes: a,
                burst_us: b,
                spread_us: a,
                marked_packets: a,
                credit_bytes: b,
                bitmap,
            }),
            4 => Frame::History(bitmap),
            5 => Frame::HistoryRequest { from: a, to: a + b + 1 },
            6 => Frame::Close { code: a, reason: &bytes[..bytes.len().min(MAX_REASON)] },
            7 => Frame::Control { offset: a, bytes: &bytes },
            _ => Frame::Challenge(a),
        }
        .put(&mut out);
        out
    })
}

proptest! {
    #[test]
    fn frames_that_are_written_are_read_back(written in prop::collection::vec(any_frame(), 0..5)) {
        let packet = written.concat();
        let read = frames(&packet);
        prop_assert_eq!(read.len(), written.len());
        let mut again = Vec::new();
        for frame in read {
            frame.put(&mut again);
        }
        prop_assert_eq!(again, packet);
    }

    #[test]
    fn random_bytes_are_read_or_refused_and_nothing_else(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut reader = Reader::new(&bytes);
        while !reader.is_empty() {
            let before = reader;
            if Frame::read(&mut reader).is_err() {
                break;
            }
            prop_assert!(format!("{reader:?}").len() < format!("{before:?}").len(), "each frame takes bytes");
        }
        let _ = Header::read(&bytes, 77);
    }

    #[test]
    fn damaged_frames_are_read_or_refused(frame in any_frame(), at in any::<usize>(), to in any::<u8>(), cut in any::<usize>()) {
        let mut damaged = frame;
        let length = damaged.len();
        damaged[at % length] = to;
        damaged.truncate(cut % (length + 1));
        let mut reader = Reader::new(&damaged);
        while !reader.is_empty() && Frame::read(&mut reader).is_ok() {}
    }
}

#[test]
fn messages_of_streams_are_those_of_the_specification() {
    for (name, message) in [
        ("stream open", Message::Open { stream: 4, window: 1 << 20, target: b"what\0\0" }),
        ("stream data", Message::Data { stream: 4, offset: 70_000, bytes: b"bytes" }),
        ("stream end", Message::End { stream: 4, length: 5 }),
    ] {
        let mut bytes = Vec::new();
        message.put(&mut bytes);
        assert_eq!(hex(&bytes), hex(&vector(name)), "{name}");
        assert_eq!(Message::read(&bytes), Ok(message));
    }
}

#[derive(Default)]
struct Memory {
    bytes: u64,
}

impl Sink for Memory {
    fn write(&mut self, _extent: u64, _offset: u64, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
    }
}

impl Source for Memory {
    fn read(&mut self, _extent: u64, _offset: u64, into: &mut [u8]) {
        into.fill(7);
    }
}

proptest! {
    #[test]
    fn fuzz_a_hostile_peer_makes_a_connection_neither_panic_nor_keep_more_than_it_may(
        steps in prop::collection::vec(
            (prop::collection::vec(any_frame(), 0..4), prop::option::of((any::<usize>(), any::<u8>())),
             prop_oneof![0_u64..200, 0_u64..1 << 23], 0_u64..3_000_000_000),
            1..40),
        cut in any::<usize>(),
    ) {
        let peer = "127.0.0.1:1".parse().unwrap();
        let mut config = Config::new(peer, 1_000_000);
        config.limits.unconsumed_bytes = 500;
        let limit = config.limits.unconsumed_bytes;
        let controller = Mode::Fair.start(1_000_000, 1e9);
        let mut now_ns = 1_000_000_000;
        let secret = [7; 32];
        let protect = Box::new(Sealed::new(&secret, Side::Client, Suite::Aes256Gcm));
        let mut hostile = Sealed::new(&secret, Side::Server, Suite::Aes256Gcm);
        let mut connection = Connection::new(config, now_ns, protect, controller);
        connection.send(50_000);
        let (mut memory, mut out) = (Memory::default(), Vec::new());
        for (index, (frames, damage, number, wait_ns)) in steps.into_iter().enumerate() {
            let mut frames = frames.concat();
            let length = frames.len();
            if let (Some((at, to)), true) = (damage, length > 0) {
                frames[at % length] = to;
            }
            if index % 8 == 7 {
                frames.truncate(cut % (length + 1));
            }
            let mut packet = Vec::new();
            Header { connection: 0, number, stamp: Stamp::of(now_ns) }.put(&mut packet);
            packet.extend(frames);
            // The peer has the keys, so damaged frames pass the cipher.
            hostile.seal(number, HEADER_SIZE, &mut packet);
            connection.receive(now_ns, peer, index % 3 == 0, &mut packet, &mut memory);
            for _ in 0..64 {
                if connection.transmit(now_ns, &mut memory, &mut out).is_none() {
                    break;
                }
            }
            while connection.next_event().is_some() {}
            prop_assert!(memory.bytes <= limit, "it took {} bytes with credit for {limit}", memory.bytes);
            now_ns += wait_ns;
            let _ = connection.wake_ns();
        }
    }
}
