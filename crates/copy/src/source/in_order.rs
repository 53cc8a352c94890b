//! Work on numbered pieces by several threads, whose results are taken in order.
//!
//! Arrives: a number of pieces, what is done with one. Leaves: the results, each in its turn; the threads run ahead by
//! a bounded number of pieces. Must not know: what a piece is.

use std::collections::HashMap;

use parking_lot::{Condvar, Mutex};

struct State<T> {
    /// The first piece that no thread has begun.
    next: usize,
    /// The piece that is taken next.
    wanted: usize,
    done: HashMap<usize, T>,
    ended: bool,
}

/// Let `consume` take the results of `work` on pieces 0, 1 and so on, each once and in order, by the function that it
/// is given. `threads` threads work on at most `ahead` pieces before the one that is taken next.
pub fn in_order<T: Send, R>(
    pieces: usize,
    threads: usize,
    ahead: usize,
    work: impl Fn(usize) -> T + Sync,
    consume: impl FnOnce(&mut dyn FnMut() -> T) -> R,
) -> R {
    let mut at = 0;
    if threads.min(pieces) <= 1 {
        return consume(&mut || {
            at += 1;
            work(at - 1)
        });
    }
    let state = State { next: 0, wanted: 0, done: HashMap::new(), ended: false };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(pieces) {
            scope.spawn(|| {
                let mut held = state.lock();
                loop {
                    changed.wait_while(&mut held, |s| {
                        s.next < pieces && s.next > s.wanted + ahead && !s.ended
                    });
                    if held.ended || held.next >= pieces {
                        return;
                    }
                    let piece = held.next;
                    held.next += 1;
                    drop(held);
                    let result = work(piece);
                    held = state.lock();
                    held.done.insert(piece, result);
                    changed.notify_all();
                }
            });
        }
        let result = consume(&mut || {
            let mut held = state.lock();
            loop {
                let wanted = held.wanted;
                if let Some(result) = held.done.remove(&wanted) {
                    held.wanted += 1;
                    changed.notify_all();
                    return result;
                }
                changed.wait(&mut held);
            }
        });
        state.lock().ended = true;
        changed.notify_all();
        result
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::in_order;

    #[test]
    fn results_come_in_order_from_threads_that_do_not_run_far_ahead() {
        let (taken, furthest) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |piece: usize| {
            furthest
                .fetch_max(piece.saturating_sub(taken.load(Ordering::SeqCst)), Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(((piece * 7) % 5) as u64 * 100));
            piece
        };
        in_order(50, 4, 6, work, |next| {
            for expected in 0..50 {
                assert_eq!(next(), expected);
                taken.store(expected, Ordering::SeqCst);
            }
        });
        assert!(furthest.load(Ordering::SeqCst) <= 8);
    }

    #[test]
    fn the_caller_may_end_before_the_last_result() {
        let first = in_order(1 << 20, 4, 4, |piece| piece, |next| next());
        assert_eq!(first, 0);
        assert_eq!(in_order(3, 1, 1, |piece| piece * 2, |next| [next(), next()]), [0, 2]);
    }
}
