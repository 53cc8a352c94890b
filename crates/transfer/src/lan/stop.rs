//! Ending a thread that waits for the network: at any moment, from any other.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::error::{ErrorKind, TransferError};

/// A wish to end, and the socket on which the one concerned may be waiting.
#[derive(Default)]
pub(crate) struct Stop {
    wished: AtomicBool,
    socket: Mutex<Option<TcpStream>>,
}

impl Stop {
    /// From now on `socket` is shut down when the wish comes; at once, where it has come already.
    pub(crate) fn watch(&self, socket: &TcpStream) -> Result<(), TransferError> {
        let copy = socket
            .try_clone()
            .map_err(|source| TransferError::new(ErrorKind::Unreachable, source.to_string()))?;
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy);
        self.check()
    }

    /// The other end must see the connection's end even while this value lives on.
    pub(crate) fn forget(&self) {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(crate) fn wish(&self) {
        self.wished.store(true, Ordering::SeqCst);
        if let Some(socket) = &*self.socket.lock().unwrap_or_else(PoisonError::into_inner) {
            // It may be closed already; either way nobody waits on it any longer.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn is_wished(&self) -> bool {
        self.wished.load(Ordering::SeqCst)
    }

    pub(crate) fn check(&self) -> Result<(), TransferError> {
        if self.is_wished() {
            return Err(TransferError::new(ErrorKind::Cancelled, "was stopped"));
        }
        Ok(())
    }
}
