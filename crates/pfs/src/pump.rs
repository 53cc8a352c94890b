//! Real time: delivers the model's answers when they are due, and measures its lateness.
//!
//! Arrives: requests with their answers.
//! Leaves: the answers, each at its emulated time; lateness.
//! Must not know: the content of an answer.
//!
//! Emulated time is real time since the start over `dilation`. A few threads take turns: one sleeps until the next
//! answer is due, and wakes the next before it answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::model::{Model, Ns, Ticket};
use crate::statistics::Lateness;

/// Threads that answer. An answer copies up to 1 MiB into the kernel; two cores can do that at once.
const THREADS: usize = 2;

/// How much later than asked the kernel may wake a thread; its own default is 50 us (`PR_SET_TIMERSLACK`).
const SLACK: Duration = Duration::from_micros(1);

/// What is done when a request has been served.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

pub(crate) struct Pump {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    start: Instant,
    dilation: f64,
}

pub(crate) struct State {
    pub(crate) model: Model,
    pub(crate) lateness: Lateness,
    waiting: HashMap<Ticket, (Answer, Ns)>,
    /// Whether a thread sleeps until the next answer is due.
    led: bool,
    stop: bool,
}

impl Pump {
    pub(crate) fn start(model: Model, dilation: f64) -> std::io::Result<Self> {
        let state = State {
            model,
            lateness: Lateness::default(),
            waiting: HashMap::new(),
            led: false,
            stop: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            wake: Condvar::new(),
            start: Instant::now(),
            dilation,
        });
        let thread = |number| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("answers-{number}"))
                .spawn(move || shared.run())
        };
        let threads = (0..THREADS).map(thread).collect::<Result<_, _>>()?;
        Ok(Self { shared, threads: Mutex::new(threads) })
    }

    /// Give the model a request, and do `answer` when it is served. `ask` gets the time that it is now.
    pub(crate) fn submit(
        &self,
        ask: impl FnOnce(&mut Model, Ns) -> Ticket,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let mut state = self.shared.state.lock();
        let now = self.shared.now();
        let before = state.model.next_ns();
        let ticket = ask(&mut state.model, now);
        state.waiting.insert(ticket, (Box::new(answer), now));
        let after = state.model.next_ns();
        drop(state);
        // The sleeper wakes too late only where a request is due sooner.
        if after.is_some() && (before.is_none() || after < before) {
            self.shared.wake.notify_all();
        }
    }

    /// Read or change the state, at the present time.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut State, Ns) -> T) -> T {
        let mut state = self.shared.state.lock();
        look(&mut state, self.shared.now())
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.wake.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn now(&self) -> Ns {
        (self.start.elapsed().as_nanos() as f64 / self.dilation) as Ns
    }

    fn run(&self) {
        // Without it the thread still works, a little later.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(
            SLACK.as_nanos() as u64,
        ));
        let mut state = self.state.lock();
        while !state.stop {
            let now = self.now();
            if let Some((ticket, due)) = state.model.take_done(now) {
                let Some((answer, came)) = state.waiting.remove(&ticket) else { continue };
                drop(state);
                self.wake.notify_one(); // another thread serves what is due meanwhile
                answer();
                let late = self.now().saturating_sub(due);
                state = self.state.lock();
                state.lateness.count(due.saturating_sub(came), late);
                continue;
            }
            let next = state.model.next_ns();
            match next {
                Some(at) if !state.led => {
                    state.led = true;
                    let left = (at.saturating_sub(now)) as f64 * self.dilation;
                    let left = Duration::from_nanos(left.ceil() as u64);
                    self.wake.wait_for(&mut state, left);
                    state.led = false;
                }
                _ => self.wake.wait(&mut state),
            }
        }
    }
}
