//! A pool of read buffers: a buffer that is dropped is used again.
//!
//! Fresh memory costs a page fault for every 4 KiB at its first touch, about as much as copying the page; so buffers
//! come back.

use std::sync::Arc;

use waystage_sync::Mutex;

/// Buffers of one power of two that are kept, at most; and bytes of all.
const KEPT_OF_A_SIZE: usize = 1024;
const KEPT_BYTES: usize = 256 << 20;

/// The smallest buffer: a page, as files are read in pages anyway.
const SMALLEST: usize = 4 << 10;

/// What each buffer of the pool has room for above its power of two, so that a file of exactly that many bytes can be
/// read with the byte behind its end.
const SLACK: usize = 64;

/// Buffers that wait to be used again.
#[derive(Debug, Default)]
pub struct Pool {
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// By the logarithm of their capacity.
    by_size: Vec<Vec<Vec<u8>>>,
    bytes: usize,
}

impl Pool {
    /// An empty buffer with room for `length` bytes; None where memory is short.
    #[must_use]
    pub fn take(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        let size = length.saturating_sub(SLACK).max(SMALLEST).checked_next_power_of_two()?;
        let kept = {
            let mut free = self.free.lock();
            let kept = free.by_size.get_mut(class(size)).and_then(Vec::pop);
            free.bytes -= kept.as_ref().map_or(0, Vec::capacity);
            kept
        };
        let bytes = match kept {
            Some(kept) => kept,
            None => {
                // Large ones are made to measure: a power of two would waste up to half.
                let size = if size > LARGE { length } else { size + SLACK };
                let mut fresh = Vec::new();
                fresh.try_reserve_exact(size).ok()?;
                fresh
            }
        };
        Some(Buffer { bytes, pool: Some(Arc::clone(self)) })
    }

    fn give_back(&self, mut bytes: Vec<u8>) {
        let size = bytes.capacity().saturating_sub(SLACK);
        if !(SMALLEST..=LARGE).contains(&size) || !size.is_power_of_two() {
            return;
        }
        bytes.clear();
        let mut free = self.free.lock();
        if free.bytes + bytes.capacity() > KEPT_BYTES {
            return;
        }
        let class = class(size);
        if free.by_size.len() <= class {
            free.by_size.resize_with(class + 1, Vec::new);
        }
        if free.by_size[class].len() < KEPT_OF_A_SIZE {
            free.bytes += bytes.capacity();
            free.by_size[class].push(bytes);
        }
    }
}

/// The largest buffer that is kept.
const LARGE: usize = 16 << 20;

fn class(size: usize) -> usize {
    size.trailing_zeros() as usize
}

/// Bytes that were read. Dropped, its memory goes back to its pool.
#[derive(Debug, Default)]
pub struct Buffer {
    /// The bytes.
    pub bytes: Vec<u8>,
    pool: Option<Arc<Pool>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.give_back(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_used_again() {
        let pool = Arc::new(Pool::default());
        let mut one = pool.take(5000).expect("memory");
        one.bytes.extend_from_slice(b"old");
        let at = one.bytes.as_ptr();
        drop(one);
        let other = pool.take(8000).expect("memory");
        assert_eq!((other.bytes.as_ptr(), other.bytes.len()), (at, 0));
        assert!(other.bytes.capacity() >= 8000);
        let page = pool.take(4097).expect("memory");
        assert!(
            (4097..8192).contains(&page.bytes.capacity()),
            "a page and a byte take no two pages"
        );
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        assert!(Arc::new(Pool::default()).take(usize::MAX / 2).is_none());
    }
}
