//! Backpressure of a channel: senders wait here until one of its connections takes messages again.
//!
//! Arrives: notices that a connection may take more, buffers of delivered messages. Leaves: woken senders, buffers to
//! fill again. Must not know: connections, what messages contain.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// Buffers kept, and the least capacity worth keeping. Threads that read files take them as fast as they come.
const MOST_BUFFERS: usize = 4;
const LEAST_BUFFER_BYTES: usize = 1 << 20;

/// Where senders wait while no connection takes messages.
#[derive(Default)]
pub struct Backpressure {
    notices: Mutex<u64>,
    changed: Condvar,
    waiting: AtomicUsize,
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Backpressure {
    /// Wake the senders: a connection may take more, or the channel has ended.
    pub fn notify(&self) {
        *self.notices.lock() += 1;
        self.changed.notify_all();
    }

    /// How often senders were notified. Read it before trying to send, and give it to [`Self::wait`].
    pub fn notices(&self) -> u64 {
        *self.notices.lock()
    }

    /// Wait for a notice after the first `seen`.
    pub fn wait(&self, seen: u64) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.changed.wait_while(&mut self.notices.lock(), |notices| *notices == seen);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Keep the buffer of a delivered message, if it is large.
    pub fn recycle(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffer.capacity() >= LEAST_BUFFER_BYTES && buffers.len() < MOST_BUFFERS {
            buffers.push(buffer);
        }
    }

    /// A buffer to fill, with its old contents.
    pub fn buffer(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_default()
    }

    /// Whether a sender waits.
    pub fn is_blocking(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_between_the_attempt_and_the_wait_is_not_lost() {
        let backpressure = Backpressure::default();
        let seen = backpressure.notices();
        backpressure.notify();
        // Without the count this would wait forever.
        backpressure.wait(seen);
        assert!(!backpressure.is_blocking());
    }

    #[test]
    fn only_a_few_large_buffers_are_kept() {
        let backpressure = Backpressure::default();
        backpressure.recycle(vec![0; LEAST_BUFFER_BYTES - 1]);
        assert_eq!(backpressure.buffer().capacity(), 0);
        for _ in 0..MOST_BUFFERS + 2 {
            backpressure.recycle(vec![0; LEAST_BUFFER_BYTES]);
        }
        let kept =
            std::iter::repeat_with(|| backpressure.buffer()).take_while(|b| b.capacity() > 0);
        assert_eq!(kept.count(), MOST_BUFFERS);
    }
}
