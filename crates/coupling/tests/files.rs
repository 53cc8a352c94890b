//! Versions as files: writers and readers in threads, over services of two hosts.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Barrier};
use std::thread;

use waystage_coupling::address::host;
use waystage_coupling::client::Coupling;
use waystage_coupling::failure::Failure;
use waystage_coupling::region::Region;
use waystage_coupling::request::{Role, Variable, Why};
use waystage_coupling::slabs::UNIT;

use support::{until, Scratch};

const WRITERS: u32 = 3;
const CELL: u64 = 3001;
const CELLS: u64 = 1100; // 3.3 MB: more than three units
const END: u64 = 5_000_000;

/// A byte of a file in which only cell 1 changes from version to version; behind the cells is a hole.
fn byte(version: u64, at: u64) -> u8 {
    let cell = at / CELL;
    match at {
        _ if at == END => b'x',
        _ if cell >= CELLS => 0,
        _ => ((if cell == 1 { version } else { 0 }) * 31 + cell * 7 + at % 251) as u8,
    }
}

fn cell(version: u64, cell: u64) -> Vec<u8> {
    (cell * CELL..(cell + 1) * CELL).map(|at| byte(version, at)).collect()
}

fn write(mut flow: Coupling, rank: u64, versions: u64, all: &Barrier) {
    for version in 0..versions {
        flow.open_file(version).unwrap();
        for number in (rank..CELLS).step_by(WRITERS as usize) {
            if version == 0 || number == 1 {
                let bytes = cell(version, number);
                flow.write_at(number * CELL, &bytes, 0).unwrap();
                let mut back = vec![0; CELL as usize];
                assert_eq!(flow.read_at(number * CELL, &mut back).unwrap(), back.len());
                assert!(back == bytes, "what a writer has read back");
            }
        }
        flow.settle().unwrap();
        if rank == 0 {
            flow.write_at(END, b"?", 0).unwrap();
            flow.settle().unwrap();
        }
        all.wait();
        if rank == 2 {
            // The later of two writes holds, and others see it.
            flow.write_at(END, b"x", 0).unwrap();
            flow.settle().unwrap();
        }
        all.wait();
        let mut last = [0; 8];
        assert_eq!(flow.read_at(END, &mut last).unwrap(), 1);
        assert_eq!((last[0], flow.file_bytes().unwrap()), (b'x', END + 1));
        let mut own = 0;
        flow.own_bytes(|at, bytes| {
            own += bytes.len() as u64;
            let wrong = bytes.iter().zip(at..).find(|(found, at)| **found != byte(version, *at));
            assert_eq!(wrong, None);
            Ok::<(), Failure>(())
        })
        .unwrap();
        all.wait();
        flow.commit_file(true).unwrap();
    }
    flow.close().unwrap();
}

fn read(mut flow: Coupling) -> Vec<u64> {
    let mut seen = Vec::new();
    loop {
        let version = match flow.next(seen.last().copied()) {
            Ok(version) => version,
            Err(Failure::Answer(Why::Ended, _)) => break,
            Err(other) => panic!("{other}"),
        };
        flow.open_file(version).unwrap();
        assert_eq!(flow.file_bytes().unwrap(), END + 1);
        let expected: Vec<u8> = (0..=END).map(|at| byte(version, at)).collect();
        let mut all = vec![0xff; END as usize + 100];
        assert_eq!(flow.read_at(0, &mut all).unwrap() as u64, END + 1);
        assert!(all[..=END as usize] == expected);
        for at in (0..END).step_by(70_001) {
            let mut short = [0xff; 700];
            let read = flow.read_at(at, &mut short).unwrap();
            assert!(short[..read] == expected[at as usize..at as usize + read]);
        }
        // The same as an array.
        let region = Region::new(&[UNIT - 5], &[10]).unwrap();
        let mut cells = [0; 10];
        flow.get(version, "bytes", &region, &mut cells).unwrap();
        assert!(cells == expected[UNIT as usize - 5..UNIT as usize + 5]);
        assert!(flow.write_at(0, b"x", 0).is_err());
        flow.commit(version).unwrap();
        seen.push(version);
    }
    flow.close().unwrap();
    seen
}

#[test]
fn writers_on_two_hosts_write_files_that_readers_read() {
    let scratch = Scratch::new();
    let near = scratch.service("near", host(), 1 << 30);
    let far = scratch.service("far", "elsewhere".into(), 1 << 30);
    let all = Arc::new(Barrier::new(WRITERS as usize));
    let seen = thread::scope(|scope| {
        for rank in 0..WRITERS {
            let (scratch, all) = (&scratch, Arc::clone(&all));
            scope.spawn(move || {
                let service = if rank == 1 { "far" } else { "near" };
                let flow =
                    Coupling::open(scratch.options(Role::Writer, rank, WRITERS, service)).unwrap();
                write(flow, rank.into(), 4, &all);
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|rank| {
                let scratch = &scratch;
                scope.spawn(move || {
                    read(Coupling::open(scratch.options(Role::Reader, rank, 2, "none")).unwrap())
                })
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(seen, [[0, 1, 2, 3], [0, 1, 2, 3]]);
    until(|| near.status().1 + far.status().1 == 0, "the end of versions that were read");
}

#[test]
fn a_file_that_is_cut_and_grows_again_holds_zeros_there() {
    let scratch = Scratch::new();
    let _service = scratch.service("near", host(), 1 << 30);
    let mut flow = Coupling::open(scratch.options(Role::Writer, 0, 1, "near")).unwrap();
    flow.open_file(3).unwrap();
    assert_eq!(flow.file_bytes().unwrap(), 0);
    flow.write_at(0, &vec![1; 3 * UNIT as usize], 0).unwrap();
    flow.resize_file(UNIT + 7).unwrap();
    flow.write_at(3 * UNIT, &[2], 0).unwrap();
    let mut all = vec![9; 4 * UNIT as usize];
    assert_eq!(flow.read_at(0, &mut all).unwrap() as u64, 3 * UNIT + 1);
    let cut = UNIT as usize + 7;
    assert!(all[..cut].iter().all(|byte| *byte == 1));
    assert!(all[cut..3 * UNIT as usize].iter().all(|byte| *byte == 0));
    flow.resize_file(0).unwrap();
    assert_eq!(flow.read_at(0, &mut all).unwrap(), 0);
    flow.write_at(5, &[3], 0).unwrap();
    assert_eq!(flow.read_at(0, &mut all).unwrap(), 6);
    assert_eq!(all[..6], [0, 0, 0, 0, 0, 3]);
    flow.commit_file(false).unwrap();
    // The next version begins empty.
    flow.open_file(4).unwrap();
    assert_eq!(flow.file_bytes().unwrap(), 0);
}

#[test]
fn arrays_are_no_file_and_a_file_takes_no_arrays() {
    let scratch = Scratch::new();
    let _service = scratch.service("near", host(), 1 << 30);
    let mut writer = Coupling::open(scratch.options(Role::Writer, 0, 1, "near")).unwrap();
    let variable =
        Variable { name: "u".into(), element: "|u1".into(), element_bytes: 1, shape: vec![4] };
    let region = Region::whole(&[4]).unwrap();
    writer.put(0, variable.clone(), region.clone(), |cells| cells.fill(1)).unwrap();
    writer.commit(0).unwrap();
    writer.open_file(1).unwrap();
    assert!(writer.put(1, variable, region, |cells| cells.fill(1)).is_err());
    let mut reader = Coupling::open(scratch.options(Role::Reader, 0, 1, "near")).unwrap();
    let refused = reader.open_file(0).unwrap_err().to_string();
    assert!(refused.contains("holds arrays"), "{refused}");
}
