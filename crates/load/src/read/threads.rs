//! A loader in a thread of its own.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::desk::Desk;
use super::file;

pub(super) fn start(desk: Arc<Desk>, number: u32) -> io::Result<JoinHandle<()>> {
    desk.comes();
    let name = format!("load-{number}");
    let began = std::thread::Builder::new().name(name).spawn({
        let desk = Arc::clone(&desk);
        move || {
            let goes = Goes(&desk);
            run(goes.0, number);
        }
    });
    if began.is_err() {
        desk.goes();
    }
    began
}

/// Tells the desk that a loader is gone, also when it panics: whoever waits must not wait for ever.
struct Goes<'a>(&'a Desk);

impl Drop for Goes<'_> {
    fn drop(&mut self) {
        self.0.goes();
    }
}

fn run(desk: &Desk, number: u32) {
    let mut kept = None;
    while let Some(job) = desk.wait_for_turn(number) {
        let outcome = file::read(desk, &job.item, job.extent, job.assembly.as_ref(), &mut kept);
        desk.done(number, job, outcome);
    }
}
