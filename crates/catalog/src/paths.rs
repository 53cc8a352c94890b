//! Paths in columns: a directory's number and a name.
//!
//! Arrives: columns as a catalog has them.
//! Leaves: strings, and numbers by which equal paths of two catalogs meet.
//! Must not know: what else entries have.

use rustix::io::Errno;
use twox_hash::XxHash3_128;

/// Byte strings one after the other in Arrow's form: string i is `.1[.0[i]..0[i + 1]]`.
pub type Strings<'a> = (&'a [i32], &'a [u8]);

/// String `number`; `INVAL` where there is none.
pub(crate) fn string<'a>(strings: Strings<'a>, number: i32) -> Result<&'a [u8], Errno> {
    let at = |index: usize| strings.0.get(index).and_then(|at| usize::try_from(*at).ok());
    let index = usize::try_from(number).map_err(|_| Errno::INVAL)?;
    let (start, end) = at(index).zip(at(index + 1)).ok_or(Errno::INVAL)?;
    strings.1.get(start..end).ok_or(Errno::INVAL)
}

/// 64 bits of XXH3 of each path, the same wherever the path is met.
///
/// # Errors
/// `INVAL` where the columns do not fit together.
pub fn hash_paths(
    directories: Strings<'_>,
    directory: &[i32],
    names: Strings<'_>,
) -> Result<Vec<u64>, Errno> {
    let mut path = Vec::new();
    let mut hashes = Vec::with_capacity(directory.len());
    for (row, folder) in (0_i32..).zip(directory) {
        path.clear();
        path.extend_from_slice(string(directories, *folder)?);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(string(names, row)?);
        let hash = XxHash3_128::oneshot(&path);
        hashes.push((hash >> 64) as u64 ^ hash as u64);
    }
    Ok(hashes)
}
