//! Received messages that wait for their consumer.
//!
//! Arrives: messages of all connections of a channel, the end of the channel. Leaves: the messages in order, then why
//! no more come. Must not know: what messages contain, sockets.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::backpressure::Backpressure;
use crate::message::{Message, MEMORY_BYTES};
use crate::waker::Waker;

/// What came in and waits.
#[derive(Default)]
pub struct MessageQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    /// Woken beside `changed`, for a consumer that waits for sockets as well.
    waker: OnceLock<Arc<Waker>>,
    /// Senders, which the end of the channel wakes.
    senders: OnceLock<Arc<Backpressure>>,
    /// Memory that what comes in may fill; 0 for what is usual.
    most_bytes: AtomicU64,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Message>,
    /// Bytes of messages handed in and not done with.
    held_bytes: u64,
    ended: Option<String>,
}

impl MessageQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }

    /// Add a message.
    pub fn put(&self, message: Message) {
        let mut state = self.lock();
        state.held_bytes += message.length as u64;
        state.waiting.push_back(message);
        drop(state);
        self.changed.notify_one();
        self.wake();
    }

    /// What waits here waits there from now on.
    pub fn pass_on(&self, other: &Self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        for message in waiting {
            self.done(message.length);
            other.put(message);
        }
    }

    /// From now on this waker is rung when something has come, or there is room to send more.
    pub fn set_waker(&self, waker: Arc<Waker>) {
        let _ = self.waker.set(waker);
        self.wake();
    }

    /// Notify these senders of the end.
    pub fn notify_senders(&self, senders: Arc<Backpressure>) {
        let _ = self.senders.set(senders);
    }

    /// Wake the consumer.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Limit received messages to `bytes`; what is kept of them until the copy ends may take about as much again.
    pub fn allow(&self, bytes: u64) {
        self.most_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Memory that what comes in may fill.
    pub fn most_bytes(&self) -> u64 {
        match self.most_bytes.load(Ordering::Relaxed) {
            0 => MEMORY_BYTES,
            bytes => bytes,
        }
    }

    /// Bytes of messages that were received and not finished with.
    pub fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    /// Nothing more comes: why. The first reason stays.
    pub fn end(&self, why: &str) {
        self.lock().ended.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
        self.wake();
        if let Some(senders) = self.senders.get() {
            senders.notify();
        }
    }

    /// Why no more messages come, if so.
    pub fn ended(&self) -> Option<String> {
        self.lock().ended.clone()
    }

    /// The next message; None at the end, or after [`Self::interrupt`] once `is_over` says so.
    pub fn take_unless(&self, is_over: impl Fn() -> bool) -> Option<Message> {
        let mut state = self.lock();
        self.changed.wait_while(&mut state, |state| {
            state.waiting.is_empty() && state.ended.is_none() && !is_over()
        });
        if is_over() {
            return None;
        }
        state.waiting.pop_front()
    }

    /// Let all threads in [`Self::take_unless`] ask again whether it is over.
    pub fn interrupt(&self) {
        // With the lock, no thread is between its question and its wait.
        let _state = self.lock();
        self.changed.notify_all();
    }

    /// The next message; None after `timeout` or the end.
    pub fn take(&self, timeout: Duration) -> Option<Message> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(message) = state.waiting.pop_front() {
                return Some(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.ended.is_some() || left.is_zero() {
                return None;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// The consumer has finished with a message of this size.
    pub fn done(&self, bytes: usize) {
        self.lock().held_bytes -= bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn what_came_before_it_was_known_where_to_is_passed_on_in_order() {
        let (early, incoming) = (MessageQueue::default(), MessageQueue::default());
        for byte in [1, 2] {
            early.put(Message { buffer: vec![byte; 8], length: 3, by: None });
        }
        early.pass_on(&incoming);
        assert_eq!((early.held_bytes(), incoming.held_bytes()), (0, 6));
        assert!(early.take(Duration::ZERO).is_none());
        let came = [(); 2].map(|()| incoming.take(Duration::ZERO).unwrap()[0]);
        assert_eq!(came, [1, 2]);
    }

    #[test]
    fn an_interrupt_wakes_all_that_wait_once_it_is_over() {
        for _ in 0..200 {
            let (incoming, over) = (MessageQueue::default(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let take = || incoming.take_unless(|| over.load(Ordering::Relaxed));
                let waiting = [(); 2].map(|()| scope.spawn(take));
                incoming.interrupt();
                over.store(true, Ordering::Relaxed);
                incoming.interrupt();
                assert!(waiting.into_iter().all(|thread| thread.join().unwrap().is_none()));
            });
        }
    }

    #[test]
    fn messages_that_came_before_the_end_are_still_handed_out() {
        let incoming = MessageQueue::default();
        incoming.put(Message { buffer: vec![1, 2, 3], length: 2, by: None });
        incoming.end("over");
        incoming.end("once more");
        let message = incoming.take(Duration::ZERO).unwrap();
        assert_eq!((&message[..], incoming.held_bytes()), (&[1, 2][..], 2));
        incoming.done(2);
        assert_eq!((incoming.held_bytes(), incoming.ended().as_deref()), (0, Some("over")));
        assert!(incoming.take(Duration::from_secs(60)).is_none());
    }
}
