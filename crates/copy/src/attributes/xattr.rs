//! Extended attributes of files, directories, and of what cannot be opened: symbolic links, devices, FIFOs.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::LazyLock;

use rustix::fs::{
    fgetxattr, flistxattr, fremovexattr, fsetxattr, getxattr, listxattr, removexattr, setxattr,
    XattrFlags,
};
use rustix::io::Errno;

use super::acl::ACCESS;

use crate::error::{join_lost, At, End, Failure, Lost};

/// The longest list and value of attributes that Linux hands out (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const LONGEST: usize = 64 << 10;

/// The name and the value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// A file whose attributes are read or set.
#[derive(Clone, Copy)]
pub(crate) struct Handle<'a> {
    fd: BorrowedFd<'a>,
    /// It is open as a place alone (`O_PATH`), and by /proc its attributes are reached all the same.
    is_path: bool,
}

impl<'a> Handle<'a> {
    /// An open file or directory.
    pub(crate) fn open(fd: BorrowedFd<'a>) -> Self {
        Self { fd, is_path: false }
    }

    /// What is open with `O_PATH`.
    pub(crate) fn special(fd: BorrowedFd<'a>) -> Self {
        Self { fd, is_path: true }
    }

    /// The name in /proc that means this very inode, a symbolic link's own too.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    fn list(&self, room: &mut [u8]) -> Result<usize, Errno> {
        if self.is_path {
            listxattr(self.path(), room)
        } else {
            flistxattr(self.fd, room)
        }
    }

    fn get(&self, name: &[u8], room: &mut [u8]) -> Result<usize, Errno> {
        if self.is_path {
            getxattr(self.path(), name, room)
        } else {
            fgetxattr(self.fd, name, room)
        }
    }

    fn set(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        if self.is_path {
            setxattr(self.path(), name, value, XattrFlags::empty())
        } else {
            fsetxattr(self.fd, name, value, XattrFlags::empty())
        }
    }

    fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        if self.is_path {
            removexattr(self.path(), name)
        } else {
            fremovexattr(self.fd, name)
        }
    }

    fn names(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut usual = [0; 1 << 10];
        let list = match self.list(&mut usual) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Ok(length) => usual[..length].to_vec(),
            Err(Errno::RANGE) => {
                let mut longest = vec![0; LONGEST];
                let length = self.list(&mut longest)?;
                longest.truncate(length);
                longest
            }
            Err(errno) => return Err(errno),
        };
        let names = list.split(|byte| *byte == 0);
        Ok(names.filter(|name| is_kept(name)).map(<[u8]>::to_vec).collect())
    }

    /// The value of one attribute.
    pub(crate) fn value(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut usual = [0; 1 << 10];
        match self.get(name, &mut usual) {
            Ok(length) => Ok(usual[..length].to_vec()),
            Err(Errno::RANGE) => {
                let mut longest = vec![0; LONGEST];
                let length = self.get(name, &mut longest)?;
                longest.truncate(length);
                Ok(longest)
            }
            Err(errno) => Err(errno),
        }
    }

    /// All attributes that are kept, sorted, and what of them cannot be read.
    pub(crate) fn all(&self, end: End) -> Result<(Vec<Xattr>, Lost), Failure> {
        let (mut found, mut lost) = (Vec::new(), None);
        let names = match self.names() {
            // More names than the kernel hands out in one list.
            Err(Errno::TOOBIG) => return Ok((found, Some("extended attributes: too many".into()))),
            other => other.at(end, "list extended attributes")?,
        };
        for name in names {
            match self.value(&name) {
                Ok(value) => found.push((name, value)),
                // It was taken away meanwhile.
                Err(Errno::NODATA) => {}
                Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::TOOBIG)) => {
                    lost = join_lost(lost, Some(reason(&name, errno)));
                }
                Err(errno) => return Err(errno).at(end, "read extended attribute"),
            }
        }
        found.sort();
        Ok((found, lost))
    }

    /// The access control list, if there is one.
    pub(crate) fn access_list(&self) -> Option<Vec<u8>> {
        self.value(ACCESS).ok()
    }

    /// Make the attributes those that are wanted. `clean` where some may be there. What could not be kept, and whether
    /// the access control list is among it.
    pub(crate) fn make(&self, wanted: &[Xattr], clean: bool) -> Result<(Lost, bool), Failure> {
        let (mut lost, mut without_list) = (None, false);
        for (name, value) in wanted {
            // NOSPC too: a value may be too large for this file system, which is no full disk.
            if let Err(errno) = self.set(name, value) {
                // What stands already need not be set, such as a label that only the system gives.
                if self.value(name).as_ref() != Ok(value) {
                    lost = join_lost(lost, Some(reason(name, errno)));
                    without_list |= name == ACCESS;
                }
            }
        }
        if !clean {
            return Ok((lost, without_list));
        }
        for name in self.names().at(End::Destination, "list extended attributes")? {
            if is_removed(&name) && !wanted.iter().any(|(kept, _)| *kept == name) {
                match self.remove(&name) {
                    Ok(()) | Err(Errno::NODATA) => {}
                    Err(errno) => {
                        let name = String::from_utf8_lossy(&name);
                        let why = crate::error::describe(errno);
                        lost = join_lost(
                            lost,
                            Some(format!("{name} stays at the destination: {why}")),
                        );
                    }
                }
            }
        }
        Ok((lost, without_list))
    }

    /// Whether [`Handle::make`] would change anything.
    pub(crate) fn differs(&self, wanted: &[Xattr]) -> Result<bool, Failure> {
        let (there, _) = self.all(End::Destination)?;
        let lacks = wanted.iter().any(|one| !there.contains(one));
        let extra =
            |(name, _): &Xattr| is_removed(name) && !wanted.iter().any(|(kept, _)| kept == name);
        Ok(lacks || there.iter().any(extra))
    }
}

fn reason(name: &[u8], errno: Errno) -> String {
    let name = String::from_utf8_lossy(name);
    format!("extended attribute {name}: {}", crate::error::describe(errno))
}

/// What users, administrators and access control lists set; not what a file system tells of itself, as Lustre's
/// layout, or stores under another name: XFS shows root its access control lists a second time, as
/// `trusted.SGI_ACL_FILE`.
fn is_kept(name: &[u8]) -> bool {
    const FILE_SYSTEMS: [&[u8]; 6] = [
        b"trusted.lov",
        b"trusted.lma",
        b"trusted.link",
        b"trusted.gfid",
        b"trusted.glusterfs.",
        b"trusted.SGI_",
    ];
    /// Where SELinux rules, its policy says which label a file has by its path.
    static LABELLED: LazyLock<bool> =
        LazyLock::new(|| std::path::Path::new("/sys/fs/selinux/enforce").exists());
    const KEPT: [&[u8]; 5] = [b"user.", b"security.", b"trusted.", b"system.posix_acl_", b"btrfs."];
    let told = FILE_SYSTEMS.iter().any(|prefix| name.starts_with(prefix));
    let label = name == b"security.selinux" && *LABELLED;
    !told && !label && KEPT.iter().any(|prefix| name.starts_with(prefix))
}

/// What is taken away at the destination where the source lacks it: what users set, and what gives rights that the
/// source does not give. All else may be the file system's or an administrator's.
fn is_removed(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"system.posix_acl_")
        || name == b"security.capability"
}
