//! Looking names of hosts up, which waits for others, beside the thread that must not.
//!
//! Arrives: names with the numbers of those who ask. Leaves: addresses, or why there are none. Must not know: rules.

use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use waystage_transport::waker::Waker;

/// Names looked up at a time; a name server that does not answer blocks at most these.
const MOST_THREADS: usize = 8;

/// What was found for whom.
pub(super) type Found = (u64, Result<Vec<SocketAddr>, String>);

#[derive(Default)]
struct State {
    asked: VecDeque<(u64, String, u16)>,
    found: Vec<Found>,
    threads: usize,
    idle: usize,
    over: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    waker: Arc<Waker>,
}

/// Threads that look names up; they are made when they are wanted.
pub(super) struct Resolver(Arc<Shared>);

impl Resolver {
    /// The waker is rung when something was found.
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), wake: Condvar::new(), waker }))
    }

    pub(super) fn ask(&self, token: u64, name: &str, port: u16) {
        let mut state = self.0.lock();
        state.asked.push_back((token, name.to_owned(), port));
        if state.idle < state.asked.len() && state.threads < MOST_THREADS {
            let shared = Arc::clone(&self.0);
            let looking = move || shared.look_up();
            let spawned = std::thread::Builder::new().name("wan-names".to_owned()).spawn(looking);
            state.threads += usize::from(spawned.is_ok());
        }
        self.0.wake.notify_one();
    }

    pub(super) fn found(&self) -> Vec<Found> {
        std::mem::take(&mut self.0.lock().found)
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        // Those that wait for a name server end when it answers.
        self.0.lock().over = true;
        self.0.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn look_up(&self) {
        let mut state = self.lock();
        while !state.over {
            let Some((token, name, port)) = state.asked.pop_front() else {
                state.idle += 1;
                self.wake.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
            let found = found.map_err(|error| format!("{name} is not known: {error}"));
            state = self.lock();
            state.found.push((token, found));
            self.waker.wake();
        }
    }
}
