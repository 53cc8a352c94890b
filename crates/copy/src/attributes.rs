//! Owners, modes, extended attributes and times: onto what was just made, or onto what has stood there before.
//!
//! The order matters: a change of owner takes set-user-id bits away, an access control list changes the mode, and all
//! of them change times.

use std::os::fd::BorrowedFd;

use rustix::fs::{
    chownat, fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, futimens, utimensat,
    AtFlags, Gid, Mode, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::error::{At, End, Failure};
use crate::item::About;

/// The longest list and value of attributes that Linux hands out (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const LONGEST: usize = 64 << 10;

/// What this process is and may do, asked once.
#[derive(Debug, Clone, Copy)]
pub struct Keeper {
    uid: u32,
    gid: u32,
    umask: u16,
    owners: bool,
    xattrs: bool,
}

/// The name and the value of an extended attribute.
pub type Attribute = (Vec<u8>, Vec<u8>);

/// What could not be kept, for the report.
pub type Lost = Option<String>;

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

    /// The mode to create a file with, and whether it is final: where nothing about the owner has to change and the
    /// process's mask takes nothing away.
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

    /// Everything but times onto an open file or directory. `mode_is_final` where it was made with its mode.
    pub fn give(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        about: &About,
        mode_is_final: bool,
    ) -> Result<Lost, Failure> {
        let wanted = if self.xattrs { all(from, End::Source)? } else { Vec::new() };
        self.give_known(&wanted, to, about, mode_is_final)
    }

    /// The same where the extended attributes wanted, sorted, have been read before.
    pub fn give_known(
        &self,
        wanted: &[Attribute],
        to: BorrowedFd<'_>,
        about: &About,
        mode_is_final: bool,
    ) -> Result<Lost, Failure> {
        let mut mode = about.mode;
        let mut lost = None;
        if self.owners && !mode_is_final && !self.own(to, about)? {
            // Rights of one owner must not become rights of another.
            if mode & 0o6000 != 0 {
                lost = Some("set-user-id and set-group-id, as its owner is another".to_owned());
            }
            mode &= !0o6000;
        }
        if !mode_is_final {
            fchmod(to, Mode::from_raw_mode(u32::from(mode))).at(End::Destination, "set mode")?;
        }
        if self.xattrs {
            // What was made with its mode in a plain directory has no attributes yet.
            lost = xattrs(wanted, to, !mode_is_final)?.or(lost);
        }
        Ok(lost)
    }

    /// Times onto an open file or directory.
    pub fn times(&self, to: BorrowedFd<'_>, about: &About) -> Result<(), Failure> {
        futimens(to, &about.times()).at(End::Destination, "set times")
    }

    /// Owner and times onto a symbolic link, which has no mode, or onto whatever bears a name of ours.
    pub fn give_name(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        about: &About,
    ) -> Result<(), Failure> {
        if self.owners {
            let (uid, gid) = (Uid::from_raw(about.uid), Gid::from_raw(about.gid));
            match chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(()) | Err(Errno::PERM) => {}
                Err(errno) => return Err(errno).at(End::Destination, "set owner"),
            }
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        utimensat(folder, name, &about.times(), flags).at(End::Destination, "set times")
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
        let xattrs = if self.xattrs { all(from, End::Source)? } else { Vec::new() };
        self.mend_known(&xattrs, to, wanted, found)
    }

    /// The same where the extended attributes wanted, sorted, have been read before.
    pub fn mend_known(
        &self,
        xattrs: &[Attribute],
        to: BorrowedFd<'_>,
        wanted: &About,
        found: &About,
    ) -> Result<(bool, Lost), Failure> {
        let root = self.uid == 0;
        let owner = self.owners && root && (wanted.uid, wanted.gid) != (found.uid, found.gid);
        let mode = wanted.mode != found.mode && (root || wanted.uid == found.uid);
        let unlike = self.xattrs && all(to, End::Destination)? != xattrs;
        if !owner && !mode && !unlike {
            return Ok((false, None));
        }
        let lost = self.give_known(xattrs, to, wanted, false)?;
        self.times(to, wanted)?;
        Ok((true, lost))
    }
}

/// Whether the extended attributes of two open files differ, of those that are kept.
pub fn xattrs_differ(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<bool, Failure> {
    let (one, other) = (all(one, End::Source)?, all(other, End::Destination)?);
    Ok(one != other)
}

/// The extended attributes of an open file that are kept, sorted.
pub fn all(file: BorrowedFd<'_>, end: End) -> Result<Vec<Attribute>, Failure> {
    let mut found = Vec::new();
    for name in names(file, end)? {
        match value(file, &name) {
            Ok(value) => found.push((name, value)),
            // It was taken away meanwhile, or is not for us to read.
            Err(Errno::NODATA | Errno::ACCESS | Errno::PERM) => {}
            Err(errno) => return Err(errno).at(end, "read extended attribute"),
        }
    }
    found.sort();
    Ok(found)
}

/// Make the extended attributes of `to` those that are wanted.
fn xattrs(wanted: &[Attribute], to: BorrowedFd<'_>, clean: bool) -> Result<Lost, Failure> {
    let mut lost = None;
    for (name, value) in wanted {
        match fsetxattr(to, &name[..], value, XattrFlags::empty()) {
            Ok(()) => {}
            // NOSPC too: a value may be too large for this file system, which is no full disk.
            Err(errno) => lost = Some(reason(name, errno)),
        }
    }
    if !clean {
        return Ok(lost);
    }
    for name in names(to, End::Destination)? {
        if !wanted.iter().any(|(kept, _)| *kept == name) {
            // Such as an access control list that the directory handed down.
            let _ = fremovexattr(to, &name[..]);
        }
    }
    Ok(lost)
}

fn reason(name: &[u8], errno: Errno) -> String {
    let name = String::from_utf8_lossy(name);
    format!("extended attribute {name}: {}", crate::error::said(errno))
}

fn names(file: BorrowedFd<'_>, end: End) -> Result<Vec<Vec<u8>>, Failure> {
    let mut usual = [0; 1 << 10];
    let list = match flistxattr(file, &mut usual[..]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(length) => usual[..length].to_vec(),
        Err(Errno::RANGE) => {
            let mut longest = vec![0; LONGEST];
            let length = flistxattr(file, &mut longest[..]).at(end, "list extended attributes")?;
            longest.truncate(length);
            longest
        }
        Err(errno) => return Err(errno).at(end, "list extended attributes"),
    };
    Ok(list.split(|byte| *byte == 0).filter(|name| is_kept(name)).map(<[u8]>::to_vec).collect())
}

fn value(file: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut usual = [0; 1 << 10];
    match fgetxattr(file, name, &mut usual[..]) {
        Ok(length) => Ok(usual[..length].to_vec()),
        Err(Errno::RANGE) => {
            let mut longest = vec![0; LONGEST];
            let length = fgetxattr(file, name, &mut longest[..])?;
            longest.truncate(length);
            Ok(longest)
        }
        Err(errno) => Err(errno),
    }
}

/// What users, administrators and access control lists set; not what a file system tells of itself, as Lustre's layout.
fn is_kept(name: &[u8]) -> bool {
    const FILE_SYSTEMS: [&[u8]; 5] =
        [b"trusted.lov", b"trusted.lma", b"trusted.link", b"trusted.gfid", b"trusted.glusterfs."];
    let told = FILE_SYSTEMS.iter().any(|prefix| name.starts_with(prefix));
    let kept: [&[u8]; 4] = [b"user.", b"security.", b"trusted.", b"system.posix_acl_"];
    // Labels are given by the policy of the machine that a file lies on.
    !told && name != b"security.selinux" && kept.iter().any(|prefix| name.starts_with(prefix))
}

/// The mode bits that new files lose. umask(2) tells them only by setting them, which other threads would notice.
fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u16::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o777)
}
