//! What a forwarder needs of the two ends of its direction.
//!
//! Arrives: nothing. Leaves: two traits, which a TUN device and a relay's sockets have.
//! Must not know: which of them it is.

use std::io;
use std::os::fd::BorrowedFd;

use crate::frame::{Cuts, Frame};

/// Where packets come from.
pub trait PacketSource {
    /// What an outlet must know of a frame.
    type Shape;
    /// How long a frame can be.
    const ROOM: usize;

    /// Readable when there is something to read.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Read one frame into `room`, if there is one.
    ///
    /// # Errors
    /// `InvalidData` for a frame that is of no use; anything else ends the forwarder.
    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<(Cuts, Self::Shape)>>;

    /// Packets so far that the kernel dropped because they were not read in time.
    fn overflowed(&mut self) -> u64;
}

/// Where packets go.
pub trait PacketSink {
    /// What it must know of a frame.
    type Shape;

    /// Write so many packets of a frame, from the first of these; a single one with a bit changed, where there is a `flip`.
    ///
    /// # Errors
    /// Where they are not taken: they are lost.
    fn write(
        &mut self,
        frame: &Frame<Self::Shape>,
        bytes: &[u8],
        packets: (usize, usize),
        flip: Option<u64>,
    ) -> io::Result<()>;
}
