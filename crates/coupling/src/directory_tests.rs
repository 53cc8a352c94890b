//! Writers and readers in any order, against what each of them must see.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn variable() -> Variable {
    Variable { name: "x".into(), element: "<f8".into(), element_bytes: 8, shape: vec![8] }
}

fn join(directory: &mut Directory, from: Connection, role: Role, rank: u32, size: u32, depth: u32) {
    let answers = directory.request(from, 0, Request::Join { role, rank, size, depth });
    assert_eq!(answers, [Action::Answer(from, 0, Answer::Done)]);
}

fn piece(region: Region, key: u64) -> Piece {
    Piece { variable: 0, region, owner: "a".into(), key }
}

fn commit(version: u64, start: u64, count: u64, key: u64) -> Request {
    let region = Region::new(&[start], &[count]).unwrap();
    Request::Commit { version, variables: vec![variable()], pieces: vec![piece(region, key)] }
}

fn find(version: u64, region: &Region) -> Request {
    Request::Find { version, variable: "x".into(), region: Some(region.clone()) }
}

fn one(actions: &[Action]) -> &Answer {
    match actions {
        [Action::Answer(.., answer)] => answer,
        other => panic!("{other:?}"),
    }
}

fn why(actions: &[Action]) -> Why {
    match one(actions) {
        Answer::Failed(why, _) => *why,
        other => panic!("{other:?}"),
    }
}

/// What a rank of the random schedule does next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Admit,
    Commit,
    Next,
    Find,
    Release,
    Close,
    Done,
}

proptest! {
    /// Any order of ranks: each reader sees each version once, complete and in order; never more than `depth` are
    /// held; each piece is freed once; no rank waits for ever.
    #[test]
    fn every_reader_sees_every_version_whatever_the_order(
        writers in 1_u32..4, readers in 1_u32..4, depth in 1_u32..4, versions in 1_u64..6,
        choices in proptest::collection::vec(any::<u8>(), 400),
    ) {
        let mut directory = Directory::default();
        let whole = Region::whole(&[8]).unwrap();
        let ranks = writers + readers;
        let mut steps: Vec<Step> = Vec::new();
        for rank in 0..writers {
            join(&mut directory, rank.into(), Role::Writer, rank, writers, depth);
            steps.push(Step::Admit);
        }
        for rank in 0..readers {
            join(&mut directory, (writers + rank).into(), Role::Reader, rank, readers, depth);
            steps.push(Step::Next);
        }
        let mut at = vec![0_u64; ranks as usize];
        let mut waits = vec![false; ranks as usize];
        let mut freed = BTreeSet::new();
        let mut commits: BTreeMap<u64, u32> = BTreeMap::new();
        let mut seen: Vec<Vec<u64>> = vec![Vec::new(); ranks as usize];
        let mut choices = choices.into_iter();
        loop {
            let ready: Vec<usize> = (0..ranks as usize)
                .filter(|rank| !waits[*rank] && steps[*rank] != Step::Done)
                .collect();
            if ready.is_empty() {
                break;
            }
            let rank = ready[usize::from(choices.next().unwrap_or(0)) % ready.len()];
            let share = 8 / u64::from(writers);
            let number = rank as u64;
            let last = number + 1 == u64::from(writers);
            let count = if last { 8 - share * number } else { share };
            let request = match steps[rank] {
                Step::Admit => Request::Admit { version: at[rank] + 1 },
                Step::Commit => {
                    commit(at[rank] + 1, share * number, count, (at[rank] + 1) * 100 + number)
                }
                Step::Next => Request::Next { after: at[rank].checked_sub(0).filter(|v| *v > 0) },
                Step::Find => find(at[rank], &whole),
                Step::Release => Request::Release { version: at[rank] },
                Step::Close | Step::Done => Request::Close,
            };
            waits[rank] = true;
            for action in directory.request(rank as u64, 7, request) {
                let (to, answer) = match action {
                    Action::Free { keys, .. } => {
                        for key in keys {
                            prop_assert!(freed.insert(key), "freed twice");
                        }
                        continue;
                    }
                    Action::Answer(to, _, answer) => (usize::try_from(to).unwrap(), answer),
                };
                prop_assert!(waits[to]);
                waits[to] = false;
                steps[to] = match (steps[to], answer) {
                    (Step::Admit, Answer::Done) => Step::Commit,
                    (Step::Commit, Answer::Done | Answer::Version(_)) => {
                        at[to] += 1;
                        *commits.entry(at[to]).or_default() += 1;
                        if at[to] == versions { Step::Close } else { Step::Admit }
                    }
                    (Step::Next, Answer::Version(version)) => {
                        prop_assert_eq!(commits.get(&version), Some(&writers), "not complete");
                        seen[to].push(version);
                        at[to] = version;
                        Step::Find
                    }
                    (Step::Next, Answer::Failed(Why::Ended, _)) => Step::Close,
                    (Step::Find, Answer::Found(_, pieces)) => {
                        prop_assert_eq!(pieces.len(), writers as usize);
                        prop_assert!(pieces.iter().all(|piece| !freed.contains(&piece.key)));
                        Step::Release
                    }
                    (Step::Release, Answer::Done) => Step::Next,
                    (Step::Close, Answer::Done) => Step::Done,
                    (step, answer) => panic!("{step:?} {answer:?}"),
                };
            }
            prop_assert!(directory.held.len() <= depth as usize);
        }
        prop_assert!(steps.iter().all(|step| *step == Step::Done), "{steps:?} wait for ever");
        let all: Vec<u64> = (1..=versions).collect();
        for rank in writers..ranks {
            prop_assert_eq!(&seen[rank as usize], &all);
        }
        prop_assert_eq!(freed.len() as u64, versions * u64::from(writers));
        prop_assert!(directory.is_over());
    }
}

fn pair(depth: u32) -> Directory {
    let mut directory = Directory::default();
    join(&mut directory, 0, Role::Writer, 0, 2, depth);
    join(&mut directory, 1, Role::Writer, 1, 2, depth);
    join(&mut directory, 2, Role::Reader, 0, 1, depth);
    directory
}

#[test]
fn a_version_appears_only_when_all_writers_have_committed_it() {
    let mut directory = pair(2);
    let whole = Region::whole(&[8]).unwrap();
    assert!(directory.request(2, 5, find(1, &whole)).is_empty());
    let first = directory.request(0, 1, commit(1, 0, 4, 1));
    assert_eq!(first, [Action::Answer(0, 1, Answer::Done)]);
    let second = directory.request(1, 1, commit(1, 4, 4, 2));
    assert!(matches!(&second[..],
        [Action::Answer(1, 1, Answer::Version(1)), Action::Answer(2, 5, Answer::Found(_, pieces))]
        if pieces.len() == 2));
}

#[test]
fn a_dead_writer_is_an_error_for_readers_that_wait_and_what_appeared_stays() {
    let mut directory = pair(2);
    let whole = Region::whole(&[8]).unwrap();
    directory.request(0, 1, commit(1, 0, 4, 1));
    directory.request(1, 1, commit(1, 4, 4, 2));
    assert!(directory.request(2, 5, find(2, &whole)).is_empty());
    assert_eq!(why(&directory.ended(1)), Why::Lost);
    assert!(matches!(one(&directory.request(2, 6, find(1, &whole))), Answer::Found(..)));
    assert_eq!(why(&directory.request(0, 2, Request::Admit { version: 2 })), Why::Lost);
}

#[test]
fn dead_readers_are_an_error_for_a_writer_that_waits_and_others_take_over() {
    let mut directory = pair(1);
    directory.request(0, 1, commit(1, 0, 4, 1));
    directory.request(1, 1, commit(1, 4, 4, 2));
    assert!(directory.request(0, 2, Request::Admit { version: 2 }).is_empty());
    assert_eq!(why(&directory.ended(2)), Why::Lost);
    join(&mut directory, 3, Role::Reader, 0, 1, 1);
    let next = directory.request(3, 1, Request::Next { after: None });
    assert_eq!(*one(&next), Answer::Version(1));
    assert!(directory.request(0, 3, Request::Admit { version: 2 }).is_empty());
    let released = directory.request(3, 2, Request::Release { version: 1 });
    assert!(released.contains(&Action::Answer(0, 3, Answer::Done)));
}

#[test]
fn a_hole_another_shape_and_a_version_out_of_turn_are_named() {
    let mut directory = pair(4);
    directory.request(0, 1, commit(1, 0, 4, 1));
    let mut other = variable();
    other.shape = vec![9];
    let differs = Request::Commit { version: 1, variables: vec![other], pieces: vec![] };
    assert_eq!(why(&directory.request(1, 1, differs)), Why::Argument);
    assert_eq!(why(&directory.request(1, 1, commit(2, 0, 4, 1))), Why::Argument);
    assert_eq!(why(&directory.request(1, 1, commit(1, 6, 4, 1))), Why::Argument);
    directory.request(1, 1, commit(1, 6, 2, 1));
    let whole = Region::whole(&[8]).unwrap();
    let answers = directory.request(2, 1, find(1, &whole));
    let Answer::Failed(Why::NoSuchVariable, text) = one(&answers) else { panic!("{answers:?}") };
    assert!(text.contains("x[4:6]"), "{text}");
    let readers = directory.request(2, 2, Request::Admit { version: 1 });
    assert_eq!(why(&readers), Why::Argument);
}

#[test]
fn a_writer_that_drains_waits_for_the_readers_and_not_for_ever() {
    let mut directory = pair(2);
    directory.request(0, 1, commit(1, 0, 4, 1));
    directory.request(1, 1, commit(1, 4, 4, 2));
    assert!(directory.request(0, 2, Request::Drain).is_empty());
    let released = directory.request(2, 1, Request::Release { version: 1 });
    assert!(released.contains(&Action::Answer(0, 2, Answer::Done)));
    directory.request(0, 3, commit(2, 0, 4, 1));
    directory.request(1, 3, commit(2, 4, 4, 2));
    assert!(directory.request(0, 4, Request::Drain).is_empty());
    assert_eq!(why(&directory.ended(2)), Why::Lost);
}

#[test]
fn a_request_that_is_cancelled_is_not_answered() {
    let mut directory = pair(2);
    assert!(directory.request(2, 5, Request::Next { after: None }).is_empty());
    assert!(directory.request(2, 6, Request::Cancel { request: 5 }).is_empty());
    directory.request(0, 1, commit(1, 0, 4, 1));
    let actions = directory.request(1, 1, commit(1, 4, 4, 2));
    assert_eq!(actions, [Action::Answer(1, 1, Answer::Version(1))]);
}
