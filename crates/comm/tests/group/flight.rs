//! The flight recorder of real groups: the description of a hang, and the files written when a group fails.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ronde_comm::testing::run_ranks;
use ronde_comm::{FailureHook, FlightRecord, ProcessGroup, TransportChoice, merge_report};
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, GroupRank, Operation, PointToPoint,
    ReduceOp, Tag,
};

use crate::meshes::{Kind, configs, groups, join};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn operations_are_recorded_on_all_ranks() {
    for kind in Kind::ALL {
        let records = run_ranks(groups(kind, 3, LIMIT), LIMIT, |group| {
            group.all_reduce(&mut vec![1.0_f32; 1000], ReduceOp::Sum)?;
            group.broadcast(&mut [group.rank().0; 5], GroupRank(1))?;
            let mine = Buffer::copy_of(&[7_u8; 30]);
            match group.rank().0 {
                0 => drop(group.send(GroupRank(2), Tag(4), mine)?.wait()?),
                2 => drop(group.receive(GroupRank(0), Tag(4), mine)?.wait()?),
                _ => {}
            }
            group.barrier()?;
            Ok::<_, CollectiveError>(group.flight_record())
        });
        for (rank, record) in records.iter().enumerate() {
            assert_eq!((record.rank.index(), record.size), (rank, 3));
            assert_eq!((&*record.group, &*record.job), ("test", "job"));
            let kinds: Vec<_> = record.operations.iter().map(|o| o.kind.as_str()).collect();
            let expected: &[&str] = match rank {
                0 => &["all_reduce", "broadcast", "send", "barrier"],
                1 => &["all_reduce", "broadcast", "barrier"],
                _ => &["all_reduce", "broadcast", "receive", "barrier"],
            };
            assert_eq!(kinds, expected, "{kind:?}");
            assert!(
                record
                    .operations
                    .iter()
                    .all(|o| o.ended_s.is_some() && !o.failed)
            );
            let reduce = &record.operations[0];
            assert_eq!((reduce.sequence, reduce.bytes), (Some(0), 4000));
            let is_shared = matches!(kind, Kind::Shared);
            assert!(is_shared || !reduce.arrivals.is_empty(), "{reduce:?}");
        }
        let report = merge_report(&records);
        assert!(
            report.contains("no collective is running; the last was barrier 2"),
            "{report}"
        );
    }
}

/// All ranks but the last enter a second all_reduce; their records are taken while they hang.
#[test]
fn a_hang_is_described() {
    let groups: Vec<Arc<ProcessGroup>> = groups(Kind::Tcp, 4, LIMIT)
        .into_iter()
        .map(Arc::new)
        .collect();
    let (done, first_done) = mpsc::channel();
    let threads: Vec<_> = groups
        .iter()
        .map(|group| {
            let (group, done) = (Arc::clone(group), done.clone());
            std::thread::spawn(move || {
                group.barrier()?;
                let buffer = Buffer::copy_of(&vec![1.0_f32; 1 << 20]);
                let second = (group.rank().0 != 3)
                    .then(|| group.start(Operation::AllReduce(ReduceOp::Sum), buffer));
                let _listened = done.send(());
                second.map_or(Ok(()), |work| work?.wait().map(drop))
            })
        })
        .collect();
    for _ in 0..4 {
        first_done.recv_timeout(LIMIT).unwrap();
    }
    let take = || -> Vec<FlightRecord> { groups.iter().map(|g| g.flight_record()).collect() };
    let hanging = merge_report(&take());
    let words = [
        "rank 3 has not entered all_reduce 1 (f32 x 1,048,576, by ",
        "); ranks 0, 1, 2 have waited",
        "its last operation was barrier 0, finished",
    ];
    for words in words {
        assert!(hanging.contains(words), "{hanging}");
    }
    groups[0].abort("enough");
    for (rank, thread) in threads.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap().is_err(), rank != 3, "rank {rank}");
    }
    // Afterwards the description is the same, plus the failure.
    let over = merge_report(&take()[..3]);
    assert!(over.contains("enough"), "{over}");
    assert!(over.contains("there is no record of rank 3"), "{over}");
}

#[test]
fn a_failure_hands_out_the_record_once() {
    let directory = tempfile::tempdir().unwrap();
    let heard: Arc<Mutex<Vec<(u32, String)>>> = Arc::default();
    let mut members = configs(3, Duration::from_millis(200));
    for (rank, config) in members.iter_mut().enumerate() {
        let heard = Arc::clone(&heard);
        config.transport = TransportChoice::Tcp;
        config.on_failure = Some(match rank {
            2 => FailureHook::write_into(directory.path()),
            _ => FailureHook::new(move |record, error| {
                assert!(record.operations.iter().any(|operation| operation.failed));
                let mut heard = heard.lock().unwrap();
                heard.push((record.rank.0, error.to_string()));
            }),
        });
    }
    let joined = join(members).into_iter().map(Result::unwrap).collect();
    run_ranks(joined, LIMIT, |group| {
        group.barrier()?;
        if group.rank().0 > 0 {
            let outcome = group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum);
            assert!(outcome.is_err());
            assert!(group.barrier().is_err());
        } else {
            // Too late for all of them.
            let never = Buffer::copy_of(&[0_u8]);
            let outcome = group.receive(GroupRank(1), Tag(1), never)?.wait();
            assert!(outcome.is_err());
        }
        Ok::<_, CollectiveError>(())
    });
    let mut heard = heard.lock().unwrap().clone();
    heard.sort();
    let ranks: Vec<u32> = heard.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(ranks, [0, 1], "{heard:?}");
    let text = std::fs::read_to_string(directory.path().join("flight-test-0-rank-2.json")).unwrap();
    let record: FlightRecord = serde_json::from_str(&text).unwrap();
    assert!(record.failure.is_some());
    let report = merge_report(&[record]);
    assert!(report.contains("all_reduce 1 (f32 x 8, by "), "{report}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}
