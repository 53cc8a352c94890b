//! What the two ends of a copy tell one another, message by message.
//!
//! Arrives: entries, contents. Leaves: bytes; or from bytes of the peer entries whose paths lead nowhere else.
//! Must not know: files, connections. The form is in `docs/reference/wide-area-copy.md`.

use waystage_copy::attributes::Xattr;
use waystage_copy::stat::{FileState, Metadata};
use waystage_copy::Time;
use waystage_transport::wire::{Malformed, Read, Reader, Writer};

/// Kinds of messages.
pub(crate) mod kinds {
    pub(crate) const OFFER: u8 = 1;
    pub(crate) const ANSWER: u8 = 2;
    pub(crate) const PACK: u8 = 3;
    pub(crate) const PART: u8 = 4;
    pub(crate) const CLOSE: u8 = 5;
    pub(crate) const ABORT: u8 = 6;
    pub(crate) const LINKS: u8 = 7;
    pub(crate) const DONE: u8 = 8;
    pub(crate) const DIGESTS: u8 = 9;
    pub(crate) const EQUAL: u8 = 10;
    pub(crate) const EQUAL_PART: u8 = 11;
    pub(crate) const COMPRESSED: u8 = 12;
}

/// Names are not longer on any file system of Linux, paths not in any call; trees may be deeper than calls reach.
const LONGEST_NAME: usize = 255;
const LONGEST_PATH: usize = 64 << 10;

/// Extended attributes of one entry, names and values, are together not longer than this.
pub(crate) const MOST_XATTR_BYTES: usize = 256 << 10;

/// An entry of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) letter: u8,
    pub(crate) path: Vec<u8>,
    pub(crate) seen: FileState,
    pub(crate) metadata: Metadata,
    pub(crate) symlink: Vec<u8>,
    /// Of a device.
    pub(crate) device: u64,
    pub(crate) xattrs: Vec<Xattr>,
}

impl Entry {
    pub(crate) fn put(&self, out: &mut Writer) {
        out.u8(self.letter).bytes(&self.path);
        let FileState { device, inode, size, mtime, ctime } = self.seen;
        out.u64(device).u64(inode).u64(size).i64(mtime.ns()).i64(ctime.ns());
        let Metadata { mode, uid, gid, mtime: _, atime } = self.metadata;
        out.u32(u32::from(mode)).u32(uid).u32(gid).i64(atime.ns());
        out.bytes(&self.symlink).u64(self.device).count(self.xattrs.len());
        for (name, value) in &self.xattrs {
            out.bytes(name).bytes(value);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let letter = reader.u8()?;
        let path = path(reader.bytes()?)?;
        let seen = FileState {
            device: reader.u64()?,
            inode: reader.u64()?,
            size: reader.u64()?,
            mtime: Time::from_ns(reader.i64()?),
            ctime: Time::from_ns(reader.i64()?),
        };
        let metadata = Metadata {
            mode: u16::try_from(reader.u32()? & 0o7777).map_err(|_| Malformed)?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            mtime: seen.mtime,
            atime: Time::from_ns(reader.i64()?),
        };
        let symlink = reader.bytes()?.to_vec();
        let device = reader.u64()?;
        let xattrs = (0..reader.count(8)?)
            .map(|_| Ok((reader.bytes()?.to_vec(), reader.bytes()?.to_vec())))
            .collect::<Read<Vec<Xattr>>>()?;
        Ok(Self { letter, path, seen, metadata, symlink, device, xattrs })
    }
}

/// A path below a root: names with single slashes between them, and none that leads up or nowhere.
pub(crate) fn path(bytes: &[u8]) -> Read<Vec<u8>> {
    let name_is_good = |name: &[u8]| {
        !matches!(name, b"" | b"." | b"..") && name.len() <= LONGEST_NAME && !name.contains(&0)
    };
    let good = bytes.len() <= LONGEST_PATH && bytes.split(|byte| *byte == b'/').all(name_is_good);
    good.then(|| bytes.to_vec()).ok_or(Malformed)
}

/// Contents where there are any: the holes between them are left out.
pub(crate) type Runs = Vec<(u64, u64)>;

pub(crate) fn put_runs(runs: &Runs, out: &mut Writer) {
    out.count(runs.len());
    for (offset, length) in runs {
        out.u64(*offset).u64(*length);
    }
}

/// Runs within `range`, one behind the other, and as many bytes as they have.
pub(crate) fn read_runs<'a>(
    reader: &mut Reader<'a>,
    range: std::ops::Range<u64>,
) -> Read<(Runs, &'a [u8])> {
    let (mut at, mut total) = (range.start, 0);
    let mut runs = Runs::new();
    for _ in 0..reader.count(16)? {
        let (offset, length) = (reader.u64()?, reader.u64()?);
        let end = offset.checked_add(length).ok_or(Malformed)?;
        if offset < at || end > range.end {
            return Err(Malformed);
        }
        (at, total) = (end, total + length);
        runs.push((offset, length));
    }
    let contents = reader.take(usize::try_from(total).map_err(|_| Malformed)?)?;
    Ok((runs, contents))
}

/// What the receiver says of a large file that it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Which entry of the offer.
    pub(crate) index: u32,
    /// How its parts are to be called.
    pub(crate) id: u32,
    /// Which of its parts are there already.
    pub(crate) held: Vec<u32>,
    /// Whether digests of the others follow, and only what has another one is wanted.
    pub(crate) compared: bool,
}

/// The answer to an offer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Answer {
    pub(crate) batch: u32,
    /// Small files that are wanted, by their place in the offer.
    pub(crate) small: Vec<u32>,
    /// Small files that are wanted unless this is their digest.
    pub(crate) compared: Vec<(u32, u128)>,
    pub(crate) large: Vec<Wanted>,
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(kinds::ANSWER);
        out.u32(self.batch).count(self.small.len());
        for index in &self.small {
            out.u32(*index);
        }
        out.count(self.compared.len());
        for (index, digest) in &self.compared {
            out.u32(*index).u128(*digest);
        }
        out.count(self.large.len());
        for wanted in &self.large {
            out.u32(wanted.index).u32(wanted.id).u8(u8::from(wanted.compared));
            out.count(wanted.held.len());
            for part in &wanted.held {
                out.u32(*part);
            }
        }
        out.0
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let batch = reader.u32()?;
        let small = (0..reader.count(4)?).map(|_| reader.u32()).collect::<Read<_>>()?;
        let compared = (0..reader.count(20)?)
            .map(|_| Ok((reader.u32()?, reader.u128()?)))
            .collect::<Read<_>>()?;
        let mut large = Vec::new();
        for _ in 0..reader.count(13)? {
            let (index, id, compared) = (reader.u32()?, reader.u32()?, reader.flag()?);
            let held = (0..reader.count(4)?).map(|_| reader.u32()).collect::<Read<_>>()?;
            large.push(Wanted { index, id, held, compared });
        }
        reader.end()?;
        Ok(Self { batch, small, compared, large })
    }
}

/// The digests of a large file, part by part; 0 for a part that is not to be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digests {
    pub(crate) id: u32,
    /// Which part the first one is of.
    pub(crate) first: u32,
    pub(crate) digests: Vec<u128>,
}

impl Digests {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(kinds::DIGESTS);
        out.u32(self.id).u32(self.first).count(self.digests.len());
        for digest in &self.digests {
            out.u128(*digest);
        }
        out.0
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let (id, first) = (reader.u32()?, reader.u32()?);
        let digests = (0..reader.count(16)?).map(|_| reader.u128()).collect::<Read<_>>()?;
        reader.end()?;
        Ok(Self { id, first, digests })
    }
}

/// What both ends add up to the same number, if the same contents came to the same places: in any order, and each
/// piece by itself.
pub(crate) fn piece_digest(path: &[u8], index: u32, contents: u128) -> u128 {
    let mut hasher = twox_hash::XxHash3_128::new();
    hasher.write(&contents.to_le_bytes());
    hasher.write(&index.to_le_bytes());
    hasher.write(path);
    hasher.finish_128()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(path: &[u8]) -> Entry {
        Entry {
            letter: b'f',
            path: path.to_vec(),
            seen: FileState {
                device: 1,
                inode: 2,
                size: 3,
                mtime: Time::from_ns(-4),
                ctime: Time::from_ns(5),
            },
            metadata: Metadata {
                mode: 0o640,
                uid: 6,
                gid: 7,
                mtime: Time::from_ns(-4),
                atime: Time::from_ns(8),
            },
            symlink: b"to".to_vec(),
            device: 9,
            xattrs: vec![(b"user.a".to_vec(), b"b".to_vec())],
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let mut out = Writer::default();
        entry(b"a/b").put(&mut out);
        let mut reader = Reader(&out.0);
        assert_eq!(Entry::read(&mut reader), Ok(entry(b"a/b")));
        assert!(reader.is_empty());
        for cut in 0..out.0.len() {
            assert_eq!(Entry::read(&mut Reader(&out.0[..cut])), Err(Malformed), "cut at {cut}");
        }
    }

    #[test]
    fn no_path_leads_out_of_the_root() {
        for bad in ["", "/", "/etc", "..", "a/..", "a/../../b", ".", "a//b", "a/", "a/./b", "a\0b"]
        {
            assert_eq!(path(bad.as_bytes()), Err(Malformed), "{bad:?}");
        }
        assert_eq!(path(&[b'n'; 256]), Err(Malformed));
        for good in ["a", "a/b", "...", "..a/b..", "a b/ü"] {
            assert_eq!(path(good.as_bytes()), Ok(good.as_bytes().to_vec()));
        }
    }

    #[test]
    fn runs_stay_in_their_range_and_in_order() {
        let read = |runs: &Runs, bytes: usize| {
            let mut out = Writer::default();
            put_runs(runs, &mut out);
            out.0.extend(vec![0; bytes]);
            read_runs(&mut Reader(&out.0), 10..20).map(|(runs, _)| runs)
        };
        assert!(read(&vec![(10, 4), (14, 6)], 10).is_ok());
        for bad in [vec![(9, 1)], vec![(19, 2)], vec![(14, 2), (10, 2)], vec![(10, u64::MAX)]] {
            assert_eq!(read(&bad, 10), Err(Malformed), "{bad:?}");
        }
        assert_eq!(read(&vec![(10, 4)], 3), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic_or_take_memory(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Entry::read(&mut Reader(&bytes));
            let _ = Answer::read(&mut Reader(&bytes));
            let _ = Digests::read(&mut Reader(&bytes));
            let _ = read_runs(&mut Reader(&bytes), 0..1 << 40);
        }

        #[test]
        fn answers_are_read_as_they_were_written(
            batch in any::<u32>(), small in prop::collection::vec(any::<u32>(), 0..20),
            held in prop::collection::vec(any::<u32>(), 0..20), compared: bool,
            digests in prop::collection::vec(any::<u128>(), 0..20),
        ) {
            let read = Digests { id: 3, first: 4, digests: digests.clone() };
            prop_assert_eq!(Digests::read(&mut Reader(&read.encode()[1..])), Ok(read));
            let large = vec![Wanted { index: 1, id: 2, held, compared }];
            let answer = Answer { batch, small, compared: (5..).zip(digests).collect(), large };
            let bytes = answer.encode();
            prop_assert_eq!(Answer::read(&mut Reader(&bytes[1..])), Ok(answer));
        }
    }
}
