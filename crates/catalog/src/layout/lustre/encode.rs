//! Encodes `lustre.lov` as Lustre does.

use super::wire::{
    magic, Body, Md, Order, Plain, COMPOSITE_BYTES, ENTRY_BYTES, FOREIGN_BYTES, OBJECT_BYTES,
    V1_BYTES, V3_BYTES,
};

impl Md {
    /// The bytes that store this, in the order that Lustre stores them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_in(Order::Little)
    }

    /// The bytes that store this, in an order of one's choice.
    #[must_use]
    pub fn encode_in(&self, order: Order) -> Vec<u8> {
        let mut out = Writer { bytes: Vec::new(), order };
        match self {
            Self::Plain(plain) => out.plain(plain),
            Self::Foreign { sort, flags, value } => out.foreign(*sort, *flags, value),
            Self::Composite { extendable, generation, state, extra_mirrors, entries } => {
                let bodies_at = COMPOSITE_BYTES + entries.len() * ENTRY_BYTES;
                let size = entries.iter().fold(bodies_at, |sum, entry| sum + entry.body.bytes());
                out.u32(if *extendable { magic::EXTENDABLE } else { magic::COMPOSITE });
                out.u32(fitting(size));
                out.u32(*generation);
                out.u16(*state);
                out.u16(u16::try_from(entries.len()).unwrap_or(u16::MAX));
                out.u16(*extra_mirrors);
                out.zeros(COMPOSITE_BYTES);
                let mut offset = bodies_at;
                for entry in entries {
                    let end = out.bytes.len() + ENTRY_BYTES;
                    out.u32(entry.id);
                    out.u32(entry.flags);
                    out.u64(entry.start);
                    out.u64(entry.end);
                    out.u32(fitting(offset));
                    out.u32(fitting(entry.body.bytes()));
                    out.u32(entry.generation);
                    out.u64(entry.timestamp);
                    out.zeros(end);
                    offset += entry.body.bytes();
                }
                for entry in entries {
                    match &entry.body {
                        Body::Plain(plain) => out.plain(plain),
                        Body::Foreign { sort, flags, value } => out.foreign(*sort, *flags, value),
                    }
                }
            }
        }
        out.bytes
    }
}

impl Body {
    fn bytes(&self) -> usize {
        match self {
            Self::Foreign { value, .. } => FOREIGN_BYTES + value.len(),
            Self::Plain(plain) => {
                let header = if plain.pool.is_some() { V3_BYTES } else { V1_BYTES };
                header + plain.objects.len() * OBJECT_BYTES
            }
        }
    }
}

struct Writer {
    bytes: Vec<u8>,
    order: Order,
}

impl Writer {
    fn plain(&mut self, plain: &Plain) {
        self.u32(match (&plain.pool, plain.specific) {
            (None, _) => magic::V1,
            (Some(_), false) => magic::V3,
            (Some(_), true) => magic::SPECIFIC,
        });
        self.u32(plain.pattern);
        self.u64(plain.file_id.0);
        self.u64(plain.file_id.1);
        self.u32(plain.stripe_size);
        self.u16(plain.stripe_count);
        self.u16(plain.generation);
        self.bytes.extend(plain.pool.iter().flatten());
        for object in &plain.objects {
            self.u64(object.id.0);
            self.u64(object.id.1);
            self.u32(object.generation);
            self.u32(object.ost);
        }
    }

    fn foreign(&mut self, sort: u32, flags: u32, value: &[u8]) {
        self.u32(magic::FOREIGN);
        self.u32(fitting(value.len()));
        self.u32(sort);
        self.u32(flags);
        self.bytes.extend(value);
    }

    fn u16(&mut self, number: u16) {
        self.bytes.extend(match self.order {
            Order::Little => number.to_le_bytes(),
            Order::Big => number.to_be_bytes(),
        });
    }

    fn u32(&mut self, number: u32) {
        self.bytes.extend(match self.order {
            Order::Little => number.to_le_bytes(),
            Order::Big => number.to_be_bytes(),
        });
    }

    fn u64(&mut self, number: u64) {
        self.bytes.extend(match self.order {
            Order::Little => number.to_le_bytes(),
            Order::Big => number.to_be_bytes(),
        });
    }

    /// Fill up to `end` bytes in all.
    fn zeros(&mut self, end: usize) {
        self.bytes.resize(end, 0);
    }
}

/// Lengths are of 32 bits; what a program builds is far from that.
fn fitting(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
