//! Every algorithm on every small group, against references; invalid schedules are detected.

use ronde_core::exact::{self, ExactSum, TreeSum};
use ronde_core::philox::Stream;
use ronde_core::{Buffer, DType, GroupRank};

use super::*;
use crate::algorithm::Algorithm;
use crate::blocks::in_blocks;
use crate::exchange::{all_gather, reduce_scatter};
use crate::make::{all_reduce, exact_sum};
use crate::schedule::Round;
use crate::{barrier, broadcast};

const LENS: [usize; 8] = [0, 1, 2, 3, 63, 64, 65, 1000];

fn ranks(size: usize) -> impl Iterator<Item = GroupRank> {
    (0..size as u32).map(GroupRank)
}

fn values(rank: usize, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|i| (i + 1) * (rank as u64 + 3).pow(2))
        .collect()
}

#[test]
fn all_reduce_equals_the_reference_for_every_algorithm_size_and_length() {
    for algorithm in Algorithm::ALL {
        for size in 1..=17 {
            for len in LENS {
                let schedules: Result<Vec<_>, _> = ranks(size)
                    .map(|rank| all_reduce(algorithm, rank, size, len))
                    .collect();
                let schedules = schedules.unwrap();
                let inputs: Vec<_> = (0..size).map(|rank| values(rank, len)).collect();
                let expected: Vec<u64> = (0..len)
                    .map(|i| inputs.iter().map(|input| input[i]).sum())
                    .collect();
                let results = interpret(&schedules, &inputs, |a, b| a + b).unwrap();
                for result in results {
                    assert_eq!(result, expected, "{algorithm} on {size} ranks, {len}");
                }
            }
        }
    }
}

#[test]
fn many_blocks_give_the_same_result_as_one_block() {
    for size in [1, 2, 3, 4, 5, 7, 8] {
        for (len, block) in [(1000, 64), (1000, 333), (257, 256), (64, 64), (3, 1)] {
            let inputs: Vec<_> = (0..size).map(|rank| values(rank, len)).collect();
            for algorithm in Algorithm::ALL {
                let one = |rank| move |len| all_reduce(algorithm, rank, size, len);
                let schedules: Result<Vec<_>, _> = ranks(size)
                    .map(|rank| in_blocks(len, block, one(rank)))
                    .collect();
                let expected: Vec<u64> = (0..len)
                    .map(|i| inputs.iter().map(|input| input[i]).sum())
                    .collect();
                for result in interpret(&schedules.unwrap(), &inputs, |a, b| a + b).unwrap() {
                    assert_eq!(
                        result, expected,
                        "{algorithm} on {size} ranks, {block} of {len}"
                    );
                }
            }
        }
    }
}

#[test]
fn gathers_scatters_and_broadcasts_equal_the_reference() {
    for size in 1..=17 {
        for len in LENS {
            let lens: Vec<usize> = (0..size).map(|rank| len * (rank % 3)).collect();
            let inputs: Vec<_> = (0..size).map(|rank| values(rank, lens[rank])).collect();
            let schedules: Vec<_> = (0..size).map(|rank| all_gather(rank, &lens)).collect();
            for result in interpret(&schedules, &inputs, |a, _| *a).unwrap() {
                assert_eq!(result, inputs.concat());
            }
            let inputs: Vec<_> = (0..size).map(|rank| values(rank, size * len)).collect();
            let schedules: Vec<_> = (0..size).map(|r| reduce_scatter(r, size, len)).collect();
            let results = interpret(&schedules, &inputs, |a, b| a + b).unwrap();
            let expected: Vec<u64> = (0..size * len)
                .map(|i| inputs.iter().map(|input| input[i]).sum())
                .collect();
            assert_eq!(results.concat(), expected);
        }
        for root in 0..size {
            let inputs: Vec<_> = (0..size).map(|rank| values(rank, 5)).collect();
            let schedules: Vec<_> = (0..size).map(|r| broadcast(r, size, root, 5)).collect();
            for result in interpret(&schedules, &inputs, |a, _| *a).unwrap() {
                assert_eq!(result, inputs[root]);
            }
        }
    }
}

#[test]
fn a_barrier_waits_for_all_ranks() {
    for size in 1..=17_usize {
        let schedules: Vec<_> = (0..size).map(|rank| barrier(rank, size)).collect();
        interpret(&schedules, &vec![Vec::<u8>::new(); size], |a, _| *a).unwrap();
        let mut heard: Vec<u64> = (0..size).map(|rank| 1 << rank).collect();
        let rounds = schedules[0].rounds.len();
        for round in 0..rounds {
            let before = heard.clone();
            for (schedule, heard) in schedules.iter().zip(&mut heard) {
                for transfer in &schedule.rounds[round].transfers {
                    if let Transfer::Receive { from, .. } = transfer {
                        *heard |= before[from.index()];
                    }
                }
            }
        }
        assert!(heard.iter().all(|&heard| heard == (1 << size) - 1));
    }
}

/// Hostile f32: huge, tiny, subnormal, signed zeros, infinities, NaNs with payloads, any bits.
fn hostile(seed: u32, count: usize) -> Vec<f32> {
    let mut words = vec![0; 2 * count];
    Stream::new([seed, 7, 7, 7]).fill(&mut words);
    let special = [1e30, -1e30, 1e-30, 1e-41, -0.0, f32::INFINITY, f32::NAN];
    words
        .chunks(2)
        .map(|pair| match pair[0] % 16 {
            choice @ 0..7 => special[choice as usize],
            7 => f32::from_bits(pair[1]),
            _ => pair[1] as f32 / 1e9 - 2.0,
        })
        .collect()
}

fn add(left: &f32, right: &f32) -> f32 {
    let mut sum = [*left];
    exact::add(
        DType::F32,
        bytes_mut(&mut sum).as_mut_slice(),
        &right.to_ne_bytes(),
    );
    sum[0]
}

/// Owned bytes that are written back on drop, so that [`exact::add`] can be used on one number.
fn bytes_mut(number: &mut [f32; 1]) -> Number<'_> {
    let buffer = Buffer::copy_of(number);
    Number { number, buffer }
}

struct Number<'a> {
    number: &'a mut [f32; 1],
    buffer: Buffer,
}

impl Number<'_> {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        self.number.copy_from_slice(self.buffer.as_slice());
    }
}

fn bounds(size: usize, shards: usize) -> Vec<u32> {
    (0..=size)
        .map(|rank| (rank * shards / size) as u32)
        .collect()
}

/// Returns the operands of a rank: its shards added into subtrees, in order.
fn subtrees(sum: &ExactSum, rank: GroupRank, shards: &[Vec<f32>]) -> Vec<f32> {
    let mut local = TreeSum::new(sum.shards());
    for shard in sum.run(rank) {
        local.add_shard(shard, Buffer::copy_of(&shards[shard as usize]));
    }
    let rest = local.take();
    rest.iter()
        .flat_map(|(_, sum)| sum.as_slice::<f32>().to_vec())
        .collect()
}

#[test]
fn exact_sums_have_the_bits_of_the_tree_for_every_algorithm_size_and_shard_count() {
    let mut refused = 0;
    for size in 1..=17 {
        for shard_count in [1, size, size + 1, 2 * size, 8, 16, 64] {
            let sum = ExactSum::new(bounds(size, shard_count)).unwrap();
            let len = 70;
            let shards: Vec<_> = (0..shard_count)
                .map(|shard| hostile(shard as u32, len))
                .collect();
            let alone = ExactSum::new(vec![0, shard_count as u32]).unwrap();
            let expected = subtrees(&alone, GroupRank(0), &shards);
            let inputs: Vec<_> = ranks(size).map(|r| subtrees(&sum, r, &shards)).collect();
            for algorithm in Algorithm::ALL {
                let schedules: Result<Vec<_>, _> = ranks(size)
                    .map(|rank| exact_sum(algorithm, &sum, rank, len))
                    .collect();
                let Ok(schedules) = schedules else {
                    let never = algorithm == Algorithm::Ring;
                    assert!(never || algorithm == Algorithm::HalvingDoubling && !sum.is_balanced());
                    refused += 1;
                    continue;
                };
                let sum = &sum;
                let one = |rank| move |len| exact_sum(algorithm, sum, rank, len);
                let by_blocks: Result<Vec<_>, _> = ranks(size)
                    .map(|rank| in_blocks(len, 33, one(rank)))
                    .collect();
                for schedules in [schedules, by_blocks.unwrap()] {
                    for result in interpret(&schedules, &inputs, add).unwrap() {
                        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                        assert_eq!(
                            bits(&result),
                            bits(&expected),
                            "{algorithm}, {size} ranks, {shard_count} shards"
                        );
                    }
                }
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn exact_sums_of_powers_of_two_send_no_extra_byte() {
    for size in [2, 4, 8, 16] {
        for shards in [16, 64] {
            let sum = ExactSum::new(bounds(size, shards)).unwrap();
            for algorithm in [
                Algorithm::Direct,
                Algorithm::HalvingDoubling,
                Algorithm::Driver,
            ] {
                for rank in ranks(size) {
                    let exact = exact_sum(algorithm, &sum, rank, 4096).unwrap().cost(4);
                    let plain = all_reduce(algorithm, rank, size, 4096).unwrap().cost(4);
                    assert_eq!(exact, plain);
                    if algorithm != Algorithm::Driver {
                        assert_eq!(exact.bytes_sent, 2 * 4 * 4096 * (size - 1) / size);
                    }
                }
            }
        }
    }
    let uneven = ExactSum::new(bounds(3, 16)).unwrap();
    let exact = exact_sum(Algorithm::Direct, &uneven, GroupRank(1), 4096).unwrap();
    let plain = all_reduce(Algorithm::Direct, GroupRank(1), 3, 4096).unwrap();
    assert!(exact.cost(4).bytes_sent > plain.cost(4).bytes_sent);
}

fn token(to_or_from: usize, send: bool) -> Round {
    let mut round = Round::default();
    if send {
        round.send(to_or_from, Region::new(0, 0..1));
    } else {
        round.receive(to_or_from, Region::new(0, 0..1));
    }
    round
}

#[test]
fn deadlocks_unreceived_messages_and_wrong_lengths_are_detected() {
    let schedule = |rounds| Schedule {
        slots: vec![2],
        inputs: 1,
        rounds,
        result: Region::new(0, 0..2),
    };
    let mut long = Round::default();
    long.receive(0, Region::new(0, 0..2));
    let cases = [
        (
            vec![token(1, false)],
            vec![token(0, false)],
            "waits forever",
        ),
        (vec![token(1, true)], vec![], "never receives"),
        (vec![token(1, true)], vec![long], "arrive for"),
    ];
    for (first, second, expected) in cases {
        let schedules = [schedule(first), schedule(second)];
        let error = interpret(&schedules, &[vec![1, 2], vec![3, 4]], |a, b| a + b).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mut clash = token(0, false);
    clash.send(0, Region::new(0, 0..2));
    assert!(schedule(vec![clash]).check().is_err());
}
