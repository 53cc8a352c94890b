//! The pool: memory that the process shares with the ranks of its node.
//!
//! Arrives: offsets and lengths, also of hostile ranks. Leaves: bytes moved between the pool and descriptors. Must not
//! know: what they mean.
//!
//! The process makes the memory and seals its size, so that no rank can truncate it under a system call. Ranks write
//! into it at any time: no reference to its bytes is ever made, only system calls and copies through raw pointers.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

/// `IOV_MAX` of Linux.
const MOST_RANGES: usize = 1024;

/// The mapped pool.
pub struct Pool {
    fd: OwnedFd,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is only reached through system calls and copies; which parts may be is the state machines'
// concern.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool of this size. Its pages are taken as they are first used.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let fd = memfd_create("waystage-pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, &fd, 0)? };
        Ok(Self { fd, base: base.cast(), bytes: length })
    }

    /// The descriptor, for ranks.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes of the pool.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn at(&self, offset: u64, bytes: u64) -> io::Result<*mut u8> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes as u64);
        end.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: inside the mapping, as was just checked.
        Ok(unsafe {
            self.base.add(usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?)
        })
    }

    /// A copy of bytes, such as a list of a rank.
    pub fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        if let Ok(from) = self.at(offset, bytes as u64) {
            // SAFETY: both are `bytes` long; the pool is not part of the vector.
            unsafe { std::ptr::copy_nonoverlapping(from, found.as_mut_ptr(), bytes) };
        }
        found
    }

    /// Copy bytes to runs (position, bytes) of an image.
    pub fn fill(&self, image: u64, runs: &[(u64, u64)], mut data: &[u8]) {
        for (position, bytes) in runs {
            let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX).min(data.len());
            let (run, rest) = data.split_at(bytes);
            self.write(image.saturating_add(*position), run);
            data = rest;
        }
    }

    /// Copy bytes into the pool.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        if let Ok(to) = self.at(offset, bytes.len() as u64) {
            // SAFETY: inside the mapping; the slice is not part of it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
    }

    /// Make a part zeros.
    pub fn zero(&self, offset: u64, bytes: u64) {
        if let Ok(to) = self.at(offset, bytes) {
            // SAFETY: inside the mapping.
            unsafe { std::ptr::write_bytes(to, 0, usize::try_from(bytes).unwrap_or(0)) };
        }
    }

    fn vector(&self, ranges: &[(u64, u64)]) -> io::Result<Vec<libc::iovec>> {
        let one = |(offset, bytes): &(u64, u64)| {
            let base = self.at(*offset, *bytes)?.cast();
            Ok(libc::iovec { iov_base: base, iov_len: usize::try_from(*bytes).unwrap_or(0) })
        };
        ranges.iter().take(MOST_RANGES).map(one).collect()
    }

    /// Send ranges of the pool, as much as the socket takes.
    pub fn send(&self, socket: BorrowedFd<'_>, ranges: &[(u64, u64)]) -> io::Result<usize> {
        let mut vector = self.vector(ranges)?;
        // SAFETY: all zeros is a valid message header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (vector.as_mut_ptr(), vector.len());
        // SAFETY: the header and what it points to live until the call returns.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receive into ranges of the pool, as much as there is.
    pub fn receive(&self, socket: BorrowedFd<'_>, ranges: &[(u64, u64)]) -> io::Result<usize> {
        let vector = self.vector(ranges)?;
        let count = libc::c_int::try_from(vector.len()).unwrap_or(0);
        // SAFETY: the vector's ranges are inside the mapping.
        let received = unsafe { libc::readv(socket.as_raw_fd(), vector.as_ptr(), count) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// `pwrite` all of a range of the pool.
    pub fn write_file(
        &self,
        file: BorrowedFd<'_>,
        from: u64,
        bytes: u64,
        offset: u64,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let at = self.at(from + done, bytes - done)?;
            let place =
                libc::off_t::try_from(offset + done).map_err(|_| io::ErrorKind::InvalidInput)?;
            let left = usize::try_from(bytes - done).unwrap_or(0);
            // SAFETY: the range is inside the mapping.
            let wrote = unsafe { libc::pwrite(file.as_raw_fd(), at.cast(), left, place) };
            match usize::try_from(wrote) {
                Ok(0) => return Err(io::Error::from_raw_os_error(libc::ENOSPC)),
                Ok(wrote) => done += wrote as u64,
                Err(_) => retry(io::Error::last_os_error())?,
            }
        }
        Ok(())
    }

    /// `pread` a range; how many bytes there were before the file's end.
    pub fn read_file(
        &self,
        file: BorrowedFd<'_>,
        to: u64,
        bytes: u64,
        offset: u64,
    ) -> io::Result<u64> {
        let mut done = 0;
        while done < bytes {
            let at = self.at(to + done, bytes - done)?;
            let place =
                libc::off_t::try_from(offset + done).map_err(|_| io::ErrorKind::InvalidInput)?;
            let left = usize::try_from(bytes - done).unwrap_or(0);
            // SAFETY: the range is inside the mapping.
            let read = unsafe { libc::pread(file.as_raw_fd(), at.cast(), left, place) };
            match usize::try_from(read) {
                Ok(0) => break,
                Ok(read) => done += read as u64,
                Err(_) => retry(io::Error::last_os_error())?,
            }
        }
        Ok(done)
    }
}

fn retry(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::Interrupted {
        Ok(())
    } else {
        Err(error)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing uses any longer.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}
