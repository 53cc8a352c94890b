//! Sharded GlusterFS files: the brick of each block.
//!
//! An ordinary mount hides both the size of blocks and the folder `.shard` that holds them, and discloses
//! only the brick of a sharded file's first block. A mount for maintenance (`-o client-pid=-1`, as
//! geo-replication makes) shows them. This reads one attribute for each block, as far as [`MOST`].

use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::{major, minor, open, Mode, OFlags};
use rustix::io::Errno;

use super::super::{Layout, LayoutError, OpenFile};

/// Blocks of one file that are asked for; those beyond are left untold. 16 GiB of the default 64 MiB.
const MOST: u64 = 256;

/// The layout of a sharded file, from the text of its first block and its size.
pub(super) fn layout(
    file: &OpenFile<'_>,
    name: &CStr,
    first: &[u8],
    block_size: u64,
) -> Result<Layout, LayoutError> {
    // This mount's own size is that of the first block. The attribute begins with the file's.
    let told = file.attribute_bytes(c"trusted.glusterfs.shard.file-size")?;
    let told = told.as_deref().and_then(|bytes| bytes.first_chunk());
    let size = told.map_or(0, |size| u64::from_be_bytes(*size));
    let mut texts = vec![Some(first.to_vec())];
    if size > block_size && block_size > 0 {
        let blocks = size.div_ceil(block_size).min(MOST);
        if let (Some(root), Some(gfid)) = (mount_point(file.device), identity(file)?) {
            for number in 1..blocks {
                texts.push(block(&root.join(format!(".shard/{gfid}.{number}")), name, file)?);
            }
        }
    }
    let texts: Vec<_> = texts.iter().map(Option::as_deref).collect();
    super::pathinfo::parse_sharded(&texts, block_size)
}

/// The text of one block; None where the block was never written.
fn block(
    path: &std::path::Path,
    name: &CStr,
    file: &OpenFile<'_>,
) -> Result<Option<Vec<u8>>, LayoutError> {
    match open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(block) => OpenFile { fd: block.as_fd(), ..*file }.attribute_bytes(name),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(LayoutError::io(&path.display().to_string(), io::Error::from(error))),
    }
}

/// The file's identity, after which its blocks are called.
fn identity(file: &OpenFile<'_>) -> Result<Option<String>, LayoutError> {
    let gfid = file.attribute_bytes(c"glusterfs.gfid.string")?;
    let gfid = gfid.and_then(|bytes| String::from_utf8(bytes).ok());
    let fits = |gfid: &String| gfid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    Ok(gfid.map(|gfid| gfid.trim_end_matches('\0').to_owned()).filter(fits))
}

/// Where the file system of this device is mounted, by proc_pid_mountinfo(5): the third field is the
/// device, the fifth the place, in which blanks are written as `\040`.
fn mount_point(device: u64) -> Option<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let number = format!("{}:{}", major(device), minor(device));
    text.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let found = fields.nth(2)? == number && fields.next()? == "/";
        found.then(|| fields.next().map(|place| PathBuf::from(place.replace("\\040", " "))))?
    })
}
