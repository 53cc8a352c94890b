//! Segments of shared memory: made by a writer's rank, passed by descriptor, never truncated.
//!
//! Arrives: sizes, descriptors of other processes. Leaves: their bytes. Must not know: what they hold.
//!
//! A segment is sealed against shrinking before it is passed (fcntl(2), F_ADD_SEALS), or SIGBUS could kill its
//! receiver. It is sealed against new writable mappings too: a reader cannot change what another reads.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{fcntl_add_seals, fcntl_get_seals, memfd_create, MemfdFlags, SealFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

/// A mapping of a segment, of this process.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    descriptor: OwnedFd,
    writable: bool,
}

// SAFETY: it is the address of shared memory, which every thread of the process may use.
unsafe impl Send for Memory {}
// SAFETY: as above; `bytes` gives shared slices, and `bytes_mut` needs `&mut self`.
unsafe impl Sync for Memory {}

impl Memory {
    /// A new, sealed segment that this process may write.
    ///
    /// # Errors
    /// The kernel's: no memory, no descriptor.
    pub fn create(bytes: usize) -> io::Result<Self> {
        let memory = Self::create_open(bytes)?;
        // Linux 5.1; an older kernel refuses, and readers of the same user are trusted there.
        let _ = fcntl_add_seals(&memory.descriptor, SealFlags::FUTURE_WRITE);
        Ok(memory)
    }

    /// A new segment that other processes may write too, see [`Self::share`].
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_open(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(4096);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = memfd_create("waystage-coupling", flags)?;
        rustix::fs::ftruncate(&descriptor, bytes as u64)?;
        let memory = Self::map(descriptor, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW;
        fcntl_add_seals(&memory.descriptor, seals)?;
        Ok(memory)
    }

    /// A segment of another process, to read.
    ///
    /// # Errors
    /// `InvalidData` where it could shrink or has not `bytes`; the kernel's.
    pub fn open(descriptor: OwnedFd, bytes: u64) -> io::Result<Self> {
        check(descriptor.as_fd(), bytes)?;
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Self::map(descriptor, bytes, ProtFlags::READ)
    }

    /// A segment of another process, to read and write where the other process does, by [`Self::start`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn share(descriptor: OwnedFd, bytes: u64) -> io::Result<Self> {
        check(descriptor.as_fd(), bytes)?;
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Self::map(descriptor, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map(descriptor: OwnedFd, bytes: usize, rights: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes.max(1), rights, MapFlags::SHARED, &descriptor, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes, descriptor, writable: rights.contains(ProtFlags::WRITE) })
    }

    /// Its bytes. A writer of another process may be changing them where the directory's rules are broken.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for `bytes` bytes until `self` is dropped; sealed, so never shorter.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Its bytes, in the process that made it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; only `create` gives a writable mapping, and only its owner calls this.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Writes bytes where other processes may write too; false where they are outside, or it may only be read.
    #[must_use]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(offset) = self.inside(offset, bytes.len() as u64) else { return false };
        if self.writable {
            // SAFETY: inside the mapping, which is writable. Who writes the same bytes at the same time gets either.
            unsafe {
                let to = self.start.as_ptr().add(offset);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
        self.writable
    }

    /// Reads bytes that other processes may write; false where they are outside.
    #[must_use]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        let Some(offset) = self.inside(offset, to.len() as u64) else { return false };
        // SAFETY: inside the mapping.
        unsafe {
            let from = self.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }
        true
    }

    fn inside(&self, offset: u64, bytes: u64) -> Option<usize> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes as u64).then(|| usize::try_from(offset).ok()).flatten()
    }

    /// Address of the first byte.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The descriptor, to be passed.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no slice of it outlives `self`. It cannot fail for an address of mmap.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes.max(1)) };
    }
}

/// Whether a descriptor is a segment of at least `bytes` that cannot shrink.
///
/// # Errors
/// `InvalidData`.
pub fn check(descriptor: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let refuse = |text| Err(io::Error::new(io::ErrorKind::InvalidData, text));
    match fcntl_get_seals(descriptor) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        _ => return refuse("a segment that is not sealed against shrinking"),
    }
    match rustix::fs::fstat(descriptor) {
        Ok(stat) if u64::try_from(stat.st_size).is_ok_and(|size| size >= bytes) => Ok(()),
        _ => refuse("a segment that is shorter than its piece"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_read_elsewhere_and_cannot_shrink() {
        let mut memory = Memory::create(5000).unwrap();
        memory.bytes_mut()[4999] = 7;
        let descriptor = memory.as_fd().try_clone_to_owned().unwrap();
        assert!(rustix::fs::ftruncate(&descriptor, 0).is_err());
        let other = Memory::open(descriptor, 5000).unwrap();
        assert_eq!(other.bytes()[4999], 7);
    }

    #[test]
    fn an_open_segment_is_written_by_two_and_a_sealed_one_by_its_maker_alone() {
        let memory = Memory::create_open(4096).unwrap();
        let other = Memory::share(memory.as_fd().try_clone_to_owned().unwrap(), 4096).unwrap();
        assert!(other.write(4094, &[7, 8]) && !other.write(4095, &[1, 1]));
        let mut read = [0; 2];
        assert!(memory.read(4094, &mut read) && read == [7, 8]);
        let reader = Memory::open(memory.as_fd().try_clone_to_owned().unwrap(), 4096).unwrap();
        assert!(!reader.write(0, &[1]));
        let sealed = Memory::create(4096).unwrap();
        assert!(Memory::share(sealed.as_fd().try_clone_to_owned().unwrap(), 4096).is_err());
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let descriptor = memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        assert!(Memory::open(descriptor, 0).is_err());
        let memory = Memory::create(1).unwrap();
        let descriptor = memory.as_fd().try_clone_to_owned().unwrap();
        assert!(Memory::open(descriptor, 1 << 30).is_err());
    }
}
