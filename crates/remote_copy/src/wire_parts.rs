//! Parts of messages about what is copied: lists of names and patterns, limits, where replaced files
//! go, what an end holds.
//!
//! Arrives: values; bytes of the peer. Leaves: the same as bytes; or that they are malformed. Must not know: messages.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use waystage_copy::after::Held;
use waystage_copy::backup::Backup;
use waystage_copy::Limits;
use waystage_transport::wire::{Malformed, Read, Reader, Writer};

pub(crate) fn put_list(list: &[Vec<u8>], out: &mut Writer) {
    out.count(list.len());
    for bytes in list {
        out.bytes(bytes);
    }
}

pub(crate) fn read_list(reader: &mut Reader<'_>) -> Read<Vec<Vec<u8>>> {
    (0..reader.count(4)?).map(|_| Ok(reader.bytes()?.to_vec())).collect()
}

/// Each limit after a flag that says whether there is one; times as they are in memory, in two's complement.
pub(crate) fn put_limits(limits: &Limits, out: &mut Writer) {
    let Limits { min_size, max_size, since, until } = *limits;
    let times = [since, until].map(|time| time.map(i64::cast_unsigned));
    for limit in [min_size, max_size].into_iter().chain(times) {
        out.u8(u8::from(limit.is_some())).u64(limit.unwrap_or_default());
    }
}

pub(crate) fn read_limits(reader: &mut Reader<'_>) -> Read<Limits> {
    let mut limit = || -> Read<Option<u64>> {
        let given = reader.flag()?;
        let value = reader.u64()?;
        Ok(given.then_some(value))
    };
    let (min_size, max_size, since, until) = (limit()?, limit()?, limit()?, limit()?);
    let time = |value: Option<u64>| value.map(|seconds| seconds.cast_signed());
    Ok(Limits { min_size, max_size, since: time(since), until: time(until) })
}

/// Bytes of what an end holds.
pub(crate) const HELD_BYTES: usize = 57;

pub(crate) fn put_held(held: &Held, out: &mut Writer) {
    let Held { letter, size, inode, changed, digest } = held;
    out.u8(*letter).u64(*size).u64(*inode).i64(*changed).array(digest);
}

pub(crate) fn read_held(reader: &mut Reader<'_>) -> Read<Held> {
    Ok(Held {
        letter: reader.u8()?,
        size: reader.u64()?,
        inode: reader.u64()?,
        changed: reader.i64()?,
        digest: reader.array()?,
    })
}

/// The directory, empty for beside the file, and what is added to names.
pub(crate) fn put_backup(backup: &Backup, out: &mut Writer) {
    let directory = backup.directory.as_deref().map(std::path::Path::as_os_str);
    out.bytes(directory.map(OsStrExt::as_bytes).unwrap_or_default()).bytes(&backup.suffix);
}

/// A backup whose directory is below the destination, and whose names are others than those of the files.
pub(crate) fn read_backup(reader: &mut Reader<'_>) -> Read<Backup> {
    let (directory, suffix) = (reader.bytes()?, reader.bytes()?.to_vec());
    let directory = match directory {
        b"" => None,
        directory => Some(OsString::from_vec(crate::entry::path(directory)?).into()),
    };
    if suffix.contains(&b'/') || suffix.contains(&0) || suffix.is_empty() && directory.is_none() {
        return Err(Malformed);
    }
    Ok(Backup { directory, suffix })
}
