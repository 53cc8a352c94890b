//! Independent access: a rank reads and writes its bytes itself.
//!
//! Arrives: places in the file and in memory. Leaves: data in the file, bytes moved. Must not know: messages.
//!
//! Only covered bytes are written, as in collective operations: no read-modify-write, no locks. Pieces that follow each
//! other in the file are one pwritev(2) or preadv(2).
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use crate::error::{argument, Code, Error, Result};
use crate::memory::{Data, Piece, Transfer};
use crate::open::flags;

/// Most pieces of a call: IOV_MAX of Linux.
const PIECES_MOST: usize = 1024;

/// The rank's own descriptor.
#[derive(Debug)]
pub(crate) struct Direct {
    file: File,
    name: String,
}

impl Direct {
    /// Opens a file that exists.
    pub(crate) fn open(path: &[u8], how: u32) -> Result<Self> {
        let path = OsStr::from_bytes(path);
        let name = path.to_string_lossy().into_owned();
        let file = OpenOptions::new()
            .read(how & flags::WRONLY == 0)
            .write(how & flags::RDONLY == 0)
            .open(path)
            .map_err(|error| Error::system(format!("open {name}"), &error))?;
        Ok(Self { file, name })
    }

    /// Moves the bytes of a transfer; those that were moved.
    pub(crate) fn access(&mut self, write: bool, transfer: &Transfer<'_>) -> Result<u64> {
        let mut batch = Batch { direct: self, write, offset: 0, bytes: 0, moved: 0, parts: vec![] };
        let mut result = Ok(true);
        transfer.pieces(transfer.range.clone(), |piece| {
            result = batch.add(piece);
            matches!(result, Ok(true))
        });
        if result? {
            batch.flush()?;
        }
        Ok(batch.moved)
    }

    /// Moves the bytes of extents, in the order of the data.
    pub(crate) fn access_list(
        &mut self,
        write: bool,
        extents: &[(u64, u64)],
        data: &Data,
    ) -> Result<u64> {
        let mut total = 0_u64;
        for (offset, bytes) in extents {
            let end = offset.checked_add(*bytes).filter(|end| i64::try_from(*end).is_ok());
            end.ok_or_else(|| argument("an extent above the largest file offset"))?;
            total = total.checked_add(*bytes).ok_or_else(|| argument("extents above 2^64"))?;
        }
        if total != data.bytes() {
            let bytes = data.bytes();
            return Err(argument(format!("the extents have {total} bytes, the data {bytes}")));
        }
        let mut batch = Batch { direct: self, write, offset: 0, bytes: 0, moved: 0, parts: vec![] };
        let mut at = 0;
        for (offset, bytes) in extents {
            let mut offset = *offset;
            let mut result = Ok(true);
            data.runs(at..at + bytes, |address, bytes| {
                result = batch.add(Piece { offset, address, bytes });
                offset += bytes;
                matches!(result, Ok(true))
            });
            at += bytes;
            // Behind the end of the file others may be before it: only this extent ends.
            result?;
        }
        batch.flush()?;
        Ok(batch.moved)
    }
}

/// Pieces that follow each other in the file.
struct Batch<'a> {
    direct: &'a Direct,
    write: bool,
    offset: u64,
    bytes: u64,
    moved: u64,
    parts: Vec<libc::iovec>,
}

impl Batch<'_> {
    /// Adds a piece; false at the end of the file.
    fn add(&mut self, piece: Piece) -> Result<bool> {
        let follows = self.offset + self.bytes == piece.offset;
        if self.bytes > 0 && (!follows || self.parts.len() == PIECES_MOST) && !self.flush()? {
            return Ok(false);
        }
        if self.bytes == 0 {
            self.offset = piece.offset;
        }
        let iov_len = usize::try_from(piece.bytes).map_err(|_| argument("too many bytes"))?;
        self.parts.push(libc::iovec { iov_base: piece.address as *mut libc::c_void, iov_len });
        self.bytes += piece.bytes;
        Ok(true)
    }

    /// Moves what was added; false at the end of the file. The kernel moves at most 2 GiB a call.
    fn flush(&mut self) -> Result<bool> {
        let mut parts = std::mem::take(&mut self.parts);
        let mut left = &mut parts[..];
        let bytes = std::mem::take(&mut self.bytes);
        let mut moved = 0;
        while moved < bytes {
            let offset = i64::try_from(self.offset + moved)
                .map_err(|_| argument("an offset above the largest file offset"))?;
            let fd = self.direct.file.as_raw_fd();
            let count = libc::c_int::try_from(left.len()).unwrap_or(libc::c_int::MAX);
            // SAFETY: the caller of `Data::new` vouches for the addresses of the parts.
            let result = unsafe {
                if self.write {
                    libc::pwritev64(fd, left.as_ptr(), count, offset)
                } else {
                    libc::preadv64(fd, left.as_ptr(), count, offset)
                }
            };
            let Ok(step) = u64::try_from(result) else {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                let verb = if self.write { "write" } else { "read" };
                return Err(Error::system(format!("{verb} {}", self.direct.name), &error));
            };
            if step == 0 && self.write {
                let text = format!("write {}: no byte was written", self.direct.name);
                return Err(Error::new(Code::Io, text));
            }
            moved += step;
            self.moved += step;
            if step == 0 {
                return Ok(false);
            }
            left = advance(left, step);
        }
        Ok(true)
    }
}

/// The parts after the first `step` bytes.
fn advance(parts: &mut [libc::iovec], step: u64) -> &mut [libc::iovec] {
    let mut step = usize::try_from(step).unwrap_or(usize::MAX);
    let mut whole = 0;
    while whole < parts.len() && step >= parts[whole].iov_len {
        step -= parts[whole].iov_len;
        whole += 1;
    }
    let left = &mut parts[whole..];
    if let Some(first) = left.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(step);
        first.iov_len -= step;
    }
    left
}
