//! Reads a file that may be an image.

use std::os::fd::OwnedFd;

use rustix::io::{pread, Errno};

use crate::error::Limits;
use crate::image_file;

/// Enough of a file to tell what it is.
const HEAD: usize = 16;

/// What a file holds.
pub(crate) enum Content {
    /// All of it.
    Image(Vec<u8>),
    /// No image; the number of bytes read to find that out.
    Other(usize),
}

impl Content {
    /// A file's bytes, or its first where it is no image: other files of a tree are not read in full.
    pub(crate) fn read(file: &OwnedFd, size: u64, limits: Limits) -> Result<Self, Errno> {
        let mut data = vec![0; HEAD];
        let head = fill(file, &mut data, 0)?;
        data.truncate(head);
        if image_file::encoding_of(&data).is_err() {
            return Ok(Self::Other(head));
        }
        // An image of that many pixels takes no more: it would be larger than without compression.
        let most = limits.pixels.saturating_mul(8).saturating_add(16 << 20);
        if size > most {
            return Err(Errno::FBIG);
        }
        data.resize(usize::try_from(size).unwrap_or(usize::MAX).max(head), 0);
        let rest = fill(file, &mut data[head..], head as u64)?;
        data.truncate(head + rest);
        Ok(Self::Image(data))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Image(data) => data.len(),
            Self::Other(bytes) => *bytes,
        }
    }

    pub(crate) fn image(self) -> Option<Vec<u8>> {
        match self {
            Self::Image(data) => Some(data),
            Self::Other(_) => None,
        }
    }
}

fn fill(file: &OwnedFd, into: &mut [u8], from: u64) -> Result<usize, Errno> {
    let mut held = 0;
    while held < into.len() {
        match pread(file, &mut into[held..], from + held as u64) {
            Ok(0) => break,
            Ok(read) => held += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}

/// Whether a name says that it is one of an image.
pub(crate) fn named_as_image(path: &[u8]) -> bool {
    let lower = path.to_ascii_lowercase();
    [&b".png"[..], b".jpg", b".jpeg"].iter().any(|ending| lower.ends_with(ending))
}
