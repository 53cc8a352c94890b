//! The delivery rate (draft-cheng-iccrg-delivery-rate-estimation), by the receiver's clock.
//!
//! Arrives: deliveries. Leaves: a rate. Must not know: round trips.

use std::collections::VecDeque;

use super::controller::AckEvent;

/// The rate at which bytes reach the peer. Queues and delays on the return path do not affect it.
#[derive(Clone, Debug, Default)]
pub struct DeliveryRate {
    /// Time and bytes, both accumulated since the start.
    steps: VecDeque<(u64, u64)>,
}

impl DeliveryRate {
    /// Processes an acknowledgement and keeps at least `window_ns` of history.
    pub fn on_ack(&mut self, ack: &AckEvent, window_ns: u64) {
        let Some(delivery) = ack.delivery else { return };
        let (at, bytes) = self.steps.back().copied().unwrap_or((0, 0));
        self.steps.push_back((at + delivery.interval_ns, bytes + delivery.bytes));
        while self.steps.len() > 2 && self.steps[1].0 + window_ns < at {
            self.steps.pop_front();
        }
    }

    /// Bits a second over the last `window_ns`, or over a somewhat longer time where acknowledgements are rarer.
    #[must_use]
    pub fn bps(&self, window_ns: u64) -> Option<f64> {
        let &(end, bytes) = self.steps.back()?;
        let from =
            self.steps.iter().rev().find(|(at, _)| at + window_ns <= end).or(self.steps.front())?;
        (end > from.0).then(|| (bytes - from.1) as f64 * 8e9 / (end - from.0) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::controller::Delivery;
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_window_and_older_deliveries_are_forgotten() {
        let mut rate = DeliveryRate::default();
        assert_eq!(rate.bps(1000), None);
        for index in 0..100 {
            let bytes = if index < 50 { 1000 } else { 3000 };
            let delivery = Some(Delivery { bytes, interval_ns: 1000, ..Delivery::default() });
            rate.on_ack(&AckEvent { delivery, ..AckEvent::default() }, 10_000);
        }
        assert_eq!(rate.bps(5000), Some(24e9));
        assert!(rate.steps.len() < 15, "{}", rate.steps.len());
    }
}
