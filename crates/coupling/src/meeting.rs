//! How the ranks of two applications find each other: the process of a writer's node, a published name.
//!
//! Arrives: options of a rank. Leaves: connections. Must not know: versions, arrays.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::address;
use crate::failure::{gone, refused, Failure, Result};
use crate::link::{random, Link};
use crate::reach::connect;
use crate::request::{Role, Why};
use crate::wire::{Message, Token};

/// How long the process of a node may take to start.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// How a rank opens a name.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name.
    pub name: String,
    /// Writer or reader.
    pub role: Role,
    /// Rank in its application.
    pub rank: u32,
    /// Ranks of its application.
    pub size: u32,
    /// Versions that may be held before writers wait.
    pub depth: u32,
    /// Directory of names; None: see [`address::directory`].
    pub directory: Option<PathBuf>,
    /// Unix socket of the process of this node; readers need none.
    pub socket: Option<PathBuf>,
    /// Token of this launch; readers need none.
    pub token: Option<Token>,
    /// How long a call waits for other ranks.
    pub timeout: Duration,
    /// Silence of a peer's kernel after which the peer is dead.
    pub lease: Duration,
}

/// The process of this node.
pub(crate) fn node_of(options: &Options) -> Result<(Link, String)> {
    let (Some(socket), Some(token)) = (&options.socket, &options.token) else {
        return Err(refused(
            Why::Argument,
            "a writer needs the process of its node: start the program with `waystage mpi --io`",
        ));
    };
    let failed =
        |error| Failure::System(format!("connect to the process at {}", socket.display()), error);
    let link =
        started(socket, Instant::now() + options.timeout.min(STARTS_WITHIN)).map_err(failed)?;
    if link.user() != Some(rustix::process::geteuid().as_raw()) {
        return Err(refused(Why::Argument, "the process of this node is another user's"));
    }
    let until = Some(Instant::now() + options.lease);
    let address = link.introduce("", token, until).map_err(failed)?;
    Ok((link, address))
}

/// A connection to the process of this node, which may still be starting.
fn started(socket: &Path, deadline: Instant) -> io::Result<Link> {
    let mut pause = Duration::from_millis(5);
    loop {
        let found = Link::to_path(socket);
        let starts = found.as_ref().err().is_some_and(|error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        });
        if !starts || Instant::now() + pause >= deadline {
            return found;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Begins a run of the name here, and says where.
pub(crate) fn publish(options: &Options, directory: &Path, node: &Link, at: &str) -> Result<()> {
    let name = &options.name;
    let failed =
        |error| Failure::System(format!("publish {name} in {}", directory.display()), error);
    if let Some((other, token)) = address::find(directory, name).map_err(failed)? {
        // A file that a run left behind when it died leads nowhere.
        let alive = connect(&other, name, &token, options.lease.min(Duration::from_secs(2)));
        if alive.is_ok() && other.to_string() != at {
            let text = format!("{name} is in use by writers at {other}: choose another name");
            return Err(Failure::Answer(Why::Argument, text));
        }
    }
    let token = random().map_err(failed)?;
    introduce(node, options, token, true)?;
    address::publish(directory, name, at, &token).map_err(failed)
}

/// Connects to the process with the directory, once it is published.
pub(crate) fn home_of(
    options: &Options,
    directory: &Path,
    deadline: Instant,
) -> Result<(Link, Token)> {
    let name = &options.name;
    let mut pause = Duration::from_millis(2);
    loop {
        let found = address::find(directory, name).map_err(|error| {
            Failure::System(format!("find {name} in {}", directory.display()), error)
        })?;
        let mut last = format!("no writer has opened {name} in {}", directory.display());
        if let Some((address, token)) = found {
            match connect(&address, name, &token, options.lease) {
                Ok((home, _)) => return Ok((home, token)),
                Err(error) => last = format!("the writers of {name} at {address}: {error}"),
            }
        }
        if Instant::now() + pause >= deadline {
            return Err(Failure::Timeout(last));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Makes a name and its token known to the process of a writer's node.
pub(crate) fn introduce(node: &Link, options: &Options, token: Token, home: bool) -> Result<()> {
    let name = options.name.clone();
    let sent = node.send(&Message::Introduce { name, token, home }, None, None);
    sent.map_err(|error| gone(&error))?;
    let until = Some(Instant::now() + options.lease);
    match node.receive(until).map_err(|error| gone(&error))?.0 {
        Message::Welcome { .. } => Ok(()),
        Message::Refused { why, text } => Err(refused(why, &format!("{}: {text}", options.name))),
        _ => Err(gone(&crate::link::protocol())),
    }
}
