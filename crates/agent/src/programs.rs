//! Processes whose programs do not have the library. Pure: no file system, no clock.
//!
//! A process records that it starts a program, and the library records that it loaded in the new one. Records of a
//! process may be read in any order, so their times decide: a start with no later record of the process is a program
//! that cannot be observed.

use std::collections::{BTreeSet, HashMap};

use crate::abi;

/// Processes that are tracked; more are counted as lost. A machine has at most 2^22.
const PROCESSES: usize = 1 << 20;

/// Names kept for display.
const NAMED: usize = 100;

#[derive(Debug, Default)]
struct Process {
    /// When the last program was started, and its name.
    began: Option<(u64, Vec<u8>)>,
    /// When the library last loaded in the process, or a start last failed.
    settled_ns: u64,
}

/// The programs that cannot be observed.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    processes: HashMap<u32, Process>,
    /// Interfaces that processes used and that cannot be observed, each once.
    blind: BTreeSet<(u32, Vec<u8>)>,
    /// Records of processes beyond that number.
    pub(crate) beyond: u64,
}

impl Programs {
    pub(crate) fn take(&mut self, process: u32, state: u32, name: &[u8], when_ns: u64) -> bool {
        if state == abi::PROGRAM_UNOBSERVABLE {
            if self.blind.len() < PROCESSES {
                self.blind.insert((process, name.to_vec()));
            }
            return true;
        }
        if !matches!(state, abi::PROGRAM_STARTS | abi::PROGRAM_FAILED | abi::PROGRAM_LOADED) {
            return false;
        }
        if self.processes.len() >= PROCESSES && !self.processes.contains_key(&process) {
            self.beyond += 1;
            return true;
        }
        let of = self.processes.entry(process).or_default();
        if state == abi::PROGRAM_STARTS {
            let last = of.began.as_ref().map_or(0, |(began, _)| *began);
            if when_ns > of.settled_ns && when_ns >= last {
                of.began = Some((when_ns, name.to_vec()));
            }
        } else {
            of.settled_ns = of.settled_ns.max(when_ns);
            if of.began.as_ref().is_some_and(|(began, _)| *began <= of.settled_ns) {
                of.began = None;
            }
        }
        true
    }

    /// Processes that started a program in which the library has not loaded.
    pub(crate) fn starting(&self) -> impl Iterator<Item = u32> + '_ {
        self.processes.iter().filter(|(_, of)| of.began.is_some()).map(|(process, _)| *process)
    }

    /// Programs that could not be observed.
    pub(crate) fn unseen(&self) -> u64 {
        self.starting().count() as u64
    }

    /// Processes that used an unobservable interface.
    pub(crate) fn blind(&self) -> u64 {
        self.blind.len() as u64
    }

    /// The names of the first of both.
    pub(crate) fn names(&self) -> Vec<Vec<u8>> {
        let began = self.processes.values().filter_map(|of| of.began.as_ref());
        let names: BTreeSet<&[u8]> = began
            .map(|(_, name)| name.as_slice())
            .chain(self.blind.iter().map(|(_, name)| name.as_slice()))
            .collect();
        names.into_iter().take(NAMED).map(<[u8]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGINS: u32 = abi::PROGRAM_STARTS;
    const FAILED: u32 = abi::PROGRAM_FAILED;
    const CAME: u32 = abi::PROGRAM_LOADED;

    /// The unseen programs after these records, in every order.
    fn unseen(records: &[(u32, u32, u64)]) -> u64 {
        let mut answers = BTreeSet::new();
        let mut order: Vec<usize> = (0..records.len()).collect();
        permute(&mut order, 0, &mut |order| {
            let mut programs = Programs::default();
            for number in order {
                let (process, state, when) = records[*number];
                assert!(programs.take(process, state, b"program", when));
            }
            answers.insert(programs.unseen());
        });
        assert_eq!(answers.len(), 1, "the order of records matters: {records:?}");
        answers.into_iter().next().unwrap_or_default()
    }

    fn permute(order: &mut Vec<usize>, from: usize, then: &mut impl FnMut(&[usize])) {
        if from == order.len() {
            return then(order);
        }
        for other in from..order.len() {
            order.swap(from, other);
            permute(order, from + 1, then);
            order.swap(from, other);
        }
    }

    #[test]
    fn a_program_that_loads_the_library_is_observed() {
        assert_eq!(unseen(&[(5, BEGINS, 10), (5, CAME, 11)]), 0);
        assert_eq!(unseen(&[(5, BEGINS, 10), (5, CAME, 11), (5, BEGINS, 12), (5, CAME, 13)]), 0);
        assert_eq!(unseen(&[(5, CAME, 11)]), 0);
    }

    #[test]
    fn a_start_without_a_later_record_is_unseen() {
        assert_eq!(unseen(&[(5, BEGINS, 10)]), 1);
        // A shell's own record does not count for the program that it becomes.
        assert_eq!(unseen(&[(5, CAME, 9), (5, BEGINS, 10)]), 1);
        assert_eq!(unseen(&[(5, BEGINS, 10), (6, CAME, 11)]), 1);
        assert_eq!(unseen(&[(5, BEGINS, 10), (5, CAME, 11), (5, BEGINS, 12)]), 1);
    }

    #[test]
    fn a_failed_start_is_no_gap() {
        assert_eq!(unseen(&[(5, BEGINS, 10), (5, FAILED, 11)]), 0);
        assert_eq!(
            unseen(&[(5, BEGINS, 10), (5, FAILED, 11), (5, BEGINS, 12), (5, FAILED, 13)]),
            0
        );
        assert_eq!(unseen(&[(5, BEGINS, 10), (5, FAILED, 11), (5, BEGINS, 12)]), 1);
    }

    #[test]
    fn invalid_states_are_refused_and_names_are_listed_once() {
        let mut programs = Programs::default();
        assert!(!programs.take(1, 9, b"x", 1));
        for process in 1..9 {
            assert!(programs.take(process, BEGINS, b"static", 1));
            assert!(programs.take(process, abi::PROGRAM_UNOBSERVABLE, b"io_uring", 1));
            assert!(programs.take(process, abi::PROGRAM_UNOBSERVABLE, b"io_uring", 2));
        }
        assert_eq!((programs.unseen(), programs.blind()), (8, 8));
        assert_eq!(programs.names(), [b"io_uring".to_vec(), b"static".to_vec()]);
    }
}
