//! A sender that sends what was not asked for.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use twox_hash::XxHash3_128;
use waystage_copy::stat::FileState;
use waystage_copy::{Fsync, Limits, Names, Time, Update, Verify};

use super::*;
use crate::channel::testing::pair;
use crate::endpoints;
use crate::entry::put_runs;
use crate::privileges::PeerPrivileges;
use crate::request_filter::RequestFilter;
use crate::session::Dry;

fn entry(letter: u8, path: &str, size: u64) -> Entry {
    let time = Time::from_ns(1_000_000_000);
    let seen = FileState { device: 1, inode: 2, size, mtime: time, ctime: time };
    let metadata = Metadata { mode: 0o600, uid: 0, gid: 0, mtime: time, atime: time };
    let path = path.as_bytes().to_vec();
    let (symlink, xattrs) = (b"/etc".to_vec(), Vec::new());
    Entry { letter, path, seen, metadata, symlink, device: 0, xattrs }
}

fn pack(path: &str) -> Vec<u8> {
    let mut out = Writer::new(kinds::PACK);
    entry(b'f', path, 4).put(&mut out);
    out.u128(XxHash3_128::oneshot(b"evil"));
    put_runs(&vec![(0, 4)], &mut out);
    out.0.extend_from_slice(b"evil");
    out.0
}

fn offer(letter: u8, path: &str) -> Vec<u8> {
    let mut out = Writer::new(kinds::OFFER);
    out.u32(1).count(1);
    entry(letter, path, 8 << 20).put(&mut out);
    out.0
}

fn equal(path: &str) -> Vec<u8> {
    let mut out = Writer::new(kinds::EQUAL);
    entry(b'f', path, 4).put(&mut out);
    out.0
}

fn links(first: &str, other: &str) -> Vec<u8> {
    let mut out = Writer::new(kinds::LINKS);
    out.bytes(first.as_bytes()).count(1).bytes(other.as_bytes());
    out.0
}

fn done(messages: u64) -> Vec<u8> {
    let sum = crate::entry::piece_digest(b"good", 0, XxHash3_128::oneshot(b"evil"));
    let mut out = Writer::new(kinds::DONE);
    out.u64(messages).u128(sum).u64(0).u8(0);
    out.0
}

fn compressed(message: &[u8]) -> Vec<u8> {
    let mut out = Writer::new(kinds::COMPRESSED);
    out.count(message.len()).array(&lz4_flex::block::compress(message));
    out.0
}

/// What a client that asked for `list` below `to` has of these messages.
fn received(to: &Path, list: &[u8], messages: &[Vec<u8>]) -> Result<(), WanError> {
    let names = Names::parse(list, false).unwrap();
    let options = CopyOptions {
        exclude: Vec::new(),
        include: None,
        copy_links: false,
        backup: None,
        limits: Limits::default(),
        update: Update::Changed,
        fsync: Fsync::None,
        verify: Verify::None,
        dry: Dry::No,
        xattrs: false,
        ..crate::session::tests::options()
    };
    let path = std::os::unix::ffi::OsStrExt::as_bytes(to.as_os_str());
    let held = endpoints::target(&endpoints::of_this_machine, path, None, to, Dry::No).unwrap();
    let target = Target {
        root: held.root,
        _held: held.held,
        rename: held.rename,
        shown: to.to_path_buf(),
        from: b"wan:test:".to_vec(),
        privileges: PeerPrivileges::in_server(false),
        filter: RequestFilter::of(&options, Some(&names), None),
    };
    let (channel, peer) = pair();
    for message in messages {
        peer.send(message.clone()).unwrap();
    }
    receive(&target, &options, &channel, &CopyState::default(), 1)
}

#[test]
fn nothing_comes_that_was_not_asked_for() {
    let folder = std::env::temp_dir().join(format!("waystage-unasked-{}", std::process::id()));
    let to = folder.join("to");
    std::fs::create_dir_all(to.join("own")).unwrap();
    std::fs::write(to.join("own/secret"), b"secret").unwrap();
    let list = b"good\nsub/named\n";
    for (bad, messages) in [
        (".bashrc", vec![pack("good"), pack(".bashrc")]),
        (".bashrc", vec![compressed(&pack(".bashrc"))]),
        ("sub/other", vec![pack("sub/other")]),
        ("sub", vec![pack("sub")]),
        ("own/large", vec![offer(b'f', "own/large")]),
        ("sub", vec![offer(b'l', "sub")]),
        ("new", vec![offer(b'd', "new")]),
        ("own/secret", vec![equal("own/secret")]),
        ("own/secret", vec![links("own/secret", "good")]),
        ("own/linked", vec![pack("good"), links("good", "own/linked")]),
    ] {
        let error = received(&to, list, &messages).unwrap_err();
        let words = format!("it sends \"{bad}\", which was not asked for");
        assert!(error.to_string().contains(&words), "{error}: {words}");
        assert!(!to.join(bad).exists() || bad == "own/secret");
        // Its attributes are its own, too.
        assert!(std::fs::metadata(to.join("own/secret")).unwrap().mtime() > 1);
    }
    // Nothing leads out of the destination, asked for or not.
    for bad in ["../out", "/etc/out", "sub/../../out", "good/"] {
        for message in [pack(bad), compressed(&pack(bad))] {
            let error = received(&to, b".\n", &[message]).unwrap_err();
            assert!(error.to_string().contains("cannot be read"), "{error}");
        }
    }
    // What was compressed twice, or is cut short.
    for bad in [compressed(&compressed(&pack("good"))), compressed(&pack("good"))[..20].to_vec()] {
        let error = received(&to, list, &[bad]).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    received(&to, list, &[compressed(&pack("good")), done(1)]).unwrap();
    assert_eq!(std::fs::read(to.join("good")).unwrap(), b"evil");
    std::fs::remove_dir_all(folder).unwrap();
}
