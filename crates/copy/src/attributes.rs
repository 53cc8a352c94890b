//! Owners, modes, extended attributes and times: onto what was just made, or onto what has stood there before.
//!
//! The order matters: a change of owner takes set-user-id bits and capabilities away, an access control list that the directory
//! handed down must be gone before the mode opens the file, and all of them change times.

use std::os::fd::BorrowedFd;

use rustix::fs::{
    chmod, chownat, fchmod, fchown, futimens, utimensat, AtFlags, Gid, Mode, Timestamps, Uid, CWD,
};
use rustix::io::Errno;

use crate::acl::{mode_without, ACCESS};
use crate::error::{At, End, Failure};
use crate::item::{look_at, About};
use crate::project::Project;
use crate::time::Time;
pub use crate::xattr::Attribute;
use crate::xattr::Handle;

/// Set-user-id and set-group-id.
const SET_ID: u16 = 0o6000;

/// What this process is and may do, asked once.
#[derive(Debug, Clone, Copy)]
pub struct Keeper {
    uid: u32,
    gid: u32,
    umask: u16,
    owners: bool,
    xattrs: bool,
}

/// What could not be kept, for the report.
pub type Lost = Option<String>;

/// Two losses of one entry.
pub fn both(one: Lost, other: Lost) -> Lost {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}; {other}")),
        (one, other) => one.or(other),
    }
}

/// What an entry has besides what statx(2) tells.
#[derive(Default)]
struct Extras {
    xattrs: Vec<Attribute>,
    /// Its access control list, where that is not kept.
    list: Option<Vec<u8>>,
    project: Option<Project>,
    lost: Lost,
}

impl Keeper {
    /// Asks the system; `owners` and `xattrs` say what is to be kept.
    pub fn new(owners: bool, xattrs: bool) -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: umask(),
            owners,
            xattrs,
        }
    }

    /// The mode to create a file with that has no name yet, and whether it is final: where nothing about the owner has to
    /// change and the process's mask takes nothing away.
    ///
    /// `plain` says that the directory hands nothing down, neither its group nor an access control list.
    pub fn first_mode(&self, about: &About, plain: bool) -> (Mode, bool) {
        let is_final = plain
            && !self.changes_owner(about)
            && about.mode & (self.umask | 0o7000) == 0
            && about.mode & 0o600 == 0o600;
        // Until its owner is right, a file is nobody else's to read.
        let mode = if is_final { about.mode } else { 0o600 };
        (Mode::from_raw_mode(u32::from(mode)), is_final)
    }

    fn changes_owner(&self, about: &About) -> bool {
        self.owners && (about.uid, about.gid) != (self.uid, self.gid)
    }

    fn extras(&self, from: BorrowedFd<'_>) -> Result<Extras, Failure> {
        let handle = Handle::open(from);
        if !self.xattrs {
            return Ok(Extras { list: handle.access_list(), ..Extras::default() });
        }
        let (xattrs, lost) = handle.all(End::Source)?;
        Ok(Extras { xattrs, list: None, project: Project::of(from), lost })
    }

    /// Everything but times onto an open file or directory. `mode_is_final` where it was made with its mode.
    pub fn give(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        about: &About,
        mode_is_final: bool,
    ) -> Result<Lost, Failure> {
        let extras = self.extras(from)?;
        self.give_all(&extras, to, about, mode_is_final)
    }

    /// The same where the extended attributes wanted, sorted, have been read before.
    pub fn give_known(
        &self,
        wanted: &[Attribute],
        to: BorrowedFd<'_>,
        about: &About,
        mode_is_final: bool,
    ) -> Result<Lost, Failure> {
        let xattrs = if self.xattrs { wanted.to_vec() } else { Vec::new() };
        let list = wanted.iter().find(|(name, _)| name == ACCESS).map(|(_, value)| value.clone());
        let list = list.filter(|_| !self.xattrs);
        self.give_all(&Extras { xattrs, list, ..Extras::default() }, to, about, mode_is_final)
    }

    fn give_all(
        &self,
        extras: &Extras,
        to: BorrowedFd<'_>,
        about: &About,
        mode_is_final: bool,
    ) -> Result<Lost, Failure> {
        let (mut mode, mut lost) = (about.mode, extras.lost.clone());
        if self.owners && !mode_is_final && !self.own(to, about)? {
            // Rights of one owner must not become rights of another.
            if mode & SET_ID != 0 {
                lost = both(
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
            lost = both(lost, more);
            if without_list {
                let wanted = extras.xattrs.iter().find(|(name, _)| name == ACCESS);
                list = wanted.map(|(_, value)| &value[..]);
            }
        }
        if let Some(list) = list {
            mode = mode_without(mode, list);
        }
        if !mode_is_final || mode != about.mode {
            fchmod(to, Mode::from_raw_mode(u32::from(mode))).at(End::Destination, "set mode")?;
        }
        if mode & SET_ID != 0 {
            // The system takes them away in silence from who may not set them.
            let kept = look_at(to).at(End::Destination, "look at")?.stx_mode & SET_ID;
            if kept != mode & SET_ID {
                lost = both(lost, Some("set-user-id or set-group-id".to_owned()));
            }
        }
        Ok(both(lost, extras.project.and_then(|project| project.give(to))))
    }

    /// Times onto an open file or directory; what of them its file system cannot keep.
    pub fn times(&self, to: BorrowedFd<'_>, about: &About) -> Result<Lost, Failure> {
        futimens(to, &about.times()).at(End::Destination, "set times")?;
        kept_times(to, about)
    }

    /// Everything onto a symbolic link, device or FIFO that is open with `O_PATH`.
    pub(crate) fn give_place(
        &self,
        wanted: &[Attribute],
        to: BorrowedFd<'_>,
        about: &About,
        has_mode: bool,
    ) -> Result<Lost, Failure> {
        let (handle, mut mode, mut lost) = (Handle::place(to), about.mode, None);
        if self.owners {
            let (uid, gid) = (Uid::from_raw(about.uid), Gid::from_raw(about.gid));
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
        match utimensat(to, c"", &about.times(), AtFlags::EMPTY_PATH) {
            // Kernels before 5.8 want a path.
            Err(Errno::INVAL) => by_path(&handle, &about.times()),
            other => other,
        }
        .at(End::Destination, "set times")?;
        Ok(both(lost, kept_times(to, about)?))
    }

    /// Mend the attributes of a symbolic link, device or FIFO that is what it should be otherwise.
    pub(crate) fn mend_place(
        &self,
        wanted: &[Attribute],
        to: BorrowedFd<'_>,
        about: &About,
        has_mode: bool,
    ) -> Result<Lost, Failure> {
        let stat = look_at(to).at(End::Destination, "look at")?;
        let found = About::of(&stat);
        let owner =
            self.owners && self.uid == 0 && (about.uid, about.gid) != (found.uid, found.gid);
        let mode = has_mode && about.mode != found.mode;
        let xattrs = self.xattrs && Handle::place(to).differs(wanted)?;
        if !owner && !mode && !xattrs && about.mtime == found.mtime {
            return Ok(None);
        }
        self.give_place(wanted, to, about, has_mode)
    }

    /// The extended attributes of a symbolic link, device or FIFO that is open with `O_PATH`.
    pub(crate) fn of_place(&self, from: BorrowedFd<'_>) -> Result<(Vec<Attribute>, Lost), Failure> {
        if !self.xattrs {
            return Ok((Vec::new(), None));
        }
        match Handle::place(from).all(End::Source) {
            // No /proc, or a sort of entry that has none.
            Err(Failure::Call { errno: Errno::NOENT | Errno::NOTDIR, .. }) => {
                Ok((Vec::new(), None))
            }
            other => other,
        }
    }

    /// Whether owner and group are as wanted now. Only root gives files away; others keep the group where they may.
    fn own(&self, to: BorrowedFd<'_>, about: &About) -> Result<bool, Failure> {
        let (uid, gid) = (Uid::from_raw(about.uid), Gid::from_raw(about.gid));
        match fchown(to, Some(uid), Some(gid)) {
            Ok(()) => return Ok(true),
            Err(Errno::PERM | Errno::INVAL) => {}
            Err(errno) => return Err(errno).at(End::Destination, "set owner"),
        }
        match fchown(to, None, Some(gid)) {
            Ok(()) => Ok(about.uid == self.uid),
            Err(Errno::PERM | Errno::INVAL) => Ok(false),
            Err(errno) => Err(errno).at(End::Destination, "set group"),
        }
    }

    /// Mend the attributes of a file whose contents stand; whether there was anything to mend.
    pub fn mend(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        wanted: &About,
        found: &About,
    ) -> Result<(bool, Lost), Failure> {
        let extras = self.extras(from)?;
        self.mend_all(&extras, to, wanted, found)
    }

    /// The same where the extended attributes wanted, sorted, have been read before.
    pub fn mend_known(
        &self,
        xattrs: &[Attribute],
        to: BorrowedFd<'_>,
        wanted: &About,
        found: &About,
    ) -> Result<(bool, Lost), Failure> {
        let extras = Extras { xattrs: xattrs.to_vec(), ..Extras::default() };
        self.mend_all(&extras, to, wanted, found)
    }

    fn mend_all(
        &self,
        extras: &Extras,
        to: BorrowedFd<'_>,
        wanted: &About,
        found: &About,
    ) -> Result<(bool, Lost), Failure> {
        let root = self.uid == 0;
        let mode = extras.list.as_ref().map_or(wanted.mode, |list| mode_without(wanted.mode, list));
        let owner = self.owners && root && (wanted.uid, wanted.gid) != (found.uid, found.gid);
        let mode = mode != found.mode && (root || wanted.uid == found.uid);
        let unlike = self.xattrs && Handle::open(to).differs(&extras.xattrs)?;
        let project = extras.project.is_some() && Project::of(to) != extras.project;
        if !owner && !mode && !unlike && !project {
            return Ok((false, extras.lost.clone()));
        }
        let lost = self.give_all(extras, to, wanted, false)?;
        Ok((true, both(lost, self.times(to, wanted)?)))
    }
}

/// What of its times the file system has cut to those that it knows: as a rule some between 1901 and 2486.
fn kept_times(to: BorrowedFd<'_>, about: &About) -> Result<Lost, Failure> {
    let usual = |time: Time| (0..=i64::from(i32::MAX)).contains(&time.seconds);
    if usual(about.mtime) && usual(about.atime) {
        return Ok(None);
    }
    let found = About::of(&look_at(to).at(End::Destination, "look at")?);
    // Some keep whole or every second second.
    let near = |one: Time, other: Time| one.seconds.abs_diff(other.seconds) <= 2;
    let kept = near(found.mtime, about.mtime) && near(found.atime, about.atime);
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
pub fn all(file: BorrowedFd<'_>, end: End) -> Result<Vec<Attribute>, Failure> {
    Handle::open(file).all(end).map(|(found, _)| found)
}

/// The mode bits that new files lose. umask(2) tells them only by setting them, which other threads would notice.
fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u16::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o777)
}
