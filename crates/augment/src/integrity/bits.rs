//! The bits of entropy-coded JPEG data (ITU-T T.81, F.1.2.3): a zero byte follows each 0xFF that is no marker.

/// Why there are no more bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The file ends.
    End,
    /// A marker stands here.
    Marker(u8),
    /// The bits are no code.
    Code,
}

pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, from the highest on.
    held: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(data: &'a [u8], at: usize) -> Self {
        Self { data, at, held: 0, count: 0 }
    }

    /// Where the next byte is that was not taken in: of a marker, once it stopped there.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn fill(&mut self) {
        while self.count <= 56 {
            let Some(&byte) = self.data.get(self.at) else { return };
            if byte == 0xff {
                if self.data.get(self.at + 1) != Some(&0) {
                    return;
                }
                self.at += 1;
            }
            self.at += 1;
            self.held |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// The next 16 bits, with zeros where there are fewer.
    pub(super) fn peek(&mut self) -> u16 {
        if self.count < 16 {
            self.fill();
        }
        (self.held >> 48) as u16
    }

    /// Skip `bits` bits, at most 16.
    pub(super) fn skip(&mut self, bits: u32) -> Result<(), Stop> {
        if self.count < bits {
            self.fill();
            if self.count < bits {
                return Err(self.stopped());
            }
        }
        self.held <<= bits;
        self.count -= bits;
        Ok(())
    }

    pub(super) fn take(&mut self, bits: u32) -> Result<u32, Stop> {
        if bits == 0 {
            return Ok(0);
        }
        let value = u32::from(self.peek()) >> (16 - bits);
        self.skip(bits)?;
        Ok(value)
    }

    /// What stands where the bits end.
    fn stopped(&self) -> Stop {
        let rest = self.data.get(self.at..).unwrap_or_default();
        // Any number of 0xFF may stand before a marker.
        let kind = rest.iter().copied().find(|byte| *byte != 0xff);
        kind.map_or(Stop::End, Stop::Marker)
    }

    /// Pass over the padding, up to a marker: which one. Whole bytes count as padding where all their bits are alike.
    pub(super) fn end(&mut self) -> Stop {
        let partial = self.count % 8;
        self.held <<= partial;
        self.count -= partial;
        loop {
            if self.count == 0 {
                self.fill();
                if self.count == 0 {
                    return self.stopped();
                }
            }
            let byte = (self.held >> 56) as u8;
            if byte != 0 && byte != 0xff {
                return Stop::Code;
            }
            self.held <<= 8;
            self.count -= 8;
        }
    }

    /// Pass over the marker that `end` found.
    pub(super) fn pass_marker(&mut self) {
        while self.data.get(self.at) == Some(&0xff) {
            self.at += 1;
        }
        self.at += 1;
    }
}
