//! The last bytes of connections: of ends that are drained, and after a session.

use super::*;

#[test]
fn a_direct_destination_needs_no_session_and_a_drained_proxy_ends_with_its_last_connection() {
    let mut pair = Pair::new();
    let program = Program::new(true);
    let direct = crate::Kind::Fixed("192.0.2.9:1000".parse().unwrap());
    pair.worlds[0].arriving.borrow_mut().push_back((program.clone(), direct));
    pair.turns(4);
    let far = pair.worlds[0].made.borrow()[0].1.clone();
    program.change(|ends| ends.says.extend(b"there"));
    far.change(|ends| ends.says.extend(b"back"));
    pair.phase = Phase::Draining;
    pair.turns(2);
    assert!(!pair.engines[0].is_drained());
    assert_eq!((&*far.0.borrow().heard, &*program.0.borrow().heard), (&b"there"[..], &b"back"[..]));
    for end in [&program, &far] {
        end.change(|ends| ends.has_ended = true);
    }
    pair.turns(3);
    assert!(pair.engines[0].is_drained() && program.0.borrow().finished);
    assert_eq!(pair.records[0][0].way, "direct");
}

/// A connection that was closed at both ends and whose program has not taken all bytes, after its session.
fn unread(pair: &mut Pair) -> Program {
    pair.attach();
    let program = pair.connect(FIRST_PORT, false);
    pair.turns(6);
    let far = pair.worlds[1].made.borrow()[0].1.clone();
    program.change(|ends| ends.has_ended = true);
    far.change(|ends| (ends.says, ends.has_ended) = (vec![7; 5000].into(), true));
    pair.turns(4);
    assert!(pair.engines[1].is_drained() && far.0.borrow().finished);
    pair.lose();
    program
}

#[test]
fn a_program_gets_what_is_left_of_a_complete_stream_after_the_session() {
    let mut pair = Pair::new();
    let program = unread(&mut pair);
    assert!(!pair.engines[0].is_drained() && !program.0.borrow().finished);
    pair.pass(REST_TIME / 2);
    program.change(|ends| ends.room = 3000);
    pair.turns(2);
    // Each byte that it takes gives it more time.
    pair.pass(REST_TIME / 2);
    pair.attach();
    pair.turns(2);
    program.change(|ends| ends.room = 3000);
    pair.turns(2);
    let ends = program.0.borrow();
    assert!(ends.heard == vec![7; 5000] && ends.finished && !ends.was_reset);
    assert_eq!((pair.records[0][0].end, pair.records[0][0].received_bytes), ("closed", 5000));
}

#[test]
fn a_program_that_does_not_take_what_is_left_after_the_session_is_reset_in_time() {
    let mut pair = Pair::new();
    let program = unread(&mut pair);
    pair.pass(REST_TIME);
    pair.turns(1);
    assert!(program.0.borrow().was_reset && pair.engines[0].is_drained());
    assert_eq!(pair.records[0][0].end, "reset");
}

#[test]
fn an_end_is_not_drained_before_its_last_message_has_arrived() {
    let mut pair = Pair::new();
    pair.attach();
    let program = pair.connect(FIRST_PORT, false);
    pair.turns(6);
    let far = pair.worlds[1].made.borrow()[0].1.clone();
    program.change(|ends| ends.has_ended = true);
    pair.turns(3);
    far.change(|ends| (ends.says, ends.has_ended) = (vec![7; 500].into(), true));
    while !pair.engines[1].tunnels.is_empty() {
        pair.engines[1].turn(Phase::Draining, None);
    }
    assert!(!pair.engines[1].is_drained(), "the end of the stream was not sent");
    pair.engines[1].turn(Phase::Draining, None);
    assert!(!pair.engines[1].is_drained(), "it is on its way");
    pair.engines[0].turn(Phase::Running, None);
    assert!(pair.engines[1].is_drained() && program.0.borrow().finished);
}
