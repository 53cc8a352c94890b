//! A file's contents and their digest, from disk to network and back.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind as Io, Read};
use std::os::fd::OwnedFd;

use twox_hash::XxHash3_128;

use super::arrival::Arrival;
use super::channel::{Channel, PIECE_BYTES};
use super::error::{shown, ErrorKind, TransferError};
use super::wire::Frame;

/// Send `file` as `name`; its bytes. Between pieces `look` may end it.
///
/// Pieces are read, hashed and sent: each is still in the cache when it is sent, and the digest is of the
/// very bytes that leave.
pub(crate) fn send(
    channel: &mut Channel,
    file: &File,
    name: &[u8],
    mut look: impl FnMut(&mut Channel) -> Result<(), TransferError>,
) -> Result<u64, TransferError> {
    let failed = |error: std::io::Error| TransferError::file(name, &error);
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        let text = format!("{}: is no regular file", shown(name));
        return Err(TransferError::new(ErrorKind::Refused, text));
    }
    let size = about.len();
    channel.send(&[Frame::File { name: name.to_vec(), size }])?;
    let mut hasher = XxHash3_128::new();
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let count = match (&*file).read(&mut channel.buffer[..most]) {
            Ok(0) => {
                let text = format!("{}: has become shorter while it was sent", shown(name));
                return Err(TransferError::new(ErrorKind::File, text));
            }
            Ok(count) => count,
            Err(error) if error.kind() == Io::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        hasher.write(&channel.buffer[..count]);
        channel.write_buffer(count)?;
        left -= count as u64;
        look(channel)?;
    }
    channel.send(&[Frame::Digest(hasher.finish_128())])?;
    Ok(size)
}

/// Receive `size` bytes and their digest as `last` in `folder`. Unless they are whole nothing stays.
pub(crate) fn receive(
    channel: &mut Channel,
    folder: OwnedFd,
    last: &OsStr,
    name: &[u8],
    size: u64,
) -> Result<(), TransferError> {
    let failed = |error: std::io::Error| TransferError::file(name, &error);
    let mut arrival = Arrival::begin(folder, size).map_err(failed)?;
    let mut hasher = XxHash3_128::new();
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE_BYTES);
        let count = channel.read_buffer(most)?;
        hasher.write(&channel.buffer[..count]);
        arrival.write(&channel.buffer[..count]).map_err(failed)?;
        left -= count as u64;
    }
    match channel.receive()? {
        Frame::Digest(digest) if digest == hasher.finish_128() => {
            arrival.keep(last).map_err(failed)
        }
        Frame::Digest(_) => {
            let text = format!("{}: what arrived is not what was sent", shown(name));
            Err(TransferError::new(ErrorKind::Damaged, text))
        }
        other => Err(channel.unexpected(&other)),
    }
}
