//! FUSE requests, as requests to the servers and answers from the tree.
//!
//! Arrives: FUSE requests.
//! Leaves: replies, when the model says that they are due.
//! Must not know: how servers serve, where files are.
//!
//! Which request costs which message follows a Lustre client: a lookup is a message, and with it an open by name,
//! which Linux asks for in two steps; `stat` of a file asks the targets for its size besides (a glimpse); closing is
//! a message; entries come many in a message; reads and writes go to the targets alone. What the client knows it
//! keeps, under the locks that it would hold, for the times of [`Client`].

mod caller;
mod changing;
mod client;
mod handles;
mod serving;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

pub use self::client::Client;
use self::handles::{Handles, Listing, OpenFile};
use crate::layout::Template;
use crate::model::{Model, Operation};
use crate::pump::Pump;
use crate::tree::{Changes, Making, Tree, ROOT};

/// A file at the top that no listing shows: what was counted, as JSON.
pub const STATISTICS: &str = ".waystage-statistics";

/// Writing this attribute of the top begins counting anew.
pub const RESET: &str = "user.waystage.reset";

/// The inode number of [`STATISTICS`].
const STATISTICS_INO: u64 = u64::MAX - 1;

/// Requests that the kernel may send ahead, such as for reading ahead: as many as many readers need.
const BACKGROUND: u16 = 1024;

/// The file system.
pub struct Pfs {
    tree: Arc<dyn Tree>,
    pump: Pump,
    client: Client,
    files: Handles<OpenFile>,
    listings: Handles<Listing>,
    snapshots: Handles<String>,
    /// By thread, the file that it looked up last: opened next, the lookup was the open's.
    looked_up: Mutex<HashMap<u32, u64>>,
    counted_since: AtomicU64,
}

impl Pfs {
    /// A file system of these servers.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn new(tree: Arc<dyn Tree>, model: Model, client: Client) -> io::Result<Self> {
        Ok(Self {
            tree,
            pump: Pump::start(model, client.dilation)?,
            client,
            files: Handles::default(),
            listings: Handles::default(),
            snapshots: Handles::default(),
            looked_up: Mutex::default(),
            counted_since: AtomicU64::new(0),
        })
    }
}

fn sized(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    match value {
        Err(error) => reply.error(error),
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

fn done(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Pfs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Several lookups in one directory at once, as Lustre's clients do. An old kernel does without.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent.0 == ROOT && name == STATISTICS {
            return reply.entry(&Duration::ZERO, &Self::statistics_attributes(), Generation(0));
        }
        let found = self.tree.lookup(parent.0, name);
        if let Ok(attr) = &found {
            if attr.kind == FileType::RegularFile {
                self.remember_lookup(req.pid(), attr.ino.0);
            }
        }
        let key =
            if parent.0 == ROOT { found.as_ref().map_or(ROOT, |a| a.ino.0) } else { parent.0 };
        let answer = self.entry(reply, found);
        self.pump.submit(|model, now| model.ask(now, key, Operation::Lookup), answer);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.tree.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        if ino.0 == STATISTICS_INO {
            return reply.attr(&Duration::ZERO, &Self::statistics_attributes());
        }
        let looked_up = self.take_lookup(req.pid());
        let known = self.client.attributes;
        let attr = match self.tree.attributes(ino.0) {
            Ok(attr) => attr,
            Err(error) => return reply.error(error),
        };
        let answer = move || reply.attr(&known, &attr);
        // The top is always known; and who reads pages knows the size, under the lock of their range.
        if fh.is_some() || ino.0 == ROOT {
            return answer();
        }
        let glimpse = if attr.kind == FileType::RegularFile { self.client.glimpse_ns } else { 0 };
        if looked_up == Some(ino.0) {
            return self.pump.submit(|model, now| model.wait(now, glimpse), answer);
        }
        let key = self.tree.directory_of(ino.0);
        self.pump
            .submit(|model, now| model.ask_and_wait(now, key, Operation::Lookup, glimpse), answer);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        use std::os::unix::ffi::OsStrExt;
        let target = self.tree.read_link(ino.0);
        self.ask(ino.0, Operation::Lookup, move || match target {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(error),
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if ino.0 == STATISTICS_INO {
            let handle = self.snapshots.add(self.statistics());
            return reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
        }
        let looked_up = self.take_lookup(req.pid()) == Some(ino.0);
        let _rights = self.caller(req);
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let opened = self.tree.open(ino.0, write).and_then(|tree_handle| {
            Ok(OpenFile { ino: ino.0, tree_handle, striping: self.tree.striping(ino.0)? })
        });
        let opened = opened.map(|file| self.files.add(file));
        let how = self.open_flags();
        let answer = move || match opened {
            Ok(handle) => reply.opened(FileHandle(handle), how),
            Err(error) => reply.error(error),
        };
        let key = self.tree.directory_of(ino.0);
        self.pump.submit(
            |model, now| match looked_up {
                true => model.open_looked_up(now, key),
                false => model.ask(now, key, Operation::Open),
            },
            answer,
        );
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve_read(ino.0, fh.0, offset, size, reply);
    }

    fn flush(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if ino.0 == STATISTICS_INO {
            return reply.ok();
        }
        self.ask(ino.0, Operation::Close, move || reply.ok());
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if ino.0 == STATISTICS_INO {
            self.snapshots.remove(fh.0);
        } else if let Some(file) = self.files.remove(fh.0) {
            self.tree.close(file.tree_handle);
        }
        reply.ok();
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _rights = self.caller(req);
        match self.tree.entries(ino.0) {
            Ok(items) => {
                let handle = self.listings.add(Listing::new(items));
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(listing) = self.listings.get(fh.0) else { return reply.error(Errno::EBADF) };
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        let per_message = self.client.entries_per_message;
        let (known, asked) = listing.fetch(first, per_message);
        for (index, (number, kind, name)) in listing.from(first, ino.0).take(known) {
            if reply.add(INodeNo(number), index as u64 + 1, kind, name) {
                break;
            }
        }
        if asked {
            let key = ino.0;
            self.pump.submit(
                |model, now| model.ask(now, key, Operation::ReadDirectory),
                move || reply.ok(),
            );
        } else {
            reply.ok();
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.remove(fh.0);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // As large as one likes: what is behind has its own limits, and says so when they are met.
        const BLOCKS: u64 = 1 << 40;
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, 1 << 40, 1 << 40, 4096, 255, 4096);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.take_lookup(req.pid());
        let value = match name.to_str() {
            _ if ino.0 == STATISTICS_INO => Err(Errno::NO_XATTR),
            // An open grants the lock of the layout: Lustre's client then answers from what it has (2.10 and later).
            Some("lustre.lov") if self.files.any(|file| file.ino == ino.0) => {
                return sized(reply, size, self.layout(ino.0));
            }
            Some("lustre.lov") => self.layout(ino.0),
            // What the kernel asks for on its own account before it writes or executes; it is in the inode.
            Some(
                "security.capability" | "system.posix_acl_access" | "system.posix_acl_default",
            ) => {
                return sized(reply, size, self.tree.attribute(ino.0, name));
            }
            _ => self.tree.attribute(ino.0, name),
        };
        self.ask(ino.0, Operation::Layout, move || sized(reply, size, value));
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.tree.attribute_names(ino.0).map(|mut names| {
            if self.tree.attributes(ino.0).is_ok_and(|attr| attr.kind == FileType::RegularFile) {
                names.extend_from_slice(b"lustre.lov\0");
            }
            names
        });
        self.ask(ino.0, Operation::Layout, move || sized(reply, size, names));
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _rights = self.caller(req);
        if ino.0 == ROOT && name == RESET {
            self.reset();
            return reply.ok();
        }
        let result = if name == "lustre.lov" {
            let template = Template::decode(value).map_err(|_| Errno::EINVAL);
            template.and_then(|template| self.tree.set_template(ino.0, &template))
        } else {
            self.tree.set_attribute(ino.0, name, value, flags)
        };
        self.ask(ino.0, Operation::Change, move || done(reply, result));
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _rights = self.caller(req);
        let result = self.tree.remove_attribute(ino.0, name);
        self.ask(ino.0, Operation::Change, move || done(reply, result));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.take_lookup(req.pid());
        let _rights = self.caller(req);
        self.change(ino.0, &Changes { mode, uid, gid, size, atime, mtime }, reply);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _rights = self.caller(req);
        self.make(parent.0, name, Making::Node(mode, rdev), reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let _rights = self.caller(req);
        self.make(parent.0, name, Making::Directory(mode), reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _rights = self.caller(req);
        self.make(parent.0, link_name, Making::Symlink(target), reply);
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let _rights = self.caller(req);
        self.make(newparent.0, newname, Making::Link(ino.0), reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let _rights = self.caller(req);
        self.make_open(parent.0, name, mode, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _rights = self.caller(req);
        self.changed(parent.0, self.tree.remove(parent.0, name, false), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _rights = self.caller(req);
        self.changed(parent.0, self.tree.remove(parent.0, name, true), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _rights = self.caller(req);
        let result = self.tree.rename(parent.0, name, newparent.0, newname, flags.bits());
        self.changed(parent.0, result, reply);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.write_through(fh.0, offset, data, reply);
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let file = self.files.get(fh.0).ok_or(Errno::EBADF);
        done(reply, file.and_then(|file| self.tree.sync(file.tree_handle)));
    }
}
