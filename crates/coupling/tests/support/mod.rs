//! Services of coupling in a scratch folder, for the tests of this crate.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use waystage_coupling::client::Options;
use waystage_coupling::request::Role;
use waystage_coupling::service::{Options as Hosting, Service};

pub const TOKEN: [u8; 32] = [7; 32];
pub const LONG: Duration = Duration::from_secs(60);

/// Wait for what happens a moment after its cause, in another thread.
pub fn until(mut happened: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + LONG;
    while !happened() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A scratch folder that is removed.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("ws-coupling-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn service(&self, name: &str, host: String, memory_bytes: u64) -> Service {
        Service::start(Hosting {
            socket: self.0.join(name),
            listen: Some("127.0.0.1:0".parse().unwrap()),
            host,
            token: TOKEN,
            lease: LONG,
            memory_bytes,
        })
        .unwrap()
    }

    pub fn options(&self, role: Role, rank: u32, size: u32, service: &str) -> Options {
        Options {
            name: "flow".into(),
            role,
            rank,
            size,
            depth: 2,
            directory: Some(self.0.join("names")),
            socket: Some(self.0.join(service)),
            token: Some(TOKEN),
            timeout: LONG,
            lease: LONG,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
