//! The constants of `shim/include/waystage_ring.h`, which explains them. A test compares the two.

pub(crate) const MAGIC: u64 = 0x3147_4e52_5941_5753;
pub(crate) const VERSION: u32 = 1;
pub(crate) const TELL_STAT: u32 = 1;
pub(crate) const PROCESSES: usize = 1024;

/// Bytes of a cache line; each contended word begins one.
pub(crate) const LINE: usize = 64;

/// Offsets in the header.
pub(crate) const CONSUMED: usize = LINE;
pub(crate) const LOST: usize = 2 * LINE;
pub(crate) const UNPLACED: usize = LOST + 8;
pub(crate) const PROCESS_IDS: usize = 3 * LINE;
pub(crate) const HEADER_BYTES: usize = PROCESS_IDS + 4 * PROCESSES;

/// Offsets in a ring.
pub(crate) const LOCK: usize = 0;
pub(crate) const HEAD: usize = LINE;
pub(crate) const TAIL: usize = 2 * LINE;
pub(crate) const RING_CONTROL_BYTES: usize = 3 * LINE;

pub(crate) const SKIP: u8 = 1;
pub(crate) const OPENED: u8 = 2;
pub(crate) const CLOSED: u8 = 3;
pub(crate) const MOVED: u8 = 4;
pub(crate) const REMOVED: u8 = 5;
pub(crate) const LINKED: u8 = 6;
pub(crate) const SYMLINK: u8 = 7;
pub(crate) const MADE: u8 = 8;
pub(crate) const TRUNCATED: u8 = 9;
pub(crate) const ATTRIBUTES: u8 = 10;
pub(crate) const PROGRAM: u8 = 11;

/// The state in a record of a program.
pub(crate) const PROGRAM_STARTS: u32 = 1;
pub(crate) const PROGRAM_FAILED: u32 = 2;
pub(crate) const PROGRAM_LOADED: u32 = 3;
pub(crate) const PROGRAM_UNOBSERVABLE: u32 = 4;

pub(crate) const ALIGN: u64 = 16;
pub(crate) const RECORD_BYTES: usize = 16;
pub(crate) const STAT_BYTES: usize = 72;
pub(crate) const PROGRAM_BYTES: usize = 8;
pub(crate) const LONGEST: usize = RECORD_BYTES + 2 * 4096;
