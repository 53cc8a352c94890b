//! Owners, modes, extended attributes and times: onto a file that was just made, or one that was there before.
//!
//! Arrives: attributes of an open file, or as another host described them. Leaves: the same on another file, and what
//! of them could not be kept. Must not know: contents, names, transports.
//!
//! The order matters: a change of owner takes set-user-id bits and capabilities away, an access control list that the
//! directory handed down must be gone before the mode opens the file, and all of them change times.

mod acl;
mod project;
mod xattr;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{
    chmod, chownat, fchmod, fchown, futimens, utimensat, AtFlags, Gid, Mode, Timestamps, Uid, CWD,
};
use rustix::io::Errno;

use crate::error::{join_lost, At, End, Failure, Lost};
use crate::stat::{stat_fd, Metadata};
use crate::time::Time;

use acl::ACCESS;
use project::{Project, WithoutProjects};

pub use acl::mode_without;
pub(crate) use xattr::Handle;
pub use xattr::Xattr;

/// Set-user-id and set-group-id.
const SET_ID: u16 = 0o6000;

/// What this process is and may do, asked once.
#[derive(Debug, Clone)]
pub struct AttributePreserver {
    uid: u32,
    gid: u32,
    umask: u16,
    owners: bool,
    xattrs: bool,
    without_projects: Arc<WithoutProjects>,
}

/// Where extended attributes, and what else statx(2) does not report, come from.
#[derive(Debug, Clone, Copy)]
pub enum Attributes<'a> {
    /// This open file.
    Of(BorrowedFd<'a>),
    /// They have been read before: extended attributes, sorted by name.
    Known(&'a [Xattr]),
}

/// What an entry has beside what statx(2) reports.
#[derive(Default)]
struct Extras {
    xattrs: Vec<Xattr>,
    /// Its access control list, where that is not kept.
    list: Option<Vec<u8>>,
    project: Option<Project>,
    lost: Lost,
}

impl AttributePreserver {
    /// Asks the system; `owners` and `xattrs` say what is to be kept.
    pub fn new(owners: bool, xattrs: bool) -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: umask(),
            owners,
            xattrs,
            without_projects: Arc::default(),
        }
    }

    /// The mode to create a file with that has no name yet, and whether it is final: where nothing about the owner
    /// has to change and the process's mask takes nothing away.
    ///
    /// `plain` says that the directory hands nothing down, neither its group nor an access control list.
    pub fn first_mode(&self, metadata: &Metadata, plain: bool) -> (Mode, bool) {
        let is_final = plain
            && !self.changes_owner(metadata)
            && metadata.mode & (self.umask | 0o7000) == 0
            && metadata.mode & 0o600 == 0o600;
        // Until its owner is right, no other user may read the file.
        let mode = if is_final { metadata.mode } else { 0o600 };
        (Mode::from_raw_mode(u32::from(mode)), is_final)
    }

    fn changes_owner(&self, metadata: &Metadata) -> bool {
        self.owners && (metadata.uid, metadata.gid) != (self.uid, self.gid)
    }

    fn extras(&self, from: &Attributes<'_>) -> Result<Extras, Failure> {
        match from {
            Attributes::Of(file) => {
                let handle = Handle::open(*file);
                if !self.xattrs {
                    return Ok(Extras { list: handle.access_list(), ..Extras::default() });
                }
                let (xattrs, lost) = handle.all(End::Source)?;
                let project = self.without_projects.project_of(*file);
                Ok(Extras { xattrs, list: None, project, lost })
            }
            Attributes::Known(known) if self.xattrs => {
                Ok(Extras { xattrs: known.to_vec(), ..Extras::default() })
            }
            Attributes::Known(known) => {
                let list = known.iter().find(|(name, _)| name == ACCESS);
                Ok(Extras { list: list.map(|(_, value)| value.clone()), ..Extras::default() })
            }
        }
    }

    /// Everything but times onto an open file or directory. `mode_is_final` where it was made with its mode.
    ///
    /// # Errors
    /// Those of the calls that read and set them.
    pub fn apply(
        &self,
        from: &Attributes<'_>,
        to: BorrowedFd<'_>,
        metadata: &Metadata,
        mode_is_final: bool,
    ) -> Result<Lost, Failure> {
        self.apply_extras(&self.extras(from)?, to, metadata, mode_is_final)
    }

    fn apply_extras(
        &self,
        extras: &Extras,
        to: BorrowedFd<'_>,
        metadata: &Metadata,
        mode_is_final: bool,
    ) -> Result<Lost, Failure> {
        let (mut mode, mut lost) = (metadata.mode, extras.lost.clone());
        if self.owners && !mode_is_final && !self.own(to, metadata)? {
            // Rights of one owner must not become rights of another.
            if mode & SET_ID != 0 {
                lost = join_lost(
                    lost,
                    Some("set-user-id and set-group-id, as its owner is another".to_owned()),
                );
            }
            mode &= !SET_ID;
        }
        let mut list = extras.list.as_deref();
        if self.xattrs {
            // What was made with its mode in a plain directory has no attributes yet.
            let (more, without_list) = Handle::open(to).make(&extras.xattrs, !mode_is_final)?;
            lost = join_lost(lost, more);
            if without_list {
                let wanted = extras.xattrs.iter().find(|(name, _)| name == ACCESS);
                list = wanted.map(|(_, value)| &value[..]);
            }
        }
        if let Some(list) = list {
            mode = mode_without(mode, list);
        }
        if !mode_is_final || mode != metadata.mode {
            fchmod(to, Mode::from_raw_mode(u32::from(mode))).at(End::Destination, "set mode")?;
        }
        if mode & SET_ID != 0 {
            // The system takes them away in silence from who may not set them.
            let kept = stat_fd(to).at(End::Destination, "stat")?.stx_mode & SET_ID;
            if kept != mode & SET_ID {
                lost = join_lost(lost, Some("set-user-id or set-group-id".to_owned()));
            }
        }
        Ok(join_lost(lost, extras.project.and_then(|project| project.apply(to))))
    }

    /// Times onto an open file or directory; what of them its file system cannot keep.
    pub fn times(&self, to: BorrowedFd<'_>, metadata: &Metadata) -> Result<Lost, Failure> {
        futimens(to, &metadata.times()).at(End::Destination, "set times")?;
        kept_times(to, metadata)
    }

    /// Everything onto a symbolic link, device or FIFO that is open with `O_PATH`.
    pub(crate) fn apply_special(
        &self,
        wanted: &[Xattr],
        to: BorrowedFd<'_>,
        metadata: &Metadata,
        has_mode: bool,
    ) -> Result<Lost, Failure> {
        let (handle, mut mode, mut lost) = (Handle::special(to), metadata.mode, None);
        if self.owners {
            let (uid, gid) = (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid));
            match chownat(to, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
                Ok(()) => {}
                Err(Errno::PERM) => mode &= !SET_ID,
                Err(errno) => return Err(errno).at(End::Destination, "set owner"),
            }
        }
        if self.xattrs {
            let without_list;
            (lost, without_list) = handle.make(wanted, true)?;
            let list = wanted.iter().find(|(name, _)| name == ACCESS);
            if let Some((_, list)) = list.filter(|_| without_list) {
                mode = mode_without(mode, list);
            }
        }
        if has_mode {
            let mode = Mode::from_raw_mode(u32::from(mode));
            chmod(handle.path(), mode).at(End::Destination, "set mode")?;
        }
        match utimensat(to, c"", &metadata.times(), AtFlags::EMPTY_PATH) {
            // Kernels before 5.8 want a path.
            Err(Errno::INVAL) => by_path(&handle, &metadata.times()),
            other => other,
        }
        .at(End::Destination, "set times")?;
        Ok(join_lost(lost, kept_times(to, metadata)?))
    }

    /// Fix the attributes of a symbolic link, device or FIFO that is what it should be otherwise.
    pub(crate) fn repair_special(
        &self,
        wanted: &[Xattr],
        to: BorrowedFd<'_>,
        metadata: &Metadata,
        has_mode: bool,
    ) -> Result<Lost, Failure> {
        let stat = stat_fd(to).at(End::Destination, "stat")?;
        let found = Metadata::of(&stat);
        let owner =
            self.owners && self.uid == 0 && (metadata.uid, metadata.gid) != (found.uid, found.gid);
        let mode = has_mode && metadata.mode != found.mode;
        let xattrs = self.xattrs && Handle::special(to).differs(wanted)?;
        if !owner && !mode && !xattrs && metadata.mtime == found.mtime {
            return Ok(None);
        }
        self.apply_special(wanted, to, metadata, has_mode)
    }

    /// The extended attributes of a symbolic link, device or FIFO that is open with `O_PATH`.
    pub(crate) fn xattrs_of_special(
        &self,
        from: BorrowedFd<'_>,
    ) -> Result<(Vec<Xattr>, Lost), Failure> {
        if !self.xattrs {
            return Ok((Vec::new(), None));
        }
        match Handle::special(from).all(End::Source) {
            // No /proc, or a sort of entry that has none.
            Err(Failure::Call { errno: Errno::NOENT | Errno::NOTDIR, .. }) => {
                Ok((Vec::new(), None))
            }
            other => other,
        }
    }

    /// Whether owner and group are as wanted now. Only root gives files away; others keep the group where they may.
    fn own(&self, to: BorrowedFd<'_>, metadata: &Metadata) -> Result<bool, Failure> {
        let (uid, gid) = (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid));
        match fchown(to, Some(uid), Some(gid)) {
            Ok(()) => return Ok(true),
            Err(Errno::PERM | Errno::INVAL) => {}
            Err(errno) => return Err(errno).at(End::Destination, "set owner"),
        }
        match fchown(to, None, Some(gid)) {
            Ok(()) => Ok(metadata.uid == self.uid),
            Err(Errno::PERM | Errno::INVAL) => Ok(false),
            Err(errno) => Err(errno).at(End::Destination, "set group"),
        }
    }

    /// Fix the attributes of a file whose contents are right; whether any differed.
    ///
    /// # Errors
    /// Those of the calls that read and set them.
    pub fn repair(
        &self,
        from: &Attributes<'_>,
        to: BorrowedFd<'_>,
        wanted: &Metadata,
        found: &Metadata,
    ) -> Result<(bool, Lost), Failure> {
        let extras = self.extras(from)?;
        let root = self.uid == 0;
        let mode = extras.list.as_ref().map_or(wanted.mode, |list| mode_without(wanted.mode, list));
        let owner = self.owners && root && (wanted.uid, wanted.gid) != (found.uid, found.gid);
        let mode = mode != found.mode && (root || wanted.uid == found.uid);
        let unlike = self.xattrs && Handle::open(to).differs(&extras.xattrs)?;
        let project =
            extras.project.is_some() && self.without_projects.project_of(to) != extras.project;
        if !owner && !mode && !unlike && !project {
            return Ok((false, extras.lost));
        }
        let lost = self.apply_extras(&extras, to, wanted, false)?;
        Ok((true, join_lost(lost, self.times(to, wanted)?)))
    }
}

/// What of its times the file system has cut to those that it knows: as a rule some between 1901 and 2486.
fn kept_times(to: BorrowedFd<'_>, metadata: &Metadata) -> Result<Lost, Failure> {
    let usual = |time: Time| (0..=i64::from(i32::MAX)).contains(&time.seconds);
    if usual(metadata.mtime) && usual(metadata.atime) {
        return Ok(None);
    }
    let found = Metadata::of(&stat_fd(to).at(End::Destination, "stat")?);
    // Some keep whole or every second second.
    let near = |one: Time, other: Time| one.seconds.abs_diff(other.seconds) <= 2;
    let kept = near(found.mtime, metadata.mtime) && near(found.atime, metadata.atime);
    Ok((!kept).then(|| "times that the destination's file system does not know".to_owned()))
}

fn by_path(place: &Handle<'_>, times: &Timestamps) -> Result<(), Errno> {
    utimensat(CWD, place.path(), times, AtFlags::empty())
}

/// Whether the extended attributes of two open files differ, of those that are kept.
pub fn xattrs_differ(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<bool, Failure> {
    let (one, other) = (all(one, End::Source)?, all(other, End::Destination)?);
    Ok(one != other)
}

/// The extended attributes of an open file that are kept, sorted.
pub fn all(file: BorrowedFd<'_>, end: End) -> Result<Vec<Xattr>, Failure> {
    Handle::open(file).all(end).map(|(found, _)| found)
}

/// The mode bits that new files lose. umask(2) tells them only by setting them, which other threads would notice.
fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u16::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o777)
}
