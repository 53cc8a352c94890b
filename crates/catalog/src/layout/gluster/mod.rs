//! GlusterFS: the attribute `trusted.glusterfs.pathinfo`, and sharded files.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::reader::{LayoutReader, OpenFile};
use super::{Layout, LayoutError};
use pathinfo::KIND;

mod pathinfo;
mod shards;

pub use pathinfo::{parse, parse_sharded};

/// GlusterFS through its FUSE client.
#[derive(Clone, Copy, Debug)]
pub struct Reader;

/// `pathinfo` for users with and without privileges.
const PATHINFO: [&CStr; 2] = [c"trusted.glusterfs.pathinfo", c"glusterfs.pathinfo"];

/// Which of the two answered last: a question is a message to the client's process.
static UNPRIVILEGED: AtomicBool = AtomicBool::new(false);

impl LayoutReader for Reader {
    fn name(&self) -> &'static str {
        KIND
    }

    fn tried_on_fuse(&self) -> bool {
        true
    }

    fn parse(&self, bytes: &[u8]) -> Result<Layout, LayoutError> {
        parse(bytes)
    }

    /// Of a sharded file where its first block is, unless the mount shows more.
    fn read(&self, file: &OpenFile<'_>) -> Result<Option<Layout>, LayoutError> {
        let last = UNPRIVILEGED.load(Ordering::Relaxed);
        for unprivileged in [last, !last] {
            let name = PATHINFO[usize::from(unprivileged)];
            let Some(text) = file.attribute_bytes(name)? else { continue };
            UNPRIVILEGED.store(unprivileged, Ordering::Relaxed);
            let block_size = file.attribute(c"trusted.glusterfs.shard.block-size", |bytes| {
                let number = bytes.first_chunk().map(|number| u64::from_be_bytes(*number));
                number.ok_or_else(|| LayoutError::truncated("shard.block-size: fewer than 8 bytes"))
            })?;
            return match block_size {
                Some(block_size) => shards::layout(file, name, &text, block_size).map(Some),
                None => parse(&text).map(Some),
            };
        }
        Ok(None)
    }
}
