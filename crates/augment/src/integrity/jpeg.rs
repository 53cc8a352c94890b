//! JPEG: every segment and every scan up to the end-of-image marker (ITU-T T.81, annex B).

use super::bits::Stop;
use super::bytes::{damaged, number};
use super::frame::Frame;
use super::huffman::{usual, Table};
use super::scan::{Broke, Scan, Selected};
use crate::error::{ImageError, Limits};

const SOF_FIRST: u8 = 0xc0;
const SOF_LAST: u8 = 0xcf;
const SOF_PROGRESSIVE: u8 = 0xc2;
const DHT: u8 = 0xc4;
const JPG: u8 = 0xc8;
const DAC: u8 = 0xcc;
const RST_FIRST: u8 = 0xd0;
const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const SOS: u8 = 0xda;
const DRI: u8 = 0xdd;
const TEM: u8 = 0x01;

/// Whether all of it is there. Of sorts that no decoder here reads nothing is said: the decoder will.
pub(crate) fn check(data: &[u8], limits: Limits) -> Result<(), ImageError> {
    Reader { data, at: 2, ..Reader::default() }.run(limits)
}

#[derive(Default)]
struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    frame: Option<Frame>,
    dc: [Option<Table>; 4],
    ac: [Option<Table>; 4],
    restart: usize,
    scans: usize,
}

impl<'a> Reader<'a> {
    fn run(mut self, limits: Limits) -> Result<(), ImageError> {
        loop {
            let marker = self.marker()?;
            match marker {
                SOI | TEM => continue,
                EOI => return self.end(),
                RST_FIRST..SOI => {
                    return damaged("it is damaged: a restart marker stands outside its image data")
                }
                _ => {}
            }
            let body = self.segment(marker)?;
            match marker {
                DHT => self.tables(body)?,
                DRI => match number(body, 0) {
                    Some(restart) => self.restart = restart,
                    None => return damaged("it is damaged: its restart interval is cut off"),
                },
                SOS => self.scan(body)?,
                SOF_FIRST..=SOF_PROGRESSIVE => {
                    self.frame = Frame::parse(body, marker == SOF_PROGRESSIVE, limits)?;
                    if self.frame.is_none() {
                        return damaged("it is damaged: its frame header cannot be");
                    }
                }
                // Lossless and arithmetic coding.
                SOF_FIRST..=SOF_LAST if marker != JPG && marker != DAC => return Ok(()),
                _ => {}
            }
        }
    }

    fn marker(&mut self) -> Result<u8, ImageError> {
        // Some cameras fill up with zeros between segments.
        while self.data.get(self.at) == Some(&0) {
            self.at += 1;
        }
        let began = self.at;
        while self.data.get(self.at) == Some(&0xff) {
            self.at += 1;
        }
        match self.data.get(self.at) {
            None => damaged("it is cut off: its end-of-image marker is missing"),
            Some(_) if self.at == began => {
                damaged(format!("it is damaged: byte {began} should begin a marker"))
            }
            Some(marker) => {
                self.at += 1;
                Ok(*marker)
            }
        }
    }

    fn segment(&mut self, marker: u8) -> Result<&'a [u8], ImageError> {
        let length = number(self.data, self.at).filter(|length| *length >= 2);
        let body = length.and_then(|length| self.data.get(self.at + 2..self.at + length));
        let Some(body) = body else {
            return damaged(format!(
                "it is cut off or damaged: segment FF{marker:02X} is incomplete"
            ));
        };
        self.at += 2 + body.len();
        Ok(body)
    }

    fn tables(&mut self, mut body: &[u8]) -> Result<(), ImageError> {
        while let [kind, rest @ ..] = body {
            let read = rest.split_first_chunk::<16>().and_then(|(counts, rest)| {
                let total = counts.iter().map(|count| usize::from(*count)).sum();
                let (symbols, rest) = rest.split_at_checked(total)?;
                Some((Table::new(counts, symbols)?, rest))
            });
            let tables = if kind >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            let (Some((table, rest)), Some(place)) = (read, tables.get_mut(usize::from(kind & 15)))
            else {
                return damaged("it is damaged: a Huffman table cannot be");
            };
            *place = Some(table);
            body = rest;
        }
        Ok(())
    }

    fn scan(&mut self, body: &[u8]) -> Result<(), ImageError> {
        self.scans += 1;
        let Some(mut frame) = self.frame.take() else {
            return damaged("it is damaged: its image data has no frame header");
        };
        let Some(scan) = self.header(body, &frame) else {
            return damaged(format!("it is damaged: the header of scan {} cannot be", self.scans));
        };
        let read = scan.read(&mut frame, self.data, self.at);
        self.frame = Some(frame);
        match read {
            Ok(at) => {
                self.at = at;
                Ok(())
            }
            Err(broke) => damaged(self.tell(&broke)),
        }
    }

    fn header(&self, body: &[u8], frame: &Frame) -> Option<Scan> {
        let count = usize::from(*body.first()?);
        let (specs, [first, last, bits, ..]) = body.get(1..)?.split_at_checked(2 * count)? else {
            return None;
        };
        let mut selected = Vec::new();
        for spec in specs.chunks_exact(2) {
            let component = frame.components.iter().position(|one| one.id == spec[0])?;
            let table = |tables: &[Option<Table>; 4], number: u8, of_ac| {
                let number = usize::from(number);
                tables.get(number)?.clone().or_else(|| usual(of_ac, number))
            };
            selected.push(Selected {
                component,
                dc: table(&self.dc, spec[1] >> 4, false),
                ac: table(&self.ac, spec[1] & 15, true),
            });
        }
        let (first, last, refines) = if frame.progressive {
            (usize::from(*first), usize::from(*last), bits >> 4 != 0)
        } else {
            (0, 63, false)
        };
        // The first coefficients come by themselves, the others of one component at a time (G.1.1.1.1).
        let sound = !frame.progressive || if first == 0 { last == 0 } else { count == 1 };
        let sound = sound && (1..=4).contains(&count) && first <= last && last < 64;
        sound.then_some(Scan { selected, first, last, refines, restart: self.restart })
    }

    fn tell(&self, broke: &Broke) -> String {
        let share = 100 * broke.read / broke.of.max(1);
        let place = format!("after {share} % of scan {}", self.scans);
        match broke.stop {
            Stop::End => format!("it is cut off {place}"),
            Stop::Marker(EOI) => format!("its image data ends early, {place}"),
            Stop::Marker(marker) => {
                format!("it is damaged {place}: marker FF{marker:02X} should not stand there")
            }
            Stop::Code => format!("it is damaged {place}: its image data is no code there"),
        }
    }

    fn end(&self) -> Result<(), ImageError> {
        match &self.frame {
            None => damaged("it is damaged: it has no image data"),
            Some(frame) if frame.components.iter().any(|one| !one.given) => {
                damaged("it is damaged: a scan is missing")
            }
            Some(_) => Ok(()),
        }
    }
}
