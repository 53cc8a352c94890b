//! Parts of messages about what is copied: lists of names and patterns, where replaced files go.
//!
//! Arrives: values; bytes of the peer. Leaves: the same as bytes; or that they are malformed. Must not know: messages.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use waystage_copy::backup::Backup;
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
