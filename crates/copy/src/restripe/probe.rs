//! Whether the tree's file system gives files a layout, tried on an empty file that is gone at once.

use std::os::fd::AsFd;

use rustix::io::Errno;
use waystage_catalog::Root;

use super::stripes::{Current, Shape};
use super::temporary::{layout_of, Live, NewInode};
use super::StripeLayout;
use crate::error::{describe, CopyError, Failure};
use crate::file_io::write_all;

/// What a file has that was given this layout: the file system may have fewer targets, or pools by default.
pub(super) fn try_layout(
    root: &Root,
    layout: &StripeLayout,
    live: &Live,
    shown: &str,
) -> Result<Shape, CopyError> {
    let refused = |text: String| CopyError::Ends(format!("{shown}: {text}"));
    let folder = root.directory(b"").map_err(|errno| refused(describe(errno)))?;
    let made = NewInode::make(folder.as_fd(), &layout.encode(), live).map_err(|failure| match failure {
        Failure::Call { doing: "set layout", errno: Errno::OPNOTSUPP | Errno::PERM | Errno::NOTTY, .. } => {
            without_stripes(shown)
        }
        Failure::Call { doing: "set layout", errno, .. } => refused(format!(
            "its file system refuses this layout ({}): it may have no such pool, or not support several parts",
            describe(errno)
        )),
        Failure::Call { errno: errno @ (Errno::NOSPC | Errno::DQUOT), .. } => {
            CopyError::NoSpace(format!("{shown}: {}: make room, then give the same command again", describe(errno)))
        }
        other => CopyError::Refused(format!("{shown}: no file can be made in it: {other}")),
    })?;
    // A part gets its objects when it is reached.
    for start in layout.starts() {
        write_all(made.file.as_fd(), b"w", start)
            .map_err(|failure| CopyError::Refused(format!("{shown}: {failure}")))?;
    }
    let answer =
        layout_of(folder.as_fd(), &made.name.name).map_err(|errno| refused(describe(errno)))?;
    match answer.as_deref().map(|bytes| (Current::of(bytes), Current::has_objects(bytes))) {
        Some((Current::Striped(shape), true)) => Ok(shape),
        // The attribute is kept and means nothing.
        _ => Err(without_stripes(shown)),
    }
}

fn without_stripes(shown: &str) -> CopyError {
    CopyError::Ends(format!(
        "{shown} is on a file system that lets no client choose stripes: restripe works on Lustre and on `waystage lab \
         pfs`; on Gfarm give --replicas instead of a layout, and GlusterFS has its shards from its volume"
    ))
}
