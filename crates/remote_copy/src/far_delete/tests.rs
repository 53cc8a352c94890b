//! Requests, and servers that are hostile or old.

use crate::far::testing::{hostile, Place, PATIENCE};
use crate::tree_messages::TreeAnswer;
use waystage_transport::handshake::version::SPOKEN;

use super::*;

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
