//! Shared memory: random operations in a row, bits of exact sums, mixtures, failures.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ronde_comm::testing::run_ranks;
use ronde_comm::{FailureHook, GroupConfig, ProcessGroup, TransportChoice};
use ronde_core::exact::{ExactSum, TreeSum};
use ronde_core::philox::Stream;
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, MemoryKind, Operation,
    PointToPoint, ReduceOp, Tag,
};

use crate::collectives::{check_scattered, exact_bits_of, hostile};
use crate::meshes::{Kind, configs, groups, join};

const LIMIT: Duration = Duration::from_secs(60);

fn shared(size: usize) -> Vec<ProcessGroup> {
    groups(Kind::Shared, size, LIMIT)
}

/// Returns a buffer in shared or in private memory.
fn buffer(group: &ProcessGroup, values: &[u32], registered: bool) -> Buffer {
    if !registered {
        return Buffer::copy_of(values);
    }
    let mut buffer = group
        .allocate(DType::U32, values.len())
        .expect("there is memory");
    assert!(values.is_empty() || buffer.memory_kind() == MemoryKind::Shared);
    buffer.as_mut_slice::<u32>().copy_from_slice(values);
    buffer
}

/// Runs one operation whose kind, length and memory are drawn alike by all ranks.
fn drawn(
    group: &ProcessGroup,
    draw: &mut dyn FnMut() -> u32,
    started: bool,
) -> Result<(), CollectiveError> {
    let (rank, size) = (group.rank().0, group.size() as u32);
    let len = match draw() % 8 {
        0..4 => draw() % 64,
        4 | 5 => draw() % 5_000,
        6 => draw() % 40_000,
        _ => draw() % 300_000,
    };
    let (kind, seed, memory) = (draw() % 5, draw(), draw());
    let registered = memory >> rank & 1 == 1;
    let value = |of: u32, i: u32| (seed ^ i.wrapping_mul(2_654_435_761)).wrapping_mul(of + 1);
    let values = |of: u32, len: u32| (0..len).map(|i| value(of, i)).collect::<Vec<u32>>();
    let sum = |i: u32| (0..size).fold(0_u32, |sum, of| sum.wrapping_add(value(of, i)));
    let root = seed % size;
    let (operation, mine, expected): (_, _, Vec<u32>) = match kind {
        0 => (
            Operation::AllReduce(ReduceOp::Sum),
            values(rank, len),
            (0..len).map(sum).collect(),
        ),
        1 => {
            let each = len / size;
            let part = (rank * each..(rank + 1) * each).map(sum).collect();
            (
                Operation::ReduceScatter(ReduceOp::Sum),
                values(rank, each * size),
                part,
            )
        }
        2 => {
            let of = |of: u32| values(of, len / size * (of % 3));
            (
                Operation::AllGather,
                of(rank),
                (0..size).flat_map(of).collect(),
            )
        }
        3 => (
            Operation::Broadcast {
                root: GroupRank(root),
            },
            values(rank, len),
            values(root, len),
        ),
        _ => (Operation::Barrier, Vec::new(), Vec::new()),
    };
    let input = buffer(group, &mine, registered);
    let result = if started {
        group.start(operation, input)?.wait()?
    } else {
        group.run(operation, input)?
    };
    assert!(
        result.as_slice::<u32>() == expected,
        "kind {kind}, {len} elements, rank {rank} of {size}"
    );
    Ok(())
}

#[test]
fn thousands_of_mixed_operations_in_a_row_are_right() {
    for (size, rounds) in [(2, 2000), (3, 600), (4, 500), (7, 150)] {
        run_ranks(shared(size), LIMIT, move |group| {
            let mut words = vec![0; rounds as usize * 8];
            Stream::new([size as u32, 5, 6, 7]).fill(&mut words);
            let mut words = words.into_iter();
            let mut draw = move || words.next().expect("there are enough for every round");
            for round in 0..rounds {
                // Which ranks start and wait, and which run in a blocking call, differs.
                let started = (round + group.rank().0) % 3 == 0;
                drawn(&group, &mut draw, started)?;
            }
            Ok::<_, CollectiveError>(())
        });
    }
}

#[test]
fn started_and_blocking_operations_keep_their_order() {
    run_ranks(shared(3), LIMIT, |group| {
        for round in 0..100_u32 {
            let works: Vec<_> = (0..5_u32)
                .map(|i| {
                    let buffer = buffer(&group, &vec![round + i; 10 << (2 * i)], i % 2 == 0);
                    group.start(Operation::AllReduce(ReduceOp::Sum), buffer)
                })
                .collect::<Result<_, _>>()?;
            let mut last = [round];
            group.all_reduce(&mut last, ReduceOp::Max)?;
            assert_eq!(last, [round]);
            for (i, work) in (0..).zip(works) {
                assert!(work.is_finished(), "they were called before");
                let expected = vec![3 * (round + i); 10 << (2 * i)];
                assert!(work.wait()?.as_slice::<u32>() == expected);
            }
        }
        Ok::<_, CollectiveError>(())
    });
}

#[test]
fn exact_sums_have_the_bits_of_one_rank() {
    for (shards, len) in [(1, 3), (5, 100), (8, 1), (8, 30_000), (16, 131), (64, 7000)] {
        let alone = exact_bits_of(
            vec![ProcessGroup::alone(configs(1, LIMIT).remove(0))],
            shards,
            len,
        );
        for size in [2, 3, 4, 5, 8] {
            for bits in exact_bits_of(shared(size), shards, len) {
                assert!(bits == alone[0], "{shards} shards of {len} on {size} ranks");
            }
        }
    }
}

#[test]
fn exact_sums_of_shared_buffers_have_the_same_bits() {
    for size in [2, 3, 4] {
        let run = move |kind| {
            run_ranks(groups(kind, size, LIMIT), LIMIT, move |group| {
                let sum = ExactSum::new((0..=size as u32).map(|r| r * 12 / size as u32).collect());
                let sum = sum.expect("the bounds rise");
                let mut local = TreeSum::new(12);
                for shard in sum.run(group.rank()) {
                    local.add_shard(shard, Buffer::copy_of(&hostile(shard, 40_000)));
                }
                let parts = local.take();
                let brought = || {
                    let mut buffer = group
                        .allocate(DType::F32, parts.len() * 40_000)
                        .expect("there is memory");
                    let into = buffer.as_mut_slice::<f32>().chunks_mut(40_000);
                    into.zip(&parts)
                        .for_each(|(into, (_, part))| into.copy_from_slice(part.as_slice()));
                    buffer
                };
                let result = group.run(Operation::ExactSum(sum.clone()), brought())?;
                let bits = result.as_slice::<f32>().iter().map(|x| x.to_bits());
                let bits: Vec<u32> = bits.collect();
                check_scattered(&group, sum, brought(), &bits)?;
                Ok::<Vec<u32>, CollectiveError>(bits)
            })
        };
        let (shared, apart) = (run(Kind::Shared), run(Kind::InProcess));
        assert!(shared == apart && shared[0].len() == 40_000);
    }
}

#[test]
fn sums_of_floats_have_the_same_bits_on_all_ranks_and_in_any_memory() {
    let results = [false, true].map(|registered| {
        run_ranks(shared(4), LIMIT, move |group| {
            let values = hostile(group.rank().0, 300_001);
            let mut buffer = Buffer::copy_of(&values);
            if registered {
                buffer = group
                    .allocate(DType::F32, values.len())
                    .expect("there is memory");
                buffer.as_mut_slice::<f32>().copy_from_slice(&values);
            }
            let sum = group.run(Operation::AllReduce(ReduceOp::Sum), buffer)?;
            let bits = sum.as_slice::<f32>().iter().map(|x| x.to_bits());
            Ok::<Vec<u32>, CollectiveError>(bits.collect())
        })
    });
    assert!(results.iter().flatten().all(|bits| *bits == results[0][0]));
}

#[test]
fn calls_that_do_not_fit_are_the_same_error_on_all_ranks_and_in_later_calls() {
    let errors = run_ranks(shared(3), LIMIT, |group| {
        group.barrier()?;
        let len = if group.rank().0 == 1 {
            100_001
        } else {
            100_000
        };
        let first = group
            .all_reduce(&mut vec![1.0_f32; len], ReduceOp::Sum)
            .err();
        let later = group.barrier().err();
        assert!(
            matches!(later, Some(CollectiveError::Mismatch { .. })),
            "{later:?}"
        );
        Ok::<_, CollectiveError>(first)
    });
    for (rank, error) in errors.into_iter().enumerate() {
        match error {
            Some(CollectiveError::Mismatch {
                sequence: 1,
                peer,
                mine,
                theirs,
            }) => {
                assert!(peer.0 == 1 || rank == 1);
                let (odd, usual) = if rank == 1 {
                    (mine, theirs)
                } else {
                    (theirs, mine)
                };
                assert!(odd.contains("100001 x f32") && usual.contains("100000 x f32"));
            }
            other => panic!("rank {rank}: {other:?}"),
        }
    }
}

#[test]
fn a_rank_that_arrives_late_with_another_call_is_notified_of_the_mismatch_too() {
    let (late, others) = mpsc::channel::<()>();
    let (late, others) = (std::sync::Mutex::new(late), std::sync::Mutex::new(others));
    let errors = run_ranks(shared(3), LIMIT, move |group| {
        let error = if group.rank().0 == 2 {
            let news = others.lock().expect("no panic");
            for _ in 0..2 {
                news.recv().expect("two others fail");
            }
            group.all_gather(&[1_u8]).err()
        } else {
            let error = match group.rank().0 {
                0 => group.barrier().err(),
                _ => group.all_reduce(&mut [1.0_f32], ReduceOp::Sum).err(),
            };
            late.lock()
                .expect("no panic")
                .send(())
                .expect("rank 2 listens");
            error
        };
        Ok::<_, CollectiveError>(error)
    });
    for error in errors {
        assert!(
            matches!(error, Some(CollectiveError::Mismatch { .. })),
            "{error:?}"
        );
    }
}

#[test]
fn a_rank_that_does_not_enter_is_named_after_the_deadline() {
    let limit = Duration::from_millis(200);
    let mut all = configs(3, limit);
    all[1].timeout = LIMIT;
    let groups = join(all)
        .into_iter()
        .map(|group| group.expect("it joins"))
        .collect();
    let outcomes = run_ranks(groups, LIMIT, |group: ProcessGroup| {
        assert!(group.shares_memory());
        group.barrier()?;
        if group.rank().0 == 1 {
            // Stays until the other ranks have failed.
            let work = group.receive(GroupRank(0), Tag(0), Buffer::host(DType::U8, 1))?;
            return Ok(work.wait().err());
        }
        let mut values = vec![1.0_f32; 50_000];
        Ok::<_, CollectiveError>(group.all_reduce(&mut values, ReduceOp::Sum).err())
    });
    let named = |error: &Option<CollectiveError>| {
        matches!(
            error,
            Some(CollectiveError::Timeout {
                peer: GroupRank(1),
                sequence: 1,
                expected: 200_000,
                ..
            })
        )
    };
    assert!(named(&outcomes[0]) || named(&outcomes[2]), "{outcomes:?}");
    assert!(outcomes.iter().all(Option::is_some), "{outcomes:?}");
}

#[test]
fn an_abort_from_another_thread_ends_the_wait_on_all_ranks() {
    let outcomes = run_ranks(shared(3), LIMIT, |group| {
        group.barrier()?;
        let error = std::thread::scope(|scope| {
            if group.rank().0 == 1 {
                scope.spawn(|| group.abort("enough"));
                return group.barrier().err();
            }
            if group.rank().0 == 2 {
                // Never makes the call that the others wait for.
                let work = group.receive(GroupRank(0), Tag(0), Buffer::host(DType::U8, 1));
                return work.and_then(ronde_core::Work::wait).err();
            }
            group.barrier().err()
        });
        Ok::<_, CollectiveError>(error)
    });
    for outcome in outcomes {
        match outcome {
            Some(CollectiveError::Aborted { reason, .. }) => assert_eq!(reason, "enough"),
            other => panic!("{other:?}"),
        }
    }
}

fn joined(choices: &[TransportChoice]) -> Vec<Result<ProcessGroup, CollectiveError>> {
    let mut all: Vec<GroupConfig> = configs(choices.len(), LIMIT);
    all.iter_mut()
        .zip(choices)
        .for_each(|(config, &choice)| config.transport = choice);
    join(all)
}

#[test]
fn members_settle_how_they_reach_each_other() {
    use TransportChoice::{Auto, SharedMemory, Tcp};
    for (choices, expected) in [
        ([Auto, Auto], true),
        ([Auto, SharedMemory], true),
        ([Tcp, Auto], false),
    ] {
        let groups: Vec<_> = joined(&choices)
            .into_iter()
            .map(|group| group.expect("it joins"))
            .collect();
        run_ranks(groups, LIMIT, move |group| {
            assert_eq!(group.shares_memory(), expected, "{choices:?}");
            assert_eq!(group.config().timeout, LIMIT);
            assert_eq!(group.all_gather(&[group.rank().0])?, [0, 1]);
            Ok::<_, CollectiveError>(())
        });
    }
    for outcome in joined(&[Tcp, SharedMemory, Auto]) {
        let text = outcome.expect_err("it cannot be both").to_string();
        assert!(
            text.contains("group rank 0: it is configured to use TCP"),
            "{text}"
        );
    }
}

#[test]
fn buffers_outlive_their_group_and_serve_in_another_one() {
    run_ranks(shared(2), LIMIT, |group| {
        let mut kept = group
            .allocate(DType::F32, 100_000)
            .expect("there is memory");
        kept.as_mut_slice::<f32>().fill(2.0);
        let kept = group.run(Operation::AllReduce(ReduceOp::Sum), kept)?;
        drop(group);
        assert!(kept.as_slice::<f32>().iter().all(|&x| x == 4.0));
        let alone = ProcessGroup::alone(GroupConfig::new("other", "job", GroupRank(0)));
        let kept = alone.run(Operation::AllReduce(ReduceOp::Sum), kept)?;
        assert_eq!(kept.len(), 100_000);
        Ok::<_, CollectiveError>(())
    });
}

#[test]
fn a_group_may_be_dropped_as_soon_as_its_work_is_done() {
    let failures = Arc::new(AtomicU32::new(0));
    let heard = Arc::clone(&failures);
    run_ranks(shared(3), LIMIT, move |group| {
        for _ in 0..80 {
            let heard = Arc::clone(&heard);
            let count = move |config: &mut GroupConfig| {
                config.on_failure = Some(FailureHook::new(move |_, _| {
                    heard.fetch_add(1, Ordering::SeqCst);
                }));
            };
            let sub = group.split_with(Some(0), 0, count)?;
            let sub = sub.expect("it gave a colour");
            let one = Buffer::copy_of(&[1_u32]);
            let work = sub.start(Operation::AllReduce(ReduceOp::Sum), one)?;
            assert_eq!(work.wait()?.as_slice::<u32>(), [3]);
            drop(sub);
        }
        group.barrier()
    });
    assert_eq!(failures.load(Ordering::SeqCst), 0);
}
