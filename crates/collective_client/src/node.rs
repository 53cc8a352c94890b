//! A rank's connection to the aggregator process of its node.
//!
//! Arrives: messages to send. Leaves: messages of the process, its pool of shared memory.
//! Must not know: files, datatypes.
//!
//! When the process is restarted, the connection is made anew, with a higher generation: what belonged to the old one
//! (attached files, views, server maps) is sent again by its owner.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use waystage_collective_wire::frame::{framed, MOST_BODY_BYTES};
use waystage_collective_wire::local::{ToNode, ToRank};
use waystage_collective_wire::{Status, VERSION};
use waystage_coupling::link::Link;
use waystage_coupling::memory::Memory;

use crate::error::{argument, Code, Error, Result};

/// How long a process that answers nothing is waited for, unless WAYSTAGE_IO_LEASE_S says otherwise.
const LEASE: Duration = Duration::from_secs(30);

/// First and longest pause between attempts to connect.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

/// Attempts to connect after which the absence of a process is reported, and between reports.
const ABSENCE: u32 = 4;

/// Bytes at the end of a log in which the last line is sought.
const MOST_LOG_BYTES: u64 = 1024;

/// What [`on_absence`] has set.
static REVIVE: Mutex<Option<extern "C" fn()>> = Mutex::new(None);

/// `revive` is called while no process answers: it may start one.
pub fn on_absence(revive: Option<extern "C" fn()>) {
    *REVIVE.lock() = revive;
}

/// The process of the node, for one rank.
#[derive(Debug)]
pub struct Node {
    socket: PathBuf,
    token: String,
    app: String,
    lease: Duration,
    session: Mutex<Session>,
}

/// The connection.
#[derive(Debug)]
pub struct Session {
    live: Option<Live>,
    /// Counts connections, from 1.
    generation: u64,
    address: String,
}

#[derive(Debug)]
struct Live {
    link: Link,
    pool: Memory,
}

impl Node {
    /// Connects to the process at `socket`, None: WAYSTAGE_IO_SOCKET, with `token`, None: WAYSTAGE_IO_TOKEN; waits at
    /// most `timeout` for a process that is starting.
    ///
    /// # Errors
    /// [`Code::Lost`] where no process answers, [`Code::Refused`], [`Code::Version`], [`Code::Argument`].
    pub fn connect(socket: Option<&str>, token: Option<&str>, timeout: Duration) -> Result<Self> {
        let socket = setting(socket, "WAYSTAGE_IO_SOCKET")?;
        let token = setting(token, "WAYSTAGE_IO_TOKEN")?;
        let lease = match std::env::var("WAYSTAGE_IO_LEASE_S") {
            Ok(text) => text
                .parse()
                .ok()
                .filter(|seconds| (1..=86_400).contains(seconds))
                .map(Duration::from_secs)
                .ok_or_else(|| {
                    argument("WAYSTAGE_IO_LEASE_S is no number of seconds, 1 to 86400")
                })?,
            Err(_) => LEASE,
        };
        let node = Self {
            socket: socket.into(),
            token,
            app: std::env::var("WAYSTAGE_IO_APP").unwrap_or_default(),
            lease,
            session: Mutex::new(Session { live: None, generation: 0, address: String::new() }),
        };
        node.reconnect(&mut node.session.lock(), timeout)?;
        Ok(node)
    }

    /// Where aggregators of other nodes reach this node's process.
    pub fn address(&self) -> String {
        self.session.lock().address.clone()
    }

    /// The connection, made anew where it has broken.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(crate) fn session(&self) -> Result<MutexGuard<'_, Session>> {
        let mut session = self.session.lock();
        if session.live.is_none() {
            self.reconnect(&mut session, self.lease)?;
        }
        Ok(session)
    }

    /// Until when an answer that needs no other rank is waited for.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.lease
    }

    fn reconnect(&self, session: &mut Session, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let [mut pause, longest] = PAUSES;
        for attempts in 1_u32.. {
            match self.attempt(deadline) {
                Ok((live, address)) => {
                    session.live = Some(live);
                    session.address = address;
                    session.generation += 1;
                    return Ok(());
                }
                Err(error) if error.code != Code::Lost => return Err(error),
                Err(_) if given_up(&self.socket) => return Err(self.never_starts()),
                Err(error) if Instant::now() + pause >= deadline => return Err(error),
                Err(_) => {
                    let revive = *REVIVE.lock();
                    if let Some(revive) = revive.filter(|_| attempts.is_multiple_of(ABSENCE)) {
                        revive();
                    }
                    std::thread::sleep(pause);
                }
            }
            pause = (pause * 2).min(longest);
        }
        Err(Error::new(Code::Lost, "no aggregator process answers"))
    }

    /// The error where the node's supervisor starts the process no more, with the last words of the process.
    fn never_starts(&self) -> Error {
        let log = self.socket.with_file_name("log");
        let why = last_line(&log).unwrap_or_else(|| "it says nothing".to_owned());
        Error::new(Code::Lost, format!("the aggregator process of this node does not start: {why}"))
    }

    fn attempt(&self, deadline: Instant) -> Result<(Live, String)> {
        let deadline = Some(deadline.max(Instant::now() + PAUSES[1]));
        let at = self.socket.display();
        let lost = |error: &io::Error| {
            let text = format!("no aggregator process answers at {at}: {error}");
            Error::new(Code::Lost, text)
        };
        let link = match Link::to_path(&self.socket) {
            Ok(link) => link,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let text = format!("{at}: the aggregator process is another user's");
                return Err(Error::new(Code::Refused, text));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(argument(format!("{at} is no path of a socket: {error}")));
            }
            Err(error) => return Err(lost(&error)),
        };
        // A process of another user would receive the token.
        if link.user() != Some(rustix::process::geteuid().as_raw()) {
            let text = format!("{at}: the aggregator process is another user's");
            return Err(Error::new(Code::Refused, text));
        }
        let hello =
            ToNode::Hello { version: VERSION, token: self.token.clone(), app: self.app.clone() };
        link.send_frame(&framed(&hello.encode()), None, deadline).map_err(|e| lost(&e))?;
        let (body, descriptor) =
            link.receive_frame(MOST_BODY_BYTES, deadline).map_err(|e| lost(&e))?;
        match (decode(&body)?, descriptor) {
            (ToRank::Welcome { version: VERSION, address, pool_bytes }, Some(descriptor)) => {
                let pool = Memory::share(descriptor, pool_bytes)
                    .map_err(|error| Error::system("map the aggregator's memory", &error))?;
                Ok((Live { link, pool }, address))
            }
            (ToRank::Refused { status, message }, _) => Err(failure(status, message)),
            (ToRank::Welcome { version, .. }, _) if version != VERSION => Err(Error::new(
                Code::Version,
                format!("the aggregator process speaks version {version}, this library {VERSION}"),
            )),
            _ => Err(unexpected()),
        }
    }
}

impl Session {
    /// Which connection this is.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Memory shared with the process.
    pub(crate) fn pool(&self) -> Option<&Memory> {
        self.live.as_ref().map(|live| &live.pool)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Code::Again`]: the connection has broken.
    pub(crate) fn send(&mut self, message: &ToNode) -> Result<()> {
        let frame = framed(&message.encode());
        if frame.len() > MOST_BODY_BYTES {
            return Err(argument("the view, the hints or the list of nodes is too long"));
        }
        let sent = self.live.as_ref().map_or(Err(io::ErrorKind::NotConnected.into()), |live| {
            live.link.send_frame(&frame, None, None)
        });
        sent.map_err(|_| self.broken())
    }

    /// The next message; `deadline` for an answer that needs no other rank.
    ///
    /// # Errors
    /// [`Code::Again`]: the connection has broken. [`Code::Lost`]: nothing by the deadline.
    pub(crate) fn receive(&mut self, deadline: Option<Instant>) -> Result<ToRank> {
        let received = self.live.as_ref().map_or(Err(io::ErrorKind::NotConnected.into()), |live| {
            live.link.receive_frame(MOST_BODY_BYTES, deadline)
        });
        match received {
            Ok((body, _)) => decode(&body).inspect_err(|_| self.live = None),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                // Its late answer would be taken for that of the next question.
                self.live = None;
                let text = "the aggregator process of this node has not answered within its lease";
                Err(Error::new(Code::Lost, text))
            }
            Err(_) => Err(self.broken()),
        }
    }

    fn broken(&mut self) -> Error {
        self.live = None;
        Error::new(Code::Again, "the aggregator process of this node has ended: repeat")
    }
}

/// Whether the supervisor of shim/io/supervise.c has ended its attempts to start the process.
fn given_up(socket: &Path) -> bool {
    socket.with_file_name("failed").exists()
}

/// The last line of a log that is not empty, without control characters.
fn last_line(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST_LOG_BYTES))).ok()?;
    let mut bytes = Vec::new();
    file.take(MOST_LOG_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    let line = line.strip_prefix("waystage: error: ").unwrap_or(line);
    Some(line.chars().filter(|c| !c.is_control()).collect())
}

fn decode(body: &[u8]) -> Result<ToRank> {
    ToRank::decode(body).map_err(|error| Error::new(Code::Version, error.to_string()))
}

/// A message that has no place here.
pub(crate) fn unexpected() -> Error {
    Error::new(Code::Version, "the aggregator process sent a message out of turn")
}

/// The error of a status that is not Ok.
pub(crate) fn failure(status: Status, message: String) -> Error {
    let text =
        if message.is_empty() { format!("the operation failed: {status:?}") } else { message };
    Error::new(Code::of_status(status), text)
}

/// `given`, or the variable.
pub(crate) fn setting(given: Option<&str>, variable: &str) -> Result<String> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    std::env::var(variable).ok().filter(|value| !value.is_empty()).ok_or_else(|| {
        argument(format!(
            "{variable} is not set: start the program with `waystage mpi --io -- ...`"
        ))
    })
}
