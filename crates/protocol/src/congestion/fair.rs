//! `fair` and `fast-start`: all of a path when alone, an even share beside others.
//!
//! Arrives: acks. Leaves: a window and a pace. Must not know: the other modes.
//!
//! **Alone, or among its like** (phase `delay`) the window follows the queue, once a round trip (after FAST TCP: Wei, Jin, Low, Hegde,
//! IEEE/ACM ToN 14(6), 2006):
//!
//! ```text
//! target = b + a / rate          a = 6 packets, b = RTT/32 + 0.3 ms, at most 5 ms
//! W     <- W (1 + (target - queue) / (2 RTT))        queue = least RTT of the round - least RTT of 30 s
//! ```
//!
//! All flows of a path see the same queue, so all come to the same rate `a / (queue - b)`. When the queue stays empty the step doubles each
//! round trip, up to 1.25. Loss plays no part here unless it is above the path's random floor.
//!
//! **Beside a flow that fills the buffer** (phase `compete`) a follower of the queue would get nothing. Evidence of such a flow: a queue above
//! twice the target that did not shrink in six rounds in which this flow yielded (`Standing`), or loss above the floor, or marks. Then the window is
//! CUBIC's, which shares evenly with TCP, after a flow has sought its share (`compete.rs`); what counts as its loss event is only loss above the floor.
//! A queue that swings by a fifth of the round trip while the window had to halve is such evidence too; so is one that a look did not empty, while 0.3 of the window went.
//!
//! **Back.** About every ten seconds one test (phase `drain`): the window is cut to 0.8. If as much arrives as before, this flow
//! is alone with a queue of its own, and goes on cutting until less arrives; after more than three such cuts the phase is `delay` again. If less arrives at
//! once, the cut was somebody's gain: the window comes back. A buffer that overflowed at a queue below the target is a shallow
//! one; the target is then half of that queue.
//!
//! **Loss that was random after all.** After a congestion event the sender is slower by 0.7, and learns what the path loses at that rate. If
//! that explains the event, the window from before comes back; and at once where all that was lost arrives after all.

use super::compete::Competitor;
use super::evidence::{
    is_gross, Answered, ArrivalRate, Buffer, LossFloor, Round, Rounds, Standing, Swing,
};
use super::look::{Look, Looking};
use super::startup::Startup;
use super::{AckEvent, Control, Controller, Mode, PACKET};

const A: f64 = 6.0 * PACKET;
const GAIN: f64 = 0.5;
/// So much later than it should a host may send or acknowledge: the queue is to last meanwhile.
const HOST_NS: f64 = 300_000.0;
/// With fewer packets each the queues of flows that follow them would be half of the path.
const LEAST_FOLLOWED: f64 = 2.5 * A;
/// Whoever loses so soon after a drain what it had before was not alone, and claims this part of it.
const RECENT_NS: u64 = 10_000_000_000;
const CLAIM: f64 = 0.7;
const LEAST_WINDOW: f64 = 4.0 * PACKET;

/// A cut of the window that leaves this part of what arrived took nothing from anybody.
const KEPT: f64 = 0.93;
const CUT: f64 = 0.8;
const MOST_CUTS: u32 = 10;

/// So many cuts that cost nothing: one may fall into a moment in which the other flow had just backed off.
const FREE_CUTS: u32 = 3;

/// Beside others, no more of the window than this is left of what following the queue began with: then it is claimed back.
const YIELDED: f64 = 0.7;

/// A queue that differs by this part of the round trip within seconds.
const SWING: f64 = 0.2;

/// Where the round trip never exceeds its base by this factor, the buffer is a shallow one.
const SHALLOW: f64 = 1.25;

/// Packets leave somewhat faster than window / RTT, so that the window decides (as Linux paces TCP).
const PACE: f64 = 1.2;

#[derive(Clone, Debug)]
enum Phase {
    Startup(Box<Startup>),
    Delay,
    Compete,
    /// The window and the arrival rate to come back to, and how often the window was cut.
    Drain {
        window: f64,
        arrival_bps: f64,
        cuts: u32,
        settled: bool,
    },
}

/// What an answer to losses changed.
#[derive(Clone, Debug, Default)]
struct Before {
    window: f64,
    competitor: Competitor,
    competed: bool,
    shallow_ns: f64,
}

/// The mode's state.
#[derive(Clone, Debug)]
pub struct Fair {
    quick: bool,
    cap_bps: f64,
    phase: Phase,
    window: f64,
    rtt_ns: u64,
    base_rtt_ns: u64,
    rounds: Rounds,
    floor: LossFloor,
    buffer: Buffer,
    arrivals: ArrivalRate,
    competitor: Competitor,
    /// Losses of packets before this number belong to an event that was answered already.
    answered_to: u64,
    /// The round that began with this number is the first one after the window fell: a quiet one.
    quiet_from: Option<u64>,
    /// Answered as congestion, perhaps wrongly: lost, of so many packets.
    suspicions: Vec<(u64, u64)>,
    window_before: f64,
    answered: Answered,
    before: Before,
    /// When the last drain showed that nobody else was there, and the window before it.
    drained_ns: u64,
    window_drained: f64,
    look: Look,
    /// Whether the last look saw the path without a queue.
    among_its_like: bool,
    /// Whether it saw a queue that is not of its like.
    beside_others: bool,
    /// Whether this flow has sought its share since it last saw the path without a queue.
    sought: bool,
    standing: Standing,
    swing: Swing,
    /// The window when following the queue began.
    window_followed: f64,
    empty_rounds: u32,
    window_unqueued: f64,
    shallow_ns: f64,
    largest_queue_ns: f64,
    largest_rtt_ns: u64,
}

impl Fair {
    /// `fair`.
    #[must_use]
    pub fn gradual(rtt_ns: u64, cap_bps: f64) -> Self {
        Self::new(rtt_ns, cap_bps, false)
    }

    /// `fast-start`: the same but for its first round trips.
    #[must_use]
    pub fn quick(rtt_ns: u64, cap_bps: f64) -> Self {
        Self::new(rtt_ns, cap_bps, true)
    }

    fn new(rtt_ns: u64, cap_bps: f64, quick: bool) -> Self {
        Self {
            quick,
            cap_bps,
            phase: Phase::Startup(Box::new(Startup::new(rtt_ns, cap_bps, quick))),
            window: LEAST_WINDOW,
            rtt_ns,
            base_rtt_ns: rtt_ns,
            rounds: Rounds::default(),
            floor: LossFloor::default(),
            buffer: Buffer::default(),
            arrivals: ArrivalRate::default(),
            competitor: Competitor::default(),
            answered_to: 0,
            quiet_from: None,
            suspicions: Vec::new(),
            window_before: 0.0,
            answered: Answered::default(),
            before: Before::default(),
            drained_ns: 0,
            window_drained: 0.0,
            look: Look::default(),
            among_its_like: false,
            beside_others: false,
            sought: false,
            standing: Standing::default(),
            swing: Swing::default(),
            window_followed: 0.0,
            empty_rounds: 0,
            window_unqueued: 0.0,
            shallow_ns: f64::INFINITY,
            largest_queue_ns: 0.0,
            largest_rtt_ns: 0,
        }
    }

    fn target_ns(&self, window: f64) -> f64 {
        let rtt_ns = self.rtt_ns as f64;
        let b_ns = (self.base_rtt_ns as f64 / 32.0 + HOST_NS).min(5_000_000.0);
        (b_ns + A * rtt_ns / window).min(self.shallow_ns)
    }

    fn follow_queue(&mut self, ack: &AckEvent, round: &Round) {
        let Some(queue_ns) = round.queue_ns(ack.base_rtt_ns) else { return };
        let target_ns = self.target_ns(self.window);
        self.largest_queue_ns = round.largest_rtt_ns.saturating_sub(ack.base_rtt_ns) as f64;
        let before = self.window;
        let mut step = GAIN * (target_ns - queue_ns) / self.rtt_ns as f64;
        self.empty_rounds = if queue_ns < target_ns / 4.0 { self.empty_rounds + 1 } else { 0 };
        if self.empty_rounds > 3 {
            step *= f64::from(1_u32 << (self.empty_rounds - 3).min(10));
        }
        if step < 0.0 || !round.limited {
            self.window = (self.window * (1.0 + step.clamp(-0.25, 0.25))).max(LEAST_WINDOW);
        }
        if self.standing.is_gone() {
            self.window_unqueued = before;
        }
        // Judged by the window from before: a small one would excuse any queue.
        self.standing.on_round(queue_ns, 2.0 * self.target_ns(self.window_unqueued));
        let swings = self.swing.on_round(ack.now_ns, queue_ns) > SWING * ack.base_rtt_ns as f64;
        if swings && !self.among_its_like && self.window < before.max(self.window_followed) / 2.0 {
            // Its like settle; a queue that keeps swinging while this flow had to shrink is a sawtooth's.
            return self.claim(ack.now_ns, self.window);
        }
        if self.beside_others && self.window < YIELDED * self.window_followed {
            // A queue that was there before this flow, and grows slowly, takes all of it bit by bit.
            return self.claim(ack.now_ns, self.window_followed);
        }
        if self.standing.is_evident() {
            // What was yielded went to somebody who does not yield. The window from before is this flow's claim.
            self.claim(ack.now_ns, self.window_unqueued);
        }
    }

    /// Competes for what this flow had.
    fn claim(&mut self, now_ns: u64, window: f64) {
        self.window = window;
        if now_ns < self.drained_ns + RECENT_NS {
            self.window = self.window.max(CLAIM * self.window_drained);
        }
        self.competitor.hold(self.window);
        self.compete(now_ns);
        self.seek();
    }

    /// Seeks a share of what flows have that do not look, once.
    fn seek(&mut self) {
        if self.beside_others && !std::mem::replace(&mut self.sought, true) {
            self.competitor.seek();
        }
    }

    fn compete(&mut self, now_ns: u64) {
        self.phase = Phase::Compete;
        self.look.stop();
        self.among_its_like = false;
        self.standing.forget();
        self.largest_rtt_ns = 0;
        self.competitor.plan(now_ns, self.window);
    }

    fn congested(&mut self, ack: &AckEvent, round: &Round) {
        self.answered = Answered::now(ack, round.lost);
        self.before = Before {
            window: self.window,
            competitor: self.competitor,
            competed: matches!(self.phase, Phase::Compete),
            shallow_ns: self.shallow_ns,
        };
        if self.suspicions.is_empty() {
            self.window_before = self.window;
        }
        if ack.marked_packets == 0 && self.suspicions.len() < 8 {
            self.suspicions.push((round.lost, round.arrived + round.lost));
        }
        if matches!(self.phase, Phase::Delay) {
            let queue_ns = round.largest_rtt_ns.saturating_sub(ack.base_rtt_ns) as f64;
            let queue_ns = queue_ns.max(self.largest_queue_ns);
            if queue_ns < 1.5 * self.target_ns(self.window) {
                self.shallow_ns = (queue_ns / 2.0).max(20_000.0);
            }
            self.competitor.forget();
            self.compete(ack.now_ns);
        }
        self.window = self.competitor.congested(self.window).max(LEAST_WINDOW);
        self.be_quiet(ack);
    }

    fn be_quiet(&mut self, ack: &AckEvent) {
        self.answered_to = ack.next_number;
        self.quiet_from = Some(ack.next_number);
        self.rounds.answered(ack.next_number);
    }

    /// Nothing was lost, packets were late: as if there had been no answer.
    fn take_back(&mut self) {
        if matches!(self.phase, Phase::Drain { .. }) {
            return;
        }
        self.window = self.window.max(self.before.window);
        self.competitor = self.before.competitor;
        self.shallow_ns = self.before.shallow_ns;
        if !self.before.competed {
            self.phase = Phase::Delay;
        }
        self.suspicions.pop();
        self.quiet_from = None;
    }

    /// What a quiet round taught may clear the losses that were taken for congestion.
    fn reconsider(&mut self) {
        let mut all = self.suspicions.iter();
        if all.len() == 0 || !all.all(|&(lost, packets)| self.floor.allows(packets, lost)) {
            return;
        }
        self.suspicions.clear();
        self.window = self.window.max(self.window_before);
        self.phase = Phase::Delay;
        self.shallow_ns = f64::INFINITY;
        self.empty_rounds = 0;
    }

    fn end_of_round(&mut self, ack: &AckEvent, round: &Round) {
        self.largest_rtt_ns = self.largest_rtt_ns.max(round.largest_rtt_ns);
        if self.floor.on_round(&mut self.buffer, &mut self.quiet_from, round, ack.base_rtt_ns) {
            self.reconsider();
        }
        match self.phase {
            Phase::Startup(_) => {}
            Phase::Delay => self.follow_queue(ack, round),
            Phase::Compete => {
                let arrival_bps = self.arrivals.bps(self.rtt_ns);
                self.window = self.competitor.end_of_round(arrival_bps, self.window);
                if self.competitor.is_test_due(ack.now_ns) {
                    self.begin_drain(ack);
                }
            }
            Phase::Drain { window, arrival_bps, cuts, settled } => {
                self.go_on_draining(ack, (window, arrival_bps, cuts, settled));
            }
        }
    }

    fn begin_drain(&mut self, ack: &AckEvent) {
        let Some(arrival_bps) = self.arrivals.bps(2 * self.rtt_ns) else { return };
        if (self.largest_rtt_ns as f64) < SHALLOW * ack.base_rtt_ns as f64 {
            // The queue was never long enough to tell anything by draining it: try, and let loss decide.
            return self.follow_from(arrival_bps, self.window, ack);
        }
        self.phase = Phase::Drain { window: self.window, arrival_bps, cuts: 1, settled: false };
        self.window = (self.window * CUT).max(LEAST_WINDOW);
        self.rounds.restart(ack.next_number);
    }

    /// With nobody else there, a smaller window only shortens the queue, and as much arrives as before; beside another
    /// flow it gives up a part of the share. This holds whatever is thought to be the base round trip.
    fn go_on_draining(
        &mut self,
        ack: &AckEvent,
        (window, before_bps, cuts, settled): (f64, f64, u32, bool),
    ) {
        if !settled {
            // The first round of a cut still drains the queue of the window before.
            self.phase = Phase::Drain { window, arrival_bps: before_bps, cuts, settled: true };
            return;
        }
        let kept = self.arrivals.bps(self.rtt_ns).unwrap_or(0.0) >= KEPT * before_bps;
        if kept && cuts < MOST_CUTS {
            self.phase =
                Phase::Drain { window, arrival_bps: before_bps, cuts: cuts + 1, settled: false };
            self.window = (self.window * CUT).max(LEAST_WINDOW);
        } else if cuts > FREE_CUTS {
            (self.drained_ns, self.window_drained) = (ack.now_ns, window);
            self.follow_from(before_bps, window, ack);
        } else {
            self.window = window;
            self.competitor.hold(window);
            self.compete(ack.now_ns);
        }
    }

    /// Follows the queue again where a look showed that nobody competes but its like.
    fn settle(&mut self, ack: &AckEvent, alike: bool) {
        let holds = self.window * ack.base_rtt_ns as f64 / self.rtt_ns as f64;
        let Some(bps) = self.arrivals.bps(2 * self.rtt_ns) else { return };
        if alike && holds > LEAST_FOLLOWED {
            self.follow_from(bps, self.window, ack);
            self.standing.settle();
        }
    }

    /// Follows the queue again, with what the path holds at this rate of arrival, and no more than `most`.
    fn follow_from(&mut self, arrival_bps: f64, most: f64, ack: &AckEvent) {
        let holds = arrival_bps / (1.0 - self.floor.share()) * ack.base_rtt_ns as f64 / 8e9;
        self.window = holds.min(most).max(LEAST_WINDOW);
        self.follow();
    }

    fn follow(&mut self) {
        self.phase = Phase::Delay;
        self.beside_others = false;
        self.suspicions.clear();
        self.empty_rounds = 0;
        self.standing.begin();
        self.swing = Swing::default();
        self.window_followed = self.window;
    }
}

impl Controller for Fair {
    fn name(&self) -> Mode {
        if self.quick {
            Mode::FastStart
        } else {
            Mode::Fair
        }
    }

    fn phase(&self) -> &'static str {
        match self.phase {
            Phase::Startup(_) => "startup",
            Phase::Delay => "delay",
            Phase::Compete => "compete",
            Phase::Drain { .. } => "drain",
        }
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        self.rtt_ns = ack.smoothed_rtt_ns.max(1000);
        self.base_rtt_ns = ack.base_rtt_ns;
        if let Phase::Startup(startup) = &mut self.phase {
            if let Some(capacity) = startup.on_ack(ack, &mut self.floor) {
                let holds = capacity.bps * ack.base_rtt_ns as f64 / 8e9;
                self.window = (holds + A).max(LEAST_WINDOW);
                self.follow();
                self.be_quiet(ack);
            }
            return;
        }
        self.arrivals.on_ack(ack, 4 * self.rtt_ns);
        let ended = self.rounds.on_ack(ack);
        if self.answered.is_void(ack) {
            self.take_back();
        }
        // A path that loses at random is judged by whole rounds: looking more often only finds more accidents.
        let judged = if self.floor.is_clean() {
            ended.as_ref().or(Some(self.rounds.current()))
        } else {
            ended.as_ref()
        };
        // Until a quiet round has shown what the last answer was worth, there is no second one.
        let judged = judged.filter(|_| self.quiet_from.is_none());
        let too_many = judged.is_some_and(|round| {
            let full = self.buffer.may_be_full_now(round, ack.base_rtt_ns);
            round.lost > 0
                && !self.floor.allows(round.arrived + round.lost, round.lost)
                && (full || is_gross(round, &self.floor))
        });
        if (too_many || ack.marked_packets > 0 && ack.newest_spoken_of > self.answered_to)
            && !matches!(self.phase, Phase::Drain { .. })
        {
            let round = ended.unwrap_or(*self.rounds.current());
            self.congested(ack, &round);
        } else if matches!(self.phase, Phase::Compete) && !ack.limited {
            self.window = self.competitor.grown(ack, self.window, self.rtt_ns);
        }
        let looking = match self.phase {
            Phase::Delay | Phase::Compete => self.look.on_ack(ack),
            _ => Looking::No,
        };
        match (looking, ended) {
            (Looking::No, Some(round)) => self.end_of_round(ack, &round),
            (Looking::Over { shorter, empty, alike }, _) => {
                self.rounds.restart(ack.next_number);
                self.among_its_like = empty;
                self.beside_others = !empty && !shorter;
                if matches!(self.phase, Phase::Compete) {
                    self.floor.doubt();
                    self.seek();
                    self.settle(ack, alike);
                } else {
                    self.sought &= !empty;
                }
                if shorter {
                    // What was lost so far was lost in a queue that was taken for the path.
                    self.floor = LossFloor::default();
                    self.standing.settle();
                    self.swing = Swing::default();
                }
            }
            _ => {}
        }
    }

    fn on_timeout(&mut self, _now_ns: u64) {
        self.window = (self.window / 2.0).max(LEAST_WINDOW);
    }

    fn on_path_change(&mut self, _now_ns: u64, rtt_ns: u64) {
        *self = Self::new(rtt_ns, self.cap_bps, self.quick);
    }

    fn control(&self) -> Control {
        if let Phase::Startup(startup) = &self.phase {
            return startup.control(self.rtt_ns);
        }
        let rate_bps = PACE * self.window * 8e9 / self.rtt_ns as f64;
        let window = (self.look.part() * self.window).max(LEAST_WINDOW);
        Control { rate_bps: rate_bps.min(self.cap_bps), window_bytes: window as u64 }
    }
}
