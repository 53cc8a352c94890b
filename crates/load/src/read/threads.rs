//! A loader's thread.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use waystage_pacing::{during, Cause, Stopped};

use super::coordinator::Coordinator;
use super::file;

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
struct EndedOnDrop<'a>(&'a Coordinator);

impl Drop for EndedOnDrop<'_> {
    fn drop(&mut self) {
        self.0.loader_ended();
    }
}

fn run(coordinator: &Coordinator, number: u32) {
    let _attached = coordinator.pace.meter.attach();
    let gate = &coordinator.pace.gate;
    let mut last = None;
    while let Some(mut job) = coordinator.wait_for_turn(number) {
        match gate.pass(job.extent.length) {
            Err(Stopped) => return,
            Ok(held) => job.held = held,
        }
        let (source, assembly) = (&coordinator.source, job.assembly.as_ref());
        let outcome = during(Cause::Source, || {
            file::read(source, &job.item, job.extent, assembly, &mut last)
        });
        coordinator.done(number, job, outcome);
    }
}
