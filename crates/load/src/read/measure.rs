//! Measures a target: the time that a number of readers needs for pieces of its objects.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{fadvise, Advice};
use waystage_catalog::CheckedTree;
use waystage_sync::Mutex;

use super::region::append;
use crate::error::LoadError;
use crate::files::{Extent, Files};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// The target, by its index in [`Files::targets`].
    pub target: u16,
    /// Pieces of it that are passed over, because they were read before.
    pub skip: usize,
    /// Pieces to read.
    pub pieces: usize,
    /// Readers at once.
    pub readers: usize,
    /// The largest piece.
    pub piece_bytes: u64,
    /// Bytes to read at most.
    pub most_bytes: u64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes read.
    pub bytes: u64,
    /// What all readers together took.
    pub reading: Duration,
    /// Pieces read, those included that could not be.
    pub pieces: usize,
}

/// Measure. What the page cache holds of a piece is let go before it is read, as far as the kernel does so.
///
/// # Errors
/// Where the root cannot be opened.
pub fn measure(files: &Files, of: &Measurement) -> Result<Measured, LoadError> {
    let tree = CheckedTree::open(files.root())
        .map_err(|error| LoadError::Io(files.root().to_path_buf(), error))?;
    let pieces = pieces(files, of);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Measured { pieces: pieces.len(), ..Measured::default() });
    std::thread::scope(|scope| {
        for _ in 0..of.readers.min(pieces.len()) {
            scope.spawn(|| {
                let mut buffer = Vec::new();
                while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = Instant::now();
                    let Some(bytes) = read(&tree, files, *piece, &mut buffer) else { continue };
                    let mut done = done.lock();
                    done.bytes += bytes;
                    done.reading += began.elapsed();
                }
            });
        }
    });
    Ok(done.into_inner())
}

/// The pieces to read, of different files as far as there are any: neighbours of one file are read ahead by the
/// kernel.
fn pieces(files: &Files, of: &Measurement) -> Vec<(u32, Extent)> {
    let objects = 0..u32::try_from(files.objects()).unwrap_or(u32::MAX);
    let of_target = objects.filter(|object| files.object(*object).0 == of.target);
    let mut left = of.most_bytes;
    of_target
        .flat_map(|object| {
            let file = files.file_of(object);
            files.extents_of(object, of.piece_bytes).map(move |extent| (file, extent))
        })
        .filter(|(_, extent)| extent.length > 0)
        .skip(of.skip)
        .take(of.pieces)
        .take_while(|(_, extent)| {
            let fits = extent.length <= left;
            left = left.saturating_sub(extent.length);
            fits
        })
        .collect()
}

fn read(
    tree: &CheckedTree,
    files: &Files,
    (file, extent): (u32, Extent),
    buffer: &mut Vec<u8>,
) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = files.path(file);
    let opened = tree.open_file(path.as_os_str().as_bytes(), files.recorded(file)).ok()?;
    let length = std::num::NonZeroU64::new(extent.length);
    // Refused where a file system has no page cache to let go of, which is as good.
    let _ = fadvise(&opened.file, extent.offset, length, Advice::DontNeed);
    let length = usize::try_from(extent.length).ok()?;
    buffer.clear();
    buffer.reserve(length);
    append(&opened.file, buffer, length, extent.offset).ok()?;
    Some(buffer.len() as u64)
}
