//! What is sent beyond what the path carries, where no queue tells of it.
//!
//! Arrives: rounds, and how many packets were sent in them. Leaves: whether the flow sends too much. Must not know: the
//! phases.
//!
//! A policer drops all that exceeds its rate, at once. A flow that begins too fast there, or whose policer becomes
//! slower, sees a loss that is the same in each round, takes it for random, and finds the queue empty however much it
//! sends. But random loss leaves its part of what is sent more. Where more is sent and no more arrives, the excess is
//! what is lost.

use super::Round;

/// More is sent than before at this factor, and more arrives at the other one.
const SENT: f64 = 1.5;
const ARRIVES: f64 = 1.1;
/// And this many standard deviations of a number of packets.
const DEVIATIONS: f64 = 2.0;
/// In one round acknowledgements may be lost.
const ROUNDS: u32 = 2;
/// More is lost than is believed to be random, by this part of what is sent.
const MARGIN: f64 = 0.1;

/// The packets sent in two round trips, and those that arrived of them.
#[derive(Clone, Copy, Debug)]
struct Packets {
    sent: f64,
    arrived: f64,
}

/// Compares what is sent and what arrives with what did so before. Losses are found too late to count here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Excess {
    before: Option<Packets>,
    /// Those of the round before this one.
    recent: Option<Packets>,
    /// The packets sent and acknowledged in the last rounds, the latest first.
    last: [Option<(u64, u64)>; 2],
    /// The rounds in a row in which more was sent and no more arrived.
    rounds: u32,
}

impl Excess {
    /// Processes a round, in which `sent` packets were sent; `random` is the share that is believed lost at random.
    /// Returns the share lost in the rounds before, where more was sent and no more arrived.
    pub(super) fn on_round(&mut self, round: &Round, sent: u64, random: f64) -> Option<f64> {
        if round.app_limited {
            self.last = Default::default();
            return None;
        }
        let [one, two] = self.last;
        self.last = [Some((sent, round.acked)), one];
        let ((one_sent, one_acked), (two_sent, _)) = (one?, two?);
        let now = Packets {
            sent: (one_sent + two_sent) as f64,
            arrived: (round.acked + one_acked) as f64,
        };
        let before = *self.before.get_or_insert(now);
        // Few packets tell little.
        let noise = DEVIATIONS / now.arrived.max(1.0).sqrt();
        let more_arrives = now.arrived > (ARRIVES + noise) * before.arrived;
        // Where acknowledgements are lost, a flow is silent for a round, and then sends what it could not.
        let recent = self.recent.replace(now).unwrap_or(now);
        let fewer = if recent.sent > now.sent { recent } else { now };
        if more_arrives {
            self.before = Some(now);
        } else if fewer.sent < before.sent {
            self.before = Some(fewer);
        }
        let exceeds = !more_arrives
            && now.sent > SENT * (1.0 + noise) * before.sent
            && now.arrived < (1.0 - random - MARGIN) * now.sent;
        self.rounds = if exceeds { self.rounds + 1 } else { 0 };
        (self.rounds >= ROUNDS).then(|| (1.0 - now.arrived / now.sent).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rounds after which it is found, sending a quarter more in each, where `carries` gives what arrives.
    fn found(carries: impl Fn(u32, f64) -> f64) -> Option<u32> {
        let mut excess = Excess::default();
        let mut sent = 1000.0;
        let mut arrives = 0.0;
        (0..40).find(|&number| {
            let round = Round { acked: arrives as u64, ..Round::default() };
            arrives = carries(number, sent);
            let share = excess.on_round(&round, sent as u64, 0.1);
            sent *= 1.25;
            share.is_some()
        })
    }

    #[test]
    fn what_exceeds_a_policer_is_found_within_few_rounds() {
        assert!(found(|_, sent| sent.min(1000.0)).is_some_and(|rounds| rounds < 8));
        assert!(found(|_, sent| 0.9 * sent.min(4000.0)).is_some_and(|rounds| rounds < 12));
    }

    #[test]
    fn random_loss_is_no_excess_however_large() {
        assert_eq!(found(|_, sent| 0.5 * sent), None);
        let burst = |number: u32| if number.is_multiple_of(3) { 0.6 } else { 0.95 };
        assert_eq!(found(|number, sent| burst(number) * sent), None);
    }

    #[test]
    fn a_round_in_which_little_could_be_sent_is_no_evidence() {
        let mut excess = Excess::default();
        let sent = [1000, 1000, 200, 1800, 1000, 1000];
        let found = sent.into_iter().cycle().take(60).any(|sent| {
            let round = Round { acked: 850, ..Round::default() };
            excess.on_round(&round, sent, 0.0).is_some()
        });
        assert!(!found);
    }
}
