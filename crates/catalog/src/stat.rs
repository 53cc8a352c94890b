//! statx(2) as walks and checks call it: basic attributes; but for targets no link followed, nothing mounted.

use std::os::fd::AsFd;

use rustix::fs::{statx, AtFlags, Statx, StatxFlags};
use rustix::io::Errno;

/// The attributes of the entry of this name.
pub(crate) fn stat_name(dir: impl AsFd, name: impl rustix::path::Arg) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);
    statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

/// The attributes of what the symbolic link of this name leads to.
pub(crate) fn stat_target(dir: impl AsFd, name: impl rustix::path::Arg) -> Result<Statx, Errno> {
    statx(dir, name, AtFlags::empty(), StatxFlags::BASIC_STATS)
}

/// The attributes of an open file or directory.
pub(crate) fn stat_open(fd: impl AsFd) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// Basic attributes but the access time: network and FUSE file systems ask the server for that after each read, and for
/// the others only when they do not know them from the open.
const TO_READ: StatxFlags = StatxFlags::BASIC_STATS.difference(StatxFlags::ATIME);

/// The attributes of an open file but its access time.
pub(crate) fn stat_to_read(fd: impl AsFd) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH, TO_READ)
}

/// The same from the client's cache, without a request to the server (statx(2), `AT_STATX_DONT_SYNC`). An open fills
/// the cache. Of a file that is being written the size and times may be old.
pub(crate) fn stat_known(fd: impl AsFd) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH.union(AtFlags::STATX_DONT_SYNC), TO_READ)
}

/// The same from the server, past the client's cache (`AT_STATX_FORCE_SYNC`).
pub(crate) fn stat_asked(fd: impl AsFd) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH.union(AtFlags::STATX_FORCE_SYNC), TO_READ)
}
