//! A loader's thread.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

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
    let mut last = None;
    while let Some(job) = coordinator.wait_for_turn(number) {
        let outcome = file::read(
            &coordinator.source,
            &job.item,
            job.extent,
            job.assembly.as_ref(),
            &mut last,
        );
        coordinator.done(number, job, outcome);
    }
}
