//! Servers that are hostile or old, and a source that changes.

use crate::far::testing::{hostile, Place, PATIENCE};
use crate::wire_parts::put_held;
use waystage_transport::handshake::version::SPOKEN;
use waystage_transport::wire::Writer;

use std::os::fd::AsFd;

use super::*;

fn how() -> Removal {
    Removal { workers: 1, dry_run: false, log: false }
}

/// How it ended, and what stays with its reason.
fn ended(peer: Peer, ends: Ends) -> (Result<(), CopyError>, Vec<String>) {
    let remove = remove(peer, ends, Selected::default(), how()).unwrap();
    let ended = remove.wait(PATIENCE).expect("it ends");
    (ended, remove.problems().into_iter().map(|problem| problem.text).collect())
}

fn data(bytes: Vec<u8>) -> TreeAnswer {
    TreeAnswer { data: bytes, ..TreeAnswer::default() }
}

fn said(held: &Held) -> Vec<u8> {
    let mut out = Writer::default();
    put_held(held, out.u8(STAYED));
    out.0
}

#[test]
fn a_server_that_claims_what_it_cannot_show_gets_nothing_removed() {
    let place = Place::new("far-claims");
    let honest = Held { letter: b'f', size: 5, inode: 1, changed: 2, digest: [0; 32] };
    let other_key = {
        // The digest of the right contents, by a key of an earlier request.
        let folder = std::fs::File::open(place.inside()).unwrap();
        let mut digester = Digester::new([9; 32], End::Source);
        let (held, _) = digester.held(folder.as_fd(), b"file", &|| false).unwrap();
        Held { inode: 1, changed: 2, ..held }
    };
    let cut = said(&honest)[..20].to_vec();
    let twice = [said(&honest), said(&honest)].concat();
    for (answer, breaks) in [
        (said(&honest), false),
        (said(&other_key), false),
        (vec![LACKED], false),
        (vec![FAILED], false),
        (vec![CHANGED], false),
        (vec![], true),
        (vec![DELETED], true),
        (vec![255], true),
        (cut, true),
        (twice, true),
    ] {
        let answers = vec![TreeAnswer::default(), data(answer.clone())];
        let (peer, asked, server) = hostile(SPOKEN[0], answers);
        let ends = Ends::Push { local: place.inside(), remote: b"there".to_vec() };
        let (result, problems) = ended(peer, ends);
        assert_eq!((result.is_err(), problems.len()), (breaks, usize::from(!breaks)), "{answer:?}");
        server.join().unwrap();
        let asked: Vec<TreeRequest> = asked.into_iter().collect();
        assert!(
            matches!(&asked[..], [TreeRequest::Sync(_), TreeRequest::Digests(..)]),
            "{asked:?}"
        );
        assert!(place.holds_all(), "{answer:?}");
    }
}

#[test]
fn a_destination_that_could_not_be_forced_to_storage_keeps_the_source() {
    let place = Place::new("far-sync");
    let problems = vec![(Vec::new(), "Input/output error".to_owned())];
    let (peer, _asked, server) =
        hostile(SPOKEN[0], vec![TreeAnswer { problems, ..TreeAnswer::default() }]);
    let ends = Ends::Push { local: place.inside(), remote: b"there".to_vec() };
    let error = ended(peer, ends).0.unwrap_err().to_string();
    assert!(error.contains("nothing was removed: Input/output error"), "{error}");
    server.join().unwrap();
    assert!(place.holds_all());
}

#[test]
fn a_source_that_names_what_was_not_asked_for_learns_nothing_of_it() {
    let place = Place::new("far-names");
    let there = |letter, name: &str| TreeEntry {
        letter,
        name: name.into(),
        size: 5,
        ..TreeEntry::default()
    };
    let listed = |entry| TreeAnswer { entries: vec![entry], ..TreeAnswer::default() };
    for name in ["../outside", "/etc/passwd", "..", ".", "a/../../outside", "a//b"] {
        let answers =
            vec![listed(there(b'd', ".")), listed(there(b'f', name)), data(vec![DELETED])];
        let (peer, asked, server) = hostile(SPOKEN[0], answers);
        let ends = Ends::Pull { remote: b"there".to_vec(), local: place.inside() };
        assert!(ended(peer, ends).0.unwrap_err().to_string().contains("protocol"), "{name}");
        server.join().unwrap();
        assert_eq!(asked.into_iter().count(), 2, "{name}");
    }
    // What a pattern leaves out, and what a link leads to, is not read.
    std::os::unix::fs::symlink("..", place.inside().join("up")).unwrap();
    let answers =
        [listed(there(b'd', ".")), listed(there(b'f', "file")), listed(there(b'f', "up/outside"))];
    for (exclude, second) in [("file", 1), ("nothing", 2)] {
        let answers = vec![answers[0].clone(), answers[second].clone()];
        let (peer, asked, server) = hostile(SPOKEN[0], answers);
        let ends = Ends::Pull { remote: b"there".to_vec(), local: place.inside() };
        let selected = Selected { exclude: vec![exclude.into()], ..Selected::default() };
        let task = remove(peer, ends, selected, how()).unwrap();
        task.wait(PATIENCE).expect("it ends").unwrap();
        task.stop();
        server.join().unwrap();
        assert_eq!(asked.into_iter().count(), 2, "{exclude}");
        assert_eq!(task.problems().len(), second - 1);
    }
}

#[test]
fn an_older_server_is_named_as_the_reason() {
    let place = Place::new("far-remove-old");
    let directory = TreeAnswer {
        entries: vec![TreeEntry { letter: b'd', name: b".".to_vec(), ..TreeEntry::default() }],
        ..TreeAnswer::default()
    };
    for version in [4, 5] {
        let ends = Ends::Push { local: place.inside(), remote: b"there".to_vec() };
        let (peer, _asked, server) = hostile(version, vec![TreeAnswer::default()]);
        let error = ended(peer, ends).0.unwrap_err().to_string();
        assert!(error.contains(&format!("version {version}")), "{error}");
        assert!(
            error.contains("so nothing was removed") && error.contains("--remove-source"),
            "{error}"
        );
        server.join().unwrap();
    }
    // A walk it would know.
    let ends = Ends::Pull { remote: b"there".to_vec(), local: place.inside() };
    let file = TreeEntry { letter: b'f', name: b"file".to_vec(), size: 5, ..TreeEntry::default() };
    let walk = TreeAnswer { entries: vec![file], ..TreeAnswer::default() };
    let (peer, asked, server) = hostile(5, vec![directory, walk, data(vec![DELETED])]);
    let error = ended(peer, ends).0.unwrap_err().to_string();
    assert!(error.contains("version 5") && error.contains("nothing was removed"), "{error}");
    server.join().unwrap();
    assert!(!asked.into_iter().any(|request| matches!(request, TreeRequest::RemoveHeld(..))));
    assert!(place.holds_all());
}

#[test]
fn a_file_s_directory_at_a_server_is_found() {
    for (path, directory, name) in [
        ("/a/b", "/a", "b"),
        ("/b", "/", "b"),
        ("b", "", "b"),
        ("a/b//", "a", "b"),
        ("a/b/.", "a", "b"),
    ] {
        let found = split_far(path.as_bytes());
        assert_eq!(found, (directory.as_bytes().to_vec(), name.as_bytes().to_vec()), "{path}");
    }
}
