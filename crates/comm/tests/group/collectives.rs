//! The bits of sums, the order of operations, and invalid calls.

use std::time::Duration;

use ronde_comm::GroupConfig;
use ronde_comm::testing::{in_process_groups, run_ranks, spawn_ranks};
use ronde_core::exact::{ExactSum, TreeSum};
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, GroupRank, Operation, ReduceOp,
};
use ronde_schedule::Algorithm;

const LIMIT: Duration = Duration::from_secs(60);

fn configs(size: usize, algorithm: Option<Algorithm>) -> Vec<GroupConfig> {
    (0..size)
        .map(|rank| {
            let mut config = GroupConfig::new("test", "test", GroupRank(rank as u32));
            config.algorithm = algorithm;
            config.timeout = LIMIT;
            config
        })
        .collect()
}

pub(crate) fn hostile(shard: u32, len: usize) -> Vec<f32> {
    let mut words = vec![0; len];
    ronde_core::philox::Stream::new([shard, 1, 2, 3]).fill(&mut words);
    words
        .iter()
        .map(|&word| match word % 9 {
            0 => 1e30,
            1 => -1e30,
            2 => f32::from_bits(word),
            3 => 1e-40,
            _ => word as f32 / 1e9 - 2.0,
        })
        .collect()
}

fn exact_bits(size: usize, shards: u32, algorithm: Option<Algorithm>, len: usize) -> Vec<Vec<u32>> {
    exact_bits_of(in_process_groups(configs(size, algorithm)), shards, len)
}

/// Returns the bits of an exact sum on every rank.
pub(crate) fn exact_bits_of(
    groups: Vec<ronde_comm::ProcessGroup>,
    shards: u32,
    len: usize,
) -> Vec<Vec<u32>> {
    let size = groups.len();
    run_ranks(groups, LIMIT, move |group| {
        let bounds = (0..=size as u32)
            .map(|r| r * shards / size as u32)
            .collect();
        let sum = ExactSum::new(bounds).expect("the bounds rise");
        let mut local = TreeSum::new(shards);
        for shard in sum.run(group.rank()) {
            local.add_shard(shard, Buffer::copy_of(&hostile(shard, len)));
        }
        let brought: Vec<f32> = local
            .take()
            .iter()
            .flat_map(|(_, sum)| sum.as_slice::<f32>().to_vec())
            .collect();
        let result = group.run(Operation::ExactSum(sum.clone()), Buffer::copy_of(&brought))?;
        let bits: Vec<u32> = result
            .as_slice::<f32>()
            .iter()
            .map(|x| x.to_bits())
            .collect();
        check_scattered(&group, sum, Buffer::copy_of(&brought), &bits)?;
        Ok::<Vec<u32>, CollectiveError>(bits)
    })
}

/// Checks that a scattered exact sum returns the parts of the whole one, for unequal and for empty parts.
pub(crate) fn check_scattered(
    group: &dyn Collectives,
    sum: ExactSum,
    brought: Buffer,
    whole: &[u32],
) -> Result<(), CollectiveError> {
    let (size, len) = (group.size(), whole.len());
    let cuts: Vec<usize> = (0..=size).map(|r| len * r * r / (size * size)).collect();
    let lens = cuts.windows(2).map(|cut| cut[1] - cut[0]).collect();
    let part = group.run(Operation::ExactSumScatter { sum, lens }, brought)?;
    let bits: Vec<u32> = part.as_slice::<f32>().iter().map(|x| x.to_bits()).collect();
    let rank = group.rank().index();
    assert_eq!(bits, whole[cuts[rank]..cuts[rank + 1]], "{cuts:?}");
    Ok(())
}

#[test]
fn exact_sums_have_the_same_bits_for_every_size_and_algorithm() {
    for (shards, len) in [(1, 3), (5, 100), (8, 1), (8, 1000), (16, 131), (64, 70)] {
        let alone = exact_bits(1, shards, None, len).remove(0);
        for size in (2..=9).chain([16, 17]) {
            for algorithm in Algorithm::ALL.map(Some).into_iter().chain([None]) {
                for bits in exact_bits(size, shards, algorithm, len) {
                    assert_eq!(
                        bits, alone,
                        "{shards} shards on {size} ranks, {algorithm:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_algorithm_reduces_large_buffers_to_the_same_bits_on_all_ranks() {
    for algorithm in Algorithm::ALL {
        for size in [2, 3, 4, 8] {
            let groups = in_process_groups(configs(size, Some(algorithm)));
            let results = run_ranks(groups, LIMIT, |group| {
                let mut values = hostile(group.rank().0, 300_001);
                group.all_reduce(&mut values, ReduceOp::Sum)?;
                let bits: Vec<u32> = values.iter().map(|x| x.to_bits()).collect();
                Ok::<_, CollectiveError>(bits)
            });
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}

#[test]
fn operations_run_in_the_order_of_their_calls_while_the_caller_continues() {
    spawn_ranks(4, LIMIT, |group| {
        let works: Vec<_> = (0..50_u32)
            .map(|i| {
                let buffer = Buffer::copy_of(&vec![i; 1000]);
                group.start(Operation::AllReduce(ReduceOp::Sum), buffer)
            })
            .collect::<Result<_, _>>()?;
        for (i, work) in works.into_iter().enumerate() {
            assert_eq!(work.wait()?.as_slice::<u32>(), vec![4 * i as u32; 1000]);
        }
        Ok::<_, CollectiveError>(())
    });
}

#[test]
fn impossible_calls_are_refused_at_once_without_harm() {
    spawn_ranks(3, LIMIT, |group| {
        let sum = |bounds| Operation::ExactSum(ExactSum::new(bounds).expect("the bounds rise"));
        let cases = [
            (
                Operation::Broadcast { root: GroupRank(3) },
                Buffer::copy_of(&[1.0_f32]),
            ),
            (
                Operation::ReduceScatter(ReduceOp::Sum),
                Buffer::copy_of(&[1.0_f32; 4]),
            ),
            (sum(vec![0, 1, 2]), Buffer::copy_of(&[1.0_f32])),
            (sum(vec![0, 1, 2, 3]), Buffer::copy_of(&[1_u32])),
            (sum(vec![0, 3, 6, 9]), Buffer::copy_of(&[1.0_f32; 3])),
        ];
        for (operation, buffer) in cases {
            let error = group.start(operation, buffer).err();
            assert!(
                matches!(error, Some(CollectiveError::Invalid { .. })),
                "{error:?}"
            );
        }
        group.barrier()
    });
}
