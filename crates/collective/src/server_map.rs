//! Which aggregator writes which part of a file. All processes with the same server map compute the same.
//!
//! The file is cut into units, as large as a stripe or a lock of the file system, and each unit has one aggregator:
//! no two processes write to one lock unit. A server map is in force for one epoch (CLARISSE, section IV.A).

use std::ops::Range;

use crate::error::DecodeError;
use crate::wire::{put_number, Reader};

const VERSION: u8 = 1;
/// Bytes of an aggregator's name, at most: a host name of DNS with a number.
const MAX_NAME_BYTES: usize = 300;

/// How units are given to aggregators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// A contiguous part of the operation's hull each: data of ranks that are ordered by node stay on their node.
    Blocks,
    /// Units in turn: an aggregator keeps its units, and with them its locks and storage targets, over all operations.
    Cyclic,
}

/// Aggregators of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerMap {
    /// Increases with each change.
    pub epoch: u64,
    /// Bytes of a unit, at least 1.
    pub unit: u64,
    /// How units are given to aggregators.
    pub placement: Placement,
    /// Names of aggregators: `HOST` or `HOST/n`.
    pub aggregators: Vec<String>,
}

impl ServerMap {
    /// The file domains of an operation with the file hull `hull` over all ranks. None without aggregators or bytes.
    #[must_use]
    pub fn domains(&self, hull: &Range<u64>) -> Option<Domains> {
        if self.aggregators.is_empty() || self.unit == 0 || hull.start >= hull.end {
            return None;
        }
        Some(Domains {
            unit: self.unit,
            placement: self.placement,
            aggregators: self.aggregators.len() as u64,
            hull: hull.clone(),
        })
    }

    /// The server map as a message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut message = vec![VERSION, u8::from(self.placement == Placement::Cyclic)];
        for value in [self.epoch, self.unit, self.aggregators.len() as u64] {
            put_number(&mut message, value);
        }
        for name in &self.aggregators {
            put_number(&mut message, name.len() as u64);
            message.extend_from_slice(name.as_bytes());
        }
        message
    }

    /// Reads what [`Self::encode`] wrote. Names are distinct and printable.
    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(message);
        let version = reader.byte()?;
        if version != VERSION {
            return Err(DecodeError::Version(version, VERSION));
        }
        let placement = match reader.byte()? {
            0 => Placement::Blocks,
            1 => Placement::Cyclic,
            _ => return Err(DecodeError::Value("placement is unknown")),
        };
        let (epoch, unit, count) = (reader.number()?, reader.number()?, reader.number()?);
        if unit == 0 || unit > i64::MAX.cast_unsigned() {
            return Err(DecodeError::Value("unit is no number of bytes"));
        }
        if count > reader.left() as u64 {
            return Err(DecodeError::Value("number of aggregators cannot be right"));
        }
        let mut aggregators: Vec<String> = Vec::new();
        for _ in 0..count {
            let length = reader.number()?;
            let length =
                usize::try_from(length).ok().filter(|length| (1..=MAX_NAME_BYTES).contains(length));
            let name = reader.bytes(
                length.ok_or(DecodeError::Value("aggregator has no name, or a long one"))?,
            )?;
            if !name.iter().all(u8::is_ascii_graphic) {
                return Err(DecodeError::Value("aggregator has a name that is not printable"));
            }
            aggregators.push(String::from_utf8_lossy(name).into_owned());
        }
        reader.end()?;
        let mut sorted: Vec<&String> = aggregators.iter().collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(DecodeError::Value("aggregators have one name twice"));
        }
        Ok(Self { epoch, unit, placement, aggregators })
    }
}

/// The parts of a file that each aggregator writes or reads in one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domains {
    unit: u64,
    placement: Placement,
    aggregators: u64,
    hull: Range<u64>,
}

impl Domains {
    /// From the first to past the last byte of the operation.
    #[must_use]
    pub fn hull(&self) -> &Range<u64> {
        &self.hull
    }

    /// Index of the aggregator of the unit that holds `offset`, which must lie in the hull.
    #[must_use]
    pub fn owner(&self, offset: u64) -> usize {
        let unit = offset / self.unit;
        let index = match self.placement {
            Placement::Cyclic => unit % self.aggregators,
            Placement::Blocks => {
                let (first, units) = self.units();
                // The inverse of `block`: the last aggregator whose block begins at or before the unit.
                let index = unit.saturating_sub(first).min(units - 1);
                ((u128::from(index) + 1) * u128::from(self.aggregators)).div_ceil(u128::from(units))
                    as u64
                    - 1
            }
        };
        index as usize
    }

    /// The first window of `aggregator` that ends after `from`: contiguous, cut to the hull, at most `bytes` long, in
    /// one unit or of whole units. None after the last. `bytes` of 0 count as 1.
    #[must_use]
    pub fn window(&self, aggregator: usize, from: u64, bytes: u64) -> Option<Range<u64>> {
        let aggregator = aggregator as u64;
        let from = from.max(self.hull.start);
        if aggregator >= self.aggregators || from >= self.hull.end {
            return None;
        }
        let domain = match self.placement {
            Placement::Blocks => self.block(aggregator),
            Placement::Cyclic => {
                let unit = from / self.unit;
                let ahead =
                    (aggregator + self.aggregators - unit % self.aggregators) % self.aggregators;
                let begin = unit.checked_add(ahead)?.checked_mul(self.unit)?;
                begin..begin.saturating_add(self.unit)
            }
        };
        let from = from.max(domain.start);
        if from >= domain.end.min(self.hull.end) {
            return None;
        }
        // Windows are counted from the domain's begin where they hold whole units, else from the unit's.
        let (origin, step) = match bytes.max(1) / self.unit {
            0 => (from / self.unit * self.unit, bytes.max(1)),
            units => (domain.start, units * self.unit),
        };
        let begin = origin + (from - origin) / step * step;
        let mut end = begin.saturating_add(step).min(domain.end).min(self.hull.end);
        if step < self.unit {
            end = end.min(origin.saturating_add(self.unit));
        }
        Some(begin.max(self.hull.start)..end)
    }

    /// All windows of `aggregator` that intersect `part` of the file, in order.
    pub fn windows(
        &self,
        aggregator: usize,
        part: Range<u64>,
        bytes: u64,
    ) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = part.start;
        std::iter::from_fn(move || {
            let window = self.window(aggregator, from, bytes)?;
            from = window.end;
            (window.start < part.end).then_some(window)
        })
    }

    /// Index of the first unit of the hull, and the number of units.
    fn units(&self) -> (u64, u64) {
        let first = self.hull.start / self.unit;
        (first, (self.hull.end - 1) / self.unit - first + 1)
    }

    /// The contiguous domain of an aggregator; empty where there are more aggregators than units.
    fn block(&self, aggregator: u64) -> Range<u64> {
        let (first, units) = self.units();
        let begin_of = |index: u64| {
            let units = u128::from(units) * u128::from(index) / u128::from(self.aggregators);
            (first + units as u64).saturating_mul(self.unit)
        };
        begin_of(aggregator)..begin_of(aggregator + 1)
    }
}
