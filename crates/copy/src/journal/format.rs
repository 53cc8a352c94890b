//! Records as bytes and back.

use twox_hash::XxHash3_64;

/// What a journal begins with; the number is raised when an older reader would misread.
pub const FIRST_LINE: &[u8] = b"waystage-copy-journal 1\n";

/// No record is longer: two paths and some numbers.
const LONGEST: usize = 1 << 20;

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A run begins.
    Run {
        /// Where from: `local:` and an absolute path; other ends have other words before the colon.
        source: Vec<u8>,
        /// Which boot of the machine: what was written before another one may not have reached the disk.
        boot: [u8; 16],
        /// When, ns since 1970.
        time: i64,
        /// Whether each extent is on the disk before its record is written.
        durable: bool,
    },
    /// A worker begins to make files in a directory; a leftover of its own can be nowhere else.
    Entered {
        /// Which one.
        worker: u32,
        /// Path below the root.
        directory: Vec<u8>,
    },
    /// A large file is begun, as a draft beside its final name.
    Begun {
        /// Its number, in the draft's name.
        id: u32,
        /// Path of its directory at the destination, below the root.
        directory: Vec<u8>,
        /// Its path at the source, below the root.
        path: Vec<u8>,
        /// Device, inode, size, times of change (ns since 1970) at the source.
        seen: [u64; 5],
        /// Bytes of an extent.
        extent_bytes: u64,
    },
    /// An extent is written.
    Extent {
        /// Of which large file.
        id: u32,
        /// Which one.
        index: u32,
        /// XXH3, 128 bits, of its data where it was read back, else 0.
        digest: u128,
    },
    /// A large file has its name, or was given up: its draft is no more.
    Ended {
        /// Which one.
        id: u32,
    },
}

/// A record with its length and its hash.
#[must_use]
pub fn encode(record: &Record) -> Vec<u8> {
    let mut out = vec![0; 8];
    match record {
        Record::Run { source, boot, time, durable } => {
            out.push(1);
            put(&mut out, source);
            out.extend_from_slice(boot);
            out.extend_from_slice(&time.to_le_bytes());
            out.push(u8::from(*durable));
        }
        Record::Entered { worker, directory } => {
            out.push(2);
            out.extend_from_slice(&worker.to_le_bytes());
            put(&mut out, directory);
        }
        Record::Begun { id, directory, path, seen, extent_bytes } => {
            out.push(3);
            out.extend_from_slice(&id.to_le_bytes());
            put(&mut out, directory);
            put(&mut out, path);
            for number in seen {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.extend_from_slice(&extent_bytes.to_le_bytes());
        }
        Record::Extent { id, index, digest } => {
            out.push(4);
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&digest.to_le_bytes());
        }
        Record::Ended { id } => {
            out.push(5);
            out.extend_from_slice(&id.to_le_bytes());
        }
    }
    let length = (out.len() - 8) as u32;
    let hash = check(&out[8..]);
    out[..4].copy_from_slice(&length.to_le_bytes());
    out[4..8].copy_from_slice(&hash.to_le_bytes());
    out
}

/// The whole records of a journal, and how many bytes they take; None where it is no journal of this version.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<(Vec<Record>, usize)> {
    let mut at = FIRST_LINE.len();
    if !bytes.starts_with(FIRST_LINE) {
        return None;
    }
    let mut records = Vec::new();
    while let Some((record, length)) = next(&bytes[at..]) {
        records.push(record);
        at += length;
    }
    Some((records, at))
}

fn next(bytes: &[u8]) -> Option<(Record, usize)> {
    let mut reader = Reader(bytes);
    let length = usize::try_from(reader.u32()?).ok().filter(|length| *length <= LONGEST)?;
    let hash = reader.u32()?;
    let payload = reader.take(length)?;
    if check(payload) != hash {
        return None;
    }
    let mut reader = Reader(payload);
    let record = record(&mut reader)?;
    reader.0.is_empty().then_some((record, 8 + length))
}

fn record(reader: &mut Reader<'_>) -> Option<Record> {
    Some(match reader.take(1)?[0] {
        1 => Record::Run {
            source: reader.bytes()?,
            boot: reader.take(16)?.try_into().ok()?,
            time: i64::from_le_bytes(reader.take(8)?.try_into().ok()?),
            durable: reader.take(1)?[0] != 0,
        },
        2 => Record::Entered { worker: reader.u32()?, directory: reader.bytes()? },
        3 => Record::Begun {
            id: reader.u32()?,
            directory: reader.bytes()?,
            path: reader.bytes()?,
            seen: [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?],
            extent_bytes: reader.u64()?,
        },
        4 => Record::Extent {
            id: reader.u32()?,
            index: reader.u32()?,
            digest: u128::from_le_bytes(reader.take(16)?.try_into().ok()?),
        },
        5 => Record::Ended { id: reader.u32()? },
        _ => return None,
    })
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Half of a 64-bit hash: enough to tell a record cut short from a whole one.
fn check(payload: &[u8]) -> u32 {
    (XxHash3_64::oneshot(payload) & u64::from(u32::MAX)) as u32
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.u32()?).ok()?;
        Some(self.take(length)?.to_vec())
    }
}
