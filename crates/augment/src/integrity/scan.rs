//! One scan of a JPEG, read to its end (ITU-T T.81: F.2.2 sequential, G.2 progressive; libjpeg's reading where it is
//! silent).

use super::bits::{Bits, Stop};
use super::frame::{Component, Frame};
use super::huffman::Table;

/// What one component of a scan is read with.
pub(super) struct Selected {
    /// Its place in the frame.
    pub(super) component: usize,
    pub(super) dc: Option<Table>,
    pub(super) ac: Option<Table>,
}

/// A scan's header.
pub(super) struct Scan {
    pub(super) selected: Vec<Selected>,
    /// The band of coefficients.
    pub(super) first: usize,
    pub(super) last: usize,
    /// Whether it gives one more bit to what an earlier scan gave.
    pub(super) refines: bool,
    /// MCUs between restart markers; 0 for no such markers.
    pub(super) restart: usize,
}

/// Where a scan went wrong.
pub(super) struct Broke {
    pub(super) stop: Stop,
    /// MCUs read, and how many there are.
    pub(super) read: usize,
    pub(super) of: usize,
}

/// The first restart marker; the eight follow each other in turn.
const RST0: u8 = 0xd0;

impl Scan {
    /// Read it; the place of the marker behind it.
    pub(super) fn read(&self, frame: &mut Frame, data: &[u8], at: usize) -> Result<usize, Broke> {
        let mut bits = Bits::new(data, at);
        let (wide, high) = match self.selected.as_slice() {
            // A scan of one component has blocks for MCUs, none of them beyond the image (A.2.2).
            [one] => {
                let component = &frame.components[one.component];
                (component.wide, component.high)
            }
            _ => (frame.wide, frame.high),
        };
        let of = wide * high;
        // Blocks that end early, all of them the same way (G.1.2.2).
        let mut run = 0;
        let mut restarts = 0_u8;
        for mcu in 0..of {
            let broke = |stop| Broke { stop, read: mcu, of };
            if self.restart != 0 && mcu != 0 && mcu % self.restart == 0 {
                match bits.end() {
                    Stop::Marker(marker) if marker == RST0 + restarts % 8 => bits.pass_marker(),
                    stop => return Err(broke(stop)),
                }
                restarts = restarts.wrapping_add(1);
                run = 0;
            }
            let (x, y) = (mcu % wide, mcu / wide);
            if let [one] = self.selected.as_slice() {
                let component = &mut frame.components[one.component];
                let block = y * component.stride + x;
                self.block(one, component, block, frame.progressive, &mut bits, &mut run)
                    .map_err(broke)?;
                continue;
            }
            for one in &self.selected {
                let component = &mut frame.components[one.component];
                for below in 0..component.v {
                    for beside in 0..component.h {
                        let row = y * component.v + below;
                        let block = row * component.stride + x * component.h + beside;
                        self.block(one, component, block, frame.progressive, &mut bits, &mut run)
                            .map_err(broke)?;
                    }
                }
            }
        }
        for one in &self.selected {
            frame.components[one.component].given |= self.first == 0;
        }
        match bits.end() {
            Stop::Marker(_) => Ok(bits.position()),
            stop => Err(Broke { stop, read: of, of }),
        }
    }

    fn block(
        &self,
        with: &Selected,
        component: &mut Component,
        block: usize,
        progressive: bool,
        bits: &mut Bits<'_>,
        run: &mut u32,
    ) -> Result<(), Stop> {
        if self.first == 0 {
            if self.refines {
                return bits.skip(1);
            }
            let size = with.dc.as_ref().ok_or(Stop::Code)?.next(bits)?;
            if size > 16 {
                return Err(Stop::Code);
            }
            bits.skip(u32::from(size))?;
            if progressive {
                return Ok(());
            }
        }
        let ac = with.ac.as_ref().ok_or(Stop::Code)?;
        if !progressive {
            return sequential(ac, bits);
        }
        let filled = component.filled.get_mut(block).ok_or(Stop::Code)?;
        if self.refines {
            self.refine(ac, filled, bits, run)
        } else {
            self.begin(ac, filled, bits, run)
        }
    }

    /// The first scan of a band (G.1.2.2).
    fn begin(
        &self,
        ac: &Table,
        filled: &mut u64,
        bits: &mut Bits<'_>,
        run: &mut u32,
    ) -> Result<(), Stop> {
        if *run > 0 {
            *run -= 1;
            return Ok(());
        }
        let mut place = self.first;
        while place <= self.last {
            let code = ac.next(bits)?;
            let (zeros, size) = (code >> 4, code & 15);
            if size == 0 && zeros < 15 {
                *run = (1 << zeros) - 1 + bits.take(u32::from(zeros))?;
                break;
            }
            place += usize::from(zeros);
            if size != 0 {
                if place > self.last {
                    return Err(Stop::Code);
                }
                *filled |= 1 << place;
                bits.skip(u32::from(size))?;
            }
            place += 1;
        }
        Ok(())
    }

    /// A scan that gives one more bit (G.1.2.3): new coefficients stand between those that are not zero.
    fn refine(
        &self,
        ac: &Table,
        filled: &mut u64,
        bits: &mut Bits<'_>,
        run: &mut u32,
    ) -> Result<(), Stop> {
        let mut place = self.first;
        if *run == 0 {
            while place <= self.last {
                let code = ac.next(bits)?;
                let (mut zeros, size) = (code >> 4, code & 15);
                if size > 1 {
                    return Err(Stop::Code);
                }
                if size == 0 && zeros < 15 {
                    *run = (1 << zeros) + bits.take(u32::from(zeros))?;
                    break;
                }
                bits.skip(u32::from(size))?;
                while place <= self.last {
                    if *filled & 1 << place != 0 {
                        bits.skip(1)?;
                    } else if zeros == 0 {
                        break;
                    } else {
                        zeros -= 1;
                    }
                    place += 1;
                }
                if size != 0 {
                    if place > self.last {
                        return Err(Stop::Code);
                    }
                    *filled |= 1 << place;
                }
                place += 1;
            }
        }
        if *run > 0 {
            *run -= 1;
            for rest in place..=self.last {
                if *filled & 1 << rest != 0 {
                    bits.skip(1)?;
                }
            }
        }
        Ok(())
    }
}

/// The 63 other coefficients of a block (F.2.2.2).
fn sequential(ac: &Table, bits: &mut Bits<'_>) -> Result<(), Stop> {
    let mut place = 1;
    while place < 64 {
        let code = ac.next(bits)?;
        let (zeros, size) = (code >> 4, code & 15);
        if size == 0 {
            if zeros != 15 {
                break;
            }
            place += 16;
            continue;
        }
        place += usize::from(zeros);
        if place > 63 {
            return Err(Stop::Code);
        }
        bits.skip(u32::from(size))?;
        place += 1;
    }
    Ok(())
}
