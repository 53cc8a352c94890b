//! A client of a server's directories: one connection, requests in turn.
//!
//! Arrives: requests. Leaves: whole answers. Must not know: what they are for.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use waystage_transport::control::Control;
use waystage_transport::control_messages::{expect, kinds};
use waystage_transport::handshake::client::{start_handshake, Peer, SessionRequest};
use waystage_transport::handshake::hello::{Purpose, Welcome};
use waystage_transport::tls::random;
use waystage_transport::Error;

use crate::error::{protocol_violation, WanError};
use crate::tree_messages::{Feature, TreeAnswer, TreeRequest, MOST_PROBLEMS};

/// Entries that a client takes from a server.
const MOST_ENTRIES: usize = 10_000_000;

/// Memory of a session without bulk messages.
const MEMORY_BYTES: u64 = 16 << 20;

/// Takes a page of an answer.
type Take<'a> = dyn FnMut(TreeAnswer) -> Result<(), WanError> + 'a;

/// A server's directories. It is connected to at the first request, and again where the server has left meanwhile.
pub struct TreeSession {
    peer: Peer,
    control: Mutex<Option<Arc<Control>>>,
    /// Of the protocol that the server has chosen.
    version: AtomicU32,
    /// Held during a request.
    turn: Mutex<()>,
}

impl TreeSession {
    /// A session with this server, which is not connected to yet.
    #[must_use]
    pub fn new(peer: Peer) -> Self {
        Self { peer, control: Mutex::default(), version: AtomicU32::new(0), turn: Mutex::default() }
    }

    /// Ask, and return the whole answer.
    ///
    /// # Errors
    /// What the server refuses; those of the connection.
    pub fn ask(&self, request: &TreeRequest) -> Result<TreeAnswer, WanError> {
        let mut answer = TreeAnswer::default();
        let most_data = request.most_data();
        self.asked(request, &mut |mut page| {
            answer.data.append(&mut page.data);
            answer.entries.append(&mut page.entries);
            answer.problems.append(&mut page.problems);
            answer.problems.truncate(MOST_PROBLEMS);
            answer.removed = page.removed;
            if answer.data.len() as u64 > most_data {
                return Err(protocol_violation());
            }
            if answer.entries.len() > MOST_ENTRIES {
                let text = "the directory has more than ten million entries";
                return Err(WanError::input(text));
            }
            Ok(())
        })?;
        Ok(answer)
    }

    /// Ask, and give each page of the answer to `take`, until that is false: the connection is closed then.
    ///
    /// # Errors
    /// As [`TreeSession::ask`].
    pub fn each(
        &self,
        request: &TreeRequest,
        take: &mut dyn FnMut(TreeAnswer) -> bool,
    ) -> Result<bool, WanError> {
        let mut ended = false;
        let asked = self.asked(request, &mut |page| {
            ended = !take(page);
            if ended {
                Err(WanError::lost("ended"))
            } else {
                Ok(())
            }
        });
        if ended {
            Ok(false)
        } else {
            asked.map(|()| true)
        }
    }

    fn asked(&self, request: &TreeRequest, take: &mut Take<'_>) -> Result<(), WanError> {
        let _turn = self.turn.lock();
        let held = self.control.lock().clone().filter(|control| !control.ended());
        if let Some(control) = held {
            self.check(request)?;
            control.send(kinds::TREE, &request.encode());
            match self.answer(&control, request, take) {
                // The server has just left a connection that was idle.
                Err(WanError::Session(Error::Lost(_))) if request.is_repeatable() => {}
                answered => return answered,
            }
        }
        let control = self.connect(request)?;
        let version = Welcome::read(&expect(&control, kinds::WELCOME)?)?.version;
        self.version.store(version, Ordering::Relaxed);
        self.check(request).inspect_err(|_| control.abort())?;
        self.answer(&control, request, take)
    }

    /// Whether the server knows of such requests.
    fn check(&self, request: &TreeRequest) -> Result<(), WanError> {
        let version = self.version.load(Ordering::Relaxed);
        match request.needs() {
            Some(Feature { version: since, name, undone, option }) if version < *since => {
                Err(WanError::input(format!(
                    "the server speaks version {version} of the protocol, which has no {name}, so {undone}: bring the \
                     Waystage of the server up to date, or copy without {option}"
                )))
            }
            _ => Ok(()),
        }
    }

    fn connect(&self, request: &TreeRequest) -> Result<Arc<Control>, WanError> {
        let session = SessionRequest {
            purpose: Purpose::Copy,
            copy: random(),
            connections: 1,
            memory_bytes: MEMORY_BYTES,
            group: None,
        };
        let words = [(kinds::TREE, request.encode())];
        let handshake = start_handshake(&self.peer, &session, &words, Arc::default(), |begun| {
            begun.rely_on_tcp();
            *self.control.lock() = Some(Arc::clone(begun));
        })?;
        Ok(handshake.control)
    }

    fn answer(
        &self,
        control: &Arc<Control>,
        request: &TreeRequest,
        take: &mut Take<'_>,
    ) -> Result<(), WanError> {
        let broken = |error: WanError| {
            control.abort();
            error
        };
        loop {
            let page = expect(control, kinds::TREE);
            // A refusal is taken as a page is: the server holds one answer, and not those to all that it is asked.
            control.send(kinds::LISTED, &[]);
            let page = page?;
            let (page, last) = TreeAnswer::read(&page).map_err(|_| broken(protocol_violation()))?;
            if !page.entries.iter().all(|entry| request.may_name(entry)) {
                return Err(broken(protocol_violation()));
            }
            take(page).map_err(broken)?;
            if last {
                return Ok(());
            }
        }
    }

    /// Close the connection in good order, if there is one.
    pub fn close(&self) {
        let _turn = self.turn.lock();
        let held = self.control.lock().take();
        if let Some(control) = held {
            control.close();
        }
    }

    /// End a request that another thread waits for.
    pub fn abort(&self) {
        let held = self.control.lock().take();
        if let Some(control) = held {
            control.abort();
        }
    }
}
