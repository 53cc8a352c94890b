//! What is neither file nor directory: symbolic links, devices, FIFOs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{mknodat, openat, readlinkat, symlinkat, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::attributes::{both, Attribute, Keeper, Lost};
use crate::counts::add;
use crate::destination::Folder;
use crate::draft::drafted;
use crate::error::{At, End, Failure};
use crate::item::{letter, look, look_at, About, Item};
use crate::own::made;
use crate::small::{ANOTHER_SORT, NO_ROOM};
use crate::worker::Worker;

impl Worker<'_> {
    /// Make a symbolic link that says the same.
    pub(crate) fn symlink(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        let shared = self.shared;
        let found = self.other_than_directory(folder.fd(), name)?;
        let same = match found {
            Some(b'l') => {
                let target = readlinkat(folder.fd(), name, Vec::new());
                target.at(End::Destination, "read link")?.into_bytes() == item.symlink
            }
            Some(b'f') | None => false,
            Some(_) => return Err(NO_ROOM),
        };
        if same {
            return self.mend_place(source, folder, item, name);
        }
        if self.only_planned(item) {
            return Ok(());
        }
        let (xattrs, unread) = self.attributes_of_place(source, item)?;
        let lost = drafted(folder.fd(), shared.session, name, |draft| {
            let (keeper, target) = (&shared.keeper, &item.symlink);
            make_symlink(keeper, folder.fd(), draft, target, &item.about, &xattrs)
        })?;
        add(&shared.report.tally.symlinks, 1);
        self.lost(item, both(unread, lost));
        Ok(())
    }

    /// Make a device or FIFO like the source's.
    pub(crate) fn special(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        let shared = self.shared;
        // The walk tells no device numbers.
        let stat = look(source, &item.name).at(End::Source, "look at")?;
        if letter(stat.stx_mode) != item.letter {
            return Err(ANOTHER_SORT);
        }
        let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
        match self.other_than_directory(folder.fd(), name)? {
            Some(b'f' | b'l') | None => {}
            Some(found) => {
                let there = look(folder.fd(), name).at(End::Destination, "look at")?;
                let numbers = rustix::fs::makedev(there.stx_rdev_major, there.stx_rdev_minor);
                if (found, numbers) != (item.letter, device) {
                    return Err(NO_ROOM);
                }
                return self.mend_place(source, folder, item, name);
            }
        }
        if self.only_planned(item) {
            return Ok(());
        }
        let (xattrs, unread) = self.attributes_of_place(source, item)?;
        let lost = drafted(folder.fd(), shared.session, name, |draft| {
            let what = (item.letter, device);
            make_special(&shared.keeper, folder.fd(), draft, what, &item.about, &xattrs)
        })?;
        add(&shared.report.tally.specials, 1);
        self.lost(item, both(unread, lost));
        Ok(())
    }

    fn mend_place(
        &self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        let keeper = &self.shared.keeper;
        if self.shared.options.dry_run {
            return Ok(());
        }
        let (xattrs, unread) = self.attributes_of_place(source, item)?;
        let lost = mend_place(keeper, folder.fd(), name, item.letter, &item.about, &xattrs)?;
        self.lost(item, both(unread, lost));
        Ok(())
    }

    fn attributes_of_place(
        &self,
        source: BorrowedFd<'_>,
        item: &Item,
    ) -> Result<(Vec<Attribute>, Lost), Failure> {
        let from = place(source, &item.name).at(End::Source, "open")?;
        let stat = look_at(from.as_fd()).at(End::Source, "look at")?;
        if letter(stat.stx_mode) != item.letter {
            return Err(ANOTHER_SORT);
        }
        self.shared.keeper.of_place(from.as_fd())
    }

    /// The type of what bears the name, if anything does; a directory never makes room.
    fn other_than_directory(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<Option<u8>, Failure> {
        match look(folder, name) {
            Ok(stat) if letter(stat.stx_mode) == b'd' => {
                Err(Failure::Clash("a directory bears its name at the destination"))
            }
            Ok(stat) => Ok(Some(letter(stat.stx_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno).at(End::Destination, "look at"),
        }
    }
}

/// Make a symbolic link under a name of ours, with its attributes.
pub fn make_symlink(
    keeper: &Keeper,
    folder: BorrowedFd<'_>,
    draft: &[u8],
    target: &[u8],
    about: &About,
    xattrs: &[Attribute],
) -> Result<Lost, Failure> {
    symlinkat(target, folder, draft).at(End::Destination, "make link")?;
    let node = made(folder, draft, b'l').map_err(taken)?;
    keeper.give_place(xattrs, node.as_fd(), about, false)
}

/// Make a device or FIFO, of this letter and device number, under a name of ours, with its attributes.
///
/// Others may write in the directory: the attributes are those of the very inode that was made, even where its name comes to mean another.
pub fn make_special(
    keeper: &Keeper,
    folder: BorrowedFd<'_>,
    draft: &[u8],
    (sort, device): (u8, u64),
    about: &About,
    xattrs: &[Attribute],
) -> Result<Lost, Failure> {
    let kind = match sort {
        b'p' => FileType::Fifo,
        b'b' => FileType::BlockDevice,
        _ => FileType::CharacterDevice,
    };
    mknodat(folder, draft, kind, Mode::from_raw_mode(0o600), device)
        .at(End::Destination, "make device or FIFO")?;
    let node = made(folder, draft, sort).map_err(taken)?;
    keeper.give_place(xattrs, node.as_fd(), about, true)
}

/// Make the attributes of a symbolic link, device or FIFO right where it is.
pub fn mend_place(
    keeper: &Keeper,
    folder: BorrowedFd<'_>,
    name: &[u8],
    sort: u8,
    about: &About,
    xattrs: &[Attribute],
) -> Result<Lost, Failure> {
    let there = place(folder, name).at(End::Destination, "open")?;
    let stat = look_at(there.as_fd()).at(End::Destination, "look at")?;
    if letter(stat.stx_mode) != sort {
        return Err(Failure::Clash("something else has come to bear its name at the destination"));
    }
    keeper.mend_place(xattrs, there.as_fd(), about, sort != b'l')
}

fn taken(errno: Errno) -> Failure {
    match errno {
        Errno::STALE | Errno::NOENT | Errno::LOOP => Failure::Clash(
            "another process took away what was made at the destination: keep others out of its directory",
        ),
        errno => Failure::Call { end: End::Destination, doing: "open", errno },
    }
}

/// An entry itself, whatever it is, neither followed nor opened for reading.
fn place(folder: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
