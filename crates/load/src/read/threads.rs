//! The loaders' threads.
//!
//! Of files in memory a loader for each core reads as fast as all of them, so the others are started when the storage
//! makes them wait, or the consumer has waited for [`PATIENCE`].

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::resource::{getrusage, UsageWho};
use waystage_pacing::{during, Cause, Gate, Stopped};

use super::coordinator::{Batch, Coordinator};
use super::file::{self, OpenedFile};
use crate::schedule::TOGETHER;

/// For how long the consumer waits for an item before all loaders are started: a read may hang.
pub(super) const PATIENCE: Duration = Duration::from_millis(5);

/// Start `first` of `all` loaders. Fails where the system has no more threads.
pub(super) fn start_first(coordinator: &Arc<Coordinator>, first: u32, all: u32) -> io::Result<()> {
    let mut started = coordinator.started.lock();
    started.left = first.min(all)..all;
    coordinator.set_short_of_loaders(!started.left.is_empty());
    for number in 0..started.left.start {
        started.handles.push(start(Arc::clone(coordinator), number)?);
    }
    Ok(())
}

/// Start the others, if there are any. Where the system has no more threads, those that there are read on.
pub(super) fn start_others(coordinator: &Arc<Coordinator>) {
    if !coordinator.is_short_of_loaders() {
        return;
    }
    let mut started = coordinator.started.lock();
    for number in std::mem::take(&mut started.left) {
        let Ok(handle) = start(Arc::clone(coordinator), number) else { break };
        started.handles.push(handle);
    }
    coordinator.set_short_of_loaders(false);
}

/// Start a loader.
pub(super) fn start(coordinator: Arc<Coordinator>, number: u32) -> io::Result<JoinHandle<()>> {
    coordinator.loader_started();
    let name = format!("load-{number}");
    let began = std::thread::Builder::new().name(name).spawn({
        let coordinator = Arc::clone(&coordinator);
        move || {
            let ended = EndedOnDrop(&coordinator);
            run(ended.0, number);
        }
    });
    if began.is_err() {
        coordinator.loader_ended();
    }
    began
}

/// Counts the loader as ended, also when it panics: the consumer must not wait for it for ever.
struct EndedOnDrop<'a>(&'a Arc<Coordinator>);

impl Drop for EndedOnDrop<'_> {
    fn drop(&mut self) {
        self.0.loader_ended();
    }
}

fn run(coordinator: &Arc<Coordinator>, number: u32) {
    let _attached = coordinator.pace.meter.attach();
    let gate = &coordinator.pace.gate;
    let mut last = None;
    while let Some(batch) = coordinator.wait_for_turn(number) {
        if read(coordinator, number, batch, Some(gate), &mut last).is_err() {
            return;
        }
    }
}

/// Read a batch and hand it back, as far as `gate` lets it pass.
pub(super) fn read(
    coordinator: &Arc<Coordinator>,
    number: u32,
    mut batch: Batch,
    gate: Option<&Gate>,
    last: &mut OpenedFile,
) -> Result<(), Stopped> {
    let jobs = std::mem::take(&mut batch.jobs);
    let mut read = Vec::with_capacity(jobs.len());
    let mut handed_back = Instant::now();
    let mut waits = waits_of_this_thread();
    for job in jobs {
        if let Some(gate) = gate {
            let length = job.extent.length;
            batch.held += match gate.pass_within(length, Duration::ZERO)? {
                Some(held) => held,
                None => {
                    // What was read is not to wait for the turn of the next piece.
                    coordinator.done(&mut read, waits_of_this_thread() > waits);
                    gate.pass(length)?
                }
            };
        }
        let (source, assembly) = (&coordinator.source, job.assembly.as_ref());
        let outcome =
            during(Cause::Source, || file::read(source, &job.item, job.extent, assembly, last));
        read.push((job, outcome));
        // The storage may be slower than it was.
        if handed_back.elapsed() > TOGETHER {
            let waited = waits_of_this_thread() > waits;
            batch.waited |= waited;
            coordinator.done(&mut read, waited);
            handed_back = Instant::now();
            // A wait for another loader or the consumer is none for the storage.
            waits = waits_of_this_thread();
        }
    }
    batch.waited |= waits_of_this_thread() > waits;
    if coordinator.batch_done(number, &batch, &mut read) {
        start_others(coordinator);
    }
    Ok(())
}

/// How often this thread has given up its core to wait, which while it reads is for storage or a limit. Time would not
/// tell: it also passes while others have the core.
fn waits_of_this_thread() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}
