//! Write-behind of one file at one aggregator: windows that are acknowledged before they are in the file.
//!
//! Arrives: what becomes of windows, of their copies, of requests to the storage and of connections. Leaves: what is to
//! be done. Must not know: sockets, clocks, threads, memory, bytes.
//!
//! An aggregator, the *owner*, offers a window to another one of the map, the *holder*, and sends it a copy. Once the
//! holder has all of it the window is acknowledged, and the owner writes it. A copy is dropped when the owner has
//! written the window, and written when the owner was lost. An operation begins once all aggregators have *settled* the
//! file: nothing is behind and no copy is left. So no two operations are behind at a time, and any
//! aggregator may write what is behind, at any time and again (`docs/decisions/0090`).

use std::collections::BTreeMap;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// A connection of a node to this aggregator, never used again for another one.
pub type Link = u64;

/// A window that this aggregator has bytes of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// Its own, by its number.
    Own(u64),
    /// The copy of another aggregator's, by the connection and the number there.
    Copy(Link, u64),
}

/// How a request to the storage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The bytes are in the file.
    Done,
    /// It was stopped; any part of the bytes may be in the file.
    Stopped,
    /// The storage refused it.
    Failed,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the holder the bytes of a window.
    Send {
        /// The window.
        window: u64,
        /// The holder's address.
        holder: Arc<str>,
    },
    /// Have the storage write a window before it is acknowledged; it is forgotten here.
    WriteThrough(u64),
    /// The window is acknowledged.
    Acknowledge(u64),
    /// Have the storage write it, then [`Behind::ended`].
    Write(Entry),
    /// Begin no further request of its write.
    Stop(Entry),
    /// Its memory is free.
    Release(Entry),
    /// Tell the holder that the window needs no copy; `failed`: that the storage refused it.
    Drop {
        /// The window.
        window: u64,
        /// The holder's address.
        holder: Arc<str>,
        /// Whether its bytes could not be written.
        failed: bool,
    },
    /// Answer the request to settle of this number.
    Settled(Link, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnPhase {
    Offered,
    Sending,
    Writing,
    Parked,
}

#[derive(Debug)]
struct Own {
    epoch: u64,
    holder: Arc<str>,
    /// Whether the holder has a copy.
    copied: bool,
    phase: OwnPhase,
    /// Its operation was given up, or a later epoch has begun: it is only waited for.
    void: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyPhase {
    Receiving,
    Held,
    Writing,
    Parked,
}

#[derive(Debug)]
struct Copy {
    epoch: u64,
    owner: Arc<str>,
    phase: CopyPhase,
    void: bool,
}

/// The windows of a file that are behind at an aggregator, and the copies that it holds.
#[derive(Debug, Default)]
pub struct Behind {
    own: BTreeMap<u64, Own>,
    copies: BTreeMap<(Link, u64), Copy>,
    /// A node fell silent, and others may take this aggregator for lost: nothing is written until one asks to settle.
    cut: bool,
    /// Owners that were lost: of these epochs no copy of theirs is taken.
    barred: BTreeMap<Arc<str>, u64>,
    waiting: Vec<(Link, u64)>,
}

impl Behind {
    /// Whether a window may be offered.
    pub fn may_offer(&self) -> bool {
        !self.cut
    }

    /// The owner has all of a window, and offers it to the holder.
    pub fn offer(&mut self, window: u64, epoch: u64, holder: Arc<str>) {
        let phase = OwnPhase::Offered;
        self.own.insert(window, Own { epoch, holder, copied: false, phase, void: false });
    }

    /// The holder's answer to an offer; after it has taken one it may still refuse the bytes.
    pub fn taken(&mut self, window: u64, taken: bool, out: &mut Vec<Action>) {
        let Some(own) = self.own.get_mut(&window) else {
            return;
        };
        match own.phase {
            OwnPhase::Offered => {}
            OwnPhase::Sending if !taken => {}
            _ => return,
        }
        if taken && !own.void {
            own.phase = OwnPhase::Sending;
            out.push(Action::Send { window, holder: Arc::clone(&own.holder) });
        } else if let Some(own) = self.own.remove(&window) {
            if taken {
                out.push(Action::Drop { window, holder: own.holder, failed: false });
            }
            out.push(if own.void {
                Action::Release(Entry::Own(window))
            } else {
                Action::WriteThrough(window)
            });
        }
    }

    /// The holder has all of a window.
    pub fn kept(&mut self, window: u64, out: &mut Vec<Action>) {
        let paused = self.is_paused();
        let Some(own) = self.own.get_mut(&window).filter(|own| own.phase == OwnPhase::Sending)
        else {
            return;
        };
        own.copied = true;
        if own.void {
            return self.forget_own(window, false, out);
        }
        out.push(Action::Acknowledge(window));
        own.phase = OwnPhase::Parked;
        if !paused {
            own.phase = OwnPhase::Writing;
            out.push(Action::Write(Entry::Own(window)));
        }
    }

    /// The operation of a window that is not acknowledged was given up. Its memory is in use until the holder answers.
    pub fn give_up(&mut self, window: u64) {
        let copying = |own: &&mut Own| matches!(own.phase, OwnPhase::Offered | OwnPhase::Sending);
        if let Some(own) = self.own.get_mut(&window).filter(copying) {
            own.void = true;
        }
    }

    /// The connection to a holder has ended: windows that it has not acknowledged are written first.
    pub fn holder_lost(&mut self, holder: &str, out: &mut Vec<Action>) {
        let of_it = self.own.iter().filter(|(_, own)| *own.holder == *holder);
        for window in of_it.map(|(window, _)| *window).collect::<Vec<_>>() {
            let Some(own) = self.own.get_mut(&window) else {
                continue;
            };
            own.copied = false;
            if matches!(own.phase, OwnPhase::Offered | OwnPhase::Sending) {
                let void = own.void;
                self.own.remove(&window);
                out.push(if void {
                    Action::Release(Entry::Own(window))
                } else {
                    Action::WriteThrough(window)
                });
            }
        }
    }

    /// An owner offers a window. Whether a copy of it is taken.
    pub fn take(&mut self, link: Link, window: u64, epoch: u64, owner: Arc<str>) -> bool {
        let barred = self.barred.get(&owner).is_some_and(|last| epoch <= *last);
        if barred || self.cut || self.copies.contains_key(&(link, window)) {
            return false;
        }
        let phase = CopyPhase::Receiving;
        self.copies.insert((link, window), Copy { epoch, owner, phase, void: false });
        true
    }

    /// Whether the bytes of a copy are expected.
    pub fn expects(&self, link: Link, window: u64) -> bool {
        self.copies.get(&(link, window)).is_some_and(|copy| copy.phase == CopyPhase::Receiving)
    }

    /// All bytes of a copy are there. The answer to the owner, if any: whether they are kept.
    pub fn received(&mut self, link: Link, window: u64, out: &mut Vec<Action>) -> Option<bool> {
        let copy = self.copies.get_mut(&(link, window))?;
        if copy.phase != CopyPhase::Receiving {
            return None;
        }
        if copy.void {
            self.forget_copy(link, window, out);
            return Some(false);
        }
        copy.phase = CopyPhase::Held;
        Some(true)
    }

    /// The owner needs a copy no longer.
    pub fn dropped(&mut self, link: Link, window: u64, out: &mut Vec<Action>) {
        match self.copies.get_mut(&(link, window)) {
            Some(copy) if copy.phase == CopyPhase::Writing => copy.void = true,
            Some(_) => self.forget_copy(link, window, out),
            None => {}
        }
    }

    /// A request to the storage has ended. Whether it is an error of acknowledged bytes, to be reported.
    pub fn ended(&mut self, entry: Entry, ended: Ended, out: &mut Vec<Action>) -> bool {
        let paused = self.is_paused();
        let void = match entry {
            Entry::Own(window) => match self.own.get_mut(&window) {
                Some(own) if ended == Ended::Stopped && !own.void => {
                    own.phase = if paused { OwnPhase::Parked } else { OwnPhase::Writing };
                    out.extend((!paused).then_some(Action::Write(entry)));
                    return false;
                }
                Some(own) => own.void,
                None => return false,
            },
            Entry::Copy(link, window) => match self.copies.get_mut(&(link, window)) {
                Some(copy) if ended == Ended::Stopped && !copy.void => {
                    copy.phase = if paused { CopyPhase::Parked } else { CopyPhase::Writing };
                    out.extend((!paused).then_some(Action::Write(entry)));
                    return false;
                }
                Some(copy) => copy.void,
                None => return false,
            },
        };
        let failed = ended == Ended::Failed && !void;
        match entry {
            Entry::Own(window) => self.forget_own(window, failed, out),
            Entry::Copy(link, window) => self.forget_copy(link, window, out),
        }
        failed
    }

    /// A node's connection has ended. `silent`: nothing was heard of it, which may mean that nothing is heard of this
    /// aggregator.
    pub fn link_lost(&mut self, link: Link, silent: bool, out: &mut Vec<Action>) {
        self.waiting.retain(|(of, _)| *of != link);
        self.cut |= silent;
        if self.is_paused() {
            self.stop(u64::MAX, false, out);
        }
        let orphans: Vec<u64> = self
            .copies
            .range((link, 0)..=(link, u64::MAX))
            .map(|((_, window), _)| *window)
            .collect();
        for window in orphans {
            self.orphan(link, window, false, out);
        }
    }

    /// Everything is to be in the file, of a node whose last epoch is this one and that takes these owners for lost.
    pub fn settle(
        &mut self,
        asks: (Link, u64),
        epoch: u64,
        lost: &[Arc<str>],
        out: &mut Vec<Action>,
    ) {
        self.begin(epoch, out);
        self.cut = false;
        self.waiting.push(asks);
        for (window, own) in &mut self.own {
            if own.phase == OwnPhase::Parked {
                own.phase = OwnPhase::Writing;
                out.push(Action::Write(Entry::Own(*window)));
            }
        }
        for ((link, window), copy) in &mut self.copies {
            if copy.phase == CopyPhase::Parked {
                copy.phase = CopyPhase::Writing;
                out.push(Action::Write(Entry::Copy(*link, *window)));
            }
        }
        for owner in lost {
            let last = self.barred.entry(Arc::clone(owner)).or_default();
            *last = epoch.max(*last);
        }
        let of_lost = self.copies.iter().filter(|(_, copy)| lost.contains(&copy.owner));
        for (link, window) in of_lost.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.orphan(link, window, true, out);
        }
        self.answer(out);
    }

    /// An epoch has begun, before which all was settled: what is left of earlier ones others have written.
    pub fn begin(&mut self, epoch: u64, out: &mut Vec<Action>) {
        self.stop(epoch, true, out);
        let old = |own: &Own| own.epoch < epoch && own.phase == OwnPhase::Parked;
        for window in self
            .own
            .iter()
            .filter(|(_, own)| old(own))
            .map(|(window, _)| *window)
            .collect::<Vec<_>>()
        {
            self.forget_own(window, false, out);
        }
        for (link, window) in self.copies.keys().copied().collect::<Vec<_>>() {
            match self.copies.get_mut(&(link, window)).filter(|copy| copy.epoch < epoch) {
                // Bytes of it may be on their way into its memory.
                Some(copy) if copy.phase == CopyPhase::Receiving => copy.void = true,
                Some(copy) if copy.phase != CopyPhase::Writing => {
                    self.forget_copy(link, window, out)
                }
                _ => {}
            }
        }
    }

    /// Whether there is nothing of the file.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.copies.is_empty()
    }

    /// Whether anything is being written.
    pub fn is_writing(&self) -> bool {
        self.own.values().any(|own| own.phase == OwnPhase::Writing)
            || self.copies.values().any(|copy| copy.phase == CopyPhase::Writing)
    }

    /// A node that asks to settle begins no operation before the answer: what it waits for is written also after
    /// another node fell silent.
    fn is_paused(&self) -> bool {
        self.cut && self.waiting.is_empty()
    }

    /// Stop the writes of epochs before this one. `void`: for ever.
    fn stop(&mut self, epoch: u64, void: bool, out: &mut Vec<Action>) {
        for (window, own) in &mut self.own {
            if own.epoch < epoch && own.phase == OwnPhase::Writing {
                own.void |= void;
                out.push(Action::Stop(Entry::Own(*window)));
            }
        }
        for ((link, window), copy) in &mut self.copies {
            if copy.epoch < epoch && copy.phase == CopyPhase::Writing {
                copy.void |= void;
                out.push(Action::Stop(Entry::Copy(*link, *window)));
            }
        }
    }

    /// The owner of a copy was lost; `connected`: the connection is still there.
    fn orphan(&mut self, link: Link, window: u64, connected: bool, out: &mut Vec<Action>) {
        let paused = self.is_paused();
        let Some(copy) = self.copies.get_mut(&(link, window)) else {
            return;
        };
        match copy.phase {
            CopyPhase::Receiving if connected => copy.void = true,
            CopyPhase::Receiving => self.forget_copy(link, window, out),
            CopyPhase::Held if paused => copy.phase = CopyPhase::Parked,
            CopyPhase::Held => {
                copy.phase = CopyPhase::Writing;
                out.push(Action::Write(Entry::Copy(link, window)));
            }
            CopyPhase::Writing | CopyPhase::Parked => {}
        }
    }

    fn forget_own(&mut self, window: u64, failed: bool, out: &mut Vec<Action>) {
        if let Some(own) = self.own.remove(&window) {
            if own.copied {
                out.push(Action::Drop { window, holder: own.holder, failed });
            }
            out.push(Action::Release(Entry::Own(window)));
        }
        self.answer(out);
    }

    fn forget_copy(&mut self, link: Link, window: u64, out: &mut Vec<Action>) {
        if self.copies.remove(&(link, window)).is_some() {
            out.push(Action::Release(Entry::Copy(link, window)));
        }
        self.answer(out);
    }

    /// Answer requests to settle, where nothing is left. A window in an operation is the operation's.
    fn answer(&mut self, out: &mut Vec<Action>) {
        let behind = |own: &Own| matches!(own.phase, OwnPhase::Writing | OwnPhase::Parked);
        let receiving = |copy: &Copy| copy.void && copy.phase == CopyPhase::Receiving;
        if !self.own.values().any(behind) && self.copies.values().all(receiving) {
            out.extend(self.waiting.drain(..).map(|(link, number)| Action::Settled(link, number)));
        }
    }
}
