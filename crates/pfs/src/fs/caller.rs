//! The rights of the user whose request a thread serves.
//!
//! Arrives: a user and a group.
//! Leaves: a thread that opens and makes files with their rights; afterwards with its own again.
//! Must not know: requests.
//!
//! The kernel has checked the user's rights to what the path was when it asked (`default_permissions`). Another process
//! of the user may rename a directory meanwhile and put a symbolic link in its place: without the user's rights here,
//! the server would follow it as root.

use fuser::Request;
use nix::unistd::{setfsgid, setfsuid, Gid, Uid};

use super::Pfs;

/// Of the calling thread (setfsuid(2)); dropped, it is root's again.
#[derive(Debug)]
pub(super) struct Caller;

impl Caller {
    pub(super) fn new(uid: u32, gid: u32) -> Self {
        setfsgid(Gid::from_raw(gid));
        setfsuid(Uid::from_raw(uid));
        Self
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        setfsuid(Uid::from_raw(0));
        setfsgid(Gid::from_raw(0));
    }
}

impl Pfs {
    pub(crate) const fn shared(&self) -> bool {
        self.client.shared
    }

    /// While it lives, this thread has the rights of the request's user, whose new files are then the user's own.
    pub(super) fn caller(&self, req: &Request) -> Option<Caller> {
        (self.client.shared && req.uid() != 0).then(|| Caller::new(req.uid(), req.gid()))
    }
}
