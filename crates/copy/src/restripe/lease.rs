//! A read lease (fcntl(2), `F_SETLEASE`): the kernel refuses it while the file is open for writing, and lets a process
//! that opens it for writing later wait until the lease is given back, at most for `/proc/sys/fs/lease-break-time`.
//!
//! It sees processes of this machine. Changes from other hosts are seen by size and times alone.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `F_SETSIG` and the two that set and tell a lease (linux/fcntl.h).
const SET_SIGNAL: libc::c_int = 10;
const SET_LEASE: libc::c_int = 1024;
const GET_LEASE: libc::c_int = 1025;

/// What came of asking for a lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The file is this process's to read, until [`Lease::is_broken`].
    Granted,
    /// Another process has it open for writing.
    InUse,
    /// The file system or this user's rights give none: only times tell of changes.
    Impossible,
}

/// The lease of an open file; given back when dropped.
#[derive(Debug)]
pub(super) struct Lease<'a> {
    file: BorrowedFd<'a>,
    pub(super) asked: Asked,
}

impl<'a> Lease<'a> {
    /// Ask for it.
    pub(super) fn ask(file: BorrowedFd<'a>) -> Self {
        // The usual signal, SIGIO, ends a process that does not expect it; SIGURG is ignored by default.
        let signalled = call(file, SET_SIGNAL, libc::SIGURG);
        let asked = match signalled.and_then(|_| call(file, SET_LEASE, libc::F_RDLCK)) {
            Ok(_) => Asked::Granted,
            Err(Errno::AGAIN) => Asked::InUse,
            Err(_) => Asked::Impossible,
        };
        Self { file, asked }
    }

    /// Whether another process waits for opening the file for writing.
    pub(super) fn is_broken(&self) -> bool {
        self.asked == Asked::Granted && call(self.file, GET_LEASE, 0) != Ok(libc::F_RDLCK)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if self.asked == Asked::Granted {
            // It goes with the descriptor at the latest.
            let _ = call(self.file, SET_LEASE, libc::F_UNLCK);
        }
    }
}

fn call(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> Result<i32, Errno> {
    // SAFETY: the three commands take a number and touch no memory of this process.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if answer < 0 {
        let error = std::io::Error::last_os_error();
        return Err(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_writer_is_seen_before_and_while_the_lease_is_held() {
        let path = std::env::temp_dir().join(format!("waystage-lease-{}", std::process::id()));
        std::fs::write(&path, "text").expect("written");
        let writer = File::options().write(true).open(&path).expect("a writer");
        let file = File::open(&path).expect("a reader");
        assert_eq!(Lease::ask(file.as_fd()).asked, Asked::InUse);
        drop(writer);
        let lease = Lease::ask(file.as_fd());
        assert!(lease.asked == Asked::Granted && !lease.is_broken());
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| File::options().write(true).open(&path));
            let began = std::time::Instant::now();
            while !lease.is_broken() && began.elapsed().as_secs() < 20 {
                std::thread::yield_now();
            }
            assert!(lease.is_broken() && !opened.is_finished(), "the writer waits");
            drop(lease);
            assert!(opened.join().expect("no panic").is_ok());
        });
        std::fs::remove_file(&path).expect("removed");
    }
}
