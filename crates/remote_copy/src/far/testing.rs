//! A server that is hostile or old, for the tests of what follows a copy.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use waystage_transport::control::{Control, RESUME_ADVICE};
use waystage_transport::control_messages::{expect, kinds};
use waystage_transport::handshake::accept::accept;
use waystage_transport::handshake::hello::Welcome;
use waystage_transport::identity::Identity;
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::tls;

use waystage_transport::handshake::client::Peer;

use crate::tree_messages::{TreeAnswer, TreeRequest};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server that gives prepared answers in turn, without regard to the requests, and reports these.
pub(crate) fn hostile(
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
            let request = TreeRequest::read(&request).unwrap();
            tell.send(request).unwrap();
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
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("waystage-{name}-{}", std::process::id()));
        std::fs::create_dir_all(place.join("inside")).unwrap();
        std::fs::write(place.join("outside"), "stays").unwrap();
        std::fs::write(place.join("inside/file"), "stays").unwrap();
        Self(place)
    }

    pub(crate) fn inside(&self) -> PathBuf {
        self.0.join("inside")
    }

    pub(crate) fn holds_all(&self) -> bool {
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
