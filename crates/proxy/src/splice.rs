//! A connection that goes past the session: the program's socket and the destination's, joined here.
//!
//! Arrives: two sockets. Leaves: bytes from each to the other, its ends and resets. Must not know: streams, rules.

use std::time::Instant;

use crate::tunnel::{reading, ProgramSocket, CHUNK_BYTES};

/// One direction.
#[derive(Default)]
struct Half {
    buffer: Vec<u8>,
    at: usize,
    /// The sender has said all.
    ended: bool,
    /// The end was passed on to the receiver.
    told: bool,
    bytes: u64,
}

pub(super) struct Splice<S> {
    sockets: [S; 2],
    /// From the first socket, and from the second.
    halves: [Half; 2],
    pub(super) began: Instant,
    pub(super) origin: String,
    pub(super) target: String,
}

impl<S: ProgramSocket> Splice<S> {
    /// `near` is the program's, `far` the destination's.
    pub(super) fn new(near: S, far: S, origin: String, target: String) -> Self {
        let halves = Default::default();
        Self { sockets: [near, far], halves, began: Instant::now(), origin, target }
    }

    /// Bytes there and back.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.halves[0].bytes, self.halves[1].bytes)
    }

    /// Whether it is over.
    pub(super) fn is_done(&self) -> bool {
        self.halves.iter().all(|half| half.told)
    }

    /// Carry what can be carried now; how many bytes there and back.
    pub(super) fn carry(&mut self) -> std::io::Result<(u64, u64)> {
        let before = self.bytes();
        for from in 0..2 {
            let (near, far) = self.sockets.split_at_mut(1);
            let (source, sink) =
                if from == 0 { (&mut near[0], &mut far[0]) } else { (&mut far[0], &mut near[0]) };
            self.halves[from].carry(source, sink)?;
        }
        let now = self.bytes();
        Ok((now.0 - before.0, now.1 - before.1))
    }

    pub(super) fn into_sockets(self) -> [S; 2] {
        self.sockets
    }
}

impl Half {
    fn carry<S: ProgramSocket>(&mut self, source: &mut S, sink: &mut S) -> std::io::Result<()> {
        while !self.told {
            if self.at == self.buffer.len() {
                if self.ended {
                    self.told = true;
                    sink.finish();
                    return Ok(());
                }
                self.buffer.resize(CHUNK_BYTES, 0);
                let read = reading(|| source.read(&mut self.buffer));
                self.at = 0;
                self.buffer.truncate(read.as_ref().map_or(0, |read| read.unwrap_or(0)));
                match read? {
                    Some(0) => self.ended = true,
                    Some(_) => {}
                    None => return Ok(()),
                }
                continue;
            }
            match reading(|| sink.write(&self.buffer[self.at..]))? {
                Some(count) => {
                    self.at += count;
                    self.bytes += count as u64;
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }
}
