//! What the threads of a service share: names with their directories, pieces, connections.
//!
//! Arrives: actions of directories. Leaves: messages to clients. Must not know: how clients are served.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::directory::Directory;
use crate::link::Link;
use crate::request::Action;
use crate::service::pieces::{Held, Pieces};
use crate::wire::{Message, Token};

/// How a service is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of its unix socket, in a directory of rights 0700.
    pub socket: PathBuf,
    /// Where it listens for other hosts; None: it serves this host only.
    pub listen: Option<SocketAddr>,
    /// What processes that share memory have in common, see [`crate::address::host`].
    pub host: String,
    /// The launch's token: its ranks may hold pieces here.
    pub token: Token,
    /// Silence of a peer's kernel after which the peer is dead.
    pub lease: Duration,
    /// Most bytes of pieces.
    pub memory_bytes: u64,
}

/// A name that is known here.
pub(super) struct Name {
    pub(super) token: Token,
    /// The directory, at the process of writer 0.
    pub(super) directory: Option<Directory>,
}

/// Pieces of a name, at another process, that are no longer needed. The name may be over when that process hears it.
pub(super) struct Free {
    pub(super) name: String,
    pub(super) token: Token,
    pub(super) owner: String,
    pub(super) keys: Vec<u64>,
}

/// What the threads of a service share.
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) address: String,
    pub(super) names: Mutex<HashMap<String, Name>>,
    pub(super) pieces: Mutex<Pieces>,
    pub(super) links: Mutex<HashMap<u64, Arc<Link>>>,
    pub(super) next: AtomicU64,
    pub(super) stopping: AtomicBool,
    pub(super) frees: Sender<Free>,
}

impl Shared {
    /// Until when a peer has to take what is sent to it.
    pub(super) fn patience(&self) -> Option<Instant> {
        Some(Instant::now() + self.options.lease)
    }

    /// Carries out what the directory of a name with this token asked for.
    pub(super) fn act(&self, name: &str, token: Token, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Answer(connection, number, answer) => {
                    let link = self.links.lock().get(&connection).cloned();
                    if let Some(link) = link {
                        let reply = Message::Reply { number, answer };
                        if link.send(&reply, None, self.patience()).is_err() {
                            link.shut();
                        }
                    }
                }
                Action::Free { owner, keys } if owner == self.address => self.free(name, &keys),
                Action::Free { owner, keys } => {
                    // The thread ends with the service only.
                    let _ = self.frees.send(Free { name: name.to_owned(), token, owner, keys });
                }
            }
        }
    }

    /// Gives up pieces, and their writers may use the segments again.
    pub(super) fn free(&self, name: &str, keys: &[u64]) {
        let freed = self.pieces.lock().free(name, keys);
        for (connection, segment) in freed {
            let link = self.links.lock().get(&connection).cloned();
            if let Some(link) = link {
                // A writer that has gone needs no segment.
                let _ = link.send(&Message::Reuse { segment }, None, self.patience());
            }
        }
    }

    /// Forgets a name that is over.
    pub(super) fn sweep(&self, name: &str) {
        let mut names = self.names.lock();
        let over = names
            .get(name)
            .is_some_and(|known| known.directory.as_ref().is_some_and(Directory::is_over));
        if over {
            names.remove(name);
            drop(names);
            self.pieces.lock().forget(name);
        }
    }

    /// Shares a descriptor of a segment.
    pub(super) fn descriptor(held: &Held) -> io::Result<OwnedFd> {
        held.memory.as_fd().try_clone_to_owned()
    }

    /// A connection of a name has ended.
    pub(super) fn ended(&self, name: &str, number: u64) {
        let mut names = self.names.lock();
        let known = names.get_mut(name);
        let asked =
            known.and_then(|known| Some((known.token, known.directory.as_mut()?.ended(number))));
        drop(names);
        if let Some((token, actions)) = asked {
            self.act(name, token, actions);
        }
        self.sweep(name);
    }
}
