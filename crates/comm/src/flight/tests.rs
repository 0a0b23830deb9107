//! The recorder's ring, and reports over scripted records.

use proptest::prelude::*;
use ronde_core::{DType, Generation, ReduceOp};

use super::*;

fn call(kind: CallKind, len: u64) -> Call {
    Call {
        kind,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        algorithm: None,
        detail: 0,
        len,
    }
}

#[test]
fn an_operation_is_recorded_with_its_times_and_arrivals() {
    let flight = FlightRecorder::new(GroupRank(1), 3);
    // Rank 2 is ahead of this rank, rank 0 is not.
    flight.arrived(0, 2);
    let ticket = flight.issued(
        RecordedRequest::Collective,
        call(CallKind::AllReduce, 10),
        40,
    );
    flight.streams(ticket);
    flight.started(0, ronde_clock::now());
    flight.arrived(0, 0);
    let open = flight.record();
    flight.arrived(0, 0);
    flight.arrived(0, 9);
    flight.ended(ticket, false);
    let message = flight.issued(RecordedRequest::SendTo(2), call(CallKind::Message, 3), 12);
    flight.ended(message, true);
    let record = flight.record();
    assert_eq!(
        (record.rank, record.size, record.forgotten),
        (GroupRank(1), 3, 0)
    );
    let [reduce, send] = &record.operations[..] else {
        panic!("{record:?}");
    };
    assert_eq!(
        (reduce.sequence, reduce.bytes, reduce.len),
        (Some(0), 40, Some(10))
    );
    assert_eq!(
        (&*reduce.kind, &*reduce.call),
        ("all_reduce", "all_reduce(sum) of 10 x f32")
    );
    let (started, ended) = (reduce.started_s.unwrap(), reduce.ended_s.unwrap());
    assert!(reduce.issued_s <= started && started <= ended && !reduce.failed);
    let [from_0, from_2] = &reduce.arrivals[..] else {
        panic!("{reduce:?}");
    };
    assert!(from_0.peer == GroupRank(0) && from_0.after_s >= 0.0);
    assert!(from_2.peer == GroupRank(2) && from_2.after_s <= 0.0);
    assert_eq!(open.operations[0].ended_s, None);
    assert_eq!(
        open.operations[0].arrivals, reduce.arrivals,
        "only the first bytes count"
    );
    assert_eq!(
        (send.sequence, send.peer, send.failed),
        (None, Some(GroupRank(2)), true)
    );
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<FlightRecord>(&text).unwrap(), record);
}

#[test]
fn the_last_thousand_are_remembered() {
    let flight = FlightRecorder::new(GroupRank(0), 2);
    let mut tickets = Vec::new();
    for sequence in 0..2500 {
        if sequence % 3 == 0 {
            flight.issued(
                RecordedRequest::ReceiveFrom(1),
                call(CallKind::Message, 1),
                4,
            );
        }
        let ticket = flight.issued(RecordedRequest::Collective, call(CallKind::Barrier, 0), 0);
        flight.streams(ticket);
        tickets.push(ticket);
        flight.started(sequence, ronde_clock::now());
        flight.arrived(sequence, 1);
        if sequence % 7 != 0 {
            flight.ended(tickets[sequence as usize], false);
        }
    }
    // Much too late: none of these is kept, and nothing else is changed.
    for &ticket in &tickets[..100] {
        flight.ended(ticket, true);
    }
    for sequence in [0, 100, u64::MAX] {
        flight.arrived(sequence, 1);
        flight.started(sequence, ronde_clock::now());
    }
    let record = flight.record();
    assert_eq!(record.operations.len(), OPERATIONS);
    assert_eq!(record.forgotten, 2500 + 834 - 1000);
    let last = record.operations.last().unwrap();
    assert_eq!(last.sequence, Some(2499));
    for operation in record.operations.iter().filter(|o| o.sequence.is_some()) {
        let sequence = operation.sequence.unwrap();
        assert_eq!(operation.ended_s.is_none(), sequence % 7 == 0);
        assert!(!operation.failed && operation.started_s.is_some());
        assert_eq!(operation.arrivals.len(), 1);
    }
}

/// Run with `cargo test --release -p ronde-comm cost_of -- --ignored --nocapture`.
#[test]
#[ignore = "prints a measurement"]
fn cost_of_recording() {
    const COUNT: u64 = 1_000_000;
    for size in [2, 4, 8, 64] {
        let flight = FlightRecorder::new(GroupRank(0), size);
        let begin = ronde_clock::now();
        for sequence in 0..COUNT {
            let ticket = flight.issued(
                RecordedRequest::Collective,
                call(CallKind::AllReduce, 256),
                1024,
            );
            flight.started(sequence, begin);
            for peer in 1..size.min(4) {
                flight.arrived(sequence, peer);
            }
            flight.ended(ticket, false);
        }
        let nanoseconds = ronde_clock::now().duration_since(begin).as_nanos() as f64;
        let peers = size.min(4) - 1;
        println!(
            "{size} ranks, first bytes of {peers} peers: {:.0} ns per operation",
            nanoseconds / COUNT as f64
        );
        assert_eq!(flight.record().operations.len(), OPERATIONS);
    }
}

/// A scripted operation: number, kind, elements, issued, ended.
type Script = (u64, &'static str, u64, f64, Option<f64>);

fn operation(&(sequence, kind, len, issued_s, ended_s): &Script) -> OperationRecord {
    OperationRecord {
        sequence: Some(sequence),
        kind: kind.to_owned(),
        call: format!("{kind} of {len} x f32"),
        algorithm: None,
        dtype: DType::F32,
        len: Some(len),
        bytes: len * 4,
        peer: None,
        tag: None,
        issued_s,
        started_s: Some(issued_s),
        ended_s,
        failed: false,
        arrivals: Vec::new(),
    }
}

/// Returns a record taken at second 100.
fn record(rank: u32, size: u32, script: &[Script]) -> FlightRecord {
    FlightRecord {
        version: 1,
        job: "job".to_owned(),
        group: "dp".to_owned(),
        generation: Generation(3),
        rank: GroupRank(rank),
        size,
        members: Vec::new(),
        began_unix_s: 0.0,
        taken_s: 100.0,
        forgotten: 0,
        failure: None,
        unanswered: Vec::new(),
        operations: script.iter().map(operation).collect(),
    }
}

#[track_caller]
fn check(records: &[FlightRecord], expected: &str) {
    assert_eq!(merge_report(records).trim_end(), expected);
}

const BROADCAST: Script = (811, "broadcast", 10, 60.0, Some(68.8));
const REDUCE: Script = (812, "all_reduce", 1 << 20, 70.0, None);

#[test]
fn a_rank_that_has_not_entered_is_named() {
    let mut records: Vec<_> = (0..4)
        .map(|rank| record(rank, 4, &[BROADCAST, REDUCE]))
        .collect();
    records[3].operations.pop();
    let expected = "group dp, generation 3, 4 ranks\n  rank 3 has not entered all_reduce 812 (f32 x \
                    1,048,576); ranks 0, 1, 2 have waited 30.0 s; its last operation was broadcast \
                    811, finished 31.2 s before";
    check(&records, expected);
    // The order and the clocks of the records do not matter; a failure ends a wait.
    records.reverse();
    let clock = |record: &mut FlightRecord, by: f64| {
        record.taken_s += by;
        for operation in &mut record.operations {
            operation.issued_s += by;
            operation.ended_s = operation.ended_s.map(|ended| ended + by);
        }
    };
    clock(&mut records[0], 5000.0);
    clock(&mut records[2], -77.0);
    check(&records, expected);
    let stuck = records[1].operations.last_mut().unwrap();
    (stuck.ended_s, stuck.failed) = (Some(80.0), true);
    records[1].failure = Some("waited 10.0 s for group rank 3".to_owned());
    let expected = format!("{expected}\n  rank 2 has failed: waited 10.0 s for group rank 3");
    check(&records, &expected);
}

#[test]
fn a_rank_without_a_record_or_without_operations_is_named() {
    let mut records = vec![record(0, 3, &[BROADCAST, REDUCE]), record(1, 3, &[])];
    records[0].operations[0].arrivals = vec![FirstArrival {
        peer: GroupRank(2),
        after_s: 0.5,
    }];
    check(
        &records,
        "group dp, generation 3, 3 ranks\n  rank 1 has not entered all_reduce 812 (f32 x \
         1,048,576); rank 0 has waited 30.0 s; it has called no operation yet\n  there is no record \
         of rank 2; its last bytes arrived in broadcast 811; in all_reduce 812 (f32 x 1,048,576) rank 0 \
         has waited 30.0 s",
    );
    check(&[], "no records");
    check(
        &[record(0, 1, &[])],
        "group dp, generation 3, 1 rank\n  no collective was called",
    );
}

#[test]
fn disagreement_and_hangs_inside_are_reported() {
    let other: Script = (812, "barrier", 0, 90.0, None);
    let records = [
        record(0, 2, &[BROADCAST, REDUCE]),
        record(1, 2, &[BROADCAST, other]),
    ];
    let report = merge_report(&records);
    assert!(
        report.contains(
            "the ranks disagree about operation 812: rank 0 called all_reduce of 1048576 x f32; \
             rank 1 called barrier of 0 x f32"
        ),
        "{report}"
    );
    let mut records = [record(0, 2, &[REDUCE]), record(1, 2, &[REDUCE])];
    records[1].operations[0].arrivals = vec![FirstArrival {
        peer: GroupRank(0),
        after_s: 0.1,
    }];
    check(
        &records,
        "group dp, generation 3, 2 ranks\n  all ranks have entered all_reduce 812 (f32 x \
         1,048,576); the longest wait is 30.0 s\n  rank 0 has received nothing in it\n  rank 1 has \
         received data from rank 0 in it",
    );
}

#[test]
fn a_rank_that_is_cut_off_is_named_and_a_cut_path_with_both_ends() {
    let reports = |unanswered: &[&[u32]]| {
        let of = |(rank, peers): (usize, &&[u32])| {
            let mut record = record(rank as u32, 4, &[REDUCE]);
            record.unanswered = peers.iter().map(|&peer| GroupRank(peer)).collect();
            record
        };
        let records: Vec<_> = unanswered.iter().enumerate().map(of).collect();
        let report = merge_report(&records);
        let lines = report.lines().filter(|line| line.contains("acknowledged"));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    let off = "rank 2 is cut off: packets between it and ranks 0, 1, 3 are not acknowledged";
    assert_eq!(reports(&[&[2], &[2], &[0, 1, 3], &[2]]), [off]);
    // Whether by its own record or by those of the others.
    assert_eq!(reports(&[&[], &[], &[0, 1, 3], &[]]), [off]);
    assert_eq!(reports(&[&[2], &[2], &[], &[2]]), [off]);
    let way = |ends: &str| {
        format!("packets between {ends} are not acknowledged: a path is cut, or a host is down")
    };
    assert_eq!(reports(&[&[], &[3], &[], &[1]]), [way("rank 1 and rank 3")]);
    // Halves: it cannot be decided which one.
    assert_eq!(
        reports(&[&[2, 3], &[2, 3], &[0, 1], &[0, 1]]),
        [way("rank 0 and ranks 2, 3"), way("rank 1 and ranks 2, 3")]
    );
    assert_eq!(reports(&[&[], &[], &[], &[]]), [""; 0]);
}

#[test]
fn finished_operations_are_reported_as_finished() {
    let records = [record(0, 2, &[BROADCAST]), record(1, 2, &[BROADCAST])];
    check(
        &records,
        "group dp, generation 3, 2 ranks\n  no collective is running; the last was broadcast 811 \
         (f32 x 10)",
    );
    // The root of a broadcast is done before the other ranks have entered.
    let earlier: Script = (810, "barrier", 0, 50.0, Some(51.0));
    let records = [
        record(0, 2, &[earlier, BROADCAST]),
        record(1, 2, &[earlier]),
    ];
    check(
        &records,
        "group dp, generation 3, 2 ranks\n  rank 1 has not entered broadcast 811 (f32 x 10); rank 0 \
         has finished it; its last operation was barrier 810, finished 49.0 s before",
    );
}

#[test]
fn groups_are_separated_and_waiting_messages_are_reported() {
    let mut other = record(1, 2, &[]);
    other.group = "pp".to_owned();
    let mut waiting = operation(&(0, "receive", 2500, 60.0, None));
    (waiting.sequence, waiting.peer, waiting.tag) = (None, Some(GroupRank(0)), Some(9));
    other.operations.push(waiting);
    let records = [other, record(0, 1, &[BROADCAST])];
    check(
        &records,
        "group dp, generation 3, 1 rank\n  no collective is running; the last was broadcast 811 \
         (f32 x 10)\ngroup pp, generation 3, 2 ranks\n  no collective was called\n  there is no \
         record of rank 0; no rank has received anything from it\n  rank 1 waits for a message from rank 0 (tag 9, \
         f32 x 2,500) for 40.0 s",
    );
}

proptest! {
    #[test]
    fn any_records_make_a_report(
        scripts in prop::collection::vec(
            (any::<u32>(), any::<u32>(), prop::collection::vec(
                (any::<u64>(), any::<u64>(), any::<f64>(), any::<Option<f64>>()), 0..4)),
            0..5,
        ),
    ) {
        let records: Vec<_> = scripts
            .into_iter()
            .map(|(rank, size, script)| {
                let script: Vec<Script> = script
                    .into_iter()
                    .map(|(sequence, len, issued, ended)| (sequence, "x", len, issued, ended))
                    .collect();
                record(rank, size, &script)
            })
            .collect();
        let report = merge_report(&records);
        prop_assert!(report.lines().count() > 0 && report.len() < 20_000);
    }
}

#[test]
fn a_record_taken_while_others_write_is_whole() {
    let flight = FlightRecorder::new(GroupRank(0), 2);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 0.. {
                if stop.load(Relaxed) {
                    break;
                }
                let len = sequence * 3;
                let ticket = flight.issued(
                    RecordedRequest::Collective,
                    call(CallKind::AllReduce, len),
                    len as usize * 4,
                );
                flight.arrived(sequence, 1);
                flight.ended(ticket, sequence % 2 == 1);
            }
        });
        let mut seen = 0;
        while seen < 20_000 {
            for operation in flight.record().operations {
                let sequence = operation.sequence.unwrap();
                assert_eq!(operation.len, Some(sequence * 3));
                assert_eq!(operation.bytes, sequence * 12);
                if operation.ended_s.is_some() {
                    assert_eq!(operation.failed, sequence % 2 == 1);
                }
                seen += 1;
            }
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn the_ranks_of_a_sub_group_are_named_by_those_of_all() {
    let of = |rank| {
        let mut record = record(rank, 2, &[BROADCAST]);
        record.group = "dp.0.1".to_owned();
        record.members = vec![GroupRank(1), GroupRank(3)];
        record
    };
    let report = merge_report(&[of(0), of(1)]);
    let first = report.lines().next().unwrap();
    assert_eq!(
        first,
        "group dp.0.1, generation 3, 2 ranks (ranks 1, 3 of all)"
    );
}
