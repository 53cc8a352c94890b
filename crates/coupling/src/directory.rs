//! The directory of one coupled name: who writes and reads it, which versions there are, and where their pieces are.
//!
//! Arrives: requests of ranks, each with the connection that it came by; connections that ended unclosed.
//! Leaves: answers, now or once another rank's request allows them; pieces that may be freed.
//! Must not know: sockets, clocks, memory. A dead peer is a connection that ended; links find out within the lease.
//!
//! Rules:
//! - The k-th commit of every writer is of the same version; versions grow.
//! - A version appears once all writers have committed it, and leaves once all readers have released it.
//! - A writer is admitted to its next version while fewer than `depth` versions before it are held.
//! - A writer that died is an error for all that wait for what it would have written. Versions that appeared stay.
//! - Readers that died are an error for writers that would wait for them. Another group of readers may take over,
//!   from the oldest version that is held.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::group::{Group, Member, Version};
use crate::region::Region;
use crate::request::{Action, Answer, Connection, Piece, Request, Role, Variable, Why};
use crate::request::{DEPTH_MOST, PIECES_MOST, VARIABLES_MOST};
use crate::slabs::Files;

/// Most requests of one connection that wait.
const WAITING_MOST: usize = 64;
/// The directory of a name.
#[derive(Debug, Default)]
pub struct Directory {
    depth: u32,
    pub(crate) writers: Option<Group>,
    readers: Option<Group>,
    pub(crate) members: BTreeMap<Connection, Member>,
    /// Versions in the order of the writers' commits; the first `left` of all are gone from it.
    pub(crate) order: VecDeque<u64>,
    pub(crate) left: usize,
    pub(crate) held: BTreeMap<u64, Version>,
    pub(crate) files: Files,
    waiting: Vec<(Connection, u64, Request)>,
}

impl Directory {
    /// Whether all writers have closed, and no version is held for readers that could come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.writers.as_ref().is_some_and(Group::is_closed)
            && (self.held.is_empty() || self.readers.as_ref().is_some_and(Group::is_closed))
            && self.members.is_empty()
    }

    /// Whether no rank has the name open: another run may begin.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.members.is_empty()
    }

    /// Versions that have appeared and not left.
    #[must_use]
    pub fn held(&self) -> Vec<u64> {
        self.held.iter().filter(|(_, v)| self.appeared(v)).map(|(number, _)| *number).collect()
    }

    /// A request of a connection, with its number there.
    pub fn request(&mut self, from: Connection, number: u64, request: Request) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Request::Cancel { request } = request {
            self.waiting.retain(|(of, number, _)| (*of, *number) != (from, request));
            return actions;
        }
        let waits = self.waiting.iter().filter(|(of, ..)| *of == from).count();
        if waits >= WAITING_MOST {
            let failed = Answer::Failed(Why::Argument, "too many requests wait".to_owned());
            return vec![Action::Answer(from, number, failed)];
        }
        match self.answer(from, &request, &mut actions) {
            Some(answer) => actions.push(Action::Answer(from, number, answer)),
            None => self.waiting.push((from, number, request)),
        }
        self.wake(&mut actions);
        actions
    }

    /// A connection that ended without [`Request::Close`], or after it.
    pub fn ended(&mut self, connection: Connection) -> Vec<Action> {
        let mut actions = Vec::new();
        self.waiting.retain(|(of, ..)| *of != connection);
        if let Some(member) = self.members.remove(&connection) {
            let group = match member.role {
                Role::Writer => &mut self.writers,
                Role::Reader => &mut self.readers,
            };
            if let Some(group) = group {
                group.lost.get_or_insert(member.rank);
            }
        }
        self.wake(&mut actions);
        actions
    }

    /// Answers what waited and waits no longer.
    fn wake(&mut self, actions: &mut Vec<Action>) {
        loop {
            let mut woken = false;
            let mut position = 0;
            while position < self.waiting.len() {
                let (from, number, request) = self.waiting[position].clone();
                if let Some(answer) = self.answer(from, &request, actions) {
                    self.waiting.remove(position);
                    actions.push(Action::Answer(from, number, answer));
                    woken = true;
                } else {
                    position += 1;
                }
            }
            if !woken {
                return;
            }
        }
    }

    /// The answer to a request; None where it waits.
    fn answer(
        &mut self,
        from: Connection,
        request: &Request,
        actions: &mut Vec<Action>,
    ) -> Option<Answer> {
        if let Request::Join { role, rank, size, depth } = request {
            return Some(self.join(from, *role, *rank, *size, *depth));
        }
        let Some(member) = self.members.get(&from) else {
            return failed(Why::Argument, "the rank has not joined, or has closed");
        };
        let (role, rank) = (member.role, member.rank);
        match (role, request) {
            (Role::Writer, Request::Admit { version }) => self.admit(from, *version),
            (Role::Writer, Request::Commit { version, variables, pieces }) => {
                Some(self.commit(from, rank, *version, variables, pieces))
            }
            (Role::Writer, Request::Drain) => self.drain(),
            (_, Request::Locate { .. }) => self.locate(from, role, request),
            (
                Role::Writer,
                Request::Open { .. }
                | Request::Provide { .. }
                | Request::Resize { .. }
                | Request::CommitFile { .. },
            ) => self.write_file(from, rank, request, actions),
            (Role::Reader, Request::Find { version, variable, region }) => {
                self.find(*version, variable, region.as_ref())
            }
            (Role::Reader, Request::Next { after }) => self.next(*after),
            (Role::Reader, Request::Release { version }) => {
                Some(self.release(rank, *version, actions))
            }
            (_, Request::Close) => Some(self.close(from, role, rank, actions)),
            _ => failed(Why::Argument, &format!("a {} cannot do this", role.name())),
        }
    }

    fn join(&mut self, from: Connection, role: Role, rank: u32, size: u32, depth: u32) -> Answer {
        let refuse = |text: String| Answer::Failed(Why::Argument, text);
        if size == 0 || rank >= size || depth == 0 || depth > DEPTH_MOST {
            return refuse(format!("rank {rank} of {size} with depth {depth} makes no sense"));
        }
        if self.members.contains_key(&from) {
            return refuse("the rank has joined already".to_owned());
        }
        let group = match role {
            Role::Writer => &mut self.writers,
            Role::Reader => &mut self.readers,
        };
        // Readers that closed or died make room for others; their releases of held versions count for nothing.
        let alive = self.members.values().any(|member| member.role == role);
        if role == Role::Reader
            && !alive
            && group.as_ref().is_some_and(|group| group.lost.is_some() || group.is_closed())
        {
            *group = None;
            for version in self.held.values_mut() {
                version.released.clear();
            }
        }
        let group = group.get_or_insert_with(|| Group {
            size,
            joined: BTreeSet::new(),
            closed: BTreeSet::new(),
            lost: None,
        });
        let name = role.name();
        if let Some(lost) = group.lost {
            return Answer::Failed(Why::Lost, format!("{name} {lost} has died"));
        }
        if group.size != size {
            return refuse(format!(
                "the name has {} {name}s, and this one says {size}",
                group.size
            ));
        }
        if !group.joined.insert(rank) {
            return refuse(format!("{name} {rank} of {size} has joined already"));
        }
        if role == Role::Writer && self.depth == 0 {
            self.depth = depth;
        }
        self.members.insert(from, Member { role, rank, commits: 0 });
        Answer::Done
    }

    fn admit(&mut self, from: Connection, version: u64) -> Option<Answer> {
        if let Err(refusal) = self.check_next(from, version) {
            return Some(refusal);
        }
        let place = self.members.get(&from)?.commits;
        if place.saturating_sub(self.left) < self.depth as usize {
            return Some(Answer::Done);
        }
        let lost = self.readers.as_ref().and_then(|group| group.lost)?;
        failed(
            Why::Lost,
            &format!("reader {lost} has died, and {} versions wait to be read", self.depth),
        )
    }

    /// Versions that readers left behind, all of them closed, are for readers that may come: no writer waits for that.
    fn drain(&self) -> Option<Answer> {
        let readers = self.readers.as_ref();
        if let Some(lost) = self.writers.as_ref().and_then(|group| group.lost) {
            return failed(Why::Lost, &format!("writer {lost} has died"));
        }
        if self.held.is_empty() || readers.is_some_and(Group::is_closed) {
            return Some(Answer::Done);
        }
        let lost = readers.and_then(|group| group.lost)?;
        let left = self.held.len();
        failed(Why::Lost, &format!("reader {lost} has died, and {left} versions were not read"))
    }

    /// Whether `version` may be the next that this writer commits.
    pub(crate) fn check_next(&self, from: Connection, version: u64) -> Result<(), Answer> {
        let Some(lost) = self.writers.as_ref().map(|group| group.lost) else { return Ok(()) };
        if let Some(lost) = lost {
            return Err(Answer::Failed(Why::Lost, format!("writer {lost} has died")));
        }
        let place = self.members.get(&from).map_or(0, |member| member.commits);
        let refuse = |text: String| Err(Answer::Failed(Why::Argument, text));
        let known = place.checked_sub(self.left).and_then(|place| self.order.get(place));
        match known {
            Some(known) if *known != version => {
                refuse(format!("version {version} where other writers put version {known}"))
            }
            None if self.order.back().is_some_and(|last| version <= *last) => {
                refuse(format!("version {version} after a later one: versions grow"))
            }
            _ => Ok(()),
        }
    }

    fn commit(
        &mut self,
        from: Connection,
        rank: u32,
        version: u64,
        variables: &[Variable],
        pieces: &[Piece],
    ) -> Answer {
        if let Err(refusal) = self.check_next(from, version) {
            return refusal;
        }
        let place = self.members.get(&from).map_or(0, |member| member.commits);
        if place.saturating_sub(self.left) >= self.depth as usize {
            let text = format!("version {version} is committed before it was admitted");
            return Answer::Failed(Why::Argument, text);
        }
        if let Err(text) = self.check_pieces(version, variables, pieces) {
            return Answer::Failed(Why::Argument, text);
        }
        let held = self.enter(place, version);
        let mut places = Vec::with_capacity(variables.len());
        for variable in variables {
            let known = held.variables.iter().position(|known| known.name == variable.name);
            places.push(known.unwrap_or_else(|| {
                held.variables.push(variable.clone());
                held.variables.len() - 1
            }));
        }
        held.pieces.extend(pieces.iter().map(|piece| {
            let place = places[piece.variable as usize];
            Piece { variable: u32::try_from(place).unwrap_or(u32::MAX), ..piece.clone() }
        }));
        if self.committed(from, rank, version) {
            Answer::Version(version)
        } else {
            Answer::Done
        }
    }

    /// The version at a place of the writers' order.
    pub(crate) fn enter(&mut self, place: usize, version: u64) -> &mut Version {
        if place == self.left + self.order.len() {
            self.order.push_back(version);
        }
        self.held.entry(version).or_default()
    }

    /// Takes note of a commit; whether it completed the version.
    pub(crate) fn committed(&mut self, from: Connection, rank: u32, version: u64) -> bool {
        if let Some(held) = self.held.get_mut(&version) {
            held.committed.insert(rank);
        }
        if let Some(member) = self.members.get_mut(&from) {
            member.commits += 1;
        }
        self.held.get(&version).is_some_and(|held| self.appeared(held))
    }

    fn check_pieces(
        &self,
        version: u64,
        variables: &[Variable],
        pieces: &[Piece],
    ) -> Result<(), String> {
        let empty = Version::default();
        let held = self.held.get(&version).unwrap_or(&empty);
        if held.pieces.len() + pieces.len() > PIECES_MOST {
            return Err(format!("a version has at most {PIECES_MOST} pieces"));
        }
        if held.variables.len() + variables.len() > VARIABLES_MOST {
            return Err(format!("a version has at most {VARIABLES_MOST} variables"));
        }
        for variable in variables {
            let name = &variable.name;
            if variable.element_bytes == 0 || Region::whole(&variable.shape).is_none() {
                return Err(format!("{name} has no such shape"));
            }
            let differs =
                held.variables.iter().any(|known| known.name == *name && known != variable);
            if differs {
                return Err(format!("{name} has another type or shape at another writer"));
            }
        }
        for piece in pieces {
            let variable = variables
                .get(piece.variable as usize)
                .ok_or_else(|| "a piece of no variable".to_owned())?;
            if !piece.region.within(&variable.shape) {
                let (name, region, shape) = (&variable.name, &piece.region, &variable.shape);
                return Err(format!("{name}{region} is outside the shape {shape:?}"));
            }
        }
        Ok(())
    }

    pub(crate) fn appeared(&self, version: &Version) -> bool {
        self.writers.as_ref().is_some_and(|group| version.committed.len() == group.size as usize)
    }

    /// Why what has not appeared will not: a writer or another reader died, or the writers have closed.
    fn never(&self, what: &str) -> Option<Answer> {
        if let Some(lost) = self.writers.as_ref().and_then(|group| group.lost) {
            return failed(
                Why::Lost,
                &format!("writer {lost} has died before {what} was complete"),
            );
        }
        if self.writers.as_ref().is_some_and(Group::is_closed) {
            return failed(
                Why::Ended,
                &format!("the writers have closed, and {what} is not there"),
            );
        }
        None
    }

    /// A version that readers may read; otherwise the answer, None to wait.
    pub(crate) fn readable(&self, version: u64) -> Result<&Version, Option<Answer>> {
        if let Some(lost) = self.readers.as_ref().and_then(|group| group.lost) {
            return Err(failed(Why::Lost, &format!("reader {lost} has died")));
        }
        if let Some(held) = self.held.get(&version).filter(|held| self.appeared(held)) {
            return Ok(held);
        }
        let later = self.order.back().is_some_and(|last| *last > version);
        if later && !self.held.contains_key(&version) {
            let text = format!("version {version} has left, or was never written");
            return Err(failed(Why::NoSuchVariable, &text));
        }
        Err(self.never(&format!("version {version}")))
    }

    fn find(&self, version: u64, variable: &str, region: Option<&Region>) -> Option<Answer> {
        let held = match self.readable(version) {
            Ok(held) => held,
            Err(answer) => return answer,
        };
        let Some(place) = held.variables.iter().position(|known| known.name == variable) else {
            let text = format!("version {version} has no variable {variable}");
            return failed(Why::NoSuchVariable, &text);
        };
        let found = held.variables[place].clone();
        let Some(region) = region else { return Some(Answer::Found(found, Vec::new())) };
        if !region.within(&found.shape) {
            let text = format!("{variable}{region} is outside the shape {:?}", found.shape);
            return failed(Why::Argument, &text);
        }
        let pieces: Vec<Piece> = held
            .pieces
            .iter()
            .filter(|piece| {
                piece.variable as usize == place && piece.region.intersection(region).is_some()
            })
            .map(|piece| Piece { variable: 0, ..piece.clone() })
            .collect();
        // What was never written of a file is 0.
        let whole = held.file.is_some();
        let holes = || region.without(pieces.iter().map(|piece| &piece.region));
        if let (false, Some(hole)) = (whole, holes().first()) {
            let text = format!("no writer has put {variable}{hole} into version {version}");
            return failed(Why::NoSuchVariable, &text);
        }
        Some(Answer::Found(found, pieces))
    }

    fn next(&self, after: Option<u64>) -> Option<Answer> {
        if let Some(lost) = self.readers.as_ref().and_then(|group| group.lost) {
            return failed(Why::Lost, &format!("reader {lost} has died"));
        }
        let first = self.order.iter().find(|version| after.is_none_or(|after| **version > after));
        match first.and_then(|first| self.held.get_key_value(first)) {
            Some((first, version)) if self.appeared(version) => Some(Answer::Version(*first)),
            _ => self.never("the next version"),
        }
    }

    fn release(&mut self, rank: u32, version: u64, actions: &mut Vec<Action>) -> Answer {
        let appeared = self.held.get(&version).is_some_and(|held| self.appeared(held));
        if !appeared {
            let text = format!("version {version} is not there to be released");
            return Answer::Failed(Why::Argument, text);
        }
        if let Some(held) = self.held.get_mut(&version) {
            held.released.insert(rank);
        }
        self.leave(actions);
        Answer::Done
    }

    /// Frees the oldest versions that all readers have released.
    fn leave(&mut self, actions: &mut Vec<Action>) {
        let Some(readers) = &self.readers else { return };
        // Readers that closed need nothing more; where all closed, what they did not release is for others.
        if readers.is_closed() || readers.lost.is_some() {
            return;
        }
        while let Some(oldest) = self.order.front() {
            let Some(version) = self.held.get(oldest) else { return };
            let needed = (0..readers.size)
                .any(|rank| !version.released.contains(&rank) && !readers.closed.contains(&rank));
            if needed || !self.appeared(version) {
                return;
            }
            let oldest = *oldest;
            let left = self.held.remove(&oldest).unwrap_or_default();
            self.order.pop_front();
            self.left += 1;
            self.free(left.places(), actions);
        }
    }

    fn close(
        &mut self,
        from: Connection,
        role: Role,
        rank: u32,
        actions: &mut Vec<Action>,
    ) -> Answer {
        self.members.remove(&from);
        let group = match role {
            Role::Writer => &mut self.writers,
            Role::Reader => &mut self.readers,
        };
        if let Some(group) = group {
            group.closed.insert(rank);
        }
        if self.writers.as_ref().is_some_and(Group::is_closed) {
            self.forget_files(actions);
        }
        self.leave(actions);
        Answer::Done
    }
}

#[allow(clippy::unnecessary_wraps)]
pub(crate) fn failed(why: Why, text: &str) -> Option<Answer> {
    Some(Answer::Failed(why, text.to_owned()))
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
