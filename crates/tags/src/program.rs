//! The kernel's program: from a packet of a known connection to its tag.
//!
//! Arrives: the descriptors of two maps, a layout. Leaves: instructions. Must not know: how they are loaded.
//!
//! A connection's ring begins with `head: u64, position: u64, tag: u64, check: u64`: how many entries were written, the
//! newest one, and whether it was read whole: `check` is `position * CHECK ^ tag`. Most packets need no more than this
//! line of the cache. Then come `entries: [(position: u64, tag: u64)]`; entry n is at n modulo their number. A position
//! counts the bytes of the stream as the kernel counts acknowledged ones (tcpi_bytes_acked), so an initial sequence
//! number plays no part. A packet's is at most 2^31 from the newest entry's, which programs see to.

use crate::assembler::{Assembler, Instruction, Label, Op, Register, When, Width};

/// Entries of a ring; a power of two.
pub(crate) const ENTRIES: u32 = 1024;
/// Bytes before the entries.
pub(crate) const HEADER_BYTES: u32 = 64;
/// Bytes of a ring.
pub(crate) const RING_BYTES: u32 = HEADER_BYTES + ENTRIES * 16;

/// As shim/tags/service.h has it.
const CHECK: u64 = 0x9e37_79b9_7f4a_7c15;

/// A connection that has a ring; to the program, words at these places.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// The socket's; 0: none is known here.
    pub(crate) cookie: u64,
    /// The process whose rings they are.
    pub(crate) process: u32,
    /// Which of its rings.
    pub(crate) slot: u32,
    /// The job's number, at its place in a tag.
    pub(crate) job: u64,
    /// The sequence number of position 0, with bit 32 set: the program notes it at the first packet.
    pub(crate) base: u64,
}

/// Bytes of [`Known`].
pub(crate) const KNOWN_BYTES: u32 = 32;
/// Places for connections; a power of two.
pub(crate) const PLACES: u32 = 65536;
/// Places for a connection, from its cookie modulo [`PLACES`] on.
pub(crate) const TRIES: u32 = 4;

/// Where the fields of a tag are: widths and places, in bits, as of python/waystage/interconnect/tags.py.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Width of the edge switch's index, the most significant field below bit 40.
    pub edge: u8,
    /// Width of the host's position.
    pub position: u8,
    /// Width of the job's number.
    pub job: u8,
    /// Width of the communicator's number.
    pub communicator: u8,
    /// Width of the source's rank.
    pub source: u8,
    /// Width of the destination's rank.
    pub destination: u8,
    /// Width of the host key, in the lowest bits.
    pub host_key: u8,
}

impl Layout {
    /// Whether the widths are at least 1 and together 40.
    pub(crate) fn is_valid(self) -> bool {
        let all = self.widths();
        all.iter().all(|&width| (1..=32).contains(&width))
            && all.iter().map(|&width| u32::from(width)).sum::<u32>() == 40
    }

    fn widths(self) -> [u8; 7] {
        [
            self.edge,
            self.position,
            self.job,
            self.communicator,
            self.source,
            self.destination,
            self.host_key,
        ]
    }

    /// The lowest bit of field number `index`.
    fn shift(self, index: usize) -> u8 {
        self.widths()[index + 1..].iter().sum()
    }

    pub(crate) fn job_shift(self) -> u8 {
        self.shift(2)
    }

    /// (shift, width) of communicator, source and destination.
    pub(crate) fn ranks(self) -> [(u8, u8); 3] {
        [
            (self.shift(3), self.communicator),
            (self.shift(4), self.source),
            (self.shift(5), self.destination),
        ]
    }

    /// What a program may choose: primitive, communicator and ranks.
    fn chosen(self) -> u64 {
        let ranks = self.ranks().iter().map(|&(shift, width)| ones(width) << shift).sum::<u64>();
        0x1f << 43 | ranks
    }
}

fn ones(width: u8) -> u64 {
    (1 << width) - 1
}

/// Bits 42 to 40 of a tag.
const MARKER: u64 = 0b110 << 40;

// Functions of the kernel, include/uapi/linux/bpf.h.
const MAP_LOOKUP: i32 = 1;
const STORE_BYTES: i32 = 9;
const SOCKET_COOKIE: i32 = 46;
const TCP_SOCKET: i32 = 96;

// struct __sk_buff
const SKB_LEN: i16 = 0;
const SKB_DATA: i16 = 76;
const SKB_DATA_END: i16 = 80;
const SKB_SOCKET: i16 = 168;
// struct bpf_tcp_sock
const TCP_SND_UNA: i16 = 24;
const TCP_BYTES_ACKED: i16 = 88;

/// Leaves the packet to what comes after: TCX_NEXT, TC_ACT_UNSPEC.
const GO_ON: i32 = -1;

/// The program. `sockets` is an array of [`Known`], `processes` maps a process to its map of rings.
pub(crate) fn program(sockets: i32, processes: i32, layout: Layout) -> Vec<Instruction> {
    let mut a = Assembler::default();
    let out = a.label();
    let found = a.label();
    a.register(Op::Move, 6, 1);
    // Only what goes to a label: 02:57 in memory is 0x5702 to a little-endian load.
    a.load(Width::Word, 8, 6, SKB_DATA);
    a.load(Width::Word, 9, 6, SKB_DATA_END);
    a.register(Op::Move, 2, 8);
    a.immediate(Op::Add, 2, 14 + 20 + 20);
    a.jump_if_register(When::Greater, 2, 9, out);
    a.load(Width::Half, 2, 8, 0);
    a.network_order(2, 16);
    a.jump_if(When::NotEqual, 2, 0x0257, out);
    a.load(Width::Half, 2, 8, 12);
    a.network_order(2, 16);
    a.jump_if(When::NotEqual, 2, 0x0800, out);
    a.load(Width::Byte, 2, 8, 14 + 9);
    a.jump_if(When::NotEqual, 2, 6, out);
    // The label's parts, before calls forget them: fp-40 edge, fp-32 position, fp-24 host key.
    a.load(Width::Half, 2, 8, 2);
    a.network_order(2, 16);
    a.store(Width::Double, 10, -40, 2);
    a.load(Width::Byte, 2, 8, 4);
    a.store(Width::Double, 10, -32, 2);
    a.load(Width::Byte, 2, 8, 5);
    a.store(Width::Double, 10, -24, 2);
    // The TCP header, after 20 to 60 bytes of IP.
    a.load(Width::Byte, 3, 8, 14);
    a.immediate(Op::And, 3, 0xf);
    a.immediate(Op::Left, 3, 2);
    a.register(Op::Add, 8, 3);
    a.immediate(Op::Add, 8, 14);
    a.register(Op::Move, 2, 8);
    a.immediate(Op::Add, 2, 20);
    a.jump_if_register(When::Greater, 2, 9, out);
    a.load(Width::Word, 7, 8, 4);
    a.network_order(7, 32);
    // Packets without payload are no part of a message.
    a.load(Width::Byte, 2, 8, 12);
    a.immediate(Op::Right, 2, 4);
    a.immediate(Op::Left, 2, 2);
    a.register(Op::Add, 2, 3);
    a.immediate(Op::Add, 2, 14);
    a.load(Width::Word, 3, 6, SKB_LEN);
    a.jump_if_register(When::GreaterEqual, 2, 3, out);
    // Whose connection it is. A call costs about as much as all else: there is this one, and the one that stores.
    a.load(Width::Double, 2, 6, SKB_SOCKET);
    a.jump_if(When::Equal, 2, 0, out);
    a.register(Op::Move, 1, 6);
    a.call(SOCKET_COOKIE);
    a.register(Op::Move, 9, 0);
    let [known, elsewhere, based, first, search] = [(); 5].map(|()| a.label());
    place(&mut a, sockets, 0, out);
    a.jump_if_register(When::NotEqual, 2, 9, elsewhere);
    a.place(known);
    a.register(Op::Move, 8, 0);
    a.store(Width::Double, 10, -48, 9);
    // Bytes since position 0, modulo 2^32.
    a.load(Width::Double, 2, 8, 24);
    a.jump_if(When::Equal, 2, 0, first);
    a.place(based);
    a.register(Op::Sub, 7, 2);
    // The ring.
    a.load(Width::Word, 2, 8, 8);
    a.store(Width::Word, 10, -16, 2);
    a.load(Width::Word, 2, 8, 12);
    a.store(Width::Word, 10, -12, 2);
    lookup(&mut a, processes, -16);
    a.jump_if(When::Equal, 0, 0, out);
    a.register(Op::Move, 1, 0);
    a.register(Op::Move, 2, 10);
    a.immediate(Op::Add, 2, -12);
    a.call(MAP_LOOKUP);
    a.jump_if(When::Equal, 0, 0, out);
    a.register(Op::Move, 9, 0);
    // Position of the first byte: the newest entry's, and how far it is beyond that.
    a.load(Width::Double, 5, 9, 8);
    a.register(Op::Sub, 7, 5);
    a.immediate(Op::Left, 7, 32);
    a.immediate(Op::ArithmeticRight, 7, 32);
    a.register(Op::Add, 7, 5);
    // The last entry at or before the position: mostly the newest; else a binary search between the oldest and it.
    a.jump_if_register(When::Greater, 5, 7, search);
    a.load(Width::Double, 3, 9, 16);
    a.load(Width::Double, 4, 9, 24);
    a.constant(2, CHECK);
    a.register(Op::Multiply, 5, 2);
    a.register(Op::ExclusiveOr, 5, 3);
    a.jump_if_register(When::NotEqual, 5, 4, search);
    a.place(found);
    a.jump_if(When::Equal, 3, 0, out);
    // The place may be another connection's meanwhile.
    a.load(Width::Double, 2, 8, 0);
    a.load(Width::Double, 4, 10, -48);
    a.jump_if_register(When::NotEqual, 2, 4, out);
    a.load(Width::Double, 8, 8, 16);
    // What the program chose, the job that the service gave it, and where the label says that the packet goes.
    a.constant(4, layout.chosen());
    a.register(Op::And, 3, 4);
    a.register(Op::Or, 3, 8);
    a.constant(4, MARKER);
    a.register(Op::Or, 3, 4);
    for (place, shift, width) in
        [(-40, layout.shift(0), layout.edge), (-32, layout.shift(1), layout.position)]
    {
        a.load(Width::Double, 2, 10, place);
        a.register(Op::Move, 1, 2);
        a.immediate(Op::Right, 1, i32::from(width));
        a.jump_if(When::NotEqual, 1, 0, out);
        a.immediate(Op::Left, 2, i32::from(shift));
        a.register(Op::Or, 3, 2);
    }
    a.load(Width::Double, 2, 10, -24);
    #[allow(clippy::cast_possible_truncation)]
    a.immediate(Op::And, 2, (ones(layout.host_key.min(7)) & 0x7f) as i32);
    a.register(Op::Or, 3, 2);
    a.immediate(Op::Left, 3, 16);
    a.network_order(3, 64);
    a.store(Width::Double, 10, -8, 3);
    a.register(Op::Move, 1, 6);
    a.immediate(Op::Move, 2, 0);
    a.register(Op::Move, 3, 10);
    a.immediate(Op::Add, 3, -8);
    a.immediate(Op::Move, 4, 6);
    a.immediate(Op::Move, 5, 0);
    a.call(STORE_BYTES);
    a.place(out);
    a.immediate(Op::Move, 0, GO_ON);
    a.exit();
    // What few packets need comes after what all do: these instructions take up no cache.
    a.place(elsewhere);
    for step in 1..TRIES {
        place(&mut a, sockets, i32::try_from(step).expect("few"), out);
        a.jump_if_register(When::Equal, 2, 9, known);
    }
    a.jump(out);
    a.place(first);
    a.load(Width::Double, 1, 6, SKB_SOCKET);
    a.jump_if(When::Equal, 1, 0, out);
    a.call(TCP_SOCKET);
    a.jump_if(When::Equal, 0, 0, out);
    a.load(Width::Word, 2, 0, TCP_SND_UNA);
    a.load(Width::Double, 3, 0, TCP_BYTES_ACKED);
    a.register(Op::Sub, 2, 3);
    a.immediate(Op::Left, 2, 32);
    a.immediate(Op::Right, 2, 32);
    a.constant(3, 1 << 32);
    a.register(Op::Or, 2, 3);
    a.store(Width::Double, 8, 24, 2);
    a.jump(based);
    a.place(search);
    a.load(Width::Double, 2, 9, 0);
    a.jump_if(When::Equal, 2, 0, out);
    a.register(Op::Move, 1, 2);
    a.immediate(Op::Sub, 2, 1);
    let whole = a.label();
    let begin = a.label();
    let read = a.label();
    entry(&mut a, 4, 2);
    a.load(Width::Double, 5, 4, 0);
    a.jump_if_register(When::GreaterEqual, 7, 5, read);
    // The two oldest may be written just now.
    let kept = i32::try_from(ENTRIES).expect("few") - 2;
    a.jump_if(When::GreaterEqual, 1, kept, whole);
    a.immediate(Op::Move, 1, 0);
    a.jump(begin);
    a.place(whole);
    a.immediate(Op::Sub, 1, kept);
    a.place(begin);
    entry(&mut a, 4, 1);
    a.load(Width::Double, 5, 4, 0);
    a.jump_if_register(When::Greater, 5, 7, out);
    for _ in 0..ENTRIES.ilog2() {
        let right = a.label();
        let next = a.label();
        a.register(Op::Move, 3, 1);
        a.register(Op::Add, 3, 2);
        a.immediate(Op::Right, 3, 1);
        entry(&mut a, 4, 3);
        a.load(Width::Double, 5, 4, 0);
        a.jump_if_register(When::GreaterEqual, 7, 5, right);
        a.register(Op::Move, 2, 3);
        a.jump(next);
        a.place(right);
        a.register(Op::Move, 1, 3);
        a.place(next);
    }
    entry(&mut a, 4, 1);
    a.place(read);
    a.load(Width::Double, 3, 4, 8);
    a.jump(found);
    a.finish()
}

/// Register 0 = the place that is `step` after the first of the cookie in register 9; register 2 = the cookie there.
fn place(a: &mut Assembler, sockets: i32, step: i32, out: Label) {
    a.register(Op::Move, 2, 9);
    a.immediate(Op::Add, 2, step);
    a.immediate(Op::And, 2, i32::try_from(PLACES).expect("few") - 1);
    a.store(Width::Word, 10, -8, 2);
    lookup(a, sockets, -8);
    a.jump_if(When::Equal, 0, 0, out);
    a.load(Width::Double, 2, 0, 0);
}

fn lookup(a: &mut Assembler, map: i32, key: i32) {
    a.map(1, map);
    a.register(Op::Move, 2, 10);
    a.immediate(Op::Add, 2, key);
    a.call(MAP_LOOKUP);
}

/// `to` = address of entry number `index` of the ring in register 9.
fn entry(a: &mut Assembler, to: Register, index: Register) {
    a.register(Op::Move, to, index);
    a.immediate(Op::And, to, i32::try_from(ENTRIES).expect("few") - 1);
    a.immediate(Op::Left, to, 4);
    a.register(Op::Add, to, 9);
    a.immediate(Op::Add, to, i32::try_from(HEADER_BYTES).expect("few"));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::kernel;

    const PAPER: Layout = Layout {
        edge: 2,
        position: 2,
        job: 6,
        communicator: 6,
        source: 10,
        destination: 10,
        host_key: 4,
    };

    #[test]
    fn widths_make_forty_bits_or_are_refused() {
        assert!(PAPER.is_valid());
        assert!(!Layout { edge: 3, ..PAPER }.is_valid());
        assert!(!Layout { edge: 0, position: 4, ..PAPER }.is_valid());
        assert_eq!(PAPER.job_shift(), 30);
        assert_eq!(PAPER.ranks(), [(24, 6), (14, 10), (4, 10)]);
        assert_eq!(PAPER.chosen() & (0x3f << 30), 0, "a program does not choose its job");
    }

    /// Loads the program, or says why the test is skipped.
    pub(crate) fn loaded() -> Option<std::os::fd::OwnedFd> {
        use std::os::fd::AsRawFd;
        let inner = match kernel::shared_array(RING_BYTES, 4) {
            Ok(inner) => inner,
            Err(error) => {
                eprintln!("skipped: no maps of BPF here: {error}");
                return None;
            }
        };
        let sockets = kernel::array(KNOWN_BYTES, PLACES).expect("a map");
        let processes = kernel::array_of_maps(&inner, 4).expect("a map of maps");
        let made = program(sockets.as_raw_fd(), processes.as_raw_fd(), PAPER);
        Some(kernel::load(&made).expect("the verifier takes it"))
    }

    #[test]
    fn the_kernel_takes_the_program_and_packets_without_a_known_socket_stay_as_they_are() {
        let Some(program) = loaded() else { return };
        let mut packet = vec![0_u8; 120];
        packet[..6].copy_from_slice(&[0x02, 0x57, 0, 1, 0, 3]);
        packet[12..14].copy_from_slice(&[8, 0]);
        packet[14] = 0x45;
        packet[23] = 6;
        packet[46] = 0x50;
        for change in [(0, 0x02), (0, 0xff), (12, 0x86), (14, 0x4f), (23, 17), (46, 0xf0)] {
            let mut sent = packet.clone();
            sent[change.0] = change.1;
            let (got, ns) = kernel::test_run(&program, &sent, 1000).expect("a run");
            assert_eq!(got, sent);
            assert!(ns < 1_000_000);
        }
    }
}
