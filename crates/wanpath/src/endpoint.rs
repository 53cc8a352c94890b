//! The endpoints of a direction: a source and a sink of packets.
//!
//! Arrives: nothing. Leaves: two traits, implemented by a TUN device and by a relay's sockets. Must not know: either.

use std::io;
use std::os::fd::BorrowedFd;

use crate::frame::{Cuts, Frame};

/// A source of packets.
pub trait PacketSource {
    /// What a sink needs to know of a frame.
    type Shape;
    /// The size of the largest frame.
    const MAX_FRAME: usize;

    /// A descriptor that is readable when a frame is available.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Reads a frame into `room`, if one is available.
    ///
    /// # Errors
    /// `InvalidData` for an unusable frame; any other error ends the forwarder.
    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<(Cuts, Self::Shape)>>;

    /// Whether the packets of a frame, of which these are the bytes, have an ECN-capable code point (RFC 3168).
    fn ecn_capable(bytes: &[u8]) -> bool {
        let _ = bytes;
        false
    }

    /// Packets that the kernel has dropped because they were not read in time.
    fn overflowed(&mut self) -> u64;
}

/// A sink of packets.
pub trait PacketSink {
    /// What it needs to know of a frame.
    type Shape;

    /// Writes packets of a frame, the first one and their number, with what the path does to them.
    ///
    /// # Errors
    /// The packets were not accepted, and are lost.
    fn write(
        &mut self,
        frame: &Frame<Self::Shape>,
        bytes: &[u8],
        packets: (usize, usize),
        change: Change,
    ) -> io::Result<()>;
}

/// What the path does to packets that leave together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Whether they get an ECN mark; only where they are ECN-capable.
    pub marked: bool,
    /// The bit that flips, modulo the bits that may; only of a single packet.
    pub flip: Option<u64>,
}
