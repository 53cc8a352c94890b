//! Which task a thread takes next, where each storage target has a limit on its readers.
//!
//! Arrives: the target of each task, in the order of the tasks; limits; ends of tasks.
//! Leaves: the first task in that order whose target takes another reader.
//! Must not know: threads, what a task is.

use std::collections::{BTreeSet, HashMap, VecDeque};

/// The next task of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This one, by its place.
    Task(usize),
    /// None until a task ends or a limit changes.
    Wait,
    /// None any more.
    End,
}

#[derive(Debug, Default)]
struct Target {
    waiting: VecDeque<usize>,
    readers: u32,
    /// None for any number.
    most: Option<u32>,
}

impl Target {
    fn takes_readers(&self) -> bool {
        self.most.is_none_or(|most| self.readers < most)
    }
}

/// Tasks by storage target.
#[derive(Debug, Default)]
pub struct Turns {
    targets: HashMap<u32, Target>,
    /// The first task of each target that takes readers and has tasks.
    open: BTreeSet<(usize, u32)>,
}

impl Turns {
    /// Tasks in order, each with its target's number.
    #[must_use]
    pub fn new(targets: impl IntoIterator<Item = u32>) -> Self {
        let mut turns = Self::default();
        for (place, target) in targets.into_iter().enumerate() {
            turns.targets.entry(target).or_default().waiting.push_back(place);
        }
        turns.reopen();
        turns
    }

    /// Take the next task; [`Turns::done`] is to be called at its end.
    pub fn take(&mut self) -> Next {
        let Some((place, number)) = self.open.pop_first() else {
            let is_over = self.targets.values().all(|target| target.waiting.is_empty());
            return if is_over { Next::End } else { Next::Wait };
        };
        if let Some(target) = self.targets.get_mut(&number) {
            target.waiting.pop_front();
            target.readers += 1;
        }
        self.open_if_it_takes(number);
        Next::Task(place)
    }

    /// A task of this target has ended.
    pub fn done(&mut self, number: u32) {
        if let Some(target) = self.targets.get_mut(&number) {
            target.readers = target.readers.saturating_sub(1);
        }
        self.open_if_it_takes(number);
    }

    /// Limit the readers of every target; None for any number. Readers above it end their task first.
    pub fn limit_each(&mut self, most: Option<u32>) {
        self.targets.values_mut().for_each(|target| target.most = most);
        self.reopen();
    }

    /// Limit the readers of one target; false where there is no such target.
    pub fn limit(&mut self, number: u32, most: Option<u32>) -> bool {
        let Some(target) = self.targets.get_mut(&number) else { return false };
        target.most = most;
        self.reopen();
        true
    }

    /// Whether a task has this target.
    #[must_use]
    pub fn has(&self, number: u32) -> bool {
        self.targets.contains_key(&number)
    }

    fn reopen(&mut self) {
        self.open.clear();
        let numbers: Vec<u32> = self.targets.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.open_if_it_takes(number));
    }

    fn open_if_it_takes(&mut self, number: u32) {
        let Some(target) = self.targets.get(&number) else { return };
        if let Some(first) = target.waiting.front().filter(|_| target.takes_readers()) {
            self.open.insert((*first, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tasks_come_in_order_and_a_full_target_is_passed_over() {
        let mut turns = Turns::new([7, 8, 7, 8, 7]);
        assert_eq!((turns.take(), turns.take()), (Next::Task(0), Next::Task(1)));
        turns.limit_each(Some(1));
        assert_eq!(turns.take(), Next::Wait);
        turns.done(8);
        assert_eq!((turns.take(), turns.take()), (Next::Task(3), Next::Wait));
        assert!(turns.limit(7, Some(3)) && !turns.limit(9, Some(1)));
        assert_eq!(
            (turns.take(), turns.take(), turns.take()),
            (Next::Task(2), Next::Task(4), Next::End)
        );
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take,
        Done(prop::sample::Index),
        Each(Option<u32>),
        One(u32, u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Take),
            3 => any::<prop::sample::Index>().prop_map(Step::Done),
            1 => prop::option::of(1_u32..4).prop_map(Step::Each),
            1 => (0_u32..4, 1_u32..4).prop_map(|(target, most)| Step::One(target, most)),
        ]
    }

    proptest! {
        #[test]
        fn each_task_is_taken_once_within_the_limits_and_none_is_forgotten(
            tasks in prop::collection::vec(0_u32..4, 0..60),
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let mut turns = Turns::new(tasks.iter().copied());
            let (mut left, mut running) = ((0..tasks.len()).collect::<BTreeSet<_>>(), Vec::new());
            let mut most: HashMap<u32, u32> = HashMap::new();
            let readers = |running: &[usize], target| {
                running.iter().filter(|place| tasks[**place] == target).count() as u32
            };
            for step in steps {
                match step {
                    Step::Take => {
                        let takes = |target| most.get(&target).is_none_or(|most| readers(&running, target) < *most);
                        let naive = left.iter().copied().find(|place| takes(tasks[*place]));
                        let expected = match naive {
                            Some(place) => Next::Task(place),
                            None if left.is_empty() => Next::End,
                            None => Next::Wait,
                        };
                        prop_assert_eq!(turns.take(), expected);
                        if let Some(place) = naive {
                            left.remove(&place);
                            running.push(place);
                        }
                    }
                    Step::Done(which) if !running.is_empty() => {
                        let place = running.swap_remove(which.index(running.len()));
                        turns.done(tasks[place]);
                    }
                    Step::Done(_) => {}
                    Step::Each(limit) => {
                        turns.limit_each(limit);
                        most = limit.map_or_else(HashMap::new, |limit| (0..4).map(|t| (t, limit)).collect());
                    }
                    Step::One(target, limit) => {
                        if turns.limit(target, Some(limit)) {
                            most.insert(target, limit);
                        }
                    }
                }
            }
        }
    }
}
