//! One client of a service: a rank of this launch, a reader, a rank at a directory, or another process.
//!
//! Arrives: its messages. Leaves: answers. Must not know: other clients.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::address::is_name;
use crate::directory::Directory;
use crate::link::{proof, protocol, random, Link};
use crate::memory;
use crate::region::Region;
use crate::request::{Request, Why};
use crate::service::pieces::{Held, Segment};
use crate::service::shared::{Name, Shared};
use crate::wire::{Message, Token, VERSION, WRITE_MOST};

/// How long a client may take to introduce itself.
const GREETING: Duration = Duration::from_secs(10);

/// Cells are sent in parts of this size where they are scattered.
const PART_BYTES: usize = 256 << 10;

/// Most segments of one rank.
const SEGMENTS_MOST: usize = 1 << 16;

/// Serves a client until it ends.
pub(super) fn serve(shared: &Arc<Shared>, number: u64, link: &Link) {
    let Ok(name) = admit(shared, link) else {
        link.shut();
        return;
    };
    let mut client =
        Client { shared, number, link, segments: HashMap::new(), given: HashSet::new() };
    // An error is the end of the connection: the peer has gone, or breaks the protocol.
    let _ = match &name {
        None => client.serve_rank(),
        Some(name) => client.serve_name(name),
    };
    link.shut();
    if let Some(name) = name {
        shared.ended(&name, number);
    }
}

/// The name that a client proved to know the token of; None for a rank of this launch.
fn admit(shared: &Shared, link: &Link) -> io::Result<Option<String>> {
    let deadline = Some(Instant::now() + GREETING);
    let own = rustix::process::geteuid().as_raw();
    if link.is_unix() && link.user() != Some(own) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let nonce = random()?;
    let (version, name, given) = link.greet(&nonce, deadline)?;
    let token: Option<Token> = if name.is_empty() {
        link.is_unix().then_some(shared.options.token)
    } else {
        shared.names.lock().get(&name).map(|known| known.token)
    };
    // The comparison of hashes takes the same time wherever they differ.
    let known = token.is_some_and(|token| {
        blake3::Hash::from_bytes(proof(&token, &nonce)) == blake3::Hash::from_bytes(given)
    });
    if version != VERSION || !known {
        let text = "the name or its token is unknown here".to_owned();
        link.send(&Message::Refused { why: Why::Argument, text }, None, deadline)?;
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let address = shared.address.clone();
    link.send(&Message::Welcome { address }, None, deadline)?;
    Ok((!name.is_empty()).then_some(name))
}

struct Client<'a> {
    shared: &'a Arc<Shared>,
    number: u64,
    link: &'a Link,
    /// Segments of this rank, by its numbers.
    segments: HashMap<u64, Arc<Segment>>,
    /// Segments whose descriptors this reader has.
    given: HashSet<u64>,
}

impl Client<'_> {
    fn send(&self, message: &Message) -> io::Result<()> {
        self.link.send(message, None, self.shared.patience())
    }

    fn refuse(&self, why: Why, text: &str) -> io::Result<()> {
        self.send(&Message::Refused { why, text: text.to_owned() })
    }

    /// A rank of this launch: it brings names and pieces.
    fn serve_rank(&mut self) -> io::Result<()> {
        loop {
            match self.link.receive(None)? {
                (Message::Introduce { name, token, home }, _) if is_name(&name) => {
                    self.introduce(name, token, home)?;
                }
                (Message::Hold { name, segment, bytes, attached }, descriptor) => {
                    let descriptor = if attached { descriptor } else { None };
                    self.hold(&name, segment, bytes, descriptor)?;
                }
                _ => return Err(protocol()),
            }
        }
    }

    fn introduce(&self, name: String, token: Token, home: bool) -> io::Result<()> {
        let mut names = self.shared.names.lock();
        let directory = names.get(&name).and_then(|known| known.directory.as_ref());
        if home && directory.is_some_and(|directory| !directory.is_idle()) {
            drop(names);
            let text = "the name is in use by writers of this launch";
            return self.refuse(Why::Argument, text);
        }
        // Another run of the name has another token: what the last one left cannot be reached.
        if names.get(&name).is_some_and(|known| known.token != token) {
            names.remove(&name);
            self.shared.pieces.lock().forget(&name);
        }
        let known = names.entry(name).or_insert_with(|| Name { token, directory: None });
        if home {
            known.directory = Some(Directory::default());
        }
        drop(names);
        self.send(&Message::Welcome { address: self.shared.address.clone() })
    }

    fn hold(
        &mut self,
        name: &str,
        number: u64,
        bytes: u64,
        descriptor: Option<OwnedFd>,
    ) -> io::Result<()> {
        if !self.shared.names.lock().contains_key(name) {
            return self.refuse(Why::Argument, "the name is unknown here");
        }
        if let Some(descriptor) = descriptor {
            if self.segments.len() >= SEGMENTS_MOST {
                return self.refuse(Why::Argument, "too many segments");
            }
            let capacity = rustix::fs::fstat(&descriptor)?.st_size;
            let capacity = u64::try_from(capacity).map_err(|_| protocol())?;
            use std::os::fd::AsFd;
            memory::check(descriptor.as_fd(), capacity)?;
            let unique = self.shared.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.segments.insert(number, Arc::new(Segment::new(unique, descriptor, capacity)));
        }
        let segment = self.segments.get(&number).cloned().ok_or_else(protocol)?;
        if bytes > segment.bytes {
            return Err(protocol());
        }
        let mut pieces = self.shared.pieces.lock();
        if pieces.bytes().saturating_add(bytes) > self.shared.options.memory_bytes {
            drop(pieces);
            let most = self.shared.options.memory_bytes;
            let text = format!("the node's process may hold {most} bytes of pieces: raise its `--coupling-memory`, or lower the depth");
            return self.refuse(Why::Memory, &text);
        }
        let key = pieces.hold(name, segment, bytes, (self.number, number));
        drop(pieces);
        self.send(&Message::Held { segment: number, key })
    }

    /// A client of a name: a rank at its directory, a reader of pieces, or the process with the directory.
    fn serve_name(&mut self, name: &str) -> io::Result<()> {
        loop {
            match self.link.receive(None)?.0 {
                Message::Ask { number, request } => self.ask(name, number, request)?,
                Message::Free { keys } => self.shared.free(name, &keys),
                Message::Map { key } => self.map(name, key)?,
                Message::Pull { key, region, cut, element_bytes } => {
                    self.pull(name, key, &region, &cut, element_bytes)?;
                }
                Message::Write { key, runs } => self.write(name, key, &runs)?,
                _ => return Err(protocol()),
            }
        }
    }

    fn ask(&self, name: &str, number: u64, request: Request) -> io::Result<()> {
        let mut names = self.shared.names.lock();
        let known = names.get_mut(name);
        let home = known.and_then(|known| Some((known.token, known.directory.as_mut()?)));
        let Some((token, directory)) = home else {
            drop(names);
            return self.refuse(Why::Argument, "the directory of the name is elsewhere");
        };
        let actions = directory.request(self.number, number, request);
        drop(names);
        self.shared.act(name, token, actions);
        Ok(())
    }

    fn piece(&self, name: &str, key: u64) -> io::Result<Option<Held>> {
        let held = self.shared.pieces.lock().get(name, key);
        if held.is_none() {
            self.refuse(Why::NoSuchVariable, "the piece has left: its version was released")?;
        }
        Ok(held)
    }

    fn map(&mut self, name: &str, key: u64) -> io::Result<()> {
        let Some(held) = self.piece(name, key)? else { return Ok(()) };
        let segment = held.memory.number;
        let attached = self.given.insert(segment);
        if attached && !self.link.is_unix() {
            return Err(protocol());
        }
        let message = Message::Mapped { segment, bytes: held.memory.bytes, attached };
        let descriptor = if attached { Some(Shared::descriptor(&held)?) } else { None };
        use std::os::fd::AsFd;
        let descriptor = descriptor.as_ref().map(AsFd::as_fd);
        self.link.send(&message, descriptor, self.shared.patience())
    }

    fn pull(
        &self,
        name: &str,
        key: u64,
        region: &Region,
        cut: &Region,
        element_bytes: u32,
    ) -> io::Result<()> {
        let Some(held) = self.piece(name, key)? else { return Ok(()) };
        let element = u64::from(element_bytes);
        let size = region.cells().checked_mul(element).filter(|size| *size <= held.bytes);
        if size.is_none() || region.intersection(cut).as_ref() != Some(cut) {
            return self.refuse(Why::Argument, "these cells are not of the piece");
        }
        let all = held.memory.mapped()?.bytes();
        let data = Message::Data { bytes: cut.cells() * element };
        self.link.send_data(&data, None, |push| {
            let mut part = Vec::with_capacity(PART_BYTES);
            region.shared_runs(cut, cut, |from, _, run| {
                // Inside the piece, which is inside the segment: checked above.
                let range = (from * element) as usize..((from + run) * element) as usize;
                let Some(bytes) = all.get(range) else { return };
                if part.len() + bytes.len() > PART_BYTES {
                    push(&part);
                    part.clear();
                }
                if bytes.len() >= PART_BYTES {
                    push(bytes);
                } else {
                    part.extend_from_slice(bytes);
                }
            });
            push(&part);
        })
    }

    /// Receives runs of a piece that is open to other writers.
    fn write(&self, name: &str, key: u64, runs: &[(u64, u64)]) -> io::Result<()> {
        let total = runs.iter().try_fold(0_u64, |total, (_, bytes)| total.checked_add(*bytes));
        if total.is_none_or(|total| total > WRITE_MOST) {
            return Err(protocol());
        }
        let held = self.shared.pieces.lock().get(name, key);
        let memory = held.as_ref().and_then(|held| held.memory.written().ok());
        let mut part = vec![0; PART_BYTES];
        let mut written = memory.is_some();
        for (offset, bytes) in runs {
            let mut done = 0;
            while done < *bytes {
                let step = (*bytes - done).min(PART_BYTES as u64);
                let part = &mut part[..step as usize];
                self.link.fill(part, self.shared.patience())?;
                // Those of a piece that has left, or of a wrong place, are received all the same.
                let to = offset.checked_add(done);
                written &= to.zip(memory).is_some_and(|(to, memory)| memory.write(to, part));
                done += step;
            }
        }
        if written {
            self.send(&Message::Written)
        } else {
            self.refuse(Why::Argument, "the piece has left, or cannot be written there")
        }
    }
}
