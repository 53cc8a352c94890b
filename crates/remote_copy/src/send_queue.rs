//! What the sender has still to send: files that are wanted, between the answers that name them and the threads that
//! read them.
//!
//! Arrives: answers. Leaves: tasks. Must not know: how files are read, connections.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use waystage_copy::source::Item;
use waystage_copy::{PartSet, RUN_BYTES};
use waystage_transport::message::CONTENT_BYTES;

use crate::entry::{Answer, Digests};
use crate::session::Dry;

/// Offers without an answer: with some hundred entries each, thirty thousand files, which cover a second's round trip.
pub(crate) const MOST_OFFERS: usize = 64;

/// Wanted files that wait to be read; beyond it nothing more is offered.
const MOST_WAITING: usize = 32_768;

/// Small files that one thread takes at a time.
const GROUP: usize = 64;

/// Digests that may come before the answers that want them: of four tebibytes.
const MOST_EARLY: usize = 1 << 20;

/// What a digest takes, and a part that was compared.
const DIGEST_BYTES: usize = 16;
const PART_BYTES: usize = 64;

/// Parts that the peer may be known to have, however little memory there is.
const LEAST_PARTS: usize = 1024;

/// The parts that one answer names as held take no more memory: they are runs, of which a message has few.
const MOST_ANSWER_BYTES: usize = 4 << 20;

/// What an entry takes in memory, about.
fn cost(item: &Item) -> usize {
    256 + item.directory.len() + item.name.len() + item.symlink.len()
}

/// A large file on its way.
pub(crate) struct OutgoingFile {
    pub(crate) item: Item,
    pub(crate) id: u32,
    pub(crate) file: Mutex<Option<Arc<OwnedFd>>>,
    todo: Mutex<PartSet>,
    /// What it takes in memory, about.
    cost: usize,
    /// Parts not yet given to the connection.
    pub(crate) left: AtomicU32,
    pub(crate) over: AtomicBool,
}

/// Something to read and send.
pub(crate) enum Task {
    Small(Vec<Item>),
    /// Those with other digests than these.
    Compared(Vec<(Item, u128)>),
    /// Unless this is its digest.
    Part(Arc<OutgoingFile>, u32, Option<u128>),
    /// All parts are there.
    Close(Arc<OutgoingFile>),
}

#[derive(Default)]
struct State {
    /// With what they take in memory.
    offers: HashMap<u32, (Vec<Item>, usize)>,
    offered_bytes: usize,
    next_batch: u32,
    small: VecDeque<Vec<Item>>,
    compared: VecDeque<Vec<(Item, u128)>>,
    /// Large files, and the parts of them whose digests are still to come.
    comparing: HashMap<u32, (Arc<OutgoingFile>, PartSet)>,
    /// Digests of files that no answer has named yet: messages arrive in any order.
    early: HashMap<u32, Vec<Digests>>,
    early_count: usize,
    parts: VecDeque<(Arc<OutgoingFile>, u32, Option<u128>)>,
    closing: VecDeque<Arc<OutgoingFile>>,
    large: VecDeque<Arc<OutgoingFile>>,
    waiting: usize,
    /// What those take in memory.
    waiting_bytes: usize,
    running: usize,
    stopped: bool,
}

/// The tasks of a sender.
pub(crate) struct SendQueue {
    /// Whether this only tries, so that all that would be made is named in answers.
    dry: Dry,
    /// What entries may take that were offered or are wanted.
    most_bytes: usize,
    most_early: usize,
    most_parts: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl SendQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Keep entries until they are answered; waits while too many are. The number of their offer, None after a stop.
    pub(crate) fn offer(&self, items: Vec<Item>) -> Option<u32> {
        let mut state = self.lock();
        let cost = items.iter().map(cost).sum();
        let is_full = |state: &State| {
            state.offers.len() >= MOST_OFFERS
                || state.waiting >= MOST_WAITING
                || state.offered_bytes + state.waiting_bytes > self.most_bytes
        };
        while !state.stopped && is_full(&state) {
            self.changed.wait(&mut state);
        }
        if state.stopped {
            return None;
        }
        let batch = state.next_batch;
        state.next_batch = batch.wrapping_add(1);
        state.offered_bytes += cost;
        state.offers.insert(batch, (items, cost));
        Some(batch)
    }

    /// Nothing yet; in all it takes a part of `memory_bytes`.
    pub(crate) fn new(dry: Dry, memory_bytes: u64) -> Self {
        let memory = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
        Self {
            dry,
            most_bytes: memory / 4,
            most_early: (memory / 8 / DIGEST_BYTES).min(MOST_EARLY),
            most_parts: (memory / 8 / PART_BYTES).max(LEAST_PARTS),
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    /// Take in an answer; `plan` is called for what a dry run would send. False where it answers nothing that was
    /// offered.
    pub(crate) fn answered(&self, answer: &Answer, plan: impl Fn(&Item)) -> bool {
        let mut state = self.lock();
        let Some((items, cost_of_offer)) = state.offers.remove(&answer.batch) else {
            return false;
        };
        state.offered_bytes -= cost_of_offer;
        let mut named = vec![false; items.len()];
        let mut item = |index: u32| {
            let item = items.get(index as usize)?;
            // Wanted once: else a short answer could ask for any number of files.
            if std::mem::replace(&mut named[index as usize], true) {
                return None;
            }
            if self.dry.is_dry() {
                plan(item);
            }
            (item.letter == b'f' || self.dry.is_dry()).then(|| item.clone())
        };
        let sends = |item: &Item| item.letter == b'f' && self.dry != Dry::Plan;
        let mut group = Vec::new();
        for index in &answer.small {
            let Some(item) = item(*index) else { return false };
            if !sends(&item) {
                continue;
            }
            state.waiting_bytes += cost(&item);
            group.push(item);
            state.waiting += 1;
            if group.len() >= GROUP {
                state.small.push_back(std::mem::take(&mut group));
            }
        }
        if !group.is_empty() {
            state.small.push_back(group);
        }
        for pairs in answer.compared.chunks(GROUP) {
            let mut group = Vec::new();
            for (index, digest) in pairs {
                let Some(item) = item(*index) else { return false };
                state.waiting_bytes += cost(&item);
                group.push((item, *digest));
            }
            state.waiting += group.len();
            state.compared.push_back(group);
        }
        for wanted in &answer.large {
            let Some(item) = item(wanted.index) else { return false };
            if !sends(&item) {
                continue;
            }
            let parts = u32::try_from(item.seen.size.div_ceil(CONTENT_BYTES as u64));
            let mut todo = PartSet::below(parts.unwrap_or(u32::MAX));
            for part in &wanted.held {
                todo.remove(*part);
            }
            let cost = cost(&item) + todo.runs() * RUN_BYTES;
            state.waiting += 1;
            state.waiting_bytes += cost;
            let left = AtomicU32::new(todo.len() as u32);
            let to_compare =
                if wanted.compared { std::mem::take(&mut todo) } else { PartSet::default() };
            let large = Arc::new(OutgoingFile {
                item,
                id: wanted.id,
                file: Mutex::new(None),
                left,
                todo: Mutex::new(todo),
                cost,
                over: AtomicBool::new(false),
            });
            if !to_compare.is_empty() {
                let id = large.id;
                state.comparing.insert(id, (large, to_compare));
                for said in state.early.remove(&id).unwrap_or_default() {
                    state.early_count -= said.digests.len();
                    state.compare(&said, self.most_parts);
                }
            } else if large.todo.lock().is_empty() {
                state.closing.push_back(large);
            } else {
                state.large.push_back(large);
            }
        }
        self.changed.notify_all();
        // An honest peer that resumes a copy never holds more pieces of large files.
        state.waiting_bytes <= 2 * self.most_bytes + MOST_ANSWER_BYTES
    }

    /// Take in digests of the peer's files, which may come before the answer that names their file. False where no
    /// answer is to come.
    pub(crate) fn digests(&self, said: Digests) -> bool {
        let mut state = self.lock();
        if state.comparing.contains_key(&said.id) {
            state.compare(&said, self.most_parts);
            self.changed.notify_all();
            return true;
        }
        let count = state.early_count + said.digests.len();
        if said.digests.is_empty() || state.offers.is_empty() || count > self.most_early {
            return false;
        }
        state.early_count = count;
        state.early.entry(said.id).or_default().push(said);
        true
    }

    /// The next task, waiting for one; None after a stop. `large_first` for the threads that see to it that large files
    /// are not left for the end.
    pub(crate) fn take(&self, large_first: bool) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            let task = if large_first {
                state.part().or_else(|| state.group())
            } else {
                state.group().or_else(|| state.part())
            };
            if let Some(task) = task {
                state.running += 1;
                self.changed.notify_all();
                return Some(task);
            }
            self.changed.wait(&mut state);
        }
    }

    /// A task that was taken is done.
    pub(crate) fn done(&self) {
        self.lock().running -= 1;
        self.changed.notify_all();
    }

    /// Wait until every offer was answered and every task is done; false after a stop.
    pub(crate) fn drain(&self) -> bool {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return false;
            }
            let idle = state.offers.is_empty() && state.waiting == 0 && state.running == 0;
            let none = state.large.is_empty() && state.parts.is_empty();
            if idle && none {
                return true;
            }
            self.changed.wait(&mut state);
        }
    }

    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

impl State {
    /// Parts of a file that is compared can be read, now that their digests at the peer are known.
    /// At most `most` parts are remembered as held by the peer; those beyond are sent as if it had nothing.
    fn compare(&mut self, said: &Digests, most: usize) {
        let Some((large, left)) = self.comparing.get_mut(&said.id) else { return };
        for (part, digest) in (said.first..).zip(&said.digests) {
            if !left.remove(part) {
                continue;
            }
            let there = Some(*digest).filter(|digest| *digest != 0);
            if self.parts.len() < most {
                self.parts.push_back((Arc::clone(large), part, there));
                continue;
            }
            let mut todo = large.todo.lock();
            if todo.is_empty() {
                self.large.push_back(Arc::clone(large));
                self.waiting += 1;
                self.waiting_bytes += large.cost;
            }
            todo.insert(part);
        }
        if left.is_empty() {
            let cost = large.cost;
            self.comparing.remove(&said.id);
            self.waiting -= 1;
            self.waiting_bytes -= cost;
        }
    }

    fn group(&mut self) -> Option<Task> {
        if let Some(group) = self.compared.pop_front() {
            self.waiting -= group.len();
            self.waiting_bytes -= group.iter().map(|(item, _)| cost(item)).sum::<usize>();
            return Some(Task::Compared(group));
        }
        let group = self.small.pop_front()?;
        self.waiting -= group.len();
        self.waiting_bytes -= group.iter().map(cost).sum::<usize>();
        Some(Task::Small(group))
    }

    fn part(&mut self) -> Option<Task> {
        if let Some(large) = self.closing.pop_front() {
            self.waiting -= 1;
            self.waiting_bytes -= large.cost;
            return Some(Task::Close(large));
        }
        if let Some((large, part, digest)) = self.parts.pop_front() {
            return Some(Task::Part(large, part, digest));
        }
        let large = Arc::clone(self.large.front()?);
        let mut todo = large.todo.lock();
        let part = todo.pop_first()?;
        if todo.is_empty() {
            self.large.pop_front();
            self.waiting -= 1;
            self.waiting_bytes -= large.cost;
        }
        drop(todo);
        Some(Task::Part(large, part, None))
    }
}

#[cfg(test)]
mod tests {
    use waystage_copy::stat::{FileState, Metadata};
    use waystage_copy::Time;

    use super::*;
    use crate::entry::Wanted;

    const PARTS: u32 = 5;

    fn large() -> Item {
        let size = u64::from(PARTS) * CONTENT_BYTES as u64;
        Item {
            letter: b'f',
            directory: Arc::from(&b""[..]),
            name: b"large".to_vec(),
            seen: FileState {
                device: 1,
                inode: 2,
                size,
                mtime: Time::from_ns(3),
                ctime: Time::from_ns(4),
            },
            metadata: Metadata {
                mode: 0o640,
                uid: 5,
                gid: 6,
                mtime: Time::from_ns(3),
                atime: Time::from_ns(7),
            },
            followed: false,
            links: 1,
            sparse: false,
            symlink: Vec::new(),
            clamped: false,
            objects: Box::default(),
        }
    }

    fn answer(held: &[u32]) -> Answer {
        let large = vec![Wanted { index: 0, id: 9, held: held.to_vec(), compared: true }];
        Answer { batch: 0, large, ..Answer::default() }
    }

    fn digests(first: u32, digests: &[u128]) -> Digests {
        Digests { id: 9, first, digests: digests.to_vec() }
    }

    fn offered() -> SendQueue {
        let queue = SendQueue::new(Dry::No, 256 << 20);
        assert_eq!(queue.offer(vec![large()]), Some(0));
        queue
    }

    fn parts(queue: &SendQueue) -> Vec<(u32, Option<u128>)> {
        let mut state = queue.lock();
        std::iter::from_fn(|| match state.part() {
            Some(Task::Part(_, part, there)) => Some((part, there)),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn digests_may_come_before_the_answer_that_names_their_file() {
        let queue = offered();
        assert!(queue.digests(digests(3, &[13, 0])));
        assert!(queue.answered(&answer(&[]), |_| ()));
        assert_eq!(parts(&queue), [(3, Some(13)), (4, None)]);
        assert!(queue.digests(digests(0, &[10, 11, 12])));
        assert_eq!(parts(&queue), [(0, Some(10)), (1, Some(11)), (2, Some(12))]);
        assert_eq!(queue.lock().early_count, 0);
        assert!(queue.drain());
    }

    #[test]
    fn unsolicited_digests_are_refused() {
        let queue = offered();
        assert!(queue.answered(&answer(&[0, 1, 2, 3, 4]), |_| ()));
        assert!(!queue.digests(digests(0, &[1])), "no answer is to come");
    }

    #[test]
    fn early_digests_take_bounded_memory() {
        let queue = offered();
        let many = digests(0, &vec![1; MOST_EARLY / 4]);
        assert!((0..4).all(|_| queue.digests(many.clone())));
        assert!(!queue.digests(digests(0, &[1])) && !queue.digests(digests(0, &[])));
    }
}
