//! Messages from rank to rank, on both transports.

use std::time::Duration;

use crate::meshes::{Kind, groups};
use ronde_comm::ProcessGroup;
use ronde_comm::testing::run_ranks;
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, PointToPoint, ReduceOp,
    Tag,
};

const LIMIT: Duration = Duration::from_secs(60);

fn on_both<T: Send + 'static>(
    size: usize,
    f: impl Fn(ProcessGroup) -> Result<T, CollectiveError> + Send + Sync + Clone + 'static,
) {
    for kind in Kind::ALL {
        run_ranks(groups(kind, size, LIMIT), LIMIT, f.clone());
    }
}

#[test]
fn members_that_both_send_much_before_they_receive_do_not_deadlock() {
    const LEN: usize = 6 << 20;
    on_both(2, |group| {
        let (me, other) = (group.rank().0, GroupRank(1 - group.rank().0));
        for tag in 0..2 {
            let buffer = Buffer::copy_of(&vec![me * 10 + tag; LEN]);
            let back = group.send(other, Tag(tag), buffer)?.wait()?;
            assert_eq!(back.len(), LEN, "the buffer is returned");
        }
        // In the other order of tags, and with a collective in between.
        group.barrier()?;
        for tag in [1, 0] {
            let work = group.receive(other, Tag(tag), Buffer::host(DType::U32, LEN))?;
            let got = work.wait()?;
            assert!(
                got.as_slice::<u32>()
                    .iter()
                    .all(|&x| x == other.0 * 10 + tag)
            );
        }
        Ok(())
    });
}

/// Lengths of messages in bytes: short ones, and long ones that members of one host may read in the sender's memory.
const MIXED: [usize; 9] = [
    3,
    128 << 10,
    8,
    (128 << 10) - 1,
    5 << 20,
    0,
    1,
    (1 << 20) + 3,
    200_001,
];

/// Returns the contents of a message.
fn contents(from: u32, number: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u32).wrapping_mul(0x9e37_79b9).wrapping_add(from) as u8 ^ number as u8)
        .collect()
}

#[test]
fn long_messages_keep_their_order_among_short_ones_in_both_directions() {
    for early in [true, false] {
        on_both(4, move |group| {
            let me = group.rank().0;
            let others = (0..4).filter(|&rank| rank != me).map(GroupRank);
            let others: Vec<GroupRank> = others.collect();
            let mut sends = Vec::new();
            let mut receives = Vec::new();
            for step in [early, !early] {
                for (number, len) in MIXED.into_iter().cycle().take(20).enumerate() {
                    for &other in &others {
                        if step {
                            let buffer = Buffer::host(DType::U8, len);
                            let work = group.receive(other, Tag(3), buffer)?;
                            receives.push((other, number, len, work));
                        } else {
                            let buffer = Buffer::copy_of(&contents(me, number, len));
                            sends.push((number, group.send(other, Tag(3), buffer)?));
                        }
                    }
                }
                // Late receives: everything has arrived before.
                group.barrier()?;
            }
            for (from, number, len, work) in receives {
                let got = work.wait()?;
                assert!(
                    got.bytes() == contents(from.0, number, len),
                    "{from}, {number}"
                );
            }
            for (number, work) in sends {
                let buffer = work.wait()?;
                assert!(buffer.bytes() == contents(me, number, buffer.len()));
            }
            group.barrier()
        });
    }
}

#[test]
fn a_long_message_counts_as_sent_bytes_on_every_transport() {
    let mut counts = Vec::new();
    for kind in Kind::ALL {
        let each = run_ranks(groups(kind, 4, LIMIT), LIMIT, |group| {
            let other = GroupRank(group.rank().0 ^ 1);
            let before = group.bytes_sent();
            let work = group.receive(other, Tag(0), Buffer::host(DType::F32, 1 << 20))?;
            group
                .send(other, Tag(0), Buffer::host(DType::F32, 1 << 20))?
                .wait()?;
            let sent = group.bytes_sent() - before;
            work.wait()?;
            group.barrier()?;
            Ok::<_, CollectiveError>(sent)
        });
        counts.extend(each);
    }
    assert!(
        counts.iter().all(|&sent| sent == (4 << 20) + 48),
        "{counts:?}"
    );
}

#[test]
fn an_abort_while_long_messages_are_read_gives_no_wrong_message() {
    for round in 0_u32..30 {
        let groups = groups(Kind::Shared, 2, LIMIT);
        run_ranks(groups, LIMIT, move |group| {
            let other = GroupRank(1 - group.rank().0);
            let mut ended = None;
            for value in 0..20_u8 {
                if group.rank().0 == 1 && u32::from(value) == 3 + round % 7 {
                    let _sent =
                        group.send(other, Tag(0), Buffer::copy_of(&vec![value; 8 << 20]))?;
                    for _ in 0..(round * 37 % 400) {
                        std::thread::yield_now();
                    }
                    group.abort("enough");
                }
                let buffer = Buffer::copy_of(&vec![value; 8 << 20]);
                let step = group.send(other, Tag(0), buffer).and_then(|send| {
                    let buffer = Buffer::host(DType::U8, 8 << 20);
                    let got = group.receive(other, Tag(0), buffer)?.wait()?;
                    assert!(got.bytes().iter().all(|&byte| byte == value));
                    send.wait()
                });
                if let Err(error) = step {
                    ended = Some(error.to_string());
                    break;
                }
            }
            let ended = ended.unwrap_or_default();
            assert!(ended.contains("enough"), "{ended}");
            Ok::<_, CollectiveError>(())
        });
    }
}

#[test]
fn messages_of_one_tag_arrive_in_order_and_beside_collectives() {
    on_both(3, |group| {
        let (rank, size) = (group.rank().0, group.size() as u32);
        let (next, before) = (
            GroupRank((rank + 1) % size),
            GroupRank((rank + size - 1) % size),
        );
        let mut receives = Vec::new();
        for _ in 0..30 {
            receives.push(group.receive(before, Tag(7), Buffer::host(DType::U32, 3))?);
        }
        for i in 0..60 {
            let _sent = group.send(next, Tag(7), Buffer::copy_of(&[i, rank, i]))?;
            let mut sum = [1_i64];
            group.all_reduce(&mut sum, ReduceOp::Sum)?;
            assert_eq!(sum, [3]);
        }
        for _ in 30..60 {
            receives.push(group.receive(before, Tag(7), Buffer::host(DType::U32, 3))?);
        }
        for (i, work) in (0..).zip(receives) {
            assert_eq!(work.wait()?.as_slice::<u32>(), [i, before.0, i]);
        }
        let empty = group.receive(before, Tag(1), Buffer::host(DType::F32, 0))?;
        group
            .send(next, Tag(1), Buffer::host(DType::F32, 0))?
            .wait()?;
        assert!(empty.wait()?.is_empty());
        Ok(())
    });
}

#[test]
fn a_message_of_another_length_or_type_is_an_error_on_both_sides() {
    for wrong in [Buffer::host(DType::F32, 4), Buffer::host(DType::U32, 5)] {
        let (dtype, len) = (wrong.dtype(), wrong.len());
        on_both(2, move |group| {
            let outcome = if group.rank().0 == 0 {
                group
                    .send(GroupRank(1), Tag(0), Buffer::host(DType::U32, 4))?
                    .wait()?;
                group.barrier()
            } else {
                let work = group.receive(GroupRank(0), Tag(0), Buffer::host(dtype, len));
                work.and_then(ronde_core::Work::wait).map(drop)
            };
            let text = outcome.unwrap_err().to_string();
            assert!(
                text.contains("4 x u32") && text.contains(&format!("{len} x {dtype}")),
                "{text}"
            );
            Ok(())
        });
    }
}

#[test]
fn a_message_to_a_missing_rank_is_refused() {
    on_both(2, |group| {
        for to in [group.rank(), GroupRank(2)] {
            let refused = group.send(to, Tag(0), Buffer::host(DType::U8, 1)).err();
            assert!(matches!(refused, Some(CollectiveError::Invalid { .. })));
        }
        group.barrier()
    });
}

#[test]
fn a_group_of_one_returns_its_input() {
    let config = crate::meshes::configs(1, LIMIT).remove(0);
    let group = ProcessGroup::alone(config);
    let mut values = [1.5_f32, 2.5];
    group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    assert_eq!(values, [1.5, 2.5]);
    assert_eq!(group.all_gather(&values).unwrap(), values);
    group.barrier().unwrap();
    assert_eq!(group.bytes_sent(), 0);
    assert!(
        group
            .send(GroupRank(0), Tag(0), Buffer::host(DType::U8, 1))
            .is_err()
    );
    group.abort("enough");
    assert!(matches!(
        group.barrier(),
        Err(CollectiveError::Aborted { .. })
    ));
}
