//! What the threads of a flow spend their time on, and so what limits it.
//!
//! Arrives: the begin and end of each wait, from the threads themselves.
//! Leaves: the cause with the largest share of the recent time.
//! Must not know: what the threads do.
//!
//! A thread writes to its own cell, without a lock: a wait reads the clock twice. A wait in progress counts
//! as well, so that a read that hangs is seen while it hangs.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};
use waystage_sync::Mutex;

/// What bytes wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A limit on the rate.
    Rate,
    /// Reads and metadata of the source.
    Source,
    /// Writes and metadata of the destination, or the program that takes the data.
    Destination,
    /// Credit, congestion window or acknowledgements of a connection.
    Network,
    /// A pause.
    Paused,
}

const CAUSES: [Cause; 5] =
    [Cause::Rate, Cause::Source, Cause::Destination, Cause::Network, Cause::Paused];

impl Cause {
    /// Its name for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Network => "network",
            Self::Paused => "paused",
        }
    }
}

/// The least time that is judged: shorter ones are a matter of which piece happened to be in progress.
const INTERVAL: Duration = Duration::from_millis(200);

/// A cause limits a flow from this share of its threads' time on. Below it they compute, or have nothing to do.
const SHARE: f64 = 0.25;

/// Nanoseconds by cause.
type Times = [u64; CAUSES.len()];

/// The times of one thread. `now` is what it does now: nanoseconds of the clock, times 8, plus 1 + the cause,
/// or plus 0 where it waits for nothing.
#[derive(Debug, Default)]
struct Cell {
    times: [AtomicU64; CAUSES.len()],
    now: AtomicU64,
}

impl Cell {
    fn read(&self, at_ns: u64) -> Times {
        let now = self.now.load(Ordering::Relaxed);
        let mut times = [0; CAUSES.len()];
        for (time, of) in times.iter_mut().zip(&self.times) {
            *time = of.load(Ordering::Relaxed);
        }
        if let Some(index) = (now % 8).checked_sub(1) {
            times[index as usize] += at_ns.saturating_sub(now / 8);
        }
        times
    }
}

#[derive(Debug)]
struct Judged {
    at_ns: u64,
    times: Times,
    thread_ns: u64,
    cause: Option<Cause>,
}

#[derive(Debug)]
struct State {
    /// Each thread's cell, and when it came.
    cells: Vec<(Arc<Cell>, u64)>,
    /// Of threads that have left.
    past: Times,
    past_thread_ns: u64,
    judged: Judged,
}

/// The waits of a flow's threads.
#[derive(Debug)]
pub struct Meter {
    state: Arc<Mutex<State>>,
}

impl Default for Meter {
    fn default() -> Self {
        let judged =
            Judged { at_ns: now_ns(), times: [0; CAUSES.len()], thread_ns: 0, cause: None };
        let state = State { cells: Vec::new(), past: judged.times, past_thread_ns: 0, judged };
        Self { state: Arc::new(Mutex::new(state)) }
    }
}

thread_local! {
    /// The cell of the flow that this thread works for.
    static CURRENT: RefCell<Option<Arc<Cell>>> = const { RefCell::new(None) };
}

impl Meter {
    /// Count the waits of this thread until the guard is dropped.
    #[must_use]
    pub fn attach(&self) -> Attached {
        let cell = Arc::new(Cell::default());
        self.state.lock().cells.push((Arc::clone(&cell), now_ns()));
        let before = CURRENT.with(|current| current.replace(Some(Arc::clone(&cell))));
        Attached { cell, state: Arc::clone(&self.state), before }
    }

    /// The cause with the largest share of the threads' time since it was last asked for, at least of 200 ms.
    #[must_use]
    pub fn limited_by(&self) -> Option<Cause> {
        let at_ns = now_ns();
        let mut state = self.state.lock();
        if at_ns.saturating_sub(state.judged.at_ns) >= nanoseconds(INTERVAL) {
            let (times, thread_ns) = state.totals(at_ns);
            // Threads that came late or have left waited for nothing.
            let elapsed_ns = at_ns - state.judged.at_ns;
            let spent = thread_ns.saturating_sub(state.judged.thread_ns).max(elapsed_ns);
            let cause = largest(&state.judged.times, &times, spent);
            state.judged = Judged { at_ns, times, thread_ns, cause };
        }
        state.judged.cause
    }
}

impl State {
    fn totals(&self, at_ns: u64) -> (Times, u64) {
        let (mut times, mut thread_ns) = (self.past, self.past_thread_ns);
        for (cell, since_ns) in &self.cells {
            add(&mut times, &cell.read(at_ns));
            thread_ns += at_ns.saturating_sub(*since_ns);
        }
        (times, thread_ns)
    }
}

/// The cause that took most of `thread_ns`, the time of all threads together, between two readings.
fn largest(before: &Times, after: &Times, thread_ns: u64) -> Option<Cause> {
    let grown = |index: usize| after[index].saturating_sub(before[index]);
    let most = (0..CAUSES.len()).max_by_key(|index| grown(*index))?;
    (grown(most) > 0 && grown(most) as f64 >= SHARE * thread_ns as f64).then(|| CAUSES[most])
}

fn add(times: &mut Times, more: &Times) {
    for (time, more) in times.iter_mut().zip(more) {
        *time += more;
    }
}

/// A thread whose waits are counted.
#[derive(Debug)]
pub struct Attached {
    cell: Arc<Cell>,
    state: Arc<Mutex<State>>,
    before: Option<Arc<Cell>>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        CURRENT.with(|current| current.replace(self.before.take()));
        let now_ns = now_ns();
        let mut state = self.state.lock();
        if let Some(at) = state.cells.iter().position(|(cell, _)| Arc::ptr_eq(cell, &self.cell)) {
            let (cell, since_ns) = state.cells.swap_remove(at);
            add(&mut state.past, &cell.read(now_ns));
            state.past_thread_ns += now_ns.saturating_sub(since_ns);
        }
    }
}

/// Do `work` and count its time as a wait for `cause`, on a thread whose waits are counted. Within another wait, the
/// inner cause counts alone.
pub fn during<T>(cause: Cause, work: impl FnOnce() -> T) -> T {
    let before = switch(1 + cause as u64);
    let done = work();
    if let Some(before) = before {
        switch(before);
    }
    done
}

/// Begin to wait for something else; what this thread waited for before.
fn switch(to: u64) -> Option<u64> {
    CURRENT.with(|current| {
        let current = current.borrow();
        let cell = current.as_ref()?;
        let now_ns = now_ns();
        let was = cell.now.load(Ordering::Relaxed);
        if let Some(index) = (was % 8).checked_sub(1) {
            let time = &cell.times[index as usize];
            let waited = now_ns.saturating_sub(was / 8);
            // This thread alone writes.
            time.store(time.load(Ordering::Relaxed) + waited, Ordering::Relaxed);
        }
        cell.now.store(now_ns * 8 + to, Ordering::Relaxed);
        Some(was % 8)
    })
}

/// The time by the kernel's tick, of 1 to 10 ms: a fifth of the cost of a precise clock. Shorter waits are counted as
/// often as a tick falls into them, which over [`INTERVAL`] is right on average.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough to be judged, whatever the tick.
    const LONG: Duration = Duration::from_millis(250);

    #[test]
    fn the_largest_share_limits_and_small_ones_do_not() {
        let before = [5, 0, 0, 0, 0];
        assert_eq!(largest(&before, &[105, 20, 10, 0, 0], 200), Some(Cause::Rate));
        assert_eq!(largest(&before, &[6, 20, 60, 0, 0], 200), Some(Cause::Destination));
        assert_eq!(largest(&before, &[6, 20, 30, 0, 0], 200), None, "they compute");
        assert_eq!(largest(&before, &before, 0), None);
    }

    /// Whether the meter says so after some time of this. On a busy machine the thread may stand elsewhere for longer.
    fn says(meter: &Meter, cause: Option<Cause>, mut wait: impl FnMut()) -> bool {
        (0..100).any(|_| {
            wait();
            meter.limited_by() == cause
        })
    }

    #[test]
    fn a_wait_counts_while_it_lasts_and_the_inner_one_alone() {
        let meter = Meter::default();
        let attached = meter.attach();
        let sleep = || std::thread::sleep(LONG);
        during(Cause::Source, || {
            assert!(says(&meter, Some(Cause::Source), sleep));
            assert!(says(&meter, Some(Cause::Network), || during(Cause::Network, sleep)));
            assert!(says(&meter, Some(Cause::Source), sleep));
        });
        drop(attached);
        assert!(says(&meter, None, sleep));
        assert_eq!(during(Cause::Rate, || 7), 7, "a thread that is not counted works as well");
    }

    #[test]
    fn what_one_thread_of_ten_waits_for_does_not_limit() {
        let meter = Meter::default();
        let ten = || {
            std::thread::scope(|scope| {
                for number in 0..10 {
                    let meter = &meter;
                    scope.spawn(move || {
                        let _attached = meter.attach();
                        if number == 0 {
                            during(Cause::Source, || std::thread::sleep(2 * LONG));
                        } else {
                            std::thread::sleep(2 * LONG);
                        }
                    });
                }
            });
        };
        assert!(says(&meter, None, ten));
    }
}
