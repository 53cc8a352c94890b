//! The limiter of one flow, for the threads that move its bytes.
//!
//! Arrives: limits, pauses, the end of the flow; threads with bytes to move.
//! Leaves: each thread once its bytes may go, or [`Stopped`].
//! Must not know: what the bytes are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use waystage_sync::{Condvar, Mutex};

use crate::limiter::{Limiter, Turn};
use crate::meter::{during, Cause};

/// The flow ends: the bytes are not to move at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

#[derive(Debug, Default)]
struct State {
    limiter: Limiter,
    stopped: bool,
}

/// Open, limited, paused or stopped; each change reaches threads that wait at once. No lock is held while one waits.
#[derive(Debug)]
pub struct Gate {
    /// Neither limited, paused nor stopped: then [`Gate::pass`] costs one load.
    open: AtomicBool,
    paused: AtomicBool,
    limited: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            open: AtomicBool::new(true),
            paused: AtomicBool::new(false),
            limited: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

impl Gate {
    /// A gate with the user's limit, bytes/s.
    #[must_use]
    pub fn limited_to(bytes_per_s: Option<u64>) -> Self {
        let gate = Self::default();
        gate.set_limit(bytes_per_s);
        gate
    }

    /// Wait for the turn of `bytes`; how long that took. With 0 bytes, for the end of a pause alone.
    ///
    /// # Errors
    /// Once it is stopped.
    #[inline]
    pub fn pass(&self, bytes: u64) -> Result<Duration, Stopped> {
        if self.open.load(Ordering::Relaxed) {
            return Ok(Duration::ZERO);
        }
        self.wait(bytes)
    }

    /// Whether nothing is limited, paused or stopped.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// The same for at most `time`: None where the turn has not come.
    ///
    /// # Errors
    /// Once it is stopped.
    pub fn pass_within(&self, bytes: u64, time: Duration) -> Result<Option<Duration>, Stopped> {
        if self.open.load(Ordering::Relaxed) {
            return Ok(Some(Duration::ZERO));
        }
        self.wait_until(bytes, Instant::now().checked_add(time))
    }

    fn wait(&self, bytes: u64) -> Result<Duration, Stopped> {
        self.wait_until(bytes, None).map(Option::unwrap_or_default)
    }

    fn wait_until(
        &self,
        bytes: u64,
        deadline: Option<Instant>,
    ) -> Result<Option<Duration>, Stopped> {
        let began = Instant::now();
        let mut now = began;
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return Err(Stopped);
            }
            let turn = match state.limiter.take(now, bytes) {
                Turn::Wait(_) if bytes == 0 => Turn::Go,
                turn => turn,
            };
            match turn {
                Turn::Go => return Ok(Some(now - began)),
                Turn::Paused => during(Cause::Paused, || match deadline {
                    Some(at) => drop(self.changed.wait_until(&mut state, at)),
                    None => self.changed.wait(&mut state),
                }),
                Turn::Wait(left) => during(Cause::Rate, || {
                    let at = now.checked_add(left).into_iter().chain(deadline).min();
                    match at {
                        Some(at) => drop(self.changed.wait_until(&mut state, at)),
                        None => self.changed.wait(&mut state),
                    }
                }),
            }
            now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) && !state.stopped {
                return Ok(None);
            }
        }
    }

    /// Wait for `time`, at most until it is stopped.
    ///
    /// # Errors
    /// Once it is stopped.
    pub fn rest(&self, time: Duration) -> Result<(), Stopped> {
        let mut state = self.state.lock();
        let goes_on = |state: &mut State| !state.stopped;
        if self.changed.wait_while_for(&mut state, goes_on, time).timed_out() {
            Ok(())
        } else {
            Err(Stopped)
        }
    }

    /// What `bytes` that cannot wait here may do: for event loops. They are counted where they may go.
    pub fn take(&self, now: Instant, bytes: u64) -> Turn {
        if self.open.load(Ordering::Relaxed) {
            return Turn::Go;
        }
        self.state.lock().limiter.take(now, bytes)
    }

    /// Whether a limit holds.
    pub fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        !self.open.load(Ordering::Relaxed) && self.state.lock().stopped
    }

    /// The limit that holds, bytes/s.
    pub fn effective(&self) -> Option<u64> {
        self.state.lock().limiter.effective()
    }

    /// The user's own limit, bytes/s; None for none.
    pub fn set_limit(&self, bytes_per_s: Option<u64>) {
        self.change(|state| state.limiter.set_limit(Instant::now(), bytes_per_s));
    }

    /// The rate that the control plane grants, bytes/s; None for any. The lower of both limits holds.
    pub fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.change(|state| state.limiter.set_rate(Instant::now(), bytes_per_s));
    }

    /// Let nothing pass, or go on.
    pub fn set_paused(&self, paused: bool) {
        self.change(|state| state.limiter.set_paused(Instant::now(), paused));
    }

    /// Let every thread end that waits or comes; false to go on, for the next phase of a flow.
    pub fn set_stopped(&self, stopped: bool) {
        self.change(|state| state.stopped = stopped);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let (paused, limited) = (state.limiter.is_paused(), state.limiter.effective().is_some());
        self.paused.store(paused, Ordering::Relaxed);
        self.limited.store(limited, Ordering::Relaxed);
        self.open.store(!(paused || limited || state.stopped), Ordering::SeqCst);
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_take_the_time_that_the_rate_gives_them() {
        let gate = Gate::limited_to(Some(1_000_000));
        let began = Instant::now();
        for _ in 0..5 {
            gate.pass(50_000).unwrap();
        }
        // The first goes at once, the last is not waited for, and 10 ms may have been saved up.
        assert!(began.elapsed() >= Duration::from_millis(185));
    }

    #[test]
    fn a_stop_ends_the_longest_wait() {
        for paused in [false, true] {
            let gate = Gate::limited_to(Some(1));
            gate.pass(1_000_000).unwrap();
            gate.set_paused(paused);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| gate.pass(1));
                std::thread::sleep(Duration::from_millis(20));
                gate.set_stopped(true);
                assert_eq!(waiting.join().unwrap(), Err(Stopped));
            });
            assert!(gate.is_stopped());
        }
    }

    #[test]
    fn a_rest_lasts_its_time_unless_a_stop_ends_it() {
        let gate = Gate::default();
        assert_eq!(gate.rest(Duration::from_millis(1)), Ok(()));
        std::thread::scope(|scope| {
            let resting = scope.spawn(|| gate.rest(Duration::from_secs(3600)));
            std::thread::sleep(Duration::from_millis(20));
            gate.set_stopped(true);
            assert_eq!(resting.join().unwrap(), Err(Stopped));
        });
        assert_eq!(gate.rest(Duration::from_secs(3600)), Err(Stopped), "as it was stopped before");
    }

    #[test]
    fn a_change_holds_for_those_who_wait_already() {
        let gate = Gate::limited_to(Some(1));
        gate.pass(1_000_000_000).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.pass(1));
            std::thread::sleep(Duration::from_millis(20));
            gate.set_limit(None);
            assert!(waiting.join().unwrap().is_ok());
        });
        assert!(!gate.is_limited());
    }

    #[test]
    fn a_pause_holds_all_and_its_end_lets_them_go() {
        let gate = Gate::default();
        assert_eq!(gate.pass(1 << 40), Ok(Duration::ZERO));
        // A thread that gets the processor only after the pause has not waited: not each time.
        let waited = (0..100).any(|_| {
            gate.set_paused(true);
            let passing = || gate.pass(0).map(|waited| (waited, Instant::now()));
            std::thread::scope(|scope| {
                let waiting: Vec<_> = (0..4).map(|_| scope.spawn(passing)).collect();
                std::thread::sleep(Duration::from_millis(50));
                let goes_on = Instant::now();
                gate.set_paused(false);
                let all = waiting.into_iter().map(|thread| thread.join().unwrap().unwrap());
                let all: Vec<_> = all.collect();
                assert!(all.iter().all(|(_, passed)| *passed >= goes_on));
                all.iter().all(|(waited, _)| *waited >= Duration::from_millis(20))
            })
        });
        assert!(waited, "the time of a pause is not counted");
    }

    #[test]
    fn who_waits_for_a_time_gets_no_turn_in_a_pause() {
        let gate = Gate::default();
        let short = Duration::from_millis(20);
        assert_eq!(gate.pass_within(1, short), Ok(Some(Duration::ZERO)));
        gate.set_paused(true);
        assert_eq!(gate.pass_within(1, short), Ok(None));
        gate.set_paused(false);
        gate.set_limit(Some(1));
        assert!(gate.pass_within(1000, short).unwrap().is_some());
        assert_eq!(gate.pass_within(1, short), Ok(None));
        gate.set_stopped(true);
        assert_eq!(gate.pass_within(1, short), Err(Stopped));
    }

    #[test]
    fn a_limit_does_not_delay_what_has_no_bytes() {
        let gate = Gate::limited_to(Some(1));
        gate.pass(1_000_000).unwrap();
        assert!(gate.pass(0).unwrap() < Duration::from_secs(10));
    }
}
