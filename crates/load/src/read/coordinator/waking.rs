//! Which loaders sleep, and which are woken: those that find work, and of files in memory no more than have a core.

use waystage_pacing::{during, Cause};
use waystage_sync::MutexGuard;

use super::{Batch, Coordinator, State, IN_MEMORY};
use crate::schedule::{Binding, Turn};

impl Coordinator {
    /// What a loader reads next, once there is something; None where nothing is left for it.
    pub(in crate::read) fn wait_for_turn(&self, loader: u32) -> Option<Batch> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if self.are_enough(&state, 0) {
                state.owed = true;
                self.sleep(&mut state);
                continue;
            }
            match self.turn(&mut state, loader) {
                Ok(batch) => {
                    state.loading += 1;
                    return Some(batch);
                }
                Err(turn) => {
                    if turn != Turn::Wait {
                        // The others are to see it too.
                        self.work.notify_all();
                        return None;
                    }
                    // There may be work for one of those that slept because this one worked.
                    self.wake_owed(&mut state);
                    state.idle += 1;
                    self.sleep(&mut state);
                    state.idle -= 1;
                }
            }
        }
    }

    fn sleep(&self, state: &mut MutexGuard<'_, State>) {
        // Where memory is full, the consumer of the data is slower than the loaders.
        let full = !state.scheduler.has_room();
        let cause = if full { Cause::Destination } else { Cause::Source };
        state.sleeping += 1;
        during(cause, || self.work.wait(state));
        state.sleeping -= 1;
    }

    /// Whether as many loaders read from memory, `more` among them that are about to, as cores are left for.
    fn are_enough(&self, state: &State, more: u32) -> bool {
        state.loading + more >= self.quick_loaders && state.unwaited >= IN_MEMORY
    }

    /// Wake loaders that were not woken because others read.
    pub(super) fn wake_owed(&self, state: &mut State) {
        if std::mem::take(&mut state.owed) {
            self.wake_for_work(state);
        }
    }

    /// Wake loaders that found no work, as memory was given back.
    pub(super) fn wake_for_room(&self, state: &mut State) {
        // Not always: a loader that wakes to find no room again costs more than it brings.
        if state.idle == 0 || state.reading > 0 && !state.scheduler.has_room() {
            return;
        }
        if self.are_enough(state, 0) {
            state.owed = true;
        } else {
            self.wake_for_work(state);
        }
    }

    /// Wake loaders that sleep, as there may be work.
    fn wake_for_work(&self, state: &State) {
        if state.readers.len() == 1 && self.binding == Binding::Steal {
            // Any loader will do for a single target, and it wakes another where there is more than it takes.
            self.work.notify_one();
        } else {
            self.work.notify_all();
        }
    }

    /// Wake who may find work after `loader` took some pieces, before which `queued` waited.
    pub(super) fn wake(&self, state: &mut State, loader: u32, took: u64, queued: u64) {
        let now = state.scheduler.queued();
        let reads = u32::from(took > 0 && loader != self.helper);
        if state.sleeping == 0 || now == 0 {
            return;
        }
        if self.are_enough(state, reads) {
            state.owed = true;
            return;
        }
        if took > 0 && self.binding == Binding::Steal {
            // Anyone can read it, and looks in turn whether to wake another.
            self.work.notify_one();
        } else if now + took > queued {
            // What was let in is for loaders that only they themselves know.
            self.work.notify_all();
        }
    }
}
