//! The state that the meter shares with its two threads.
//!
//! Arrives: counts of the threads, stops of the meter. Leaves: wake-ups. Must not know: packets, sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Condvar, Mutex};

#[derive(Debug)]
struct State {
    stop_sending: bool,
    /// Whether a warm-up packet of each stream has arrived.
    reached: Vec<bool>,
}

#[derive(Debug)]
pub(crate) struct Control {
    /// Packets of all streams.
    sent: AtomicU64,
    received: AtomicU64,
    /// Whether the meter waits for packets in flight.
    draining: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    stop_receiving: EventFd,
}

impl Control {
    pub(crate) fn new(streams: usize) -> io::Result<Self> {
        Ok(Self {
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            state: Mutex::new(State { stop_sending: false, reached: vec![false; streams] }),
            changed: Condvar::new(),
            stop_receiving: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        })
    }

    /// A packet is about to be sent. Counted first, since it may arrive before the thread continues.
    pub(crate) fn on_send(&self) {
        self.sent.fetch_add(1, Ordering::Release);
    }

    /// The system did not accept that packet.
    pub(crate) fn on_refused(&self) {
        self.sent.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn on_received(&self) {
        self.received.fetch_add(1, Ordering::SeqCst);
    }

    /// The receiver has read a batch: the meter may wait for it.
    pub(crate) fn on_batch(&self) {
        if self.draining.load(Ordering::SeqCst) {
            let _state = self.state.lock();
            self.changed.notify_all();
        }
    }

    /// Packets sent and received: never more received than sent.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let received = self.received.load(Ordering::SeqCst);
        (self.sent.load(Ordering::Acquire), received)
    }

    pub(crate) fn set_reached(&self, stream: usize) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.reached[stream], true) {
            self.changed.notify_all();
        }
    }

    pub(crate) fn is_reached(&self, stream: usize) -> bool {
        self.state.lock().reached[stream]
    }

    /// Waits until every stream is reached, at most `timeout`; returns those that are not.
    pub(crate) fn wait_reached(&self, timeout: Duration) -> Vec<usize> {
        let mut state = self.state.lock();
        let pending = |state: &mut State| state.reached.contains(&false);
        self.changed.wait_while_for(&mut state, pending, timeout);
        (0..state.reached.len()).filter(|&stream| !state.reached[stream]).collect()
    }

    /// Waits until every packet sent has been received, at most `timeout`.
    pub(crate) fn wait_received(&self, timeout: Duration) {
        self.draining.store(true, Ordering::SeqCst);
        let in_flight = |_: &mut State| {
            let (sent, received) = self.totals();
            received < sent
        };
        self.changed.wait_while_for(&mut self.state.lock(), in_flight, timeout);
    }

    /// The sender sleeps; false once it has to stop.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| !state.stop_sending, time);
        !state.stop_sending
    }

    pub(crate) fn stop_sending(&self) {
        self.state.lock().stop_sending = true;
        self.changed.notify_all();
    }

    pub(crate) fn stop_receiving(&self) {
        // A full counter wakes the receiver as well.
        let _ = self.stop_receiving.write(1);
    }

    /// Readable once the receiver has to stop.
    pub(crate) fn receiver_stop(&self) -> BorrowedFd<'_> {
        self.stop_receiving.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn each_wait_ends_with_its_event_and_not_with_its_timeout() {
        let control = Control::new(2).unwrap();
        let began = Instant::now();
        control.on_send();
        thread::scope(|scope| {
            scope.spawn(|| {
                control.set_reached(1);
                control.set_reached(0);
                control.on_received();
                control.on_batch();
                thread::sleep(Duration::from_millis(20));
                control.on_batch();
                control.stop_sending();
            });
            assert_eq!(control.wait_reached(LONG), Vec::<usize>::new());
            control.wait_received(LONG);
            assert!(!control.sleep(LONG));
        });
        assert!(began.elapsed() < LONG / 2);
        assert_eq!(control.totals(), (1, 1));
    }

    #[test]
    fn unreached_streams_are_returned_after_the_timeout() {
        let control = Control::new(3).unwrap();
        control.set_reached(1);
        assert_eq!(control.wait_reached(Duration::from_millis(1)), [0, 2]);
    }
}
