//! Records as bytes and back.

use std::io::Read;

use twox_hash::XxHash3_64;

use crate::time::Time;

/// What a journal begins with; the number is raised when an older reader would misread.
pub const FIRST_LINE: &[u8] = b"waystage-copy-journal 2\n";

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
        /// When.
        time: Time,
        /// Whether each extent is on the disk before its record is written.
        durable: bool,
    },
    /// A worker begins to make files in a directory; its leftover can be nowhere else.
    Entered {
        /// Which one.
        worker: u32,
        /// Path below the root.
        directory: Vec<u8>,
    },
    /// A large file is begun, as a temporary file beside its final name.
    Begun {
        /// Its number, by which later records call it.
        id: u32,
        /// The random number in its temporary name.
        key: u64,
        /// Path of its directory at the destination, below the root.
        directory: Vec<u8>,
        /// Its path at the source, below the root.
        path: Vec<u8>,
        /// Device, inode, size, times of change (seconds and nanoseconds) at the source.
        seen: [u64; 7],
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
    /// A large file has its name, or was given up: its temporary file is gone.
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
            out.extend_from_slice(&time.seconds.to_le_bytes());
            out.extend_from_slice(&time.nanoseconds.to_le_bytes());
            out.push(u8::from(*durable));
        }
        Record::Entered { worker, directory } => {
            out.push(2);
            out.extend_from_slice(&worker.to_le_bytes());
            put(&mut out, directory);
        }
        Record::Begun { id, key, directory, path, seen, extent_bytes } => {
            out.push(3);
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&key.to_le_bytes());
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

/// Hand out the whole records of a journal one by one; how many bytes they take, None where it is no journal of this
/// version.
pub fn decode(
    mut journal: impl Read,
    mut each: impl FnMut(Record),
) -> std::io::Result<Option<u64>> {
    let mut line = [0; FIRST_LINE.len()];
    if !is_whole(journal.read_exact(&mut line))? || line != FIRST_LINE {
        return Ok(None);
    }
    let (mut whole, mut payload) = (line.len() as u64, Vec::new());
    loop {
        let mut head = [0; 8];
        if !is_whole(journal.read_exact(&mut head))? {
            return Ok(Some(whole));
        }
        let [length, hash] = [&head[..4], &head[4..]]
            .map(|bytes| bytes.try_into().map_or(u32::MAX, u32::from_le_bytes));
        let Some(length) = usize::try_from(length).ok().filter(|length| *length <= LONGEST) else {
            return Ok(Some(whole));
        };
        payload.resize(length, 0);
        if !is_whole(journal.read_exact(&mut payload))? || check(&payload) != hash {
            return Ok(Some(whole));
        }
        let mut reader = Reader(&payload);
        match record(&mut reader).filter(|_| reader.0.is_empty()) {
            Some(record) => each(record),
            None => return Ok(Some(whole)),
        }
        whole += (head.len() + length) as u64;
    }
}

/// Whether all of it was there; what cannot be read for another reason is an error.
fn is_whole(read: std::io::Result<()>) -> std::io::Result<bool> {
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        other => other.map(|()| true),
    }
}

fn record(reader: &mut Reader<'_>) -> Option<Record> {
    Some(match reader.take(1)?[0] {
        1 => Record::Run {
            source: reader.bytes()?,
            boot: reader.take(16)?.try_into().ok()?,
            time: Time {
                seconds: i64::from_le_bytes(reader.take(8)?.try_into().ok()?),
                nanoseconds: reader.u32()?,
            },
            durable: reader.take(1)?[0] != 0,
        },
        2 => Record::Entered { worker: reader.u32()?, directory: reader.bytes()? },
        3 => Record::Begun {
            id: reader.u32()?,
            key: reader.u64()?,
            directory: reader.bytes()?,
            path: reader.bytes()?,
            seen: reader.numbers()?,
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

/// PartialFile of a 64-bit hash: enough to tell a record cut short from a whole one.
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

    fn numbers<const COUNT: usize>(&mut self) -> Option<[u64; COUNT]> {
        let mut numbers = [0; COUNT];
        for number in &mut numbers {
            *number = self.u64()?;
        }
        Some(numbers)
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.u32()?).ok()?;
        Some(self.take(length)?.to_vec())
    }
}
