//! Copies between a client and a server in this process: they end when done, and soon after either side stops.

#![allow(clippy::unwrap_used, reason = "a test ends where something it relies on fails")]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use waystage_copy::{Fsync, Limits, Update, Verify};
use waystage_probe::Probing;
use waystage_protocol::congestion::Mode;
use waystage_remote_copy::{Client, CopyOptions, Dry, Ends, Request};
use waystage_server::{Server, ServerOptions, SharedRoot, User};
use waystage_transport::identity::Identity;
use waystage_transport::Peer;

const SIZE: usize = 24 << 20;

/// After 3 s a stop aborts the connections of copies that do not end before.
const SOON: Duration = Duration::from_millis(2500);

struct Site {
    folder: PathBuf,
    server: Server,
    trusted: Identity,
    key: Identity,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Site {
    fn new(name: &str) -> Self {
        Self::of_version(name, u32::MAX)
    }

    fn of_version(name: &str, newest_version: u32) -> Self {
        let folder =
            std::env::temp_dir().join(format!("waystage-server-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("from/sub")).unwrap();
        let contents: Vec<u8> = (0..SIZE as u32).map(|at| (at / 7) as u8).collect();
        fs::write(folder.join("from/large"), contents).unwrap();
        fs::write(folder.join("from/sub/small"), b"small").unwrap();
        let (trusted, key) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
        let user = User {
            name: "ada".to_owned(),
            keys: vec![key.public.clone()],
            modes: Vec::new(),
            networks: Vec::new(),
            rate_bytes_per_s: None,
            connections: None,
            account: None,
            reach: Vec::new(),
            listen: Vec::new(),
        };
        let root =
            SharedRoot { path: folder.clone(), write: true, users: Vec::new(), privileged: false };
        let server = Server::start(ServerOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            identity: trusted.clone(),
            users: vec![user],
            roots: vec![root],
            rate_bytes_per_s: None,
            connections: 8,
            copy_connections: 2,
            sockets: 1,
            memory_bytes: 64 << 20,
            udp: true,
            workers: 2,
            probing: Probing {
                users: Vec::new(),
                rate_bytes_per_s: None,
                longest: Duration::from_secs(1),
            },
            newest_version,
        })
        .unwrap();
        Self { folder, server, trusted, key }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn copy(&self, push: bool, udp: bool, to: &str) -> Client {
        self.copying(push, udp, to, false)
    }

    fn copying(&self, push: bool, udp: bool, to: &str, compress: bool) -> Client {
        let bytes = |path: &Path| path.to_str().unwrap().as_bytes().to_vec();
        let (from, to) = (self.path("from"), self.path(to));
        let ends = if push {
            Ends::Push { local: from, remote: bytes(&to) }
        } else {
            Ends::Pull { remote: bytes(&from), local: to }
        };
        Client::start(Request {
            server: Peer {
                host: "127.0.0.1".to_owned(),
                port: self.server.address().port(),
                user: "ada".to_owned(),
                identity: self.key.clone(),
                trusted: Some(self.trusted.public.clone()),
                mode: Mode::Fair,
                rate_bytes_per_s: None,
                // A slow machine is no blocked path.
                udp_wait: udp.then_some(Duration::from_secs(30)),
            },
            known_as: None,
            workers: 2,
            connections: 2,
            memory_bytes: 64 << 20,
            ends,
            names: None,
            privileged: false,
            compress,
            options: CopyOptions {
                exclude: Vec::new(),
                include: None,
                copy_links: false,
                backup: None,
                limits: Limits::default(),
                listed: false,
                one_file_system: false,
                update: Update::Changed,
                fsync: Fsync::None,
                verify: Verify::None,
                dry: Dry::No,
                restart: false,
                xattrs: false,
                owners: false,
                hard_links: true,
            },
        })
        .unwrap()
    }
}

const WAYS: [(bool, bool); 4] = [(true, true), (false, true), (true, false), (false, false)];

#[test]
fn copies_of_both_directions_end_when_all_is_there() {
    let site = Site::new("complete");
    for (number, (push, udp)) in WAYS.into_iter().enumerate() {
        let to = format!("to-{number}");
        let copy = site.copy(push, udp, &to);
        copy.wait(Duration::from_secs(60)).unwrap().unwrap();
        let same = |name: &str| {
            fs::read(site.path("from").join(name)).unwrap()
                == fs::read(site.path(&to).join(name)).unwrap()
        };
        assert!(same("large") && same("sub/small"));
    }
}

#[test]
fn compressed_copies_are_complete_and_an_older_server_is_named() {
    for version in [u32::MAX, 6] {
        let site = Site::of_version(&format!("compressed-{version}"), version);
        let mut packets = Vec::new();
        for (number, (push, udp)) in WAYS.into_iter().enumerate() {
            for compress in [false, true] {
                let to = format!("to-{number}-{compress}");
                let copy = site.copying(push, udp, &to, compress);
                copy.wait(Duration::from_secs(60)).unwrap().unwrap();
                for name in ["large", "sub/small"] {
                    let read = |folder: &str| fs::read(site.path(folder).join(name)).unwrap();
                    assert_eq!(read("from"), read(&to), "{to} {name}");
                }
                let notes = copy.notes().concat();
                let is_named = notes.contains("version 6") && notes.contains("no compression");
                assert_eq!(is_named, compress && version == 6, "{notes}");
                if push && udp {
                    let numbers = copy.connection().0;
                    let sent = numbers.iter().find(|(name, _)| *name == "sent_packets").unwrap();
                    packets.push(sent.1);
                }
            }
        }
        let (plain, compressed) = (packets[0], packets[1]);
        assert_eq!(compressed < plain / 4.0, version > 6, "{plain} {compressed}");
    }
}

#[test]
fn a_server_of_version_2_is_slowed_for_a_pause_and_refuses_another_mode() {
    for (push, udp) in WAYS {
        let site = Site::of_version(&format!("version-{push}-{udp}"), 2);
        let copy = site.copy(push, udp, "to");
        copy.set_rate(Some(2 << 20));
        let moved = || copy.flow().bytes_done;
        wait_until(|| moved() > 0);
        let changed = copy.set_mode(Mode::Aggressive);
        let error = changed.unwrap_err().to_string();
        assert!(error.contains("version 2") && error.contains("up to date"), "{error}");
        copy.set_paused(true);
        // What is in flight arrives; then a byte a second at most.
        let mut before = 0;
        wait_until(|| {
            std::thread::sleep(Duration::from_millis(500));
            moved() <= std::mem::replace(&mut before, moved()).saturating_add(1)
        });
        assert!(
            copy.wait(Duration::ZERO).is_none(),
            "push={push} udp={udp}: it goes on in a pause"
        );
        copy.set_paused(false);
        copy.set_rate(None);
        copy.wait(Duration::from_secs(120)).unwrap().unwrap();
        assert_eq!(
            fs::read(site.path("from/large")).unwrap(),
            fs::read(site.path("to/large")).unwrap()
        );
    }
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "it does not happen within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_copy_that_either_side_stops_ends_soon() {
    for stop_server in [false, true] {
        for (push, udp) in WAYS {
            // A busy machine may be late once. A copy that waits to be aborted is late each time.
            let soon = (0..5).any(|_| stopped(stop_server, push, udp) < SOON);
            assert!(soon, "push={push} udp={udp} stop_server={stop_server}");
        }
    }
}

/// How long a copy takes to end once its server, or else the copy itself, is asked to stop.
fn stopped(stop_server: bool, push: bool, udp: bool) -> Duration {
    let site = Site::new(&format!("stop-{stop_server}-{push}-{udp}"));
    if !stop_server {
        // All of it fits into what is in flight: the sender waits for its delivery.
        fs::write(site.path("from/large"), vec![7; 3 << 20]).unwrap();
    }
    // A limit that the server sets while the copy runs reaches its sender. On a busy machine the copy may have ended
    // before that.
    let limited = || {
        site.server.limit(None, HashMap::new());
        let _ = fs::remove_dir_all(site.path("to"));
        let copy = site.copy(push, udp, "to");
        copy.limit(Some(1 << 20));
        site.server.limit(Some(1 << 20), HashMap::new());
        std::thread::sleep(Duration::from_millis(400));
        copy.wait(Duration::ZERO).is_none().then_some(copy)
    };
    let copy = (0..10).find_map(|_| limited()).expect("the limit does not hold");
    let began = Instant::now();
    if stop_server {
        site.server.stop();
    } else {
        copy.stop();
    }
    let error = copy.wait(Duration::from_secs(60)).unwrap().unwrap_err();
    // To the client a server that stops is a connection that was lost.
    assert_eq!(error.kind(), if stop_server { "lost" } else { "stopped" }, "{error}");
    began.elapsed()
}
