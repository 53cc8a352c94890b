//! Deficit round robin between the applications that share an aggregator.
//!
//! Arrives: work with its bytes, weights. Leaves: the next work. Must not know: what the work is.
//!
//! Shreedhar and Varghese, "Efficient Fair Queueing Using Deficit Round Robin", SIGCOMM 1995: each round an application
//! may move a quantum times its weight, and keeps what it could not use while it has work.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Bytes of a round for weight 1: the largest piece of work, so that each round serves each application.
const QUANTUM: u64 = 4 << 20;

struct Queue<T> {
    app: Arc<str>,
    deficit: u64,
    work: VecDeque<(u64, T)>,
}

/// Work by application.
pub struct Fair<T> {
    queues: VecDeque<Queue<T>>,
    weights: HashMap<Arc<str>, u32>,
    /// Whether the first queue has had its quantum of this round.
    begun: bool,
}

impl<T> Default for Fair<T> {
    fn default() -> Self {
        Self { queues: VecDeque::new(), weights: HashMap::new(), begun: false }
    }
}

impl<T> Fair<T> {
    /// The share of an application against others; 1 unless set.
    pub fn set_weight(&mut self, app: &Arc<str>, weight: u32) {
        self.weights.insert(Arc::clone(app), weight.max(1));
    }

    /// Add work of this size.
    pub fn push(&mut self, app: &Arc<str>, bytes: u64, work: T) {
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.app == *app) {
            return queue.work.push_back((bytes, work));
        }
        let work = VecDeque::from([(bytes, work)]);
        self.queues.push_back(Queue { app: Arc::clone(app), deficit: 0, work });
    }

    /// The next work.
    pub fn pop(&mut self) -> Option<T> {
        loop {
            let queue = self.queues.front_mut()?;
            if !self.begun {
                let weight = self.weights.get(&queue.app).copied().unwrap_or(1);
                queue.deficit = queue.deficit.saturating_add(QUANTUM * u64::from(weight));
                self.begun = true;
            }
            match queue.work.front() {
                Some((bytes, _)) if *bytes <= queue.deficit => {
                    let (bytes, work) = queue.work.pop_front()?;
                    queue.deficit -= bytes;
                    if queue.work.is_empty() {
                        self.queues.pop_front();
                        self.begun = false;
                    }
                    return Some(work);
                }
                _ => {
                    self.queues.rotate_left(1);
                    self.begun = false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_share_by_their_weights_and_one_alone_has_everything() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut fair = Fair::default();
        fair.set_weight(&b, 3);
        for _ in 0..400 {
            fair.push(&a, 1 << 20, 'a');
            fair.push(&b, 1 << 20, 'b');
        }
        let first: Vec<char> = (0..160).filter_map(|_| fair.pop()).collect();
        let of_b = first.iter().filter(|app| **app == 'b').count();
        assert_eq!(of_b, 120, "three of four");
        let all = std::iter::from_fn(|| fair.pop()).count();
        assert_eq!(all, 800 - 160, "no work is lost");
        fair.push(&a, 1 << 30, 'a');
        assert_eq!(fair.pop(), Some('a'), "a piece larger than many quanta is served at last");
    }
}
