//! Transfers over loopback: what arrives, what is refused, and what is left after every kind of end.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests are tests, which clippy does not see here"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use waystage_staging::{
    Direction, Module, Request, Server, Staged, StagingError, StagingRequest, Step, Transfer,
};

/// Two hosts' storage: `here` is the client's, `there` the server's with its two modules.
struct Place {
    root: PathBuf,
}

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("waystage-staging-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        for folder in ["here", "there/data", "there/jobs"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.path(name).as_os_str().as_bytes().to_vec()
    }

    fn server(&self) -> Server {
        let module = |name: &str, writable| Module { name: name.into(), writable };
        let any_port = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let modules = vec![module("data", false), module("jobs", true)];
        Server::start(None, any_port, &self.path("there"), modules).unwrap()
    }

    fn files(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with(".waystage-copy"))
            .collect();
        names.sort();
        names
    }

    fn get(&self, sources: &[&str]) -> Step {
        let sources = sources.iter().map(|name| name.as_bytes().to_vec()).collect();
        Step { sources, directory: self.bytes("here"), times: Some(1) }
    }

    fn put(&self, sources: &[&str], directory: &str) -> Step {
        let sources = sources.iter().map(|name| self.bytes(name)).collect();
        Step { sources, directory: directory.into(), times: Some(1) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn start(server: SocketAddrV4, direction: Direction, step: Step) -> Transfer {
    Transfer::start(Request { namespace: None, server, direction, steps: vec![step] }).unwrap()
}

fn staged(server: &Server, direction: Direction, step: Step) -> Result<Staged, StagingError> {
    start(server.address(), direction, step).wait(None).unwrap()
}

/// Nothing that repeats within a piece, so that a shifted or doubled piece shows.
fn contents(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ bytes as u64;
    let mut all = Vec::with_capacity(bytes + 8);
    while all.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.extend_from_slice(&state.to_le_bytes());
    }
    all.truncate(bytes);
    all
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(2));
    }
}

/// `make fuzz` wants more than a moment allows; each is a complete transfer, so that it gets a hundredth of a parser's.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .map_or(24, |cases: u32| (cases / 100).max(24))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn any_set_of_files_arrives_complete_both_ways(
        sizes in proptest::collection::vec(
            prop_oneof![Just(0), 1..5000_usize, 200_000..700_000_usize, 4_300_000..4_500_000_usize],
            1..6,
        )
    ) {
        let place = Place::new();
        let server = place.server();
        let names: Vec<String> = (0..sizes.len()).map(|number| format!("{number} \u{fc}.bin")).collect();
        for (name, size) in names.iter().zip(&sizes) {
            fs::write(place.path("there/data").join(name), contents(*size)).unwrap();
        }
        let total = sizes.iter().sum::<usize>() as u64;
        let there: Vec<String> = names.iter().map(|name| format!("data/{name}")).collect();
        let there: Vec<&str> = there.iter().map(String::as_str).collect();
        prop_assert_eq!(staged(&server, Direction::Get, place.get(&there)).unwrap().bytes, total);
        let here: Vec<String> = names.iter().map(|name| format!("here/{name}")).collect();
        let here: Vec<&str> = here.iter().map(String::as_str).collect();
        let put = place.put(&here, "jobs");
        prop_assert_eq!(staged(&server, Direction::Put, put).unwrap().bytes, total);
        for (name, size) in names.iter().zip(&sizes) {
            prop_assert!(fs::read(place.path("there/jobs").join(name)).unwrap() == contents(*size));
        }
        prop_assert_eq!(fs::read_dir(place.path("there/jobs")).unwrap().count(), sizes.len());
    }

    #[test]
    fn a_server_outlives_every_message(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let place = Place::new();
        fs::write(place.path("there/data/x"), b"here").unwrap();
        let server = place.server();
        let mut stranger = TcpStream::connect(server.address()).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stranger.write_all(&bytes).unwrap();
        stranger.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stranger.read_to_end(&mut answer).unwrap();
        prop_assert!(answer.len() < 1500);
        prop_assert!(staged(&server, Direction::Get, place.get(&["data/x"])).is_ok());
        prop_assert!(place.files("there/jobs").is_empty());
    }
}

#[test]
fn names_are_bytes() {
    let place = Place::new();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe new\nline");
    fs::write(place.path("there/data").join(odd), b"odd").unwrap();
    let server = place.server();
    let mut step = place.get(&[]);
    step.sources = vec![[b"data/", odd.as_bytes()].concat()];
    staged(&server, Direction::Get, step).unwrap();
    assert_eq!(fs::read(place.path("here").join(odd)).unwrap(), b"odd");
}

#[test]
fn what_the_server_does_not_allow_is_refused_with_the_reason() {
    let place = Place::new();
    fs::write(place.path("secret"), b"x").unwrap();
    fs::write(place.path("here/mine"), b"x").unwrap();
    std::os::unix::fs::symlink("../../secret", place.path("there/data/link")).unwrap();
    std::os::unix::fs::symlink("../../here", place.path("there/jobs/out")).unwrap();
    fs::create_dir(place.path("there/data/folder")).unwrap();
    let server = place.server();
    let get = |name: &str| staged(&server, Direction::Get, place.get(&[name])).unwrap_err();
    assert_eq!(get("data/absent").kind(), "missing");
    assert_eq!(get("data/link").kind(), "refused");
    assert_eq!(get("data/folder").kind(), "refused");
    let error = get("etc/passwd");
    assert!(
        error.to_string().contains("etc/passwd: no such module: there are data, jobs"),
        "{error}"
    );
    let put =
        |name: &str| staged(&server, Direction::Put, place.put(&["here/mine"], name)).unwrap_err();
    assert!(put("data").to_string().contains("module data may only be read"));
    assert_eq!(put("jobs/no-such-folder").kind(), "missing");
    assert_eq!(put("jobs/out").kind(), "refused");
    assert_eq!(place.files("here"), ["mine"]);
    assert_eq!(place.files("there/data"), ["folder", "link"]);
}

#[test]
fn a_file_that_does_not_fit_is_refused_before_it_is_sent() {
    let place = Place::new();
    let server = place.server();
    // The receiving end's room, or the largest file, is in the request: no file system has to be full.
    let ask = |request: StagingRequest| {
        let body = request.encode();
        let mut client = TcpStream::connect(server.address()).unwrap();
        client.write_all(&u32::try_from(body.len()).unwrap().to_le_bytes()).unwrap();
        client.write_all(&[1]).unwrap();
        client.write_all(&body).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        (answer.len(), String::from_utf8_lossy(&answer).into_owned())
    };
    fs::write(place.path("there/data/x"), contents(300_000)).unwrap();
    let names = waystage_copy::Names::parse(b"data/x\0", true).unwrap();
    let (bytes, answer) = ask(StagingRequest::Get { names, room: 200_000 });
    assert!(answer.contains("no-space") && answer.contains("no space left"), "{answer}");
    assert!(bytes < 1000, "nothing of the file was sent");
    let put = StagingRequest::Put { directory: b"jobs".to_vec(), largest: u64::MAX };
    assert!(ask(put).1.contains("no space left"));
    assert_eq!(place.files("there/jobs"), [""; 0]);
    // A sparse file fits where its size does not.
    let sparse = fs::File::create(place.path("here/sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let step = place.put(&["here/sparse"], "jobs");
    let transfer = start(server.address(), Direction::Put, step);
    let refused = transfer.wait(Some(Duration::from_millis(300)));
    assert!(refused.is_none_or(|ended| ended.is_ok()), "it was refused");
}

#[test]
fn a_client_that_does_not_check_its_names_gets_nowhere() {
    let place = Place::new();
    fs::write(place.path("secret"), b"x").unwrap();
    let server = place.server();
    for name in ["data/../../secret", "/etc/passwd", "jobs/./../../secret", ".."] {
        let body = StagingRequest::Put { directory: name.into(), largest: 0 }.encode();
        let mut client = TcpStream::connect(server.address()).unwrap();
        client.write_all(&u32::try_from(body.len()).unwrap().to_le_bytes()).unwrap();
        client.write_all(&[1]).unwrap();
        client.write_all(&body).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("broke the protocol"), "{name}");
    }
}

/// Passes everything on, but for one bit of what the sender sends, `at` bytes on.
fn damaging_proxy(server: SocketAddrV4, direction: Direction, at: usize) -> SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        let copies = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (clean, damaged) = match direction {
            Direction::Get => ((client, server), (copies.1, copies.0)),
            Direction::Put => ((server, client), copies),
        };
        thread::spawn(move || pass_on(clean.0, clean.1, usize::MAX));
        pass_on(damaged.0, damaged.1, at);
    });
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, at: usize) {
    let (mut buffer, mut passed) = ([0; 4096], 0);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if (passed..passed + count).contains(&at) {
            buffer[at - passed] ^= 0x10;
        }
        passed += count;
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn damaged_contents_are_noticed_and_do_not_stay() {
    const SIZE: usize = 300_000;
    for direction in [Direction::Get, Direction::Put] {
        for at in [2_000, SIZE / 2, SIZE - 1] {
            let place = Place::new();
            fs::write(place.path("there/data/x"), contents(SIZE)).unwrap();
            fs::write(place.path("here/y"), contents(SIZE)).unwrap();
            let server = place.server();
            let proxy = damaging_proxy(server.address(), direction, at);
            let step = match direction {
                Direction::Get => place.get(&["data/x"]),
                Direction::Put => place.put(&["here/y"], "jobs"),
            };
            let error = start(proxy, direction, step).wait(None).unwrap().unwrap_err();
            assert_eq!(error.kind(), "file", "{direction:?} {at}: {error}");
            assert_eq!(place.files("here"), ["y"]);
            assert!(place.files("there/jobs").is_empty());
        }
    }
}

/// A server that reads a request and never answers.
fn silent_server() -> (SocketAddrV4, thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest); // until the client has gone
    });
    (SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), serving)
}

#[test]
fn a_cancelled_transfer_ends_at_once() {
    let place = Place::new();
    fs::write(place.path("here/y"), contents(3_000_000)).unwrap();
    for direction in [Direction::Get, Direction::Put] {
        let (server, serving) = silent_server();
        let step = match direction {
            Direction::Get => place.get(&["data/x"]),
            Direction::Put => place.put(&["here/y"], "jobs"),
        };
        let transfer = start(server, direction, step);
        assert!(transfer.wait(Some(Duration::from_millis(50))).is_none());
        let began = Instant::now();
        transfer.cancel();
        assert!(began.elapsed() < Duration::from_secs(60));
        assert_eq!(transfer.wait(None).unwrap().unwrap_err().kind(), "cancelled");
        serving.join().unwrap();
    }
    assert_eq!(place.files("here"), ["y"]);
}

#[test]
fn a_transfer_that_is_still_connecting_is_cancelled_at_once() {
    let place = Place::new();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let SocketAddr::V4(server) = listener.local_addr().unwrap() else { unreachable!() };
    // Its queue is full: the kernel answers no more.
    let waiting: Vec<_> = std::iter::from_fn(|| {
        TcpStream::connect_timeout(&server.into(), Duration::from_millis(300)).ok()
    })
    .take(100)
    .collect();
    assert!(waiting.len() < 100);
    let transfer = start(server, Direction::Get, place.get(&["data/x"]));
    assert!(transfer.wait(Some(Duration::from_millis(50))).is_none());
    let began = Instant::now();
    transfer.cancel();
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(transfer.wait(None).unwrap().unwrap_err().kind(), "cancelled");
}

#[test]
fn a_put_without_end_goes_round_until_it_is_cancelled() {
    let place = Place::new();
    fs::write(place.path("here/piece"), contents(3_000_000)).unwrap();
    let server = place.server();
    let step = Step { times: None, ..place.put(&["here/piece"], "jobs") };
    let transfer = start(server.address(), Direction::Put, step);
    wait_until(|| transfer.bytes() >= 6_000_000);
    transfer.cancel();
    assert_eq!(transfer.wait(None).unwrap().unwrap_err().kind(), "cancelled");
    assert_eq!(place.files("there/jobs"), ["piece"]);
    assert!(fs::read(place.path("there/jobs/piece")).unwrap() == contents(3_000_000));
}

#[test]
fn a_server_that_stops_ends_its_transfers() {
    let place = Place::new();
    fs::write(place.path("here/piece"), contents(3_000_000)).unwrap();
    let server = place.server();
    let address = server.address();
    let step = place.put(&["here/piece"], "jobs");
    let transfer = start(address, Direction::Put, Step { times: None, ..step.clone() });
    wait_until(|| transfer.bytes() >= 6_000_000);
    assert_eq!(server.wait(Duration::ZERO), None);
    server.stop();
    let error = transfer.wait(None).unwrap().unwrap_err();
    assert_eq!(error.kind(), "ended", "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert_eq!(place.files("there/jobs"), ["piece"]);
    assert_eq!(server.wait(Duration::ZERO).unwrap().kind(), "cancelled");
    let error = start(address, Direction::Put, step).wait(None).unwrap().unwrap_err();
    assert_eq!(error.kind(), "unreachable", "{error}");
}

/// Passes on what both say until the client has sent `at` bytes. Then it reads no more of them and closes its half: the
/// connection stays, so that no reset comes either.
fn stopping_proxy(
    server: SocketAddrV4,
    at: usize,
) -> (SocketAddrV4, thread::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || pass_on(back.0, back.1, usize::MAX));
        let (mut buffer, mut passed) = ([0; 4096], 0);
        while passed < at {
            let count = client.read(&mut buffer).unwrap();
            (&server).write_all(&buffer[..count]).unwrap();
            passed += count;
        }
        client.shutdown(Shutdown::Write).unwrap();
        client
    });
    (SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), serving)
}

#[test]
fn a_transfer_ends_with_its_server_also_while_it_waits_for_room_to_send() {
    let place = Place::new();
    // More than the system takes for a peer that does not read.
    fs::write(place.path("here/piece"), contents(48 << 20)).unwrap();
    let server = place.server();
    let (proxy, serving) = stopping_proxy(server.address(), 1 << 20);
    let transfer = start(proxy, Direction::Put, place.put(&["here/piece"], "jobs"));
    let connection = serving.join().unwrap();
    // A transfer in which nothing moves is given up after a minute: that is not meant.
    let ended = transfer.wait(Some(Duration::from_secs(45))).expect("it ends with its server");
    assert_eq!(ended.unwrap_err().kind(), "ended");
    drop(connection);
}

#[test]
fn a_port_in_use_is_reported() {
    let place = Place::new();
    let first = place.server();
    let second = Server::start(None, first.address(), &place.path("there"), Vec::new());
    let error = second.err().unwrap();
    assert_eq!(error.kind(), "port-in-use", "{error}");
    assert!(error.to_string().contains(&first.address().to_string()), "{error}");
}

#[test]
fn a_malformed_request_is_refused_before_anything_happens() {
    let place = Place::new();
    let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
    for sources in [&[][..], &["data/../x"], &["data/a/x", "data/b/x"]] {
        let steps = vec![place.get(sources)];
        let request = Request { namespace: None, server, direction: Direction::Get, steps };
        assert_eq!(Transfer::start(request).err().unwrap().kind(), "refused");
    }
}
