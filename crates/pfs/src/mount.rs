//! Mounting and unmounting.
//!
//! Arrives: a mount point, a file system.
//! Leaves: requests served by threads, until it is unmounted.
//! Must not know: what the file system holds.

use std::path::Path;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};

use crate::error::PfsError;
use crate::fs::Pfs;

/// Threads that take requests: they compute and never wait for a server.
const THREADS: usize = 2;

/// A mount; dropped, it is unmounted.
#[derive(Debug)]
pub struct Mount {
    session: BackgroundSession,
}

impl Mount {
    /// Mount `pfs` on `point` and serve it; `name` is its source, as `mount` shows it. Where `pfs` is shared, every
    /// user may use it, and the kernel checks their rights (`allow_other`, `default_permissions` of mount.fuse(8)).
    ///
    /// # Errors
    /// Where there is no FUSE, or the mount is refused.
    pub fn new(pfs: Pfs, point: &Path, name: &str) -> Result<Self, PfsError> {
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::FSName(name.to_owned()), MountOption::NoSuid, MountOption::NoDev];
        config.acl = SessionACL::Owner;
        if pfs.shared() {
            config.acl = SessionACL::All;
            config.mount_options.push(MountOption::DefaultPermissions);
        }
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let session = Session::new(pfs, point, &config).map_err(PfsError::Mount)?;
        let session = session.spawn().map_err(PfsError::Mount)?;
        Ok(Self { session })
    }

    /// Whether it is no longer mounted, or its threads are gone.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Unmount, and wait for the threads. While a process uses it, it is only detached from the tree (MNT_DETACH).
    ///
    /// # Errors
    /// Where it cannot be unmounted.
    pub fn end(self) -> Result<(), PfsError> {
        self.session.umount_and_join().map_err(PfsError::Mount)
    }
}
