//! Requests, and servers that are hostile or old.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use waystage_transport::control::{Control, RESUME_ADVICE};
use waystage_transport::control_messages::{expect, kinds};
use waystage_transport::handshake::accept::accept;
use waystage_transport::handshake::hello::Welcome;
use waystage_transport::handshake::version::SPOKEN;
use waystage_transport::identity::Identity;
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::tls;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that gives the same answers whatever it is asked, in turn, and tells the requests that it got.
fn hostile(
    version: u32,
    answers: Vec<TreeAnswer>,
) -> (Peer, Receiver<TreeRequest>, JoinHandle<()>) {
    let (server, client) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let peer = Peer {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port(),
        user: String::new(),
        identity: client,
        trusted: Some(server.public.clone()),
        mode: "fair".parse().unwrap(),
        rate_bytes_per_s: None,
        udp_wait: None,
    };
    let (tell, asked) = channel();
    let serve = move || {
        let (stream, _) = listener.accept().unwrap();
        let (tls, _) = accept(&tls::server(&server).unwrap(), &stream, PATIENCE).unwrap();
        let incoming = Arc::new(MessageQueue::default());
        let control = Control::start(tls, stream, incoming, RESUME_ADVICE).unwrap();
        expect(&control, kinds::HELLO).unwrap();
        let welcome = Welcome {
            version,
            mode: "fair".parse().unwrap(),
            note: String::new(),
            rate: u64::MAX,
            memory: 1 << 20,
            udp: false,
            connections: 1,
        };
        control.send(kinds::WELCOME, &welcome.encode());
        for answer in answers {
            let Ok(request) = expect(&control, kinds::TREE) else { break };
            tell.send(TreeRequest::read(&request).unwrap()).unwrap();
            control.send(kinds::TREE, &answer.encode(true));
            if expect(&control, kinds::LISTED).is_err() {
                break;
            }
        }
        control.abort();
    };
    (peer, asked, std::thread::spawn(serve))
}

/// A folder with a file `outside` and a directory `inside` with a file, removed in the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("waystage-{name}-{}", std::process::id()));
        std::fs::create_dir_all(place.join("inside")).unwrap();
        std::fs::write(place.join("outside"), "stays").unwrap();
        std::fs::write(place.join("inside/file"), "stays").unwrap();
        Self(place)
    }

    fn inside(&self) -> PathBuf {
        self.0.join("inside")
    }

    fn holds_all(&self) -> bool {
        let names = |path: &Path| std::fs::read_dir(path).unwrap().count();
        self.0.join("outside").exists()
            && self.inside().join("file").exists()
            && (names(&self.0), names(&self.inside())) == (2, 1)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn all() -> Deletion {
    Deletion { shown: "there".into(), most: None, workers: 1, dry_run: false, log: false }
}

fn ended(peer: Peer, ends: Ends) -> Result<(), CopyError> {
    let delete = delete(peer, ends, Chosen::default(), false, all()).unwrap();
    delete.wait(PATIENCE).expect("it ends")
}

#[test]
fn a_walk_that_leads_out_of_its_directory_ends_the_deletion() {
    let place = Place::new("far-walk");
    let lying = ["../outside", "/etc/passwd", "..", ".", "", "a/../../outside", "a//b", "a/"];
    for name in lying {
        let entry =
            |name: &str| TreeEntry { letter: b'f', name: name.into(), ..TreeEntry::default() };
        let entries = vec![entry("honest"), entry(name)];
        let walk = TreeAnswer { entries, ..TreeAnswer::default() };
        // A deletion that believed it would get these.
        let gone = TreeAnswer { data: vec![DELETED; 2], ..TreeAnswer::default() };
        let (peer, asked, server) = hostile(SPOKEN[0], vec![walk, gone]);
        let ends = Ends::Push { local: place.inside(), remote: b"there".to_vec() };
        let error = ended(peer, ends).expect_err(name);
        assert!(error.to_string().contains("protocol"), "{name}: {error}");
        server.join().unwrap();
        let asked: Vec<TreeRequest> = asked.into_iter().collect();
        assert!(matches!(&asked[..], [TreeRequest::Walk(..)]), "{name}: {asked:?}");
        assert!(place.holds_all(), "{name}");
    }
}

#[test]
fn a_source_that_answers_what_was_not_asked_deletes_nothing() {
    let place = Place::new("far-lacks");
    for data in [vec![], vec![LACKED; 2], vec![DELETED], vec![FAILED], vec![255]] {
        let answer = TreeAnswer { data: data.clone(), ..TreeAnswer::default() };
        let (peer, _asked, server) = hostile(SPOKEN[0], vec![answer.clone(), answer]);
        let ends = Ends::Pull { remote: b"there".to_vec(), local: place.inside() };
        assert!(ended(peer, ends).is_err(), "{data:?}");
        server.join().unwrap();
        assert!(place.holds_all(), "{data:?}");
    }
}

#[test]
fn a_source_that_lacks_all_deletes_nothing_behind_a_link() {
    let place = Place::new("far-link");
    std::os::unix::fs::symlink("..", place.inside().join("up")).unwrap();
    let lacked = TreeAnswer { data: vec![LACKED; 2], ..TreeAnswer::default() };
    let (peer, asked, server) = hostile(SPOKEN[0], vec![lacked.clone(), lacked]);
    ended(peer, Ends::Pull { remote: b"there".to_vec(), local: place.inside() }).unwrap();
    server.join().unwrap();
    assert_eq!(asked.into_iter().count(), 2, "once more right before");
    assert!(place.0.join("outside").exists());
    assert_eq!(std::fs::read_dir(place.inside()).unwrap().count(), 0);
}

#[test]
fn an_older_server_is_named_as_the_reason() {
    let place = Place::new("far-old");
    for ends in [
        Ends::Push { local: place.inside(), remote: b"there".to_vec() },
        Ends::Pull { remote: b"there".to_vec(), local: place.inside() },
    ] {
        let (peer, _asked, server) = hostile(4, vec![TreeAnswer::default()]);
        let error = ended(peer, ends).unwrap_err().to_string();
        assert!(error.contains("version 4") && error.contains("nothing was deleted"), "{error}");
        assert!(error.contains("bring the Waystage of the server up to date"), "{error}");
        server.join().unwrap();
        assert!(place.holds_all());
    }
}

#[test]
fn requests_hold_all_in_order_and_few_bytes_each() {
    let long = vec![vec![b'x'; 60 << 10]; 11];
    let groups = requests(&long, |path| path);
    assert_eq!(groups.iter().map(|group| group.len()).sum::<usize>(), 11);
    assert!(groups.iter().all(|group| group.len() <= 5));
    let many: Vec<Vec<u8>> = (0..10_000).map(|n: u32| n.to_string().into_bytes()).collect();
    let groups = requests(&many, |path| path);
    assert_eq!(groups.concat(), many);
    assert!(groups.len() >= 3 && requests::<Vec<u8>>(&[], |path| path).is_empty());
}
