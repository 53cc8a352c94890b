//! Writers and readers in threads, each with its own connections, over real services.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::thread;
use std::time::Duration;

use waystage_coupling::address::host;
use waystage_coupling::client::{Coupling, Options};
use waystage_coupling::failure::Failure;
use waystage_coupling::region::Region;
use waystage_coupling::request::{Role, Variable, Why};
use waystage_coupling::service::Service;

use support::{until, Scratch, LONG};

const SHAPE: [u64; 3] = [8, 6, 10];

fn variable() -> Variable {
    Variable { name: "u".into(), element: "<u4".into(), element_bytes: 4, shape: SHAPE.to_vec() }
}

/// The value of a cell of a version.
fn value(version: u64, cell: [u64; 3]) -> u32 {
    u32::try_from(version * 100_000 + cell[0] * 10_000 + cell[1] * 100 + cell[2]).unwrap()
}

fn fill(version: u64, region: &Region, bytes: &mut [u8]) {
    let (starts, counts) = (region.starts(), region.counts());
    let mut chunks = bytes.chunks_exact_mut(4);
    for i in 0..counts[0] {
        for j in 0..counts[1] {
            for k in 0..counts[2] {
                let cell = [starts[0] + i, starts[1] + j, starts[2] + k];
                chunks.next().unwrap().copy_from_slice(&value(version, cell).to_le_bytes());
            }
        }
    }
}

fn write(options: Options, versions: u64) {
    let (rank, mut coupling) = (u64::from(options.rank), Coupling::open(options).unwrap());
    // 8 writers: 2 x 2 x 2 boxes.
    let counts = [SHAPE[0] / 2, SHAPE[1] / 2, SHAPE[2] / 2];
    let starts = [rank / 4 * counts[0], rank / 2 % 2 * counts[1], rank % 2 * counts[2]];
    let region = Region::new(&starts, &counts).unwrap();
    for version in 1..=versions {
        let own = region.clone();
        coupling.put(version, variable(), region.clone(), |to| fill(version, &own, to)).unwrap();
        coupling.commit(version).unwrap();
    }
    coupling.close().unwrap();
}

fn read(options: Options) -> Vec<u64> {
    let (rank, mut coupling) = (u64::from(options.rank), Coupling::open(options).unwrap());
    // 4 readers: slabs of the last dimension, across all writers.
    let (start, end) = (SHAPE[2] * rank / 4, SHAPE[2] * (rank + 1) / 4);
    let region = Region::new(&[0, 0, start], &[SHAPE[0], SHAPE[1], end - start]).unwrap();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let version = match coupling.next(after) {
            Ok(version) => version,
            Err(Failure::Answer(Why::Ended, _)) => break,
            Err(error) => panic!("{error}"),
        };
        let size = usize::try_from(region.cells()).unwrap() * 4;
        let (mut found, mut wanted) = (vec![0; size], vec![0; size]);
        assert_eq!(coupling.get(version, "u", &region, &mut found).unwrap(), variable());
        fill(version, &region, &mut wanted);
        assert_eq!(found, wanted, "version {version}");
        coupling.commit(version).unwrap();
        seen.push(version);
        after = Some(version);
    }
    coupling.close().unwrap();
    seen
}

fn exchange(hosts: [String; 2]) {
    let scratch = Scratch::new();
    let services: Vec<Service> = hosts
        .into_iter()
        .enumerate()
        .map(|(i, host)| scratch.service(&i.to_string(), host, 1 << 30))
        .collect();
    thread::scope(|scope| {
        for rank in 0..8 {
            let service = if rank < 4 { "0" } else { "1" };
            let options = scratch.options(Role::Writer, rank, 8, service);
            scope.spawn(move || write(options, 5));
        }
        let readers: Vec<_> = (0..4)
            .map(|rank| {
                let mut options = scratch.options(Role::Reader, rank, 4, "");
                (options.socket, options.token) = (None, None);
                scope.spawn(move || read(options))
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), [1, 2, 3, 4, 5]);
        }
    });
    let held = || services.iter().map(|service| service.status().1).sum::<u64>();
    until(|| held() == 0, "the end of pieces");
    until(|| !scratch.0.join("names/flow").exists(), "the end of the name");
}

#[test]
fn eight_writers_reach_four_readers_through_shared_memory() {
    exchange([host(), host()]);
}

#[test]
fn eight_writers_reach_four_readers_over_tcp() {
    exchange(["elsewhere".into(), "further".into()]);
}

#[test]
fn memory_and_network_may_be_mixed() {
    exchange([host(), "elsewhere".into()]);
}

fn one_cell() -> (Variable, Region) {
    let variable = Variable { shape: vec![1], ..variable() };
    (variable, Region::whole(&[1]).unwrap())
}

fn put(coupling: &mut Coupling, version: u64) -> Result<bool, Failure> {
    let (variable, region) = one_cell();
    coupling.put(version, variable, region, |to| to.fill(9))?;
    coupling.commit(version)
}

fn why(failure: Failure) -> Why {
    match failure {
        Failure::Answer(why, _) => why,
        other => panic!("{other}"),
    }
}

#[test]
fn a_writer_waits_where_the_depth_is_reached_and_goes_on_after_a_release() {
    let scratch = Scratch::new();
    let _service = scratch.service("0", host(), 1 << 30);
    let mut options = scratch.options(Role::Writer, 0, 1, "0");
    options.timeout = Duration::from_secs(3);
    let mut writer = Coupling::open(options).unwrap();
    assert!(put(&mut writer, 1).unwrap());
    assert!(put(&mut writer, 2).unwrap());
    assert!(matches!(put(&mut writer, 3), Err(Failure::Timeout(_))));
    let mut reader = Coupling::open(scratch.options(Role::Reader, 0, 1, "")).unwrap();
    reader.commit(1).unwrap();
    until(|| matches!(put(&mut writer, 3), Ok(true)), "room for the third version");
    assert_eq!(reader.next(None).unwrap(), 2);
}

#[test]
fn a_writer_that_dies_is_an_error_for_the_reader_that_waits() {
    let scratch = Scratch::new();
    let _service = scratch.service("0", host(), 1 << 30);
    let mut writer = Coupling::open(scratch.options(Role::Writer, 0, 1, "0")).unwrap();
    let mut reader = Coupling::open(scratch.options(Role::Reader, 0, 1, "")).unwrap();
    put(&mut writer, 1).unwrap();
    drop(writer);
    let mut cell = [0; 4];
    reader.get(1, "u", &one_cell().1, &mut cell).unwrap();
    assert_eq!(cell, [9; 4], "what had appeared stays");
    assert_eq!(why(reader.next(Some(1)).unwrap_err()), Why::Lost);
    // Another run of the writers begins anew.
    let mut writer = Coupling::open(scratch.options(Role::Writer, 0, 1, "0")).map_err(why);
    if let Err(refused) = &writer {
        // The reader of the last run is still connected.
        assert_eq!(*refused, Why::Argument);
        drop(reader);
        let mut options = scratch.options(Role::Writer, 0, 1, "0");
        options.timeout = LONG;
        until(
            || {
                writer = Coupling::open(options.clone()).map_err(why);
                writer.is_ok()
            },
            "the end of the last run",
        );
    }
    put(writer.as_mut().unwrap(), 1).unwrap();
}

#[test]
fn a_reader_that_dies_is_an_error_for_the_writer_that_waits() {
    let scratch = Scratch::new();
    let _service = scratch.service("0", host(), 1 << 30);
    let mut writer = Coupling::open(scratch.options(Role::Writer, 0, 1, "0")).unwrap();
    let reader = Coupling::open(scratch.options(Role::Reader, 0, 1, "")).unwrap();
    put(&mut writer, 1).unwrap();
    put(&mut writer, 2).unwrap();
    drop(reader);
    assert_eq!(why(put(&mut writer, 3).unwrap_err()), Why::Lost);
    assert_eq!(why(writer.close().unwrap_err()), Why::Lost);
}

#[test]
fn a_service_that_ends_is_an_error_for_all() {
    let scratch = Scratch::new();
    let service = scratch.service("0", host(), 1 << 30);
    let mut writer = Coupling::open(scratch.options(Role::Writer, 0, 1, "0")).unwrap();
    let mut reader = Coupling::open(scratch.options(Role::Reader, 0, 1, "")).unwrap();
    put(&mut writer, 1).unwrap();
    drop(service);
    assert_eq!(why(reader.next(Some(1)).unwrap_err()), Why::Lost);
    assert_eq!(why(put(&mut writer, 2).unwrap_err()), Why::Lost);
}

#[test]
fn more_than_the_memory_is_refused_and_a_foreign_token_too() {
    let scratch = Scratch::new();
    let _service = scratch.service("0", host(), 4);
    let mut wrong = scratch.options(Role::Writer, 0, 1, "0");
    wrong.token = Some([1; 32]);
    assert!(matches!(Coupling::open(wrong), Err(Failure::System(..))));
    let mut writer = Coupling::open(scratch.options(Role::Writer, 0, 1, "0")).unwrap();
    put(&mut writer, 1).unwrap();
    assert_eq!(why(put(&mut writer, 2).unwrap_err()), Why::Memory);
    // A reader that read another token in its address file.
    let names = scratch.0.join("names");
    let text = std::fs::read_to_string(names.join("flow")).unwrap();
    let last = text.lines().nth(2).unwrap();
    std::fs::write(names.join("flow"), text.replace(last, &"0".repeat(64))).unwrap();
    let mut options = scratch.options(Role::Reader, 0, 1, "");
    options.timeout = Duration::from_millis(50);
    assert!(matches!(Coupling::open(options), Err(Failure::Timeout(_))));
}

#[test]
fn a_directory_that_others_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let names: &Path = &scratch.0.join("names");
    std::fs::create_dir(names).unwrap();
    std::fs::set_permissions(names, std::fs::Permissions::from_mode(0o755)).unwrap();
    let opened = Coupling::open(scratch.options(Role::Reader, 0, 1, ""));
    let Err(Failure::System(_, error)) = opened else { panic!("opened") };
    assert!(error.to_string().contains("chmod 700"), "{error}");
}
