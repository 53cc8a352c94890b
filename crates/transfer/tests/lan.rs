//! The mover over loopback: what arrives, what is refused, and what is left after every kind of end.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests are tests, which clippy does not see here"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use waystage_transfer::lan::wire::{Frame, HEADER_BYTES};
use waystage_transfer::lan::{
    ErrorKind, FilePair, Module, Moved, Request, Server, Step, Transfer, TransferError, Way,
};

/// Two hosts' storage: `here` is the client's, `there` the server's with its two modules.
struct Place {
    root: PathBuf,
}

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("waystage-lan-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        for folder in ["here", "there/data", "there/jobs"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn server(&self) -> Server {
        let module = |name: &str, writable| Module {
            name: name.into(),
            root: self.root.join("there").join(name),
            writable,
        };
        let any_port = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        Server::start(None, any_port, vec![module("data", false), module("jobs", true)]).unwrap()
    }

    fn files(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn pair(local: PathBuf, remote: impl AsRef<[u8]>) -> FilePair {
    FilePair { local, remote: remote.as_ref().to_vec() }
}

fn start(server: SocketAddrV4, way: Way, files: Vec<FilePair>, times: Option<u64>) -> Transfer {
    let steps = vec![Step { files, times }];
    Transfer::start(Request { namespace: None, server, way, steps }).unwrap()
}

fn moved(server: &Server, way: Way, files: Vec<FilePair>) -> Result<Moved, TransferError> {
    start(server.address(), way, files, Some(1)).wait(None).unwrap()
}

/// Nothing that repeats within a piece, so that a shifted or doubled piece shows.
fn contents(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ bytes as u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..bytes).map(|_| next()).collect()
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(2));
    }
}

/// `make fuzz` wants more than a moment allows; each is a whole transfer, so that it gets a hundredth of what a parser gets.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .map_or(24, |cases: u32| (cases / 100).max(24))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn any_set_of_files_arrives_whole_both_ways(
        sizes in proptest::collection::vec(prop_oneof![Just(0), 1..5000_usize, 200_000..700_000_usize], 1..6)
    ) {
        let place = Place::new();
        let server = place.server();
        let mut out = Vec::new();
        let mut back = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            let name = format!("{number} \u{fc}.bin");
            fs::write(place.path("here").join(&name), contents(*size)).unwrap();
            out.push(pair(place.path("here").join(&name), format!("jobs/{name}")));
            back.push(pair(place.path("here").join(format!("{name}.back")), format!("jobs/{name}")));
        }
        let total: usize = sizes.iter().sum();
        prop_assert_eq!(moved(&server, Way::Put, out).unwrap().bytes, total as u64);
        prop_assert_eq!(moved(&server, Way::Get, back.clone()).unwrap().bytes, total as u64);
        for (FilePair { local, .. }, size) in back.iter().zip(sizes) {
            prop_assert!(fs::read(local).unwrap() == contents(size));
        }
        prop_assert_eq!(place.files("there/jobs").len() * 2, place.files("here").len());
    }

    #[test]
    fn a_server_outlives_whatever_is_sent_to_it(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let place = Place::new();
        fs::write(place.path("there/data/x"), b"here").unwrap();
        let server = place.server();
        let mut stranger = TcpStream::connect(server.address()).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stranger.write_all(&bytes).unwrap();
        stranger.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stranger.read_to_end(&mut answer).unwrap();
        prop_assert!(answer.len() < 700);
        prop_assert!(moved(&server, Way::Get, vec![pair(place.path("here/x"), "data/x")]).is_ok());
        prop_assert!(place.files("there/jobs").is_empty());
    }
}

#[test]
fn names_are_bytes() {
    let place = Place::new();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe new\nline");
    fs::write(place.path("there/data").join(odd), b"odd").unwrap();
    let server = place.server();
    let mut remote = b"data/".to_vec();
    remote.extend_from_slice(odd.as_bytes());
    moved(&server, Way::Get, vec![pair(place.path("here").join(odd), remote)]).unwrap();
    assert_eq!(fs::read(place.path("here").join(odd)).unwrap(), b"odd");
}

#[test]
fn what_the_server_does_not_allow_is_refused_with_the_reason() {
    let place = Place::new();
    fs::write(place.path("secret"), b"x").unwrap();
    fs::write(place.path("here/mine"), b"x").unwrap();
    std::os::unix::fs::symlink("../../secret", place.path("there/data/link")).unwrap();
    fs::create_dir(place.path("there/data/folder")).unwrap();
    let server = place.server();
    let get = |name: &str| {
        moved(&server, Way::Get, vec![pair(place.path("here/got"), name)]).unwrap_err()
    };
    assert_eq!(get("data/absent").kind, ErrorKind::Missing);
    assert_eq!(get("data/link").kind, ErrorKind::Refused);
    assert_eq!(get("data/folder").kind, ErrorKind::Refused);
    let error = get("etc/passwd");
    assert!(error.text.contains("etc/passwd: no such module: there are data, jobs"), "{error}");
    let put = |name: &str| {
        moved(&server, Way::Put, vec![pair(place.path("here/mine"), name)]).unwrap_err()
    };
    assert!(put("data/new").text.contains("module data may only be read"));
    assert_eq!(put("jobs/no-such-folder/new").kind, ErrorKind::Missing);
    assert_eq!(place.files("here"), ["mine"]);
    assert_eq!(place.files("there/data"), ["folder", "link"]);
}

#[test]
fn a_client_that_does_not_check_its_names_gets_nowhere() {
    let place = Place::new();
    fs::write(place.path("secret"), b"x").unwrap();
    let server = place.server();
    for name in ["data/../../secret", "/etc/passwd", "data/./../../secret", "data//secret"] {
        let mut bytes = Vec::new();
        Frame::Hello { way: Way::Get, files: 1 }.encode(&mut bytes);
        Frame::Ask { name: name.into() }.encode(&mut bytes);
        let mut client = TcpStream::connect(server.address()).unwrap();
        client.write_all(&bytes).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        let frame = Frame::decode(answer[0], &answer[HEADER_BYTES..]).unwrap();
        assert!(matches!(frame, Frame::Refused { kind: ErrorKind::Protocol, .. }), "{frame:?}");
    }
}

/// Passes everything on, but for one bit of what the server sends, `at` bytes on.
fn damaging_proxy(server: SocketAddrV4, way: Way, at: usize) -> SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        let copies = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (clean, damaged) = match way {
            Way::Get => ((client, server), (copies.1, copies.0)),
            Way::Put => ((server, client), copies),
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
fn damage_on_the_way_is_noticed_and_nothing_damaged_stays() {
    const SIZE: usize = 300_000;
    // In the first byte of the contents, in the last, and in the digest itself.
    let before = HEADER_BYTES + 8 + "data/x".len();
    for (way, ahead) in [(Way::Get, 0), (Way::Put, HEADER_BYTES + 11)] {
        for at in [before, before + SIZE - 1, before + SIZE + HEADER_BYTES] {
            let place = Place::new();
            fs::write(place.path("there/data/x"), contents(SIZE)).unwrap();
            fs::write(place.path("here/y"), contents(SIZE)).unwrap();
            let server = place.server();
            let proxy = damaging_proxy(server.address(), way, ahead + at);
            let file = match way {
                Way::Get => pair(place.path("here/x"), "data/x"),
                Way::Put => pair(place.path("here/y"), "jobs/y"),
            };
            let error = start(proxy, way, vec![file], Some(1)).wait(None).unwrap().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Damaged, "{way:?} {at}: {error}");
            assert_eq!(place.files("here"), ["y"]);
            assert!(place.files("there/jobs").is_empty());
        }
    }
}

/// A server that reads a request, begins its answer, and then says nothing more.
fn silent_server(answer: Vec<u8>) -> (SocketAddrV4, thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(&answer).unwrap();
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest); // until the client has gone
    });
    (SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), serving)
}

#[test]
fn a_cancelled_get_ends_at_once_and_leaves_no_part() {
    let place = Place::new();
    let mut answer = Vec::new();
    Frame::File { name: b"data/x".to_vec(), size: 1_000_000 }.encode(&mut answer);
    answer.extend_from_slice(&contents(400_000));
    let (server, serving) = silent_server(answer);
    let transfer = start(server, Way::Get, vec![pair(place.path("here/x"), "data/x")], Some(1));
    wait_until(|| place.files("here").len() == 1);
    assert!(transfer.wait(Some(Duration::from_millis(50))).is_none());
    let began = Instant::now();
    transfer.cancel();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(place.files("here").is_empty());
    assert_eq!(transfer.wait(None).unwrap().unwrap_err().kind, ErrorKind::Cancelled);
    serving.join().unwrap();
}

#[test]
fn a_transfer_that_is_dropped_is_cancelled() {
    let place = Place::new();
    let mut answer = Vec::new();
    Frame::File { name: b"data/x".to_vec(), size: 10 }.encode(&mut answer);
    let (server, serving) = silent_server(answer);
    drop(start(server, Way::Get, vec![pair(place.path("here/x"), "data/x")], Some(1)));
    // The listener may have seen no connection at all; one of its own lets it end.
    let _ = TcpStream::connect(server);
    serving.join().unwrap();
    assert!(place.files("here").is_empty());
}

#[test]
fn a_put_without_end_goes_round_until_it_is_cancelled_and_its_part_is_removed() {
    let place = Place::new();
    fs::write(place.path("here/piece"), contents(3_000_000)).unwrap();
    let server = place.server();
    let files = vec![pair(place.path("here/piece"), "jobs/piece")];
    let transfer = start(server.address(), Way::Put, files, None);
    wait_until(|| transfer.bytes() >= 6_000_000);
    transfer.cancel();
    assert_eq!(transfer.wait(None).unwrap().unwrap_err().kind, ErrorKind::Cancelled);
    wait_until(|| place.files("there/jobs") == ["piece"]);
    assert!(fs::read(place.path("there/jobs/piece")).unwrap() == contents(3_000_000));
}

#[test]
fn a_server_that_stops_ends_its_transfers_and_removes_their_parts() {
    let place = Place::new();
    fs::write(place.path("here/piece"), contents(3_000_000)).unwrap();
    let mut server = place.server();
    let address = server.address();
    let files = vec![pair(place.path("here/piece"), "jobs/piece")];
    let transfer = start(address, Way::Put, files.clone(), None);
    wait_until(|| transfer.bytes() > 0);
    assert_eq!(server.failure(), None);
    server.stop();
    let error = transfer.wait(None).unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Ended, "{error}");
    assert!(error.text.contains(&address.to_string()), "{error}");
    assert_eq!(place.files("there/jobs"), ["piece"]);
    assert!(server.failure().is_some());
    let error = start(address, Way::Put, files, Some(1)).wait(None).unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
}

#[test]
fn a_port_in_use_is_told() {
    let place = Place::new();
    let first = place.server();
    let error = Server::start(None, first.address(), Vec::new()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::PortInUse, "{error}");
    assert!(error.text.contains(&first.address().to_string()), "{error}");
}

#[test]
fn a_full_disk_is_told_before_the_network_is_used() {
    let place = Place::new();
    // Sparse: no disk holds this, and none need.
    let huge = fs::File::create(place.path("here/huge")).unwrap();
    huge.set_len(1 << 43).unwrap();
    let server = place.server();
    let error =
        moved(&server, Way::Put, vec![pair(place.path("here/huge"), "jobs/huge")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
    assert!(place.files("there/jobs").is_empty());
}

#[test]
fn a_request_without_sense_is_refused_before_anything_happens() {
    let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
    for files in [vec![], vec![pair(Path::new("x").into(), "data/../x")]] {
        let steps = vec![Step { files, times: Some(1) }];
        let request = Request { namespace: None, server, way: Way::Get, steps };
        assert_eq!(Transfer::start(request).err().unwrap().kind, ErrorKind::Refused);
    }
}
