//! The probe that a server runs: one at a time, and the TCP streams that belong to it.
//!
//! Arrives: a session that begins, streams that name one, what they carried. Leaves: the session's only place, or why
//! there is none. Must not know: sockets.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use waystage_transport::error::Error;

use crate::messages::Token;
use crate::stream::Streamed;

/// The session that a server has, if it has one.
#[derive(Default)]
pub struct Probes(Mutex<Option<Arc<Running>>>);

/// A session, to its streams.
pub(crate) struct Running {
    pub(crate) token: Token,
    /// Bytes a second.
    pub(crate) rate: u64,
    /// What the last stream carried, as seen here.
    streamed: Mutex<Option<Result<Streamed, Error>>>,
    /// Interrupts the session.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Running {
    /// What the last stream carried, once.
    pub(crate) fn take(&self) -> Option<Result<Streamed, Error>> {
        self.streamed.lock().take()
    }

    /// A stream has ended.
    pub(crate) fn ended(&self, streamed: Result<Streamed, Error>) {
        *self.streamed.lock() = Some(streamed);
        (self.wake)();
    }
}

impl Probes {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Running>>> {
        self.0.lock()
    }

    /// Begin a session; `wake` interrupts it when a stream has ended.
    pub(crate) fn begin(
        &self,
        token: Token,
        rate: u64,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<SessionGuard<'_>, Error> {
        let mut held = self.lock();
        if held.is_some() {
            return Err(Error::Busy(
                "another client probes this server, and two would measure one another: try again in a minute".into(),
            ));
        }
        let (streamed, wake) = (Mutex::default(), Box::new(wake));
        let running = Arc::new(Running { token, rate, streamed, wake });
        *held = Some(Arc::clone(&running));
        Ok(SessionGuard { probes: self, running })
    }

    /// The session that a stream names.
    pub(crate) fn find(&self, token: &Token) -> Result<Arc<Running>, Error> {
        let running = self.lock().clone().filter(|running| running.token == *token);
        running
            .ok_or_else(|| Error::Denied("a TCP stream belongs to no probe that is running".into()))
    }

    /// Whether a session goes on.
    pub(crate) fn has(&self, running: &Arc<Running>) -> bool {
        self.lock().as_ref().is_some_and(|held| Arc::ptr_eq(held, running))
    }
}

/// The server's only session, until it is dropped.
pub(crate) struct SessionGuard<'a> {
    probes: &'a Probes,
    pub(crate) running: Arc<Running>,
}

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        *self.probes.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_second_client_waits_and_a_stream_ends_with_the_session_that_it_names() {
        let (probes, woken) = (Probes::default(), Arc::new(AtomicU32::new(0)));
        let waking = Arc::clone(&woken);
        let wake = move || {
            waking.fetch_add(1, Ordering::SeqCst);
        };
        let first = probes.begin([1; 16], 10, wake).unwrap();
        assert!(matches!(probes.begin([2; 16], 10, || {}), Err(Error::Busy(_))));
        assert!(matches!(probes.find(&[2; 16]), Err(Error::Denied(_))), "not the session's token");
        let stream = probes.find(&[1; 16]).unwrap();
        assert!(probes.has(&stream) && first.running.take().is_none());
        stream.ended(Err(Error::lost("cut")));
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        assert!(first.running.take().is_some() && first.running.take().is_none());
        drop(first);
        assert!(!probes.has(&stream));
        let again = probes.begin([1; 16], 10, || {}).unwrap();
        assert!(!probes.has(&stream), "a later session is another one");
        drop(again);
    }
}
