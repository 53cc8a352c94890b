//! Decodes `lustre.lov`. Every length is checked against the input before anything is stored, and the result never
//! takes more memory than the input.

use super::super::LayoutError;
use super::wire::{
    entry_flag, magic, pattern, Body, Entry, Md, Order, OstObject, Plain, ALL_TARGETS,
    COMPOSITE_BYTES, ENTRY_BYTES, FOREIGN_BYTES, OBJECT_BYTES, V1_BYTES, V3_BYTES,
};

impl Md {
    /// The structure that `bytes` store.
    ///
    /// # Errors
    /// Where they end too early, contradict themselves, or are of a form that is not known.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let reader = Reader::new(bytes)?;
        match reader.magic {
            magic::V1 | magic::V3 | magic::SPECIFIC => Ok(Self::Plain(plain(reader)?)),
            magic::COMPOSITE | magic::EXTENDABLE => composite(reader),
            magic::FOREIGN => {
                let (sort, flags, value) = foreign(reader)?;
                Ok(Self::Foreign { sort, flags, value })
            }
            magic::JOIN => {
                Err(LayoutError::unsupported("lustre.lov: a joined file, of before Lustre 2.0"))
            }
            other => {
                Err(LayoutError::unsupported(format!("lustre.lov: unknown magic {other:#010x}")))
            }
        }
    }
}

/// Numbers at offsets, in the order that the magic tells.
#[derive(Clone, Copy)]
struct Reader<'a> {
    bytes: &'a [u8],
    order: Order,
    magic: u32,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let Some(first) = bytes.first_chunk::<4>() else {
            return Err(LayoutError::truncated("lustre.lov: fewer than 4 bytes"));
        };
        let reversed = u32::from_be_bytes(*first);
        // All magics share this half, which differs from its own reverse.
        Ok(if reversed & 0xFFFF == 0x0BD0 {
            Self { bytes, order: Order::Big, magic: reversed }
        } else {
            Self { bytes, order: Order::Little, magic: u32::from_le_bytes(*first) }
        })
    }

    fn need(&self, bytes: usize, what: &str) -> Result<(), LayoutError> {
        if self.bytes.len() < bytes {
            return Err(LayoutError::truncated(format!(
                "lustre.lov: {bytes} bytes are needed for {what}, and there are {}",
                self.bytes.len()
            )));
        }
        Ok(())
    }

    /// The bytes at `at`; zeros past the end, which `need` excludes.
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..).and_then(|tail| tail.first_chunk()).copied().unwrap_or([0; N])
    }

    fn u16(&self, at: usize) -> u16 {
        match self.order {
            Order::Little => u16::from_le_bytes(self.array(at)),
            Order::Big => u16::from_be_bytes(self.array(at)),
        }
    }

    fn u32(&self, at: usize) -> u32 {
        match self.order {
            Order::Little => u32::from_le_bytes(self.array(at)),
            Order::Big => u32::from_be_bytes(self.array(at)),
        }
    }

    fn u64(&self, at: usize) -> u64 {
        match self.order {
            Order::Little => u64::from_le_bytes(self.array(at)),
            Order::Big => u64::from_be_bytes(self.array(at)),
        }
    }
}

/// A file's own structure: as many objects as it says, or none in a directory's template.
fn plain(reader: Reader<'_>) -> Result<Plain, LayoutError> {
    let mut made = header(reader)?;
    let at = object_offset(&made);
    let room = (reader.bytes.len() - at) / OBJECT_BYTES;
    let count = match made.stripe_count {
        _ if has_no_objects(&made) || reader.bytes.len() == at => 0,
        all if all >= ALL_TARGETS => room,
        count => usize::from(count),
    };
    reader.need(at + count * OBJECT_BYTES, "its objects")?;
    made.objects = objects(reader, at, count);
    check_stripes(&made)?;
    Ok(made)
}

/// A component's structure: as many objects as its size has room for.
fn component(reader: Reader<'_>, settled: bool) -> Result<Plain, LayoutError> {
    let mut made = header(reader)?;
    let at = object_offset(&made);
    if settled && !has_no_objects(&made) {
        let room = reader.bytes.len() - at;
        if !room.is_multiple_of(OBJECT_BYTES) {
            return Err(LayoutError::invalid(format!(
                "lustre.lov: {room} bytes of objects are not a multiple of {OBJECT_BYTES}"
            )));
        }
        made.objects = objects(reader, at, room / OBJECT_BYTES);
        check_stripes(&made)?;
    }
    Ok(made)
}

fn header(reader: Reader<'_>) -> Result<Plain, LayoutError> {
    let has_pool = reader.magic != magic::V1;
    reader.need(if has_pool { V3_BYTES } else { V1_BYTES }, "a plain header")?;
    let pattern = reader.u32(4);
    if pattern & !pattern::KNOWN != 0 {
        return Err(LayoutError::unsupported(format!("lustre.lov: unknown pattern {pattern:#x}")));
    }
    Ok(Plain {
        pattern,
        file_id: (reader.u64(8), reader.u64(16)),
        stripe_size: reader.u32(24),
        stripe_count: reader.u16(28),
        generation: reader.u16(30),
        pool: has_pool.then(|| reader.array(32)),
        specific: reader.magic == magic::SPECIFIC,
        objects: Vec::new(),
    })
}

fn object_offset(plain: &Plain) -> usize {
    if plain.pool.is_some() {
        V3_BYTES
    } else {
        V1_BYTES
    }
}

fn has_no_objects(plain: &Plain) -> bool {
    plain.pattern & (pattern::RELEASED | pattern::MDT | pattern::FOREIGN) != 0
}

/// `count` objects from `at` on, which are there.
fn objects(reader: Reader<'_>, at: usize, count: usize) -> Vec<OstObject> {
    let object = |index: usize| {
        let at = at + index * OBJECT_BYTES;
        OstObject {
            id: (reader.u64(at), reader.u64(at + 8)),
            generation: reader.u32(at + 16),
            ost: reader.u32(at + 20),
        }
    };
    (0..count).map(object).collect()
}

/// Where there are objects, a byte must lie in one of them.
fn check_stripes(plain: &Plain) -> Result<(), LayoutError> {
    if !plain.objects.is_empty() && plain.stripe_size == 0 {
        return Err(LayoutError::invalid("lustre.lov: stripes of 0 bytes"));
    }
    Ok(())
}

fn foreign(reader: Reader<'_>) -> Result<(u32, u32, Vec<u8>), LayoutError> {
    reader.need(FOREIGN_BYTES, "a foreign header")?;
    let length = reader.u32(4) as usize;
    reader.need(FOREIGN_BYTES.saturating_add(length), "a foreign value")?;
    let value = reader.bytes[FOREIGN_BYTES..FOREIGN_BYTES + length].to_vec();
    Ok((reader.u32(8), reader.u32(12), value))
}

fn composite(reader: Reader<'_>) -> Result<Md, LayoutError> {
    reader.need(COMPOSITE_BYTES, "a composite header")?;
    let size = reader.u32(4) as usize;
    reader.need(size, "a composite layout")?;
    let count = usize::from(reader.u16(14));
    let bodies_at = COMPOSITE_BYTES + count * ENTRY_BYTES;
    if size < bodies_at {
        return Err(LayoutError::truncated(format!(
            "lustre.lov: {count} components do not fit into its {size} bytes"
        )));
    }
    if count == 0 {
        return Err(LayoutError::invalid("lustre.lov: a composite layout without components"));
    }
    let whole = Reader { bytes: &reader.bytes[..size], ..reader };
    let mut entries = Vec::with_capacity(count);
    // Blobs that share bytes would let a small input name many objects.
    let mut left = size - bodies_at;
    for index in 0..count {
        entries.push(entry(whole, index, bodies_at, &mut left)?);
    }
    Ok(Md::Composite {
        extendable: reader.magic == magic::EXTENDABLE,
        generation: reader.u32(8),
        state: reader.u16(12),
        extra_mirrors: reader.u16(16),
        entries,
    })
}

fn entry(
    whole: Reader<'_>,
    index: usize,
    least: usize,
    left: &mut usize,
) -> Result<Entry, LayoutError> {
    let at = COMPOSITE_BYTES + index * ENTRY_BYTES;
    let (offset, size) = (whole.u32(at + 24) as usize, whole.u32(at + 28) as usize);
    let blob = offset
        .checked_add(size)
        .filter(|_| offset >= least)
        .and_then(|end| whole.bytes.get(offset..end))
        .ok_or_else(|| {
            LayoutError::invalid(format!(
                "lustre.lov: component {index} is at bytes {offset} to {offset} + {size}, outside"
            ))
        })?;
    *left = left.checked_sub(size).ok_or_else(|| {
        LayoutError::invalid(format!("lustre.lov: component {index} shares bytes with another"))
    })?;
    let flags = whole.u32(at + 4);
    let reader = Reader::new(blob)?;
    if reader.order != whole.order {
        return Err(LayoutError::invalid(format!(
            "lustre.lov: component {index} is in another order of bytes"
        )));
    }
    let body = match reader.magic {
        magic::V1 | magic::V3 | magic::SPECIFIC => {
            Body::Plain(component(reader, flags & entry_flag::INIT != 0)?)
        }
        magic::FOREIGN => {
            let (sort, flags, value) = foreign(reader)?;
            Body::Foreign { sort, flags, value }
        }
        other => {
            return Err(LayoutError::unsupported(format!(
                "lustre.lov: component {index} has unknown magic {other:#010x}"
            )));
        }
    };
    Ok(Entry {
        id: whole.u32(at),
        flags,
        start: whole.u64(at + 8),
        end: whole.u64(at + 16),
        generation: whole.u32(at + 32),
        timestamp: whole.u64(at + 36),
        body,
    })
}
