//! A rank of a coupled name.
//!
//! Arrives: arrays to put, boxes to get. Leaves: the same at readers. Must not know: C, Python, MPI.
//!
//! A rank has no thread. A writer copies a piece into a segment of shared memory, which the process of its node holds
//! from then on: the data outlive the rank. A reader asks the directory where pieces are and takes each from its owner:
//! by mapping the segment on the same host, by TCP elsewhere, where all owners send at the same time.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::address::{self, Address};
use crate::failure::{dead, gone, refused, system, Failure, Result};
use crate::link::Link;
pub use crate::meeting::Options;
use crate::meeting::{home_of, introduce, node_of, publish};
use crate::memory::Memory;
use crate::open_file::OpenFile;
use crate::owner::{copy, Owner};
use crate::reach::connect;
use crate::region::Region;
use crate::request::{Answer, Piece, Request, Role, Variable, Why};
use crate::wire::{Message, Token};

/// An open name.
pub struct Coupling {
    pub(crate) options: Options,
    directory: PathBuf,
    home: Link,
    token: Token,
    asked: u64,
    /// A writer's process; its address.
    pub(crate) node: Option<(Link, String)>,
    pub(crate) segments: Vec<Segment>,
    /// The version that this writer puts into.
    pub(crate) current: Option<Current>,
    /// The same version, or the one that a reader reads, as a file.
    pub(crate) file: Option<OpenFile>,
    /// Segments that hold slabs, by key.
    pub(crate) own: HashMap<u64, usize>,
    owners: HashMap<String, Owner>,
}

/// A segment of this writer.
pub(crate) struct Segment {
    pub(crate) memory: Memory,
    /// Whether a piece in it is still needed.
    pub(crate) used: bool,
    /// Whether the process has its descriptor.
    sent: bool,
    /// Whether it has been used: otherwise it is 0.
    pub(crate) written: bool,
    /// Whether other ranks may write to it.
    open: bool,
}

/// A version that is being written.
#[derive(Default)]
pub(crate) struct Current {
    version: u64,
    variables: Vec<Variable>,
    /// Segments of the pieces; keys come with the commit.
    pieces: Vec<(u32, Region, usize, u64)>,
}

impl Coupling {
    /// Opens a name. Writer 0 publishes it; the others, and readers, wait for that.
    ///
    /// # Errors
    /// [`Failure::Timeout`] where it is not published in time; see [`Failure`].
    pub fn open(options: Options) -> Result<Self> {
        if !address::is_name(&options.name) {
            let text = format!(
                "{:?} is no name: use letters, digits, '.', '_' and '-', at most 200",
                options.name
            );
            return Err(Failure::Answer(Why::Argument, text));
        }
        let directory = address::directory(options.directory.as_deref())
            .map_err(system("find the directory of names"))?;
        address::secure(&directory).map_err(system("use the directory of names"))?;
        let deadline = Instant::now() + options.timeout;
        let first = options.role == Role::Writer && options.rank == 0;
        let node = match options.role {
            Role::Writer => Some(node_of(&options)?),
            Role::Reader => None,
        };
        if let (true, Some((node, address))) = (first, &node) {
            publish(&options, &directory, node, address)?;
        }
        let (home, token) = home_of(&options, &directory, deadline)?;
        let mut coupling = Self {
            directory,
            home,
            token,
            asked: 0,
            node,
            segments: Vec::new(),
            current: None,
            file: None,
            own: HashMap::new(),
            owners: HashMap::new(),
            options,
        };
        if let (false, Some((node, _))) = (first, &coupling.node) {
            introduce(node, &coupling.options, token, false)?;
        }
        let Options { role, rank, size, depth, .. } = coupling.options;
        coupling.ask(Request::Join { role, rank, size, depth })?;
        Ok(coupling)
    }

    /// Asks the directory, and waits for the answer within the timeout.
    pub(crate) fn ask(&mut self, request: Request) -> Result<Answer> {
        self.asked += 1;
        let (number, name) = (self.asked, self.options.name.clone());
        let lost = |error: io::Error| {
            let text = format!("the process with the directory of {name} has ended: {error}");
            Failure::Answer(Why::Lost, text)
        };
        let deadline = Instant::now() + self.options.timeout;
        self.home.send(&Message::Ask { number, request }, None, None).map_err(lost)?;
        loop {
            match self.home.receive(Some(deadline)) {
                Ok((Message::Reply { number: of, answer }, _)) if of == number => {
                    return match answer {
                        Answer::Failed(why, text) => {
                            Err(Failure::Answer(why, format!("{name}: {text}")))
                        }
                        answer => Ok(answer),
                    };
                }
                // The answer to what this rank no longer waits for.
                Ok((Message::Reply { .. }, _)) => {}
                Ok((Message::Refused { why, text }, _)) => return Err(refused(why, &text)),
                Ok(_) => return Err(lost(crate::link::protocol())),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    let cancel = Request::Cancel { request: number };
                    let message = Message::Ask { number: 0, request: cancel };
                    self.home.send(&message, None, None).map_err(lost)?;
                    let seconds = self.options.timeout.as_secs_f64();
                    let text = format!("{name}: the other ranks have not come within {seconds} s");
                    return Err(Failure::Timeout(text));
                }
                Err(error) => return Err(lost(error)),
            }
        }
    }

    /// Changes how long calls wait for other ranks.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }

    /// Puts a box of a variable into a version; `fill` writes its cells, in C order. Waits while the depth is reached.
    ///
    /// # Errors
    /// [`Failure::Timeout`] where readers release no version in time; [`Why::Lost`] where a rank died.
    pub fn put(
        &mut self,
        version: u64,
        variable: Variable,
        region: Region,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        if self.options.role != Role::Writer {
            return Err(refused(Why::Argument, "a reader cannot put"));
        }
        if !region.within(&variable.shape) {
            let text = format!("{}{region} is outside {:?}", variable.name, variable.shape);
            return Err(Failure::Answer(Why::Argument, text));
        }
        if self.file.is_some() {
            return Err(refused(Why::Argument, "the version is being written as a file"));
        }
        let bytes = region
            .cells()
            .checked_mul(variable.element_bytes.into())
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(|| refused(Why::Argument, "a box above the address space"))?;
        self.begin(version)?;
        let segment = self.segment(bytes, false)?;
        fill(&mut self.segments[segment].memory.bytes_mut()[..bytes]);
        self.segments[segment].used = true;
        self.segments[segment].written = true;
        let Some(current) = &mut self.current else { return Ok(()) };
        let known = current.variables.iter().position(|known| known.name == variable.name);
        let place = match known {
            Some(place) if current.variables[place] == variable => place,
            Some(_) => {
                self.segments[segment].used = false;
                let text = format!("{} has another type or shape in this version", variable.name);
                return Err(Failure::Answer(Why::Argument, text));
            }
            None => {
                current.variables.push(variable);
                current.variables.len() - 1
            }
        };
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        current.pieces.push((place, region, segment, bytes as u64));
        Ok(())
    }

    /// Is admitted to a version, once.
    pub(crate) fn begin(&mut self, version: u64) -> Result<()> {
        match &self.current {
            Some(current) if current.version == version => return Ok(()),
            Some(current) => {
                let text = format!("version {} is not committed", current.version);
                return Err(Failure::Answer(Why::Argument, text));
            }
            None => {}
        }
        self.ask(Request::Admit { version })?;
        self.current = Some(Current { version, ..Current::default() });
        Ok(())
    }

    /// A free segment of at least `bytes` bytes, `open` to other ranks.
    pub(crate) fn segment(&mut self, bytes: usize, open: bool) -> Result<usize> {
        self.reused()?;
        let free = |segment: &&Segment| {
            !segment.used && segment.open == open && segment.memory.len() >= bytes
        };
        let best = self.segments.iter().filter(free).map(|segment| segment.memory.len()).min();
        if let Some(best) = best.filter(|best| *best / 2 <= bytes.max(1 << 20)) {
            let found = |segment: &Segment| free(&segment) && segment.memory.len() == best;
            if let Some(place) = self.segments.iter().position(found) {
                return Ok(place);
            }
        }
        let memory = if open { Memory::create_open(bytes) } else { Memory::create(bytes) };
        let memory = memory.map_err(system("make shared memory for a piece"))?;
        self.segments.push(Segment { memory, used: false, sent: false, written: false, open });
        Ok(self.segments.len() - 1)
    }

    /// Takes note of segments that the process has given back.
    fn reused(&mut self) -> Result<()> {
        while let Some((node, _)) = &self.node {
            match node.receive(Some(Instant::now())) {
                Ok((message, _)) => self.note(&message)?,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(()),
                Err(error) => return Err(gone(&error)),
            }
        }
        Ok(())
    }

    fn note(&mut self, message: &Message) -> Result<()> {
        match message {
            Message::Reuse { segment } => {
                let place = usize::try_from(*segment).ok();
                if let Some(segment) = place.and_then(|place| self.segments.get_mut(place)) {
                    segment.used = false;
                }
                Ok(())
            }
            Message::Refused { why, text } => Err(refused(*why, text)),
            _ => Err(gone(&crate::link::protocol())),
        }
    }

    /// A writer's rank has put all that it has of a version, a reader's has read it. Whether this commit completed it.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn commit(&mut self, version: u64) -> Result<bool> {
        if self.options.role == Role::Reader {
            self.file = None;
            self.ask(Request::Release { version })?;
            return Ok(false);
        }
        self.begin(version)?;
        let Some(current) = self.current.take() else { return Ok(false) };
        let keys = match self.hold(&current) {
            Ok(keys) => keys,
            Err(error) => {
                self.current = Some(current);
                return Err(error);
            }
        };
        let owner = self.node.as_ref().map(|(_, address)| address.clone()).unwrap_or_default();
        let pieces = current.pieces.iter().zip(keys).map(|((variable, region, ..), key)| Piece {
            variable: *variable,
            region: region.clone(),
            owner: owner.clone(),
            key,
        });
        let request = Request::Commit {
            version,
            variables: current.variables.clone(),
            pieces: pieces.collect(),
        };
        Ok(matches!(self.ask(request)?, Answer::Version(_)))
    }

    /// Passes the pieces of a version to the process of the node; their keys.
    fn hold(&mut self, current: &Current) -> Result<Vec<u64>> {
        let pieces: Vec<_> =
            current.pieces.iter().map(|(_, _, place, bytes)| (*place, *bytes)).collect();
        self.hold_segments(&pieces)
    }

    /// Passes the first bytes of segments to the process of the node; their keys.
    pub(crate) fn hold_segments(&mut self, pieces: &[(usize, u64)]) -> Result<Vec<u64>> {
        for (place, bytes) in pieces {
            let Some((node, _)) = &self.node else { break };
            let segment = &mut self.segments[*place];
            let attached = !segment.sent;
            let message = Message::Hold {
                name: self.options.name.clone(),
                segment: *place as u64,
                bytes: *bytes,
                attached,
            };
            let descriptor = attached.then(|| segment.memory.as_fd());
            node.send(&message, descriptor, None).map_err(|error| gone(&error))?;
            segment.sent = true;
        }
        let mut keys: HashMap<u64, u64> = HashMap::new();
        while keys.len() < pieces.len() {
            let deadline = Some(Instant::now() + self.options.lease);
            let Some((node, _)) = &self.node else { break };
            match node.receive(deadline) {
                Ok((Message::Held { segment, key }, _)) => {
                    keys.insert(segment, key);
                }
                Ok((message, _)) => self.note(&message)?,
                Err(error) => return Err(gone(&error)),
            }
        }
        let missing = || gone(&crate::link::protocol());
        let key = |place: &usize| keys.get(&(*place as u64)).copied().ok_or_else(missing);
        pieces.iter().map(|(place, _)| key(place)).collect()
    }

    /// A variable of a version, which is waited for.
    ///
    /// # Errors
    /// [`Why::NoSuchVariable`], [`Why::Ended`], [`Why::Lost`], [`Failure::Timeout`].
    pub fn inquire(&mut self, version: u64, variable: &str) -> Result<Variable> {
        let variable = variable.to_owned();
        match self.ask(Request::Find { version, variable, region: None })? {
            Answer::Found(variable, _) => Ok(variable),
            _ => Err(gone(&crate::link::protocol())),
        }
    }

    /// The first version above `after`, the oldest for None; it is waited for.
    ///
    /// # Errors
    /// [`Why::Ended`] where the writers have closed.
    pub fn next(&mut self, after: Option<u64>) -> Result<u64> {
        match self.ask(Request::Next { after })? {
            Answer::Version(version) => Ok(version),
            _ => Err(gone(&crate::link::protocol())),
        }
    }

    /// Gets a box of a variable of a version, which is waited for, into `cells`, in C order.
    ///
    /// # Errors
    /// [`Why::Argument`] where `cells` has another size; as [`Self::inquire`].
    pub fn get(
        &mut self,
        version: u64,
        name: &str,
        region: &Region,
        cells: &mut [u8],
    ) -> Result<Variable> {
        let request =
            Request::Find { version, variable: name.to_owned(), region: Some(region.clone()) };
        let Answer::Found(variable, pieces) = self.ask(request)? else {
            return Err(gone(&crate::link::protocol()));
        };
        let element = u64::from(variable.element_bytes);
        let bytes = region.cells().checked_mul(element);
        if bytes != Some(cells.len() as u64) {
            let text = format!(
                "{name}{region} has {} bytes, the buffer {}",
                bytes.unwrap_or(u64::MAX),
                cells.len()
            );
            return Err(Failure::Answer(Why::Argument, text));
        }
        // What was never written of a file is 0.
        let covered = pieces.iter().filter_map(|piece| piece.region.intersection(region));
        if covered.map(|cut| cut.cells()).sum::<u64>() < region.cells() {
            cells.fill(0);
        }
        // All other hosts send while pieces of this host are copied.
        let mut pulled = Vec::new();
        for piece in &pieces {
            let Some(cut) = piece.region.intersection(region) else { continue };
            let owner = self.owner(&piece.owner)?;
            if owner.link.is_unix() {
                continue;
            }
            let message = Message::Pull {
                key: piece.key,
                region: piece.region.clone(),
                cut: cut.clone(),
                element_bytes: variable.element_bytes,
            };
            owner.link.send(&message, None, None).map_err(|error| dead(&piece.owner, &error))?;
            pulled.push((piece, cut));
        }
        for piece in &pieces {
            let Some(cut) = piece.region.intersection(region) else { continue };
            let owner = self.owner(&piece.owner)?;
            if owner.link.is_unix() {
                let memory = owner.map(&piece.owner, piece.key)?.bytes();
                copy(memory, &piece.region, cells, region, &cut, element);
            }
        }
        for (piece, cut) in pulled {
            let owner = self.owner(&piece.owner)?;
            owner.receive(&piece.owner, cells, region, &cut, element)?;
        }
        Ok(variable)
    }

    pub(crate) fn owner(&mut self, address: &str) -> Result<&mut Owner> {
        if !self.owners.contains_key(address) {
            let place = Address::parse(address)
                .ok_or_else(|| refused(Why::Argument, "an owner without an address"))?;
            let Options { name, lease, role, .. } = &self.options;
            let (token, lease, role) = (&self.token, *lease, *role);
            let (link, _) =
                connect(&place, name, token, lease).map_err(|error| dead(address, &error))?;
            self.owners.insert(address.to_owned(), Owner::new(link, role == Role::Writer));
        }
        self.owners.get_mut(address).ok_or_else(|| refused(Why::Lost, "the owner has gone"))
    }

    /// Closes it. A writer first waits until all versions are read, within the timeout.
    ///
    /// # Errors
    /// [`Failure::Timeout`] where versions were not read in time; it is closed all the same.
    pub fn close(&mut self) -> Result<()> {
        let drained = match self.options.role {
            Role::Writer => self.ask(Request::Drain).map(|_| ()),
            Role::Reader => Ok(()),
        };
        let closed = self.ask(Request::Close).map(|_| ());
        if self.options.role == Role::Writer && self.options.rank == 0 && drained.is_ok() {
            // Readers that come now would wait for a run that is over.
            let path = self.directory.join(&self.options.name);
            let own = address::find(&self.directory, &self.options.name);
            if matches!(own, Ok(Some((_, token))) if token == self.token) {
                // Another user's process cannot be here.
                let _ = std::fs::remove_file(path);
            }
        }
        self.home.shut();
        drained.and(closed)
    }
}
