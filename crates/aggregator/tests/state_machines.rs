//! The state machines of whole clusters against a byte-by-byte model, in any order of events.

#![allow(clippy::unwrap_used)]

mod common;

use common::Cluster;
use proptest::prelude::*;
use waystage_collective_wire::Status;

#[test]
fn a_file_may_have_had_more_views_than_are_kept() {
    let mut cluster = Cluster::new(5, 2, 4, 4096);
    // Two views of each node in each operation: 1,400 of a file that keeps 1,024.
    for _ in 0..700 {
        cluster.deal(600, 40, true);
        cluster.ranks.iter_mut().for_each(|rank| rank.by_view = true);
        let expected = cluster.expected(&cluster.file);
        assert_eq!(cluster.operation(true, None), (1, Status::Ok));
        assert!(cluster.file == expected, "wrong bytes");
    }
    cluster.at_rest();
}

#[test]
fn a_small_write_is_not_asked_for_what_came_with_its_announcement() {
    for seed in 0..20 {
        let mut cluster = Cluster::new(seed, 2, 2, 8192);
        cluster.deal(6000, 40, false);
        cluster.ranks.iter_mut().for_each(|rank| rank.by_view = true);
        let expected = cluster.expected(&cluster.file);
        assert_eq!(cluster.operation(true, None), (1, Status::Ok));
        assert!(cluster.file == expected, "wrong bytes");
        // With all of them no data cross the link by themselves.
        assert!(cluster.inlined < 2 || cluster.crossings == 0, "seed {seed}");
        cluster.at_rest();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_byte_is_written_where_its_rank_said_and_no_other_byte_is_touched(
        seed in any::<u64>(),
        nodes in 1..4_usize,
        ranks in 1..6_usize,
        window in prop::sample::select(vec![4096_u64, 8192, 16384]),
        cyclic in any::<bool>(),
        cb_nodes in 1..4_usize,
        longest in prop::sample::select(vec![3_usize, 200, 9000]),
        bytes in 0..40_000_u64,
    ) {
        let mut cluster = Cluster::new(seed, nodes, ranks.max(nodes), window);
        (cluster.cyclic, cluster.cb_nodes) = (cyclic, cb_nodes);
        cluster.file = vec![0xaa; 1000];
        for _ in 0..2 {
            cluster.deal(bytes, longest, true);
            let expected = cluster.expected(&cluster.file);
            prop_assert_eq!(cluster.operation(true, None), (1, Status::Ok));
            prop_assert!(cluster.file == expected, "wrong bytes");
            cluster.at_rest();
        }
    }

    #[test]
    fn every_rank_reads_its_bytes_and_learns_where_the_file_ends(
        seed in any::<u64>(),
        nodes in 1..4_usize,
        window in prop::sample::select(vec![4096_u64, 16384]),
        cyclic in any::<bool>(),
        longest in prop::sample::select(vec![3_usize, 200, 9000]),
        bytes in 1..40_000_u64,
        missing in 0..5000_u64,
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 2, window);
        cluster.cyclic = cyclic;
        cluster.deal(bytes, longest, true);
        let end = bytes.saturating_sub(missing) as usize;
        let content = (0..end).map(|at| (at % 251) as u8).collect::<Vec<_>>();
        cluster.file = content.clone();
        prop_assert_eq!(cluster.operation(false, None), (1, Status::Ok));
        for rank in &cluster.ranks {
            let eof = rank.result.unwrap().1;
            let mut at = 0;
            for (offset, length) in &rank.pieces.extents {
                for byte in *offset..offset + length {
                    prop_assert_eq!(byte >= eof, byte >= end as u64);
                    if byte < eof {
                        prop_assert_eq!(rank.pieces.data[at], content[byte as usize]);
                    }
                    at += 1;
                }
            }
        }
        cluster.at_rest();
    }

    #[test]
    fn a_process_that_is_killed_at_any_moment_loses_nothing_and_no_rank_waits_for_ever(
        seed in any::<u64>(),
        nodes in 1..4_usize,
        victim in 0..3_usize,
        moment in 0..400_usize,
        write in any::<bool>(),
        cyclic in any::<bool>(),
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 2, 4096);
        cluster.cyclic = cyclic;
        cluster.deal(30_000, 3000, true);
        let first = cluster.expected(&[]);
        prop_assert_eq!(cluster.operation(true, None).1, Status::Ok);
        prop_assert!(cluster.file == first);
        if write {
            cluster.deal(30_000, 3000, true);
        }
        let expected = cluster.expected(&first);
        let (attempts, status) = cluster.operation(write, Some((victim % nodes, moment)));
        prop_assert_eq!(status, Status::Ok);
        prop_assert!(attempts <= 5);
        prop_assert!(cluster.file == expected, "wrong bytes after {attempts} attempts");
        cluster.deal(20_000, 500, false);
        let expected = cluster.expected(&cluster.file);
        prop_assert_eq!(cluster.operation(true, None).1, Status::Ok);
        prop_assert!(cluster.file == expected);
        cluster.at_rest();
    }

    #[test]
    fn processes_that_are_killed_again_and_again_lose_nothing_and_make_no_rank_wait_for_ever(
        seed in any::<u64>(),
        nodes in 1..4_usize,
        cb_nodes in 1..4_usize,
        kills in prop::collection::vec((0..3_usize, 1..250_usize), 1..6),
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 3, 4096);
        cluster.cb_nodes = cb_nodes;
        for (node, after) in kills.chunks(2).flat_map(|pair| pair.first()) {
            cluster.deal(20_000, 3000, true);
            let expected = cluster.expected(&cluster.file);
            let twice = kills.iter().map(|(other, more)| (other % nodes, after + more / 4));
            let all: Vec<_> = twice.chain([(node % nodes, *after)]).collect();
            let (_, status) = cluster.operation(true, all.clone());
            prop_assert_eq!(status, Status::Ok);
            prop_assert!(cluster.file == expected, "wrong bytes");
            cluster.sync(all.into_iter().map(|(node, after)| (node, after / 5 + 1)));
        }
        prop_assert!(cluster.waits == 0, "waited {} times", cluster.waits);
        cluster.at_rest();
    }

    #[test]
    fn an_aggregator_that_was_cut_off_writes_nothing_after_those_that_replace_it(
        seed in any::<u64>(),
        nodes in 2..4_usize,
        cuts in prop::collection::vec((0..3_usize, 0..3_usize, 1..400_usize), 1..5),
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 2, 4096);
        for (from, to, after) in &cuts {
            // Twice: while bytes move, and while their replacement does.
            cluster.cuts = vec![(from % nodes, to % nodes, *after), (to % nodes, from % nodes, after + after / 3)];
            for _ in 0..3 {
                cluster.deal(20_000, 3000, true);
                let expected = cluster.expected(&cluster.file);
                prop_assert_eq!(cluster.operation(true, None).1, Status::Ok);
                prop_assert!(cluster.file == expected, "wrong bytes at the end of the operation");
            }
        }
        let last = cluster.file.clone();
        cluster.at_rest();
        prop_assert!(cluster.file == last, "an older write came after the last operation");
    }

    #[test]
    fn a_write_that_hung_in_the_storage_is_an_error_and_never_comes_after_a_newer_one(
        seed in any::<u64>(),
        nodes in 2..4_usize,
        victim in 0..3_usize,
        left_out in any::<bool>(),
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 2, 4096);
        let victim = victim % nodes;
        cluster.deal(20_000, 3000, false);
        prop_assert_eq!(cluster.operation(true, None), (1, Status::Ok));
        cluster.deal(20_000, 3000, false);
        cluster.hangs = Some(victim);
        let (_, status) = cluster.operation(true, None);
        prop_assert_eq!(status, if cluster.hangs.is_none() { Status::Io } else { Status::Ok });
        if left_out {
            let others = (0..nodes).filter(|node| *node != victim).map(|node| format!("n{node}"));
            cluster.processes[0].node.gatherer.control.set_server_map("app", others.collect());
        }
        cluster.hangs = None;
        let hung = cluster.hung;
        let mut expected = Vec::new();
        for _ in 0..30 {
            cluster.deal(20_000, 3000, false);
            expected = cluster.expected(&cluster.file);
            let (_, status) = cluster.operation(true, None);
            if status == Status::Ok {
                prop_assert!(hung.is_none() || cluster.hung.is_none(), "it went on beside what hangs");
                break;
            }
            prop_assert!(status == Status::Io && !left_out && hung.is_some(), "{status:?}");
            cluster.hung = None;
        }
        prop_assert!(cluster.file == expected, "wrong bytes at the end of the operation");
        cluster.at_rest();
        prop_assert!(cluster.file == expected, "the write that hung came after a newer one");
    }

    #[test]
    fn long_runs_stay_on_their_node_and_every_byte_is_where_its_rank_said(
        seed in any::<u64>(),
        nodes in 2..4_usize,
        runs in 1..9_usize,
        each in 1..3_usize,
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes * each, 16384);
        for _ in 0..2 {
            cluster.deal_long(runs);
            let expected = cluster.expected(&cluster.file);
            prop_assert_eq!(cluster.operation(true, None), (1, Status::Ok));
            prop_assert!(cluster.file == expected, "wrong bytes");
            cluster.at_rest();
        }
        prop_assert_eq!(cluster.crossings, 0, "bytes have left their node");
        let written: Vec<_> = cluster.ranks.iter().map(|rank| rank.pieces.data.clone()).collect();
        cluster.ranks.iter_mut().for_each(|rank| rank.pieces.data.fill(0));
        prop_assert_eq!(cluster.operation(false, None), (1, Status::Ok));
        prop_assert!(cluster.ranks.iter().zip(&written).all(|(rank, data)| rank.pieces.data == *data));
        cluster.at_rest();
    }

    #[test]
    fn a_process_that_keeps_its_nodes_runs_may_be_killed_and_others_left_out(
        seed in any::<u64>(),
        nodes in 2..4_usize,
        victim in 0..3_usize,
        moment in 1..200_usize,
        left_out in any::<bool>(),
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 1, 16384);
        cluster.deal_long(5);
        prop_assert_eq!(cluster.operation(true, None), (1, Status::Ok));
        if left_out {
            let others = (0..nodes).filter(|node| *node != victim % nodes);
            let names = others.map(|node| format!("n{node}")).collect();
            cluster.processes[0].node.gatherer.control.set_server_map("app", names);
        }
        cluster.deal_long(5);
        let expected = cluster.expected(&cluster.file);
        let kills = (!left_out).then_some((victim % nodes, moment));
        prop_assert_eq!(cluster.operation(true, kills).1, Status::Ok);
        prop_assert!(cluster.file == expected, "wrong bytes");
        cluster.at_rest();
        prop_assert!(cluster.file == expected, "an older write came after the last operation");
    }

    #[test]
    fn an_error_of_the_storage_reaches_every_rank_and_the_next_operation_succeeds(
        seed in any::<u64>(),
        nodes in 1..4_usize,
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 1, 4096);
        cluster.deal(20_000, 3000, false);
        cluster.fail = Some(Status::NoSpace);
        prop_assert_eq!(cluster.operation(true, None), (1, Status::NoSpace));
        prop_assert!(cluster.ranks.iter().all(|rank| rank.result.unwrap().0 == Status::NoSpace));
        cluster.fail = None;
        let expected = cluster.expected(&[]);
        prop_assert_eq!(cluster.operation(true, None), (1, Status::Ok));
        prop_assert!(cluster.file == expected);
        cluster.at_rest();
    }

    #[test]
    fn what_was_acknowledged_behind_survives_any_process(
        seed in any::<u64>(),
        nodes in 2..4_usize,
        cyclic in any::<bool>(),
        kills in prop::collection::vec((0..3_usize, 1..200_usize, any::<bool>()), 1..5),
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 2, 4096);
        (cluster.cyclic, cluster.write_behind) = (cyclic, true);
        for (victim, moment, early) in kills {
            cluster.deal(20_000, 3000, true);
            let expected = cluster.expected(&cluster.file);
            let kill = (victim % nodes, moment);
            prop_assert_eq!(cluster.operation(true, early.then_some(kill)).1, Status::Ok);
            let late = (!early).then_some((victim % nodes, moment / 5 + 1));
            prop_assert_eq!(cluster.settle(late), Status::Ok);
            prop_assert!(cluster.file == expected, "acknowledged bytes are missing");
        }
        prop_assert!(cluster.copies > 0);
        let last = cluster.file.clone();
        cluster.at_rest();
        prop_assert!(cluster.file == last, "an older write came after the last operation");
    }

    #[test]
    fn a_read_has_what_was_acknowledged_before_it_and_writes_stay_in_order(
        seed in any::<u64>(),
        nodes in 1..4_usize,
        victim in 0..3_usize,
        moment in 1..300_usize,
        long in any::<bool>(),
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 1, 16384);
        cluster.write_behind = true;
        let mut expected = Vec::new();
        for _ in 0..3 {
            if long { cluster.deal_long(5) } else { cluster.deal(30_000, 3000, true) }
            expected = cluster.expected(&expected);
            prop_assert_eq!(cluster.operation(true, None), (1, Status::Ok));
        }
        let written: Vec<_> = cluster.ranks.iter().map(|rank| rank.pieces.data.clone()).collect();
        cluster.ranks.iter_mut().for_each(|rank| rank.pieces.data.fill(0));
        prop_assert_eq!(cluster.operation(false, Some((victim % nodes, moment))).1, Status::Ok);
        prop_assert!(cluster.ranks.iter().zip(&written).all(|(rank, data)| rank.pieces.data == *data));
        prop_assert!(cluster.file == expected, "wrong bytes");
        cluster.at_rest();
    }

    #[test]
    fn an_aggregator_that_was_cut_off_writes_nothing_behind_after_those_that_replace_it(
        seed in any::<u64>(),
        nodes in 2..4_usize,
        cuts in prop::collection::vec((0..3_usize, 0..3_usize, 1..300_usize), 1..4),
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 2, 4096);
        cluster.write_behind = true;
        let mut expected = Vec::new();
        for (from, to, after) in &cuts {
            cluster.cuts = vec![(from % nodes, to % nodes, *after)];
            for _ in 0..3 {
                cluster.deal(20_000, 3000, true);
                expected = cluster.expected(&expected);
                prop_assert_eq!(cluster.operation(true, None).1, Status::Ok);
            }
            prop_assert_eq!(cluster.operation(false, None).1, Status::Ok);
            prop_assert!(cluster.file == expected, "wrong bytes");
        }
        while !cluster.cuts.is_empty() {
            prop_assert_eq!(cluster.operation(false, None).1, Status::Ok);
        }
        prop_assert_eq!(cluster.settle(None), Status::Ok);
        cluster.at_rest();
        prop_assert!(cluster.file == expected, "an older write came after the last operation");
    }

    #[test]
    fn an_error_of_bytes_that_were_acknowledged_is_reported_once(
        seed in any::<u64>(),
        nodes in 2..4_usize,
    ) {
        let mut cluster = Cluster::new(seed, nodes, nodes + 1, 4096);
        cluster.write_behind = true;
        cluster.deal(20_000, 3000, false);
        cluster.fail = Some(Status::NoSpace);
        // What had no room for a copy is an error of the operation itself.
        let (_, status) = cluster.operation(true, None);
        prop_assert!(status == Status::Ok || status == Status::NoSpace);
        prop_assert_eq!(cluster.settle(None), Status::NoSpace);
        cluster.fail = None;
        let expected = cluster.expected(&cluster.file);
        prop_assert_eq!(cluster.operation(true, None), (1, Status::Ok));
        prop_assert_eq!(cluster.settle(None), Status::Ok);
        prop_assert!(cluster.file == expected, "wrong bytes");
        cluster.at_rest();
    }
}
