use std::fs;
use std::path::Path;

use super::*;
use crate::error::Trouble;
use crate::plan::{units, Delivery, Share, Uneven};
use crate::schedule::Binding;
use crate::testing::{files_below, Described};

const SHARE: Share =
    Share { seed: 1, epoch: 0, shuffle: false, rank: 0, world: 1, uneven: Uneven::Keep };

struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("waystage-load-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn rules(delivery: Delivery) -> Rules {
    Rules {
        delivery,
        ordered: true,
        memory_bytes: 1 << 20,
        piece_bytes: 64,
        loaders: 3,
        binding: Binding::Steal,
        most_readers: None,
        resized: true,
    }
}

fn start(root: &Path, described: &[Described<'_>], rules: Rules) -> Loading {
    let files = Arc::new(files_below(root.to_str().unwrap(), described));
    let units = units(&files, rules.delivery, &SHARE, rules.loaders, None).unwrap();
    Loading::start(files, units, Progress::default(), rules).unwrap()
}

/// Everything, as (file, offset, bytes) or what went wrong.
fn all(loading: &Loading) -> Vec<(u32, u64, Result<Vec<u8>, Trouble>)> {
    let mut found = Vec::new();
    loop {
        match loading.next(Duration::from_secs(60)) {
            Next::Item(item) => match item.bytes {
                Ok(Some(buffer)) => found.push((item.file, item.offset, Ok(buffer.bytes.clone()))),
                Ok(None) => {}
                Err(failure) => found.push((item.file, item.offset, Err(failure.trouble))),
            },
            Next::Waiting => panic!("nothing for a minute"),
            Next::End => return found,
        }
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 % 251) as u8).collect()
}

const STRIPES: [(u32, u64, u64); 2] = [(5, 0, 200), (6, 100, 100)];

#[test]
fn a_striped_file_is_put_together_and_its_pieces_are_those_of_its_objects() {
    let scratch = Scratch::new("striped");
    fs::write(scratch.0.join("f"), content(300)).unwrap();
    fs::write(scratch.0.join("empty"), b"").unwrap();
    let described: [Described<'_>; 2] = [("f", 300, &STRIPES), ("empty", 0, &[])];
    let whole = start(&scratch.0, &described, rules(Delivery::Files));
    assert_eq!(all(&whole), [(0, 0, Ok(content(300))), (1, 0, Ok(vec![]))]);
    let pieces = start(&scratch.0, &described, rules(Delivery::Objects));
    let places: Vec<_> = all(&pieces).into_iter().map(|(file, at, _)| (file, at)).collect();
    assert_eq!(places, [(0, 0), (0, 64), (0, 200), (0, 264), (0, 100), (0, 164), (1, 0)]);
    let counts = pieces.counts();
    assert_eq!((counts.units, counts.delivered, counts.bytes), (3, 3, 300));
    assert_eq!(counts.targets.iter().map(|t| t.bytes).collect::<Vec<_>>(), [200, 100, 0]);
}

#[test]
fn a_file_of_another_size_is_read_as_it_is() {
    let scratch = Scratch::new("changed");
    for (now, pieces) in [(450, 450), (250, 250), (90, 90), (0, 0)] {
        fs::write(scratch.0.join("f"), content(now)).unwrap();
        for described in [[("f", 300, &STRIPES[..])], [("f", 300, &[])]] {
            let whole = start(&scratch.0, &described, rules(Delivery::Files));
            assert_eq!(all(&whole), [(0, 0, Ok(content(now)))]);
            assert_eq!(whole.checks().stale, 1);
            let objects = start(&scratch.0, &described, rules(Delivery::Objects));
            let mut joined = vec![None; now];
            for (_, at, bytes) in all(&objects) {
                for (n, byte) in (at as usize..).zip(bytes.unwrap()) {
                    assert_eq!(joined[n].replace(byte), None, "byte {n} twice");
                }
            }
            let joined: Vec<u8> = joined.into_iter().flatten().collect();
            assert_eq!((joined.len(), joined), (pieces, content(now)));
        }
    }
}

#[test]
fn a_file_of_another_size_is_a_failure_where_the_rules_say_so() {
    let scratch = Scratch::new("resized");
    fs::write(scratch.0.join("g"), content(30)).unwrap();
    for now in [450, 299, 90, 0] {
        fs::write(scratch.0.join("f"), content(now)).unwrap();
        for objects in [&STRIPES[..], &[]] {
            let described: [Described<'_>; 2] = [("f", 300, objects), ("g", 30, &[])];
            for delivery in [Delivery::Files, Delivery::Objects] {
                let loading =
                    start(&scratch.0, &described, Rules { resized: false, ..rules(delivery) });
                let found = all(&loading);
                let (of_f, of_g): (Vec<_>, Vec<_>) =
                    found.into_iter().partition(|(file, _, _)| *file == 0);
                assert_eq!(of_g, [(1, 0, Ok(content(30)))]);
                assert!(of_f.iter().all(|(_, _, bytes)| *bytes == Err(Trouble::Resized)));
                assert_eq!(loading.counts().failed[4], of_f.len() as u64);
                assert!(!of_f.is_empty());
            }
        }
    }
}

#[test]
fn an_unreadable_file_is_reported_in_its_place() {
    let scratch = Scratch::new("trouble");
    fs::write(scratch.0.join("a"), b"a").unwrap();
    fs::create_dir(scratch.0.join("folder")).unwrap();
    std::os::unix::fs::symlink("a", scratch.0.join("link")).unwrap();
    fs::write(scratch.0.join("huge"), content(4000)).unwrap();
    let described: Vec<Described<'_>> =
        ["gone", "a", "folder", "link", "huge"].iter().map(|name| (*name, 1, &[][..])).collect();
    let rules = Rules { memory_bytes: 2000, ..rules(Delivery::Files) };
    let loading = start(&scratch.0, &described, rules);
    let found: Vec<_> = all(&loading).into_iter().map(|(_, _, bytes)| bytes).collect();
    let expected = [
        Err(Trouble::Vanished),
        Ok(b"a".to_vec()),
        Err(Trouble::NotAFile),
        Err(Trouble::NotAFile),
        Err(Trouble::Grown),
    ];
    assert_eq!(found, expected);
    assert_eq!(loading.counts().failed, [1, 2, 0, 1, 0]);
}

#[test]
fn it_goes_on_exactly_where_it_was_left() {
    let scratch = Scratch::new("resume");
    fs::write(scratch.0.join("f"), content(300)).unwrap();
    fs::write(scratch.0.join("g"), content(30)).unwrap();
    let described: [Described<'_>; 2] = [("f", 300, &STRIPES), ("g", 30, &[])];
    for ordered in [true, false] {
        for taken in 0..7 {
            let rules = Rules { ordered, ..rules(Delivery::Objects) };
            let first = start(&scratch.0, &described, rules.clone());
            let mut places = Vec::new();
            for _ in 0..taken {
                match first.next(Duration::from_secs(60)) {
                    Next::Item(item) => places.push((item.file, item.offset)),
                    _ => panic!("fewer items than there are"),
                }
            }
            let left = first.progress();
            let files = Arc::clone(first.files());
            let units = units(&files, Delivery::Objects, &SHARE, 3, None).unwrap();
            let second = Loading::start(files, units, left, rules).unwrap();
            places.extend(all(&second).into_iter().map(|(file, at, _)| (file, at)));
            if !ordered {
                places.sort_unstable();
            }
            let mut expected =
                vec![(0, 0), (0, 64), (0, 200), (0, 264), (0, 100), (0, 164), (1, 0)];
            if !ordered {
                expected.sort_unstable();
            }
            assert_eq!(places, expected, "{taken} taken before");
        }
    }
}

#[test]
fn memory_for_nothing_still_delivers_everything() {
    let scratch = Scratch::new("tight");
    let names: Vec<String> = (0..50).map(|n| format!("f{n}")).collect();
    for name in &names {
        fs::write(scratch.0.join(name), content(300)).unwrap();
    }
    let described: Vec<Described<'_>> =
        names.iter().map(|name| (name.as_str(), 300, &STRIPES[..])).collect();
    for binding in [Binding::Steal, Binding::Strict] {
        for ordered in [true, false] {
            let rules = Rules { memory_bytes: 1, binding, ordered, ..rules(Delivery::Files) };
            assert_eq!(all(&start(&scratch.0, &described, rules)).len(), 50);
        }
    }
}

#[test]
fn a_loader_that_sleeps_is_woken_for_its_own_target() {
    // Twelve targets, each with one loader; items come one at a time, so all others always sleep.
    let scratch = Scratch::new("wake");
    let names: Vec<String> = (0..600).map(|n| format!("f{n}")).collect();
    let objects: Vec<[(u32, u64, u64); 1]> = (0..600).map(|n| [(n * 7 % 12, 0, 9)]).collect();
    for name in &names {
        fs::write(scratch.0.join(name), content(9)).unwrap();
    }
    let described: Vec<Described<'_>> =
        names.iter().zip(&objects).map(|(name, of)| (name.as_str(), 9, &of[..])).collect();
    let rules = Rules {
        memory_bytes: 1,
        binding: Binding::Strict,
        loaders: 12,
        ..rules(Delivery::Objects)
    };
    assert_eq!(all(&start(&scratch.0, &described, rules)).len(), 600);
}

#[test]
fn many_loaders_of_small_files_all_come_to_their_end() {
    let scratch = Scratch::new("many-loaders");
    let names: Vec<String> = (0..600).map(|number| format!("f{number}")).collect();
    for name in &names {
        fs::write(scratch.0.join(name), content(100)).unwrap();
    }
    let several: Vec<[(u32, u64, u64); 1]> =
        (0..600).map(|number| [(number % 3, 0, 100)]).collect();
    let on_one: Vec<Described<'_>> =
        names.iter().map(|name| (name.as_str(), 100, &[][..])).collect();
    let on_three: Vec<Described<'_>> = names
        .iter()
        .zip(&several)
        .map(|(name, objects)| (name.as_str(), 100, &objects[..]))
        .collect();
    for described in [&on_one, &on_three] {
        for (loaders, memory_bytes) in [(1, 1 << 20), (48, 1 << 20), (48, 2_000), (5, 500)] {
            for (ordered, binding) in
                [(true, Binding::Steal), (false, Binding::Steal), (true, Binding::Strict)]
            {
                let rules =
                    Rules { loaders, memory_bytes, ordered, binding, ..rules(Delivery::Files) };
                let found = all(&start(&scratch.0, described, rules));
                assert_eq!(found.len(), 600);
            }
        }
    }
}

/// Files of 64 KiB in a folder, of which memory holds a quarter, and more loaders than cores.
fn start_many(scratch: &Scratch, files: usize) -> (Loading, usize) {
    let names: Vec<String> = (0..files).map(|n| format!("f{n}")).collect();
    for name in &names {
        fs::write(scratch.0.join(name), content(64 << 10)).unwrap();
    }
    let described: Vec<Described<'_>> =
        names.iter().map(|name| (&name[..], 64 << 10, &[][..])).collect();
    let loaders = std::thread::available_parallelism().unwrap().get() + 8;
    let rules = Rules {
        loaders: u32::try_from(loaders).unwrap(),
        piece_bytes: 1 << 20,
        ..rules(Delivery::Files)
    };
    (start(&scratch.0, &described, rules), loaders)
}

fn started(loading: &Loading) -> usize {
    loading.coordinator.started.lock().handles.len()
}

#[test]
fn a_loader_for_each_core_begins() {
    let (loading, loaders) = start_many(&Scratch::new("begin"), 0);
    assert!(all(&loading).is_empty());
    assert_eq!(started(&loading), (loaders - 8).max(2));
}

#[test]
fn all_loaders_are_started_for_a_consumer_that_waits() {
    let scratch = Scratch::new("patience");
    let (loading, loaders) = start_many(&scratch, 64);
    loading.pace().gate.set_paused(true);
    let mut found = 0;
    while matches!(loading.next(Duration::from_millis(100)), Next::Item(_)) {
        found += 1;
    }
    assert_eq!(started(&loading), loaders);
    loading.pace().gate.set_paused(false);
    assert_eq!(found + all(&loading).len(), 64);
}

#[test]
fn all_loaders_are_started_where_those_that_began_have_to_wait() {
    let scratch = Scratch::new("slow");
    let (loading, loaders) = start_many(&scratch, 64);
    loading.pace().gate.set_limit(Some(4 << 20));
    let (mut found, began) = (0, Instant::now());
    while started(&loading) < loaders {
        assert!(began.elapsed() < Duration::from_secs(60));
        // A consumer that never waits.
        found += usize::from(matches!(loading.next(Duration::ZERO), Next::Item(_)));
        std::thread::sleep(Duration::from_millis(1));
    }
    loading.pace().gate.set_limit(None);
    assert_eq!(found + all(&loading).len(), 64);
}
