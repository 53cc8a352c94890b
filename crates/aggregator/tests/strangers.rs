//! The running process against strangers: wrong tokens, other versions, noise, floods, silence.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use waystage_aggregator::options::Options;
use waystage_aggregator::Aggregator;
use waystage_collective_wire::frame::{framed, Frames, MOST_BODY_BYTES};
use waystage_collective_wire::local::{ToNode, ToRank};
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::{FileId, Status, VERSION};

/// Longer than any step takes on an overloaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Site {
    folder: PathBuf,
    process: Aggregator,
}

fn options(folder: &Path) -> Options {
    Options {
        socket: folder.join("socket"),
        listen: "127.0.0.1:0".into(),
        name: "n0".into(),
        token: "right".into(),
        app: "app".into(),
        memory: 4 << 20,
        lease: Duration::from_secs(30),
        storage_timeout: Duration::from_secs(60),
        linger: None,
        parent: None,
        delay: Duration::ZERO,
        delay_file: None,
    }
}

fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("waystage-aggregator-{name}-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

impl Site {
    fn new(name: &str) -> Self {
        let folder = folder(name);
        let process = Aggregator::start(options(&folder)).unwrap();
        Self { folder, process }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.join("socket")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn tcp(&self) -> TcpStream {
        let place = self.process.address().split_once('@').unwrap().1;
        let stream = TcpStream::connect(place).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A rank that was admitted.
    fn rank(&self) -> UnixStream {
        let mut stream = self.connect();
        say(
            &mut stream,
            &ToNode::Hello { version: VERSION, token: "right".into(), app: String::new() },
        );
        assert!(matches!(hear(&mut stream), Some(ToRank::Welcome { pool_bytes: 4_194_304, .. })));
        stream
    }

    /// It serves a rank as if nothing had happened.
    fn is_well(&self) {
        let path = self.folder.join("file");
        let (file, mut rank) = (FileId([1; 16]), self.rank());
        say(&mut rank, &attach(file, &path, 12));
        let answer = hear(&mut rank);
        assert!(matches!(answer, Some(ToRank::Attached { status: Status::Ok, .. })), "{answer:?}");
        say(&mut rank, &ToNode::Close { file });
        assert!(matches!(hear(&mut rank), Some(ToRank::Closed { status: Status::Ok, .. })));
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.process.cancel();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn attach(file: FileId, path: &Path, flags: u32) -> ToNode {
    ToNode::Attach {
        file,
        path: path.to_str().unwrap().as_bytes().to_vec(),
        flags,
        rank: 0,
        size: 1,
        local_ranks: 1,
        node: 0,
        root: 0,
        addresses: vec!["n0@127.0.0.1:1".into()],
        hints: Vec::new(),
    }
}

fn say(stream: &mut UnixStream, message: &ToNode) {
    stream.write_all(&framed(&message.encode())).unwrap();
}

/// The next message; None where the connection has ended.
/// The next message but those that say that the process is alive.
fn hear(stream: &mut UnixStream) -> Option<ToRank> {
    let (mut frames, mut byte) = (Frames::default(), [0]);
    loop {
        if let Some(body) = frames.next_body(MOST_BODY_BYTES).unwrap() {
            match ToRank::decode(&body).unwrap() {
                ToRank::Alive {} => continue,
                message => return Some(message),
            }
        }
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return None;
        }
        frames.push(&byte);
    }
}

/// The connection has ended; what it said before does not matter.
fn is_cut(mut stream: impl Read) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_wrong_token_and_another_version_are_refused_with_a_sentence() {
    let site = Site::new("refusals");
    for (version, token, expected) in [
        (VERSION, "wrong", Status::Refused),
        (VERSION, "", Status::Refused),
        (VERSION + 1, "right", Status::Version),
    ] {
        let mut stream = site.connect();
        say(&mut stream, &ToNode::Hello { version, token: token.into(), app: String::new() });
        let Some(ToRank::Refused { status, message }) = hear(&mut stream) else { panic!() };
        assert_eq!(status, expected);
        assert!(!message.is_empty() && !message.contains("right"));
        assert!(hear(&mut stream).is_none());
    }
    site.is_well();
}

#[test]
fn noise_and_messages_out_of_order_end_only_their_own_connection() {
    let site = Site::new("noise");
    for noise in [
        vec![0xff; 64],
        vec![0; 64],
        framed(&[200; 40]),
        framed(&ToNode::Close { file: FileId([0; 16]) }.encode()),
    ] {
        let mut stream = site.connect();
        stream.write_all(&noise).unwrap();
        assert!(is_cut(stream));
    }
    let path = site.folder.join("x");
    let file = FileId([9; 16]);
    let wrong = [
        vec![ToNode::Packed { request: 7, list_bytes: 9, upto: 3, next: 0 }],
        vec![ToNode::Unpacked { request: 7 }],
        vec![ToNode::SetView { file, view: 0, encoded: vec![1, 2, 3] }],
        vec![attach(file, &path, 12), ToNode::Adopt { file, map: vec![0; 9] }],
        vec![attach(file, &path, 12), ToNode::SetView { file, view: 0, encoded: vec![255; 500] }],
        vec![ToNode::Hello { version: VERSION, token: "right".into(), app: String::new() }],
    ];
    for messages in wrong {
        let mut stream = site.rank();
        for message in &messages {
            say(&mut stream, message);
        }
        assert!(is_cut(stream), "{messages:?}");
    }
    site.is_well();
}

#[test]
fn a_rank_cannot_change_the_size_of_the_memory_that_it_shares() {
    use rustix::fs::{fcntl_get_seals, ftruncate, SealFlags};
    use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    let site = Site::new("seals");
    let mut stream = site.connect();
    say(
        &mut stream,
        &ToNode::Hello { version: VERSION, token: "right".into(), app: String::new() },
    );
    let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut bytes = [0; 512];
    let mut data = [std::io::IoSliceMut::new(&mut bytes)];
    recvmsg(&stream, &mut data, &mut control, RecvFlags::empty()).unwrap();
    let Some(RecvAncillaryMessage::ScmRights(mut fds)) = control.drain().next() else { panic!() };
    let pool = fds.next().unwrap();
    assert!(fcntl_get_seals(&pool)
        .unwrap()
        .contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    assert!(ftruncate(&pool, 0).is_err());
    site.is_well();
}

#[test]
fn a_flood_of_connections_and_a_rank_that_reads_nothing_do_no_harm() {
    let site = Site::new("flood");
    let silent: Vec<UnixStream> = (0..200).map(|_| site.connect()).collect();
    let nodes: Vec<TcpStream> = (0..100).map(|_| site.tcp()).collect();
    let mut deaf = site.rank();
    let path = site.folder.join("y");
    deaf.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let request = framed(&attach(FileId([3; 16]), &path, 12).encode());
    // It is cut off, or its own writes stop: either way the others are served.
    for _ in 0..20_000 {
        if deaf.write_all(&request).is_err() {
            break;
        }
    }
    site.is_well();
    drop((silent, nodes));
}

#[test]
fn a_node_without_the_token_is_not_admitted() {
    let site = Site::new("nodes");
    let mut stream = site.tcp();
    stream
        .write_all(&framed(
            &Peer::Hello { version: VERSION, nonce: [1; 32], address: "x@h:1".into() }.encode(),
        ))
        .unwrap();
    let mut head = [0; 4];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; u32::from_le_bytes(head) as usize];
    stream.read_exact(&mut body).unwrap();
    assert!(matches!(Peer::decode(&body), Ok(Peer::Challenge { .. })));
    stream.write_all(&framed(&Peer::Proof { proof: [0; 32] }.encode())).unwrap();
    assert!(is_cut(stream));
    let mut eager = site.tcp();
    eager.write_all(&framed(&Peer::Detach { file: FileId([0; 16]) }.encode())).unwrap();
    assert!(is_cut(eager));
    site.is_well();
}

#[test]
fn what_cannot_be_opened_is_an_error_with_a_sentence() {
    let site = Site::new("opens");
    let (mut rank, file) = (site.rank(), FileId([2; 16]));
    let place = site.folder.join("missing/deep");
    std::fs::create_dir(site.folder.join("directory")).unwrap();
    for (path, flags, expected) in [
        (place, 12, Status::NoSuchFile),
        (site.folder.join("none"), 4, Status::NoSuchFile),
        (site.folder.join("directory"), 4, Status::BadFile),
        ("/dev/null".into(), 4, Status::BadFile),
    ] {
        say(&mut rank, &attach(file, &path, flags));
        let Some(ToRank::Attached { status, message, .. }) = hear(&mut rank) else { panic!() };
        assert_eq!(status, expected, "{}", path.display());
        assert!(message.contains(path.to_str().unwrap()));
    }
    site.is_well();
}

/// Whether the successor of a process that was killed has its port.
fn has_its_port(folder: &Path) -> bool {
    let first = Aggregator::start(options(folder)).unwrap();
    let address = first.address().to_owned();
    // What a killed process leaves behind.
    let port = std::fs::read(folder.join("socket.port")).unwrap();
    drop(first);
    std::fs::write(folder.join("socket.port"), port).unwrap();
    let second = Aggregator::start(options(folder)).unwrap();
    second.address() == address
}

#[test]
fn a_directory_that_others_may_enter_is_refused_and_a_successor_takes_the_port() {
    let folder = folder("successor");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = Aggregator::start(options(&folder)).err().unwrap().to_string();
    assert!(refused.contains("0700"), "{refused}");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    let first = Aggregator::start(options(&folder)).unwrap();
    let twice = Aggregator::start(options(&folder)).err().unwrap().to_string();
    assert!(twice.contains("already"), "{twice}");
    drop(first);
    // Another program may have got the port in between: not each time.
    assert!((0..10).any(|_| has_its_port(&folder)));
    std::fs::remove_dir_all(folder).unwrap();
}
