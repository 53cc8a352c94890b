//! A rank's open file: its view, the operations on it, and what the process of the node must know of it.
//!
//! Arrives: calls of a rank, requests of the process to pack and unpack windows.
//! Leaves: data in the file and in the rank's memory. Must not know: MPI; how operations are made collective.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use waystage_collective::exchange::choose;
use waystage_collective::{Datatype, Exchange, ServerMap, View};
use waystage_collective_wire::local::{ToNode, ToRank, REATTACHED};
use waystage_collective_wire::{FileId, Status};

use crate::error::{argument, Code, Error, Result};
use crate::independent::Direct;
use crate::memory::{Data, Transfer};
use crate::node::{failure, unexpected, Node, Session};
use crate::open::{flags, Open};
use crate::serve::{done, serve, stale};

mod sync;

/// Longest encoded view that a message carries; a longer one is exchanged as lists.
const VIEW_MOST: usize = 1 << 20;

/// An open file.
#[derive(Debug)]
pub struct File {
    node: Arc<Node>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    id: FileId,
    attach: ToNode,
    path: Vec<u8>,
    flags: u32,
    /// Connection by which the process knows the file.
    generation: u64,
    /// The connection by which the last collective call ended.
    settled: u64,
    hints: Vec<(String, String)>,
    view: View,
    /// Number of the view, and its encoding where the exchange is view-based.
    view_number: u32,
    view_sent: Option<Vec<u8>>,
    /// Whether the process has it: it is sent with the first operation.
    view_known: bool,
    map: Option<Vec<u8>>,
    epoch: u64,
    operation: u64,
    syncs: u64,
    direct: Option<Direct>,
    /// Whether bytes that were acknowledged may not be in the file yet.
    behind: bool,
    /// An error of such bytes, for the next sync or the close.
    deferred: Option<Error>,
}

impl File {
    /// Opens it.
    ///
    /// # Errors
    /// Of the storage and of arguments; [`Code::Lost`].
    pub fn open(node: Arc<Node>, how: Open) -> Result<Self> {
        let mut attach = how.attach()?;
        let created = how.creates();
        let view = View::stream(0).map_err(|error| argument(error.to_string()))?;
        let path = match &attach {
            ToNode::Attach { path, .. } => path.clone(),
            _ => how.path.clone(),
        };
        let state = State {
            id: FileId(how.id),
            attach: attach.clone(),
            path,
            flags: how.flags,
            generation: 0,
            settled: 0,
            hints: how.hints,
            view_sent: None,
            view_known: false,
            view,
            view_number: 0,
            map: None,
            epoch: 0,
            operation: 0,
            syncs: 0,
            direct: None,
            behind: false,
            deferred: None,
        };
        let file = Self { node, state: Mutex::new(state) };
        file.set_view(0, 1, None)?;
        {
            let mut state = file.state.lock();
            let deadline = file.node.deadline();
            loop {
                match file.attached(&mut state).map(drop) {
                    Err(error) if error.code == Code::Again && Instant::now() < deadline => {
                        // The process that ended may have created it.
                        if let (true, ToNode::Attach { flags, .. }) = (created, &mut attach) {
                            *flags &= !self::flags::EXCL;
                        }
                        state.attach = attach.clone();
                    }
                    result => break result?,
                }
            }
            state.settled = state.generation;
        }
        Ok(file)
    }

    /// A hint in force.
    #[must_use]
    pub fn hint(&self, key: &str) -> Option<String> {
        let state = self.state.lock();
        let found = state.hints.iter().rev().find(|(name, _)| name == key);
        found.map(|(_, value)| value.clone())
    }

    /// The bytes that this rank sees.
    ///
    /// # Errors
    /// [`Code::Argument`] where the filetype does not fit MPI's rules.
    pub fn set_view(
        &self,
        displacement: i64,
        etype: i64,
        filetype: Option<&Datatype>,
    ) -> Result<()> {
        let view = match filetype {
            Some(filetype) => View::new(displacement, etype, filetype.clone()),
            None => View::stream(displacement),
        };
        let view = view.map_err(|error| argument(error.to_string()))?;
        let wanted = match self.hint("waystage_exchange").as_deref() {
            Some("view") => Some(Exchange::View),
            Some("list") => Some(Exchange::List),
            _ => None,
        };
        let (_, encoded) = choose(&view, wanted);
        let encoded = encoded.filter(|encoded| encoded.len() <= VIEW_MOST);
        let mut state = self.state.lock();
        state.view_number += 1;
        state.view = view;
        state.view_sent = encoded;
        state.view_known = false;
        Ok(())
    }

    /// Rank 0's question before an operation: the server map, to be broadcast.
    ///
    /// # Errors
    /// [`Code::Again`]: ask once more. [`Code::Lost`].
    pub fn control_point(&self, write: bool, bytes: u64) -> Result<Vec<u8>> {
        let mut state = self.state.lock();
        let mut session = self.attached(&mut state)?;
        let (file, epoch) = (state.id, state.epoch);
        session.send(&ToNode::ControlPoint { file, epoch, write, bytes })?;
        // A grant may take as long as another application's lease; the process says meanwhile that it is alive.
        loop {
            match session.receive(Some(self.node.deadline()))? {
                ToRank::Control { file: of, status, message, map } if of == file => {
                    return if status == Status::Ok {
                        Ok(map)
                    } else {
                        Err(failure(status, message))
                    };
                }
                message => stale(&message)?,
            }
        }
    }

    /// The server map that rank 0 has broadcast.
    ///
    /// # Errors
    /// [`Code::Argument`] where it is none; [`Code::Lost`].
    pub fn adopt(&self, blob: &[u8]) -> Result<()> {
        let map = ServerMap::decode(blob).map_err(|error| argument(error.to_string()))?;
        let mut state = self.state.lock();
        let known = state.map.as_deref() == Some(blob);
        state.map = Some(blob.to_vec());
        state.epoch = map.epoch;
        let before = state.generation;
        let mut session = self.attached(&mut state)?;
        if !known && before == state.generation {
            // Where the connection breaks, the next operation makes it anew, and sends the map again.
            let _ = session.send(&ToNode::Adopt { file: state.id, map: blob.to_vec() });
        }
        Ok(())
    }

    /// Rank 0, once all ranks have ended an operation.
    ///
    /// # Errors
    /// [`Code::Lost`].
    pub fn finished(&self, write: bool, bytes: u64) -> Result<()> {
        let mut state = self.state.lock();
        let mut session = self.attached(&mut state)?;
        session.send(&ToNode::Finished { file: state.id, write, bytes })
    }

    /// A collective operation: `offset` counts bytes of the view. The bytes of this rank that were moved.
    ///
    /// Where this rank's arguments are wrong it takes part with no byte, so that no other rank waits for it.
    ///
    /// # Errors
    /// [`Code::Again`]: all ranks repeat it after a control point. Of the storage, of arguments.
    pub fn operate(&self, write: bool, offset: i64, data: &Data) -> Result<u64> {
        let mut state = self.state.lock();
        state.operation += 1;
        state.behind |= write && state.writes_behind();
        let plan = state.check(write, offset, data);
        let nothing = Data::none();
        let (range, data, refusal) = match plan {
            Ok(range) => (range, data, None),
            Err(error) => (0..0, &nothing, Some(error)),
        };
        let view = state.view.clone();
        let hull = view.hull(&range).ok().flatten().unwrap_or(0..0);
        let transfer = Transfer { view: &view, range: range.clone(), data };
        let (file, op) = (state.id, state.operation);
        let mut announcement = ToNode::Announce {
            file,
            op,
            epoch: state.epoch,
            write,
            renewed: false,
            view: state.view_sent.as_ref().map(|_| state.view_number),
            data_offset: range.start,
            bytes: range.end - range.start,
            hull_lo: hull.start,
            hull_hi: hull.end,
            inline: transfer.inline(write && state.view_sent.is_some()),
        };
        // A process that was restarted must hear of the operation: it ends it on all nodes, which wait for this one.
        let settled = state.settled;
        let served = loop {
            let served = match self.attached(&mut state) {
                Ok(mut session) => {
                    if let ToNode::Announce { renewed, .. } = &mut announcement {
                        *renewed = session.generation() != settled;
                    }
                    let lease = || self.node.deadline();
                    let served = state
                        .send_view(&mut session)
                        .and_then(|()| session.send(&announcement))
                        .and_then(|()| serve(&mut session, (file, op), &transfer, &lease));
                    if session.pool().is_some() {
                        break served;
                    }
                    served
                }
                Err(error) => Err(error),
            };
            if served.as_ref().is_err_and(|error| error.code != Code::Again) {
                break served;
            }
        };
        state.settled = state.generation;
        let eof = served?;
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let moved = if eof == u64::MAX { range } else { view.within(&range, &(0..eof)) };
        Ok(moved.end - moved.start)
    }

    /// An independent operation, directly on the file; `offset` counts bytes of the view.
    ///
    /// # Errors
    /// Of the storage, of arguments.
    pub fn access(&self, write: bool, offset: i64, data: &Data) -> Result<u64> {
        let mut state = self.state.lock();
        let range = state.check(write, offset, data)?;
        self.settle_in(&mut state)?;
        let view = state.view.clone();
        let transfer = Transfer { view: &view, range, data };
        state.direct()?.access(write, &transfer)
    }

    /// An independent operation on extents of the file: (offset, bytes) in the order of the data, without the view.
    ///
    /// # Errors
    /// Of the storage, of arguments.
    pub fn access_list(&self, write: bool, extents: &[(u64, u64)], data: &Data) -> Result<u64> {
        let mut state = self.state.lock();
        state.check_access(write)?;
        self.settle_in(&mut state)?;
        state.direct()?.access_list(write, extents, data)
    }

    /// Gives it up.
    ///
    /// # Errors
    /// Of the storage; [`Code::Lost`].
    pub fn close(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.direct = None;
        let settled = self.settle_in(&mut state);
        let closed = self.close_in(&mut state);
        settled.and(closed)?;
        state.deferred.take().map_or(Ok(()), Err)
    }

    fn close_in(&self, state: &mut State) -> Result<()> {
        let root = matches!(state.attach, ToNode::Attach { rank: 0, .. });
        let deletes = root && state.flags & flags::DELETE_ON_CLOSE != 0;
        loop {
            // A process that was restarted holds nothing of the file; only rank 0's has something to delete.
            let result = match self.node.session().map(|session| session.generation()) {
                Ok(generation) if generation != state.generation && !deletes => Ok(()),
                Ok(_) => self.close_once(state),
                Err(error) => Err(error),
            };
            match result {
                Err(error) if error.code == Code::Again => {}
                Err(error) if error.code == Code::NoSuchFile && deletes => return Ok(()),
                result => return result,
            }
        }
    }

    fn close_once(&self, state: &mut State) -> Result<()> {
        let mut session = self.attached(state)?;
        let file = state.id;
        session.send(&ToNode::Close { file })?;
        let deadline = Some(self.node.deadline());
        loop {
            match session.receive(deadline)? {
                ToRank::Closed { file: of, status, message } if of == file => {
                    return done(status, message);
                }
                message => stale(&message)?,
            }
        }
    }

    /// The connection, by which the process knows the file, its view and the server map.
    fn attached(&self, state: &mut State) -> Result<parking_lot::MutexGuard<'_, Session>> {
        let mut session = self.node.session()?;
        if session.generation() == state.generation {
            return Ok(session);
        }
        let again = state.generation > 0;
        let mut attach = state.attach.clone();
        if let (true, ToNode::Attach { flags, .. }) = (again, &mut attach) {
            // This file was created already.
            *flags &= !(self::flags::CREATE | self::flags::EXCL);
            *flags |= REATTACHED;
        }
        session.send(&attach)?;
        let deadline = Some(self.node.deadline());
        self.await_attached(&mut session, state, deadline)?;
        state.generation = session.generation();
        state.view_known = false;
        if let Some(map) = &state.map {
            session.send(&ToNode::Adopt { file: state.id, map: map.clone() })?;
        }
        Ok(session)
    }

    fn await_attached(
        &self,
        session: &mut Session,
        state: &mut State,
        deadline: Option<Instant>,
    ) -> Result<()> {
        loop {
            match session.receive(deadline)? {
                ToRank::Attached { file, status, message, hints } if file == state.id => {
                    if status == Status::Ok {
                        state.hints = hints;
                    }
                    return done(status, message);
                }
                message => stale(&message)?,
            }
        }
    }
}

impl State {
    /// Numbers of views count up, so that an announcement names one view only.
    fn send_view(&mut self, session: &mut Session) -> Result<()> {
        if let Some(encoded) = self.view_sent.clone().filter(|_| !self.view_known) {
            let (file, view) = (self.id, self.view_number);
            session.send(&ToNode::SetView { file, view, encoded })?;
        }
        self.view_known = true;
        Ok(())
    }

    fn writes_behind(&self) -> bool {
        let found = self.hints.iter().rev().find(|(key, _)| key == "waystage_write_behind");
        found.is_some_and(|(_, value)| value == "enable")
    }

    fn check_access(&self, write: bool) -> Result<()> {
        if write && self.flags & flags::RDONLY != 0 {
            return Err(Error::new(Code::ReadOnly, "the file was opened for reading only"));
        }
        if !write && self.flags & flags::WRONLY != 0 {
            return Err(Error::new(Code::Access, "the file was opened for writing only"));
        }
        Ok(())
    }

    /// The range of the view that an operation covers.
    fn check(&self, write: bool, offset: i64, data: &Data) -> Result<std::ops::Range<u64>> {
        self.check_access(write)?;
        let start = u64::try_from(offset)
            .map_err(|_| argument(format!("the offset is {offset}; it must not be negative")))?;
        let end =
            start.checked_add(data.bytes()).ok_or_else(|| argument("an offset above 2^64"))?;
        if start < end {
            self.view.hull(&(start..end)).map_err(|error| argument(error.to_string()))?;
        }
        Ok(start..end)
    }

    fn direct(&mut self) -> Result<&mut Direct> {
        if self.direct.is_none() {
            self.direct = Some(Direct::open(&self.path, self.flags)?);
        }
        self.direct.as_mut().ok_or_else(unexpected)
    }
}
