//! Write-behind against a model: with any aggregator killed or cut off at any step, acknowledged bytes are in the file
//! once all have settled, and none is written after that.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::{Action, Behind, Ended, Entry, Link};

const ROOT: Link = 1_000_000;

#[derive(Clone, Debug)]
enum Message {
    Offer(u64, u64),
    Taken(u64, bool),
    Bytes(u64),
    Kept(u64),
    Written(u64),
    /// The end of the connection, to the holder and to the owner.
    LinkLost(Link, bool),
    HolderLost,
}

/// A request to the storage: for an entry, or for a window that is written before it is acknowledged.
struct Request {
    at: usize,
    entry: Entry,
    through: bool,
    value: u64,
    stopped: bool,
}

/// Aggregators of which each offers its windows to the next one. The value of a window is the number of its operation.
struct World {
    seed: u64,
    aggregators: Vec<Behind>,
    generations: Vec<u64>,
    up: Vec<bool>,
    /// With the sender's connection as an owner.
    wires: BTreeMap<(usize, usize), VecDeque<(Link, Message)>>,
    requests: Vec<Request>,
    /// Values of copies, by holder, connection and number.
    copies: BTreeMap<(usize, Link, u64), u64>,
    /// Windows of the operation that are not acknowledged, by owner.
    open: Vec<(usize, u64)>,
    acknowledged: BTreeMap<(usize, u64), u64>,
    file: BTreeMap<(usize, u64), u64>,
    answers: BTreeMap<usize, u64>,
    op: u64,
    epoch: u64,
    failing: bool,
    /// The one that the root takes for lost, though it goes on.
    left_out: Option<usize>,
}

fn name(aggregator: usize) -> Arc<str> {
    format!("a{aggregator}").into()
}

impl World {
    fn new(seed: u64, aggregators: usize) -> Self {
        Self {
            seed,
            aggregators: (0..aggregators).map(|_| Behind::default()).collect(),
            generations: vec![0; aggregators],
            up: vec![true; aggregators],
            wires: BTreeMap::new(),
            requests: Vec::new(),
            copies: BTreeMap::new(),
            open: Vec::new(),
            acknowledged: BTreeMap::new(),
            file: BTreeMap::new(),
            answers: BTreeMap::new(),
            op: 0,
            epoch: 1,
            failing: false,
            left_out: None,
        }
    }

    fn below(&mut self, most: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        ((self.seed >> 33) % most.max(1) as u64) as usize
    }

    fn holder(&self, owner: usize) -> usize {
        (owner + 1) % self.aggregators.len()
    }

    fn link(&self, owner: usize) -> Link {
        owner as u64 * 1000 + self.generations[owner]
    }

    fn say(&mut self, from: usize, to: usize, message: Message) {
        // What is said before the loss of the connection is noticed is lost.
        let answers = matches!(message, Message::Taken(..) | Message::Kept(_));
        let lost = |(_, of): &(Link, Message)| match of {
            Message::LinkLost(..) => answers,
            Message::HolderLost => !answers,
            _ => false,
        };
        let broken = self.wires.get(&(to, from)).is_some_and(|queue| queue.iter().any(lost));
        if self.up[from] && self.up[to] && !broken {
            let link = self.link(from);
            self.wires.entry((from, to)).or_default().push_back((link, message));
        }
    }

    /// Windows are numbered anew in each operation; their place in the file is the number modulo 100.
    fn at(window: u64) -> u64 {
        window % 100
    }

    fn carry_out(&mut self, at: usize, actions: Vec<Action>) {
        let holder = self.holder(at);
        for action in actions {
            match action {
                Action::Send { window, .. } => self.say(at, holder, Message::Bytes(window)),
                Action::WriteThrough(window) => {
                    let (entry, value) = (Entry::Own(window), window / 100);
                    self.requests.push(Request { at, entry, through: true, value, stopped: false });
                }
                Action::Acknowledge(window) => self.acknowledge(at, window),
                Action::Write(entry) => {
                    let value = match entry {
                        Entry::Own(window) => window / 100,
                        Entry::Copy(link, window) => self.copies[&(at, link, window)],
                    };
                    let request = Request { at, entry, through: false, value, stopped: false };
                    self.requests.push(request);
                }
                Action::Stop(entry) => {
                    let of_it = |of: &&mut Request| of.at == at && of.entry == entry && !of.through;
                    self.requests.iter_mut().filter(of_it).for_each(|of| of.stopped = true);
                }
                Action::Release(Entry::Own(window)) => {
                    self.open.retain(|of| *of != (at, window));
                }
                Action::Release(Entry::Copy(link, window)) => {
                    self.copies.remove(&(at, link, window)).unwrap();
                }
                Action::Drop { window, .. } => self.say(at, holder, Message::Written(window)),
                Action::Settled(link, number) => {
                    assert_eq!(link, ROOT);
                    if self.answers.get(&at) == Some(&number) {
                        self.answers.remove(&at);
                    }
                }
            }
        }
    }

    fn acknowledge(&mut self, owner: usize, window: u64) {
        self.open.retain(|of| *of != (owner, window));
        // Of an operation that was given up nothing is acknowledged.
        if !self.failing {
            self.acknowledged.insert((owner, Self::at(window)), window / 100);
        }
    }

    fn deliver(&mut self, (from, to): (usize, usize)) {
        let Some((link, message)) = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front)
        else {
            return;
        };
        let mut out = Vec::new();
        match message {
            Message::Offer(window, epoch) => {
                let taken = self.aggregators[to].take(link, window, epoch, name(from));
                if taken {
                    self.copies.insert((to, link, window), window / 100);
                }
                self.say(to, from, Message::Taken(window, taken));
            }
            Message::Taken(window, taken) => self.aggregators[to].taken(window, taken, &mut out),
            Message::Bytes(window) => match self.aggregators[to].received(link, window, &mut out) {
                Some(true) => self.say(to, from, Message::Kept(window)),
                Some(false) => self.say(to, from, Message::Taken(window, false)),
                None => {}
            },
            Message::Kept(window) => self.aggregators[to].kept(window, &mut out),
            Message::Written(window) => self.aggregators[to].dropped(link, window, &mut out),
            Message::LinkLost(link, silent) => {
                self.aggregators[to].link_lost(link, silent, &mut out);
            }
            Message::HolderLost => self.aggregators[to].holder_lost(&name(from), &mut out),
        }
        self.carry_out(to, out);
    }

    fn end_request(&mut self, index: usize) {
        let request = self.requests.swap_remove(index);
        let (owner, window) = match request.entry {
            Entry::Own(window) => (request.at, window),
            Entry::Copy(link, window) => ((link / 1000) as usize, window),
        };
        let stopped = request.stopped && self.below(2) == 0;
        if !stopped || self.below(2) == 0 {
            assert_eq!(request.value, self.op, "a write of an older operation");
            self.file.insert((owner, Self::at(window)), request.value);
        }
        if request.through {
            return self.acknowledge(owner, window);
        }
        let (mut out, ended) = (Vec::new(), if stopped { Ended::Stopped } else { Ended::Done });
        self.aggregators[request.at].ended(request.entry, ended, &mut out);
        self.carry_out(request.at, out);
    }

    /// The end of both connections of an aggregator with its neighbours.
    fn part(&mut self, of: usize, silent: bool, ended: bool) {
        let (after, before) = (self.holder(of), (of + self.up.len() - 1) % self.up.len());
        for other in [after, before] {
            // What a process said before its end arrives; after a cut nothing does.
            let mut cleared = vec![(other, of)];
            cleared.extend((!ended).then_some((of, other)));
            for wire in cleared {
                let queue = self.wires.entry(wire).or_default();
                queue.retain(|(_, of)| matches!(of, Message::LinkLost(..) | Message::HolderLost));
            }
        }
        for (owner, holder) in [(of, after), (before, of)] {
            let link_lost = Message::LinkLost(self.link(owner), silent);
            if holder != of || !ended {
                self.wires.entry((owner, holder)).or_default().push_back((0, link_lost));
            }
            if owner != of || !ended {
                let lost = (0, Message::HolderLost);
                self.wires.entry((holder, owner)).or_default().push_back(lost);
            }
        }
    }

    fn kill(&mut self, of: usize) {
        self.part(of, false, true);
        self.up[of] = false;
        self.aggregators[of] = Behind::default();
        // Those that the kernel had begun may be in the file.
        let (lost, left) = std::mem::take(&mut self.requests).into_iter().partition(|r| r.at == of);
        self.requests = left;
        let lost: Vec<Request> = lost;
        for request in lost {
            if let (Entry::Own(window), 0) = (request.entry, self.below(2)) {
                self.file.insert((of, Self::at(window)), request.value);
            }
        }
        self.copies.retain(|(holder, ..), _| *holder != of);
        self.open.retain(|(owner, _)| *owner != of);
        self.answers.remove(&of);
    }

    /// Neither hears of the other any longer.
    fn cut(&mut self, of: usize) {
        self.part(of, true, false);
    }

    /// The root hears nothing of it for the lease. By then its requests to the storage have ended, since it has heard
    /// nothing of the root either.
    fn leave_out(&mut self, of: usize) {
        let mut out = Vec::new();
        self.aggregators[of].link_lost(ROOT, true, &mut out);
        self.carry_out(of, out);
        for (owner, window) in self.open.clone() {
            self.aggregators[owner].give_up(window);
        }
        let through = |request: &Request| request.at == of && request.through;
        self.requests.iter_mut().filter(|r| through(r)).for_each(|r| r.stopped = true);
        self.failing |= !self.open.is_empty();
        while let Some(index) = self.requests.iter().position(|r| r.at == of && r.stopped) {
            self.end_request(index);
        }
        self.open.retain(|(owner, _)| *owner != of);
        self.left_out = Some(of);
    }

    /// Something happens; false where nothing can.
    fn step(&mut self) -> bool {
        let wires: Vec<(usize, usize)> =
            self.wires.iter().filter(|(_, queue)| !queue.is_empty()).map(|(key, _)| *key).collect();
        let choices = wires.len() + self.requests.len();
        if choices == 0 {
            return false;
        }
        match self.below(choices) {
            which if which < wires.len() => self.deliver(wires[which]),
            which => self.end_request(which - wires.len()),
        }
        true
    }

    fn ask(&mut self, number: u64) {
        let asked = |of: &usize| self.up[*of] && self.left_out != Some(*of);
        let (asked, lost): (Vec<_>, Vec<_>) = (0..self.up.len()).partition(asked);
        let lost: Vec<Arc<str>> = lost.into_iter().map(name).collect();
        self.answers = asked.iter().map(|of| (*of, number)).collect();
        for of in asked {
            let mut out = Vec::new();
            self.aggregators[of].settle((ROOT, number), self.epoch, &lost, &mut out);
            self.carry_out(of, out);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_was_acknowledged_is_in_the_file_once_all_have_settled(
        seed in any::<u64>(),
        aggregators in 2..4_usize,
        windows in 1..4_u64,
        losses in prop::collection::vec((any::<bool>(), 0..3_u8, 0..3_usize, 0..40_usize), 1..6),
    ) {
        let mut world = World::new(seed, aggregators);
        for (in_operation, kind, of, after) in losses {
            let of = of % aggregators;
            world.op += 1;
            world.failing = false;
            let mut left = after;
            let mut lose = |world: &mut World, now: bool| {
                left = left.saturating_sub(usize::from(now));
                let happens = now && left == 0;
                if happens {
                    left = usize::MAX;
                    match kind {
                        0 => world.kill(of),
                        1 => world.cut(of),
                        _ => world.leave_out(of),
                    }
                }
                happens
            };
            for owner in 0..aggregators {
                for window in 0..windows {
                    let (number, epoch) = (world.op * 100 + window, world.epoch);
                    world.open.push((owner, number));
                    if world.aggregators[owner].may_offer() {
                        let holder = world.holder(owner);
                        world.aggregators[owner].offer(number, epoch, name(holder));
                        world.say(owner, holder, Message::Offer(number, epoch));
                    } else {
                        world.carry_out(owner, vec![Action::WriteThrough(number)]);
                    }
                }
            }
            while !world.open.is_empty() {
                prop_assert!(world.step(), "stuck in an operation");
                if lose(&mut world, in_operation) {
                    world.failing = true;
                    for (owner, window) in world.open.clone() {
                        world.aggregators[owner].give_up(window);
                    }
                }
            }
            let mut number = world.op * 10;
            world.ask(number);
            while !world.answers.is_empty() {
                prop_assert!(world.step(), "stuck in settling");
                if lose(&mut world, !in_operation) {
                    number += 1;
                    world.ask(number);
                }
            }
            for (place, value) in &mut world.acknowledged {
                let found = world.file.get(place).copied();
                // Of an operation that was given up any part may be in the file.
                let partly = world.failing && found == Some(world.op);
                prop_assert!(partly || found == Some(*value), "lost at {:?}: {:?}", place, found);
                *value = found.unwrap_or(*value);
            }
            if world.left_out.take().is_some() {
                world.epoch += 1;
            }
            for of in 0..aggregators {
                if !world.up[of] {
                    world.up[of] = true;
                    world.generations[of] += 1;
                    world.epoch += 1;
                }
            }
            for of in 0..aggregators {
                let mut out = Vec::new();
                world.aggregators[of].begin(world.epoch, &mut out);
                world.carry_out(of, out);
            }
        }
        while world.step() {}
        prop_assert!(world.aggregators.iter().all(Behind::is_empty), "something is left: {:?}", world.aggregators);
        prop_assert!(world.copies.is_empty());
    }
}

#[test]
fn an_error_of_the_storage_is_reported_once_and_reaches_the_holder() {
    let (mut owner, mut out) = (Behind::default(), Vec::new());
    owner.offer(1, 1, "h".into());
    owner.taken(1, true, &mut out);
    owner.kept(1, &mut out);
    out.clear();
    assert!(owner.ended(Entry::Own(1), Ended::Failed, &mut out));
    let dropped = Action::Drop { window: 1, holder: "h".into(), failed: true };
    assert_eq!(out, [dropped, Action::Release(Entry::Own(1))]);
    assert!(owner.is_empty());
}

#[test]
fn what_is_behind_waits_for_a_node_that_asks_after_another_fell_silent() {
    let (mut owner, mut out) = (Behind::default(), Vec::new());
    owner.offer(1, 1, "h".into());
    owner.taken(1, true, &mut out);
    owner.kept(1, &mut out);
    owner.link_lost(5, true, &mut out);
    assert_eq!(out.pop(), Some(Action::Stop(Entry::Own(1))));
    owner.ended(Entry::Own(1), Ended::Stopped, &mut out);
    assert!(!owner.may_offer() && !owner.is_writing());
    out.clear();
    owner.settle((6, 1), 1, &[], &mut out);
    assert_eq!(out, [Action::Write(Entry::Own(1))]);
}

#[test]
fn of_an_epoch_that_others_have_ended_nothing_is_written() {
    let (mut owner, mut out) = (Behind::default(), Vec::new());
    owner.offer(1, 1, "h".into());
    owner.taken(1, true, &mut out);
    owner.kept(1, &mut out);
    owner.link_lost(5, true, &mut out);
    owner.ended(Entry::Own(1), Ended::Stopped, &mut out);
    out.clear();
    owner.settle((6, 1), 2, &[], &mut out);
    assert!(out.contains(&Action::Release(Entry::Own(1))) && owner.is_empty());
    assert!(!out.iter().any(|action| matches!(action, Action::Write(_))));
}

#[test]
fn of_an_owner_that_was_lost_nothing_is_taken_in_the_epoch_that_ended() {
    let (mut holder, mut out) = (Behind::default(), Vec::new());
    holder.settle((6, 1), 4, &["o".into()], &mut out);
    assert!(!holder.take(7, 1, 4, "o".into()));
    assert!(holder.take(7, 2, 5, "o".into()) && holder.take(8, 1, 4, "other".into()));
}
