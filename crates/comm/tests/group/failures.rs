//! Failures on both transports: every rank is notified, with the cause.

use std::sync::mpsc;
use std::time::Duration;

use crate::meshes::{Kind, groups, groups_with_timeouts};
use ronde_comm::ProcessGroup;
use ronde_comm::testing::run_ranks;
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Operation,
    PointToPoint, ReduceOp, Tag,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Of operations, below the watchdog's, so that an endless wait is reported as a timeout.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Of operations that never end.
const SHORT: Duration = Duration::from_millis(400);

/// Runs `f` on all ranks of both kinds of group and checks each rank's error.
fn all_fail(
    size: usize,
    timeout: Duration,
    f: impl Fn(&ProcessGroup) -> Result<(), CollectiveError> + Send + Sync + Clone + 'static,
    check: impl Fn(usize, CollectiveError),
) {
    for kind in Kind::ALL {
        let f = f.clone();
        let errors = run_ranks(groups(kind, size, timeout), LIMIT, move |group| {
            let outcome = f(&group);
            Ok::<_, CollectiveError>(outcome.err())
        });
        for (rank, error) in errors.into_iter().enumerate() {
            check(
                rank,
                error.unwrap_or_else(|| panic!("{kind:?}: rank {rank} saw no error")),
            );
        }
    }
}

#[test]
fn a_mismatch_names_both_calls_on_all_ranks() {
    let f = |group: &ProcessGroup| {
        let len = if group.rank().0 == 2 { 7 } else { 5 };
        group.all_reduce(&mut vec![1.0_f32; len], ReduceOp::Sum)
    };
    all_fail(4, TIMEOUT, f, |rank, error| {
        let CollectiveError::Mismatch { mine, theirs, .. } = &error else {
            panic!("rank {rank}: {error}");
        };
        // A rank that is notified before it made its own call has called nothing yet.
        let own = if rank == 2 { "7 x f32" } else { "5 x f32" };
        assert!(
            mine.contains(own) || mine == "nothing yet",
            "rank {rank}: {error}"
        );
        assert!(
            theirs.contains("x f32") && theirs != mine,
            "rank {rank}: {error}"
        );
    });
}

#[test]
fn another_operation_or_operator_or_an_empty_buffer_is_a_mismatch() {
    type Call = fn(&ProcessGroup) -> Result<(), CollectiveError>;
    let odd: [Call; 4] = [
        |group| group.barrier(),
        |group| group.all_reduce(&mut [1.0_f32; 5], ReduceOp::Max),
        |group| group.all_reduce(&mut [1_u32; 5], ReduceOp::Sum),
        |group| {
            group.all_reduce(&mut [0.0_f32; 0], ReduceOp::Sum)?;
            group.barrier()
        },
    ];
    for call in odd {
        let f = move |group: &ProcessGroup| {
            if group.rank().0 == 0 {
                call(group)
            } else {
                group.all_reduce(&mut [1.0_f32; 5], ReduceOp::Sum)?;
                group.barrier()
            }
        };
        all_fail(3, TIMEOUT, f, |rank, error| {
            assert!(
                matches!(error, CollectiveError::Mismatch { .. }),
                "rank {rank}: {error}"
            );
        });
    }
}

#[test]
fn a_timeout_names_the_rank_and_the_bytes() {
    let f = |group: &ProcessGroup| {
        if group.rank().0 == 1 {
            // Alive, but does not take part until it is notified of the failure.
            let work = group.receive(GroupRank(0), Tag(9), Buffer::host(DType::U8, 1))?;
            return work.wait().map(drop);
        }
        group.all_reduce(&mut [1.0_f32; 500], ReduceOp::Sum)
    };
    all_fail(
        2,
        Duration::from_millis(300),
        f,
        |rank, error| match error {
            CollectiveError::Timeout { peer, received, .. } => {
                assert_eq!(peer.index(), 1 - rank);
                assert_eq!(received, 0);
            }
            CollectiveError::Aborted { reason, .. } => {
                assert!(
                    reason.contains("waited") && reason.contains("bytes received"),
                    "{reason}"
                );
            }
            other => panic!("rank {rank}: {other}"),
        },
    );
}

#[test]
fn a_timeout_is_reported_at_once_to_a_rank_that_does_nothing_more() {
    for kind in Kind::ALL {
        let (told, hears) = mpsc::channel::<()>();
        let mut groups = groups_with_timeouts(kind, &[Duration::from_millis(100), LIMIT]);
        let [second, first] = [groups.remove(1), groups.remove(0)];
        let waiting = std::thread::spawn(move || {
            let buffer = Buffer::host(DType::U8, 1);
            let outcome = second.receive(GroupRank(0), Tag(0), buffer)?.wait();
            drop(told);
            outcome.map(drop)
        });
        let mine = first.all_reduce(&mut [1.0_f32; 5], ReduceOp::Sum);
        assert!(matches!(mine, Err(CollectiveError::Timeout { .. })));
        // Neither another call nor leaving the group: the peer must be notified all the same.
        let hung_up = hears.recv_timeout(LIMIT);
        assert_eq!(hung_up, Err(mpsc::RecvTimeoutError::Disconnected));
        let theirs = waiting.join().unwrap();
        assert!(
            matches!(theirs, Err(CollectiveError::Aborted { .. })),
            "{theirs:?}"
        );
    }
}

#[test]
fn a_rank_that_leaves_in_the_middle_is_named_on_all_ranks() {
    for kind in Kind::ALL {
        let errors = run_ranks(groups(kind, 4, TIMEOUT), LIMIT, |group| {
            // The other ranks may be notified while they are still in the barrier.
            let before = group.barrier();
            if group.rank().0 == 3 {
                return Ok::<_, CollectiveError>(None);
            }
            let reduce = || group.all_reduce(&mut vec![1.0_f32; 100_000], ReduceOp::Sum);
            Ok(before.and_then(|()| reduce()).err())
        });
        for (rank, error) in errors.into_iter().enumerate().take(3) {
            match error {
                Some(CollectiveError::PeerLost { peer, .. }) => assert_eq!(peer, GroupRank(3)),
                other => panic!("{kind:?}: rank {rank}: {other:?}"),
            }
        }
    }
}

#[test]
fn an_abort_ends_every_wait_and_later_calls() {
    let f = |group: &ProcessGroup| {
        if group.rank().0 == 1 {
            group.abort("enough");
        }
        let first = group.barrier();
        let later = group.barrier();
        assert!(later.is_err());
        first
    };
    all_fail(3, TIMEOUT, f, |rank, error| match error {
        CollectiveError::Aborted { by, reason } => {
            assert_eq!(reason, "enough");
            assert_eq!(
                by,
                if rank == 1 {
                    "this rank"
                } else {
                    "group rank 1"
                }
            );
        }
        other => panic!("rank {rank}: {other}"),
    });
}

#[test]
fn dropping_a_group_with_pending_work_fails_it_and_notifies_the_others() {
    for kind in Kind::ALL {
        let errors = run_ranks(groups(kind, 2, TIMEOUT), LIMIT, |group| {
            let work = group.start(Operation::AllGather, Buffer::copy_of(&[1_u8]))?;
            if group.rank().0 == 0 {
                let never = group.receive(GroupRank(1), Tag(1), Buffer::host(DType::U8, 1))?;
                work.wait()?;
                drop(group);
                return Ok::<_, CollectiveError>(never.wait().err());
            }
            // The notice may arrive while the all_gather still runs here.
            Ok(work.wait().and_then(|_| group.barrier()).err())
        });
        assert!(
            errors
                .iter()
                .all(|error| matches!(error, Some(CollectiveError::Aborted { .. })))
        );
    }
}

#[test]
fn a_peer_that_leaves_an_idle_group_does_no_harm() {
    for kind in Kind::ALL {
        let outcomes = run_ranks(groups(kind, 3, TIMEOUT), LIMIT, |group| {
            group.barrier()?;
            if group.rank().0 == 2 {
                return Ok(None);
            }
            // Ranks 0 and 1 can still communicate after rank 2 has gone.
            let other = GroupRank(1 - group.rank().0);
            for tag in 0..20 {
                let work = group.receive(other, Tag(tag), Buffer::host(DType::U32, 1))?;
                group
                    .send(other, Tag(tag), Buffer::copy_of(&[tag]))?
                    .wait()?;
                assert_eq!(work.wait()?.as_slice::<u32>(), [tag]);
            }
            Ok::<_, CollectiveError>(group.barrier().err())
        });
        for outcome in &outcomes[..2] {
            assert!(matches!(
                outcome,
                Some(CollectiveError::PeerLost {
                    peer: GroupRank(2),
                    ..
                })
            ));
        }
    }
}

#[test]
fn reports_about_the_group_are_not_counted_as_bytes_sent() {
    for kind in Kind::ALL {
        let sent = run_ranks(groups(kind, 2, SHORT), LIMIT, |group| {
            // Members have measured their links.
            let before = group.bytes_sent();
            // Rank 0 waits until its deadline, and reports that before. Rank 1 receives the report, and the failure.
            let outcome = match group.rank().0 {
                0 => group.broadcast(&mut [0.0_f32; 4], GroupRank(1)),
                _ => {
                    let nothing = Buffer::host(DType::F32, 4);
                    let receive = group.receive(GroupRank(0), Tag(1), nothing)?;
                    receive.wait().map(drop)
                }
            };
            assert!(outcome.is_err(), "{outcome:?}");
            Ok::<_, CollectiveError>(group.bytes_sent() - before)
        });
        // In shared memory, an operation begins with 64 bytes for each other member.
        let begun = if matches!(kind, Kind::Shared) { 64 } else { 0 };
        assert_eq!(sent, [begun, 0], "{kind:?}");
    }
}
