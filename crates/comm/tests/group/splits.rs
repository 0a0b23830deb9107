//! Sub-groups: by colour, along a mesh, overlapping, and a soak of random operations on all of them.

use std::collections::VecDeque;
use std::time::Duration;

use ronde_comm::ProcessGroup;
use ronde_comm::testing::{run_ranks, spawn_ranks};
use ronde_core::philox::Stream;
use ronde_core::{
    CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Mesh, Operation, ReduceOp, Work,
};
use ronde_schedule::Algorithm;

use crate::meshes::{Kind, groups};
use crate::reference::{expected, input, is_right, operations};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn colours_make_groups_in_the_order_of_their_keys() {
    for kind in [Kind::InProcess, Kind::Tcp] {
        run_ranks(groups(kind, 5, LIMIT), LIMIT, |group| {
            let rank = group.rank().0;
            let colour = (rank != 4).then_some(rank % 2);
            let sub = group.split(colour, 100 - rank)?;
            let Some(sub) = sub else {
                assert_eq!(rank, 4);
                return group.barrier();
            };
            assert_eq!((sub.size(), sub.rank().0), (2, 1 - rank / 2));
            assert_eq!(sub.all_gather(&[rank])?, [rank % 2 + 2, rank % 2]);
            let lone = sub.split(Some(rank), 0)?.expect("it gave a colour");
            assert_eq!(lone.size(), 1);
            let mut both = [rank];
            let again = sub.split(Some(7), rank)?.expect("it gave a colour");
            drop(sub);
            again.all_reduce(&mut both, ReduceOp::Sum)?;
            assert_eq!(both, [2 * (rank % 2) + 2]);
            group.barrier()
        });
    }
}

#[test]
fn axes_of_a_mesh_make_overlapping_groups() {
    for kind in [Kind::InProcess, Kind::Tcp] {
        run_ranks(groups(kind, 6, LIMIT), LIMIT, |group| {
            let mesh = Mesh::new([("dp", 3), ("tp", 2)]).expect("the axes differ");
            let dp = group.split_mesh(&mesh, "dp")?;
            let tp = group.split_mesh(&mesh, "tp")?;
            let rank = group.rank().0;
            assert_eq!(
                dp.all_gather(&[rank])?,
                [rank % 2, rank % 2 + 2, rank % 2 + 4]
            );
            assert_eq!(tp.all_gather(&[rank])?, [rank / 2 * 2, rank / 2 * 2 + 1]);
            assert_eq!(tp.config().name, format!("tp.{}", rank / 2 * 2));
            assert!(group.split_mesh(&mesh, "pp").is_err());
            let small = Mesh::new([("dp", 2)]).expect("one axis");
            assert!(group.split_mesh(&small, "dp").is_err());
            group.barrier()
        });
    }
}

#[test]
fn a_sub_group_fails_and_ends_without_its_parent() {
    spawn_ranks(4, LIMIT, |group| {
        let sub = group.split_with(Some(group.rank().0 / 2), 0, |config| {
            config.timeout = Duration::from_millis(150);
        })?;
        let sub = sub.expect("it gave a colour");
        if group.rank().0 % 2 == 0 {
            let error = sub.barrier().unwrap_err();
            assert!(matches!(error, CollectiveError::Timeout { .. }), "{error}");
        }
        group.barrier()?;
        // The first one may still meet what the other member sent before it gave up.
        assert!(sub.barrier().and_then(|()| sub.barrier()).is_err());
        let next = group.split(Some(0), 0)?.expect("it gave a colour");
        next.barrier()?;
        group.abort("enough");
        next.barrier()?;
        Ok::<_, CollectiveError>(())
    });
}

/// Random numbers that are the same on every rank.
struct Dice {
    stream: Stream,
    rolled: u64,
}

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.rolled += 1;
        self.stream.block(self.rolled)[0] as usize % sides
    }
}

/// What was started and must come out.
type Started = (Box<dyn Work>, Operation, usize, usize, usize);

fn check(started: Started, seed: u32, number: usize) -> Result<(), CollectiveError> {
    let (work, operation, rank, size, len) = started;
    let result = work.wait()?;
    assert!(
        is_right(&result, expected(&operation, rank, size, len)),
        "seed {seed}, before operation {number}: {operation:?} of {len} on rank {rank} of {size}"
    );
    Ok(())
}

/// `count` random operations on random groups, up to eight under way at once on each rank.
fn soak(group: &ProcessGroup, seed: u32, count: usize) -> Result<(), CollectiveError> {
    let mut dice = Dice {
        stream: Stream::new([seed, 0, 0, 9]),
        rolled: 0,
    };
    let mesh = Mesh::new([("dp", 3), ("tp", 2)]).expect("the axes differ");
    let rank = group.rank().0;
    let mut subs = vec![
        Some(group.split_mesh(&mesh, "dp")?),
        Some(group.split_mesh(&mesh, "tp")?),
    ];
    for number in 0..3_u32 {
        let colours: Vec<_> = (0..group.size()).map(|_| dice.roll(3) as u32).collect();
        let colour = colours[rank as usize];
        let algorithm = Algorithm::ALL[dice.roll(Algorithm::ALL.len())];
        let key = rank.wrapping_mul(number);
        let configure = |config: &mut ronde_comm::GroupConfig| config.algorithm = Some(algorithm);
        subs.push(group.split_with((colour > 0).then_some(colour), key, configure)?);
    }
    let mut under_way: VecDeque<Started> = VecDeque::new();
    for number in 0..count {
        let place = dice.roll(subs.len() + 1);
        let (kind, dtype) = (dice.roll(10), DType::ALL[dice.roll(8)]);
        let op = [
            ReduceOp::Sum,
            ReduceOp::Min,
            ReduceOp::Max,
            ReduceOp::Product,
        ][dice.roll(4)];
        let len = [0, 1, 3, 64, 65, 127, 1000, 5000][dice.roll(8)];
        let (root, wait) = (dice.roll(6), dice.roll(8));
        let on = if place == subs.len() {
            Some(group)
        } else {
            subs[place].as_ref()
        };
        if let Some(on) = on {
            let (rank, size) = (on.rank().index(), on.size());
            let root = GroupRank((root % size) as u32);
            let operation = operations(op, root, rank, size, len).swap_remove(kind);
            let work = on.start(operation.clone(), input(dtype, &operation, rank, size, len))?;
            under_way.push_back((work, operation, rank, size, len));
        }
        while under_way.len() > wait
            && let Some(started) = under_way.pop_front()
        {
            check(started, seed, number)?;
        }
    }
    for started in under_way {
        check(started, seed, count)?;
    }
    group.barrier()
}

#[test]
fn random_operations_on_overlapping_groups_equal_the_reference() {
    // A failure names its seed: put it here alone to see it again.
    for seed in [1, 2, 3, 4] {
        spawn_ranks(6, LIMIT, move |group| soak(&group, seed, 1000));
    }
    run_ranks(groups(Kind::Tcp, 6, LIMIT), LIMIT, |group| {
        soak(&group, 5, 300)
    });
}
