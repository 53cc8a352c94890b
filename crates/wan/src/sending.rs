//! What the sender has still to send: files that are wanted, between the answers that name them and the threads that read them.
//!
//! Arrives: answers. Leaves: tasks. Must not know: how files are read, connections.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use waystage_copy::parts::Item;

use crate::entry::{Answer, Digests};
use crate::lane::CONTENT_BYTES;
use crate::session::Dry;

/// Offers without an answer: with some hundred entries each, thirty thousand files, which cover a second's round trip.
const MOST_OFFERS: usize = 64;

/// Wanted files that wait to be read; beyond it nothing more is offered.
const MOST_WAITING: usize = 32_768;

/// Small files that one thread takes at a time.
const GROUP: usize = 64;

/// Digests that may come before the answers that want them: of four tebibytes.
const MOST_EARLY: usize = 1 << 20;

/// Whoever waits looks again this often: a guard against a wake-up that comes between.
const LOOK_ROUND: Duration = Duration::from_millis(100);

/// A large file on its way.
pub(crate) struct LargeOut {
    pub(crate) item: Item,
    pub(crate) id: u32,
    pub(crate) file: Mutex<Option<Arc<OwnedFd>>>,
    todo: Mutex<VecDeque<u32>>,
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
    Part(Arc<LargeOut>, u32, Option<u128>),
    /// All parts are there.
    Close(Arc<LargeOut>),
}

#[derive(Default)]
struct State {
    offers: HashMap<u32, Vec<Item>>,
    next_batch: u32,
    small: VecDeque<Vec<Item>>,
    compared: VecDeque<Vec<(Item, u128)>>,
    /// Large files, and the parts of them whose digests are still to come.
    comparing: HashMap<u32, (Arc<LargeOut>, BTreeSet<u32>)>,
    /// Digests of files that no answer has named yet: messages arrive in any order.
    early: HashMap<u32, Vec<Digests>>,
    early_count: usize,
    parts: VecDeque<(Arc<LargeOut>, u32, Option<u128>)>,
    closing: VecDeque<Arc<LargeOut>>,
    large: VecDeque<Arc<LargeOut>>,
    waiting: usize,
    running: usize,
    stopped: bool,
}

/// The tasks of a sender.
pub(crate) struct Sending {
    /// Whether this only tries, so that whatever would be made is named in answers.
    dry: Dry,
    state: Mutex<State>,
    changed: Condvar,
}

impl Sending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, LOOK_ROUND).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Keep entries until they are answered; waits while too many are. The number of their offer, None after a stop.
    pub(crate) fn offer(&self, items: Vec<Item>) -> Option<u32> {
        let mut state = self.lock();
        while !state.stopped && (state.offers.len() >= MOST_OFFERS || state.waiting >= MOST_WAITING)
        {
            state = self.wait(state);
        }
        if state.stopped {
            return None;
        }
        let batch = state.next_batch;
        state.next_batch = batch.wrapping_add(1);
        state.offers.insert(batch, items);
        Some(batch)
    }

    pub(crate) fn new(dry: Dry) -> Self {
        Self { dry, state: Mutex::default(), changed: Condvar::default() }
    }

    /// Take in an answer; `plan` is told of what a dry run would send. False where it answers nothing that was offered.
    pub(crate) fn answered(&self, answer: &Answer, plan: impl Fn(&Item)) -> bool {
        let mut state = self.lock();
        let Some(items) = state.offers.remove(&answer.batch) else { return false };
        let item = |index: u32| {
            let item = items.get(index as usize)?;
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
            let mut todo: VecDeque<u32> =
                (0..parts.unwrap_or(u32::MAX)).filter(|part| !wanted.held.contains(part)).collect();
            state.waiting += 1;
            let left = AtomicU32::new(todo.len() as u32);
            let mut to_compare = BTreeSet::new();
            if wanted.compared {
                to_compare.extend(std::mem::take(&mut todo));
            }
            let large = Arc::new(LargeOut {
                item,
                id: wanted.id,
                file: Mutex::new(None),
                left,
                todo: Mutex::new(todo),
                over: AtomicBool::new(false),
            });
            if !to_compare.is_empty() {
                let id = large.id;
                state.comparing.insert(id, (large, to_compare));
                for said in state.early.remove(&id).unwrap_or_default() {
                    state.early_count -= said.digests.len();
                    state.compare(&said);
                }
            } else if large.todo.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                state.closing.push_back(large);
            } else {
                state.large.push_back(large);
            }
        }
        self.changed.notify_all();
        true
    }

    /// Take in digests of what the other end has, which may come before the answer that names their file. False where no answer
    /// is to come.
    pub(crate) fn digests(&self, said: Digests) -> bool {
        let mut state = self.lock();
        if state.comparing.contains_key(&said.id) {
            state.compare(&said);
            self.changed.notify_all();
            return true;
        }
        let count = state.early_count + said.digests.len();
        if said.digests.is_empty() || state.offers.is_empty() || count > MOST_EARLY {
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
            state = self.wait(state);
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
            state = self.wait(state);
        }
    }

    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

impl State {
    /// Parts of a file that is compared can be read, now that it is known what the other end has of them.
    fn compare(&mut self, said: &Digests) {
        let Some((large, left)) = self.comparing.get_mut(&said.id) else { return };
        for (part, digest) in (said.first..).zip(&said.digests) {
            if left.remove(&part) {
                let there = Some(*digest).filter(|digest| *digest != 0);
                self.parts.push_back((Arc::clone(large), part, there));
            }
        }
        if left.is_empty() {
            self.comparing.remove(&said.id);
            self.waiting -= 1;
        }
    }

    fn group(&mut self) -> Option<Task> {
        if let Some(group) = self.compared.pop_front() {
            self.waiting -= group.len();
            return Some(Task::Compared(group));
        }
        let group = self.small.pop_front()?;
        self.waiting -= group.len();
        Some(Task::Small(group))
    }

    fn part(&mut self) -> Option<Task> {
        if let Some(large) = self.closing.pop_front() {
            self.waiting -= 1;
            return Some(Task::Close(large));
        }
        if let Some((large, part, digest)) = self.parts.pop_front() {
            return Some(Task::Part(large, part, digest));
        }
        let large = Arc::clone(self.large.front()?);
        let mut todo = large.todo.lock().unwrap_or_else(PoisonError::into_inner);
        let part = todo.pop_front()?;
        if todo.is_empty() {
            self.large.pop_front();
            self.waiting -= 1;
        }
        drop(todo);
        Some(Task::Part(large, part, None))
    }
}

#[cfg(test)]
mod tests {
    use waystage_copy::parts::{About, Seen};

    use super::*;
    use crate::entry::Wanted;

    const PARTS: u32 = 5;

    fn large() -> Item {
        let size = u64::from(PARTS) * CONTENT_BYTES as u64;
        Item {
            letter: b'f',
            directory: Arc::from(&b""[..]),
            name: b"large".to_vec(),
            seen: Seen { device: 1, inode: 2, size, mtime: 3, ctime: 4 },
            about: About { mode: 0o640, uid: 5, gid: 6, mtime: 3, atime: 7 },
            links: 1,
            sparse: false,
            symlink: Vec::new(),
        }
    }

    fn answer(held: &[u32]) -> Answer {
        let large = vec![Wanted { index: 0, id: 9, held: held.to_vec(), compared: true }];
        Answer { batch: 0, large, ..Answer::default() }
    }

    fn digests(first: u32, digests: &[u128]) -> Digests {
        Digests { id: 9, first, digests: digests.to_vec() }
    }

    fn offered() -> Sending {
        let sending = Sending::new(Dry::No);
        assert_eq!(sending.offer(vec![large()]), Some(0));
        sending
    }

    fn parts(sending: &Sending) -> Vec<(u32, Option<u128>)> {
        let mut state = sending.lock();
        std::iter::from_fn(|| match state.part() {
            Some(Task::Part(_, part, there)) => Some((part, there)),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn digests_may_come_before_the_answer_that_names_their_file() {
        let sending = offered();
        assert!(sending.digests(digests(3, &[13, 0])));
        assert!(sending.answered(&answer(&[]), |_| ()));
        assert_eq!(parts(&sending), [(3, Some(13)), (4, None)]);
        assert!(sending.digests(digests(0, &[10, 11, 12])));
        assert_eq!(parts(&sending), [(0, Some(10)), (1, Some(11)), (2, Some(12))]);
        assert_eq!(sending.lock().early_count, 0);
        assert!(sending.drain());
    }

    #[test]
    fn digests_of_what_nobody_asked_for_are_refused() {
        let sending = offered();
        assert!(sending.answered(&answer(&[0, 1, 2, 3, 4]), |_| ()));
        assert!(!sending.digests(digests(0, &[1])), "no answer is to come");
    }

    #[test]
    fn early_digests_take_bounded_memory() {
        let sending = offered();
        let many = digests(0, &vec![1; MOST_EARLY / 4]);
        assert!((0..4).all(|_| sending.digests(many.clone())));
        assert!(!sending.digests(digests(0, &[1])) && !sending.digests(digests(0, &[])));
    }
}
