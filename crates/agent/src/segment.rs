//! The shared memory, as words that any process may write at any moment.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{fallocate, fcntl_add_seals, memfd_create, FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

use crate::abi;

/// Words of shared memory. Every access is atomic, so that another process's writing is no undefined behaviour here.
pub(crate) struct Words<'a>(pub(crate) &'a [AtomicU64]);

impl Words<'_> {
    /// The word at a byte offset, which is a multiple of 8.
    pub(crate) fn at(&self, offset: usize) -> &AtomicU64 {
        &self.0[offset / 8]
    }

    /// Copy `to.len()` bytes, a multiple of 8, from a byte offset that is one too.
    pub(crate) fn copy(&self, offset: usize, to: &mut [u8]) {
        for (word, to) in self.0[offset / 8..].iter().zip(to.chunks_exact_mut(8)) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
}

/// How the segment is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) rings: usize,
    /// Bytes of each, a power of two.
    pub(crate) ring_bytes: usize,
}

impl Shape {
    pub(crate) fn bytes(self) -> usize {
        abi::HEADER_BYTES + self.rings * (abi::RING_CONTROL_BYTES + self.ring_bytes)
    }

    pub(crate) fn words_of(self, ring: usize) -> usize {
        abi::HEADER_BYTES + ring * abi::RING_CONTROL_BYTES
    }

    pub(crate) fn data_of(self, ring: usize) -> usize {
        self.words_of(self.rings) + ring * self.ring_bytes
    }
}

/// A segment without a name: a process that may open this process's descriptors can map it.
pub(crate) struct Segment {
    file: File,
    start: *mut std::ffi::c_void,
    pub(crate) shape: Shape,
}

// SAFETY: the pointer is to shared memory that lives as long as the segment, and is accessed by atomic words alone.
#[allow(unsafe_code)]
unsafe impl Send for Segment {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Segment {}

impl Segment {
    /// All memory is reserved at once: a writer must never fault on a page that cannot be allocated.
    pub(crate) fn create(shape: Shape, tell_stat: bool) -> io::Result<Self> {
        let bytes = shape.bytes();
        let fd = memfd_create("waystage", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64)?;
        // A shrunk file would kill the agent with SIGBUS.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        #[allow(unsafe_code)]
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd.as_fd(),
                0,
            )
        }?;
        let segment = Self { file: fd.into(), start, shape };
        segment.write_header(tell_stat);
        Ok(segment)
    }

    fn write_header(&self, tell_stat: bool) {
        let words = self.words();
        let flags = if tell_stat { abi::TELL_STAT } else { 0 };
        let pair = |low: u32, high: u32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&low.to_ne_bytes());
            bytes[4..].copy_from_slice(&high.to_ne_bytes());
            u64::from_ne_bytes(bytes)
        };
        let rings = u32::try_from(self.shape.rings).unwrap_or(u32::MAX);
        words.at(8).store(pair(abi::VERSION, flags), Ordering::Relaxed);
        words.at(16).store(pair(rings, 0), Ordering::Relaxed);
        words.at(24).store(self.shape.ring_bytes as u64, Ordering::Relaxed);
        words.at(0).store(abi::MAGIC, Ordering::Release);
    }

    pub(crate) fn words(&self) -> Words<'_> {
        // SAFETY: the mapping is this long, aligned to pages, and lives as long as self.
        #[allow(unsafe_code)]
        Words(unsafe {
            std::slice::from_raw_parts(self.start.cast::<AtomicU64>(), self.shape.bytes() / 8)
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: nothing borrows the words now. Programs keep their own mappings.
        #[allow(unsafe_code)]
        let _ = unsafe { munmap(self.start, self.shape.bytes()) };
    }
}
