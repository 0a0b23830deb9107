//! Rooted operations, all-to-all and hierarchical reductions on every small group, against references.

use ronde_core::exact::{ExactSum, cover};
use ronde_core::exact::{Node, reductions};
use ronde_core::{GroupRank, Operation};
use ronde_schedule::make::refusal;
use ronde_schedule::{
    Algorithm, Hosts, Schedule, ScheduleError, all_reduce_on, all_to_all, all_to_all_unequal,
    broadcast_by, exact_sum_on, exact_sum_scatter, gather, interpret, reduce, scatter,
};

const LENS: [usize; 6] = [0, 1, 3, 64, 65, 1000];

fn values(rank: usize, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|i| (i + 1) * (rank as u64 + 3).pow(2))
        .collect()
}

fn inputs(size: usize, len: usize) -> Vec<Vec<u64>> {
    (0..size).map(|rank| values(rank, len)).collect()
}

fn sums(inputs: &[Vec<u64>]) -> Vec<u64> {
    (0..inputs[0].len())
        .map(|i| inputs.iter().map(|input| input[i]).sum())
        .collect()
}

fn all(
    size: usize,
    make: impl Fn(GroupRank) -> Result<Schedule, ScheduleError>,
) -> Result<Vec<Schedule>, ScheduleError> {
    (0..size as u32).map(|rank| make(GroupRank(rank))).collect()
}

#[test]
fn reductions_to_every_root_equal_the_reference() {
    for size in 1..=17 {
        for root in [0, size / 2, size - 1] {
            for len in LENS {
                for algorithm in Algorithm::ALL {
                    let to = GroupRank(root as u32);
                    let made = all(size, |rank| reduce(algorithm, rank, size, to, len));
                    let offered = [Algorithm::Driver, Algorithm::Tree, Algorithm::Direct];
                    assert_eq!(made.is_ok(), offered.contains(&algorithm));
                    let Ok(schedules) = made else { continue };
                    let brought = inputs(size, len);
                    let results = interpret(&schedules, &brought, |a, b| a + b).unwrap();
                    for (rank, result) in results.into_iter().enumerate() {
                        let expected = if rank == root { sums(&brought) } else { vec![] };
                        assert_eq!(result, expected, "{algorithm}, {size} ranks to {root}");
                    }
                }
            }
        }
    }
}

#[test]
fn gathers_scatters_and_broadcasts_of_every_root_equal_the_reference() {
    for size in 1..=17 {
        for root in [0, size / 2, size - 1] {
            for len in LENS {
                let lens: Vec<usize> = (0..size).map(|rank| len * (rank % 3)).collect();
                let brought: Vec<_> = (0..size).map(|rank| values(rank, lens[rank])).collect();
                let schedules: Vec<_> = (0..size).map(|rank| gather(rank, root, &lens)).collect();
                let results = interpret(&schedules, &brought, |a, _| *a).unwrap();
                for (rank, result) in results.into_iter().enumerate() {
                    let expected = if rank == root {
                        brought.concat()
                    } else {
                        brought[rank].clone()
                    };
                    assert_eq!(result, expected);
                }

                let mut brought = vec![vec![7; len]; size];
                brought[root] = values(root, size * len);
                let schedules: Vec<_> = (0..size).map(|r| scatter(r, size, root, len)).collect();
                let results = interpret(&schedules, &brought, |a, _| *a).unwrap();
                assert_eq!(results.concat(), brought[root]);

                for algorithm in [Algorithm::Tree, Algorithm::Direct] {
                    let from = GroupRank(root as u32);
                    let made = all(size, |rank| broadcast_by(algorithm, rank, size, from, len));
                    let brought = inputs(size, len);
                    for result in interpret(&made.unwrap(), &brought, |a, _| *a).unwrap() {
                        assert_eq!(result, brought[root], "{algorithm}");
                    }
                }
            }
        }
    }
}

#[test]
fn all_to_all_moves_every_part_to_its_destination() {
    for size in 1..=17 {
        for len in LENS {
            let brought = inputs(size, size * len);
            let schedules: Vec<_> = (0..size).map(|rank| all_to_all(rank, size, len)).collect();
            let results = interpret(&schedules, &brought, |a, _| *a).unwrap();
            for (rank, result) in results.into_iter().enumerate() {
                let expected: Vec<u64> = (0..size)
                    .flat_map(|peer| brought[peer][rank * len..(rank + 1) * len].to_vec())
                    .collect();
                assert_eq!(result, expected);
            }
        }
        let lens = |from: usize, to: usize| (from * 7 + to * 3) % 5;
        let parts =
            |from: usize| (0..size).map(move |to| vec![(from * 100 + to) as u64; lens(from, to)]);
        let brought: Vec<Vec<u64>> = (0..size)
            .map(|from| parts(from).flatten().collect())
            .collect();
        let schedules: Vec<_> = (0..size)
            .map(|rank| {
                let send: Vec<_> = (0..size).map(|peer| lens(rank, peer)).collect();
                let receive: Vec<_> = (0..size).map(|peer| lens(peer, rank)).collect();
                all_to_all_unequal(rank, &send, &receive)
            })
            .collect();
        let results = interpret(&schedules, &brought, |a, _| *a).unwrap();
        for (rank, result) in results.into_iter().enumerate() {
            let expected: Vec<u64> = (0..size)
                .flat_map(|peer| vec![(peer * 100 + rank) as u64; lens(peer, rank)])
                .collect();
            assert_eq!(result, expected);
        }
    }
}

/// Returns typical and unusual assignments of `size` ranks to hosts; there are too many to test all.
fn layouts(size: usize) -> Vec<Hosts> {
    let by = |name: &dyn Fn(usize) -> usize| Hosts::new(&(0..size).map(name).collect::<Vec<_>>());
    vec![
        Hosts::one(size),
        by(&|rank| rank),
        by(&|rank| rank / 2),
        by(&|rank| rank / 3),
        by(&|rank| usize::from(rank > 0)),
        by(&|rank| usize::from(rank * 3 >= size)),
        by(&|rank| rank % 2),
        by(&|rank| (rank * rank) % 5),
    ]
}

#[test]
fn hierarchical_sums_equal_the_reference_on_every_layout() {
    for size in 1..=13 {
        for hosts in layouts(size) {
            for len in LENS {
                let made = all(size, |r| {
                    all_reduce_on(Algorithm::Hierarchical, r, &hosts, len)
                });
                let brought = inputs(size, len);
                for result in interpret(&made.unwrap(), &brought, |a, b| a + b).unwrap() {
                    assert_eq!(result, sums(&brought), "{hosts:?}, {len}");
                }
            }
        }
    }
}

/// An element that records its additions in order.
fn added(left: &String, right: &String) -> String {
    format!("({left}+{right})")
}

/// Returns the sum of a subtree as text.
fn written(nodes: &[Node], shards: u32, leaves: &[String]) -> Vec<String> {
    let mut texts = leaves.to_vec();
    let (additions, left) = reductions(nodes, shards);
    for (into, from) in additions {
        texts[into] = added(&texts[into], &texts[from]);
    }
    left.into_iter()
        .map(|(place, _)| texts[place].clone())
        .collect()
}

#[test]
fn exact_sums_add_in_tree_order_on_every_layout_or_are_refused_with_a_reason() {
    let (mut kept, mut refused) = (0, 0);
    for size in 1..=9 {
        for shards in [1, size, size + 1, 8, 16] {
            let bounds = (0..=size).map(|rank| (rank * shards / size) as u32);
            let sum = ExactSum::new(bounds.collect()).unwrap();
            let leaves = |run: std::ops::Range<u32>| {
                let nodes: Vec<_> = run.clone().map(|s| Node::leaf(s, sum.shards())).collect();
                let texts: Vec<_> = run.map(|shard| shard.to_string()).collect();
                written(&nodes, sum.shards(), &texts)
            };
            let expected = leaves(0..sum.shards());
            let brought: Vec<Vec<String>> = (0..size as u32)
                .map(|rank| leaves(sum.run(GroupRank(rank))))
                .collect();
            for owner in 0..size {
                let lens: Vec<usize> = (0..size).map(|rank| usize::from(rank == owner)).collect();
                let made = all(size, |rank| exact_sum_scatter(&sum, rank, &lens)).unwrap();
                let results = interpret(&made, &brought, added).unwrap();
                for (rank, result) in results.into_iter().enumerate() {
                    let expected = expected.iter().filter(|_| rank == owner);
                    assert!(result.iter().eq(expected), "{size} ranks, {shards} shards");
                }
            }
            for hosts in layouts(size) {
                for algorithm in Algorithm::ALL {
                    let made = all(size, |rank| exact_sum_on(algorithm, &sum, rank, &hosts, 1));
                    match made {
                        Ok(made) => {
                            kept += 1;
                            for result in interpret(&made, &brought, added).unwrap() {
                                assert_eq!(result, expected, "{algorithm}, {hosts:?}, {shards}");
                            }
                        }
                        Err(error) => {
                            refused += 1;
                            let why = match algorithm {
                                Algorithm::Ring => "order",
                                Algorithm::Hierarchical => "not consecutive",
                                _ => "subtree",
                            };
                            assert!(error.to_string().contains(why), "{error}");
                        }
                    }
                }
            }
        }
    }
    assert!(kept > 0 && refused > 0);
}

#[test]
fn halving_doubling_keeps_the_tree_on_more_than_powers_of_two() {
    let sum = |size: u32| ExactSum::new((0..=size).collect()).unwrap();
    let keeps = |size: u32| {
        let operation = Operation::ExactSum(sum(size));
        refusal(
            Algorithm::HalvingDoubling,
            &operation,
            &Hosts::one(size as usize),
        )
        .is_none()
    };
    let kept: Vec<u32> = (1..=16).filter(|&size| keeps(size)).collect();
    assert_eq!(kept, [1, 2, 3, 4, 6, 7, 8, 12, 14, 15, 16]);
    assert_eq!(cover(0..3, 3).len(), 1);
}

#[test]
fn few_bytes_cross_between_hosts() {
    let hosts = Hosts::new(&[0, 0, 0, 0, 1, 1, 1, 1]);
    let crossing = |algorithm| {
        let mut crossing = 0;
        for rank in 0..4 {
            let made = all_reduce_on(algorithm, GroupRank(rank), &hosts, 4096).unwrap();
            for transfer in made.rounds.iter().flat_map(|round| &round.transfers) {
                if let ronde_schedule::Transfer::Send { to, region } = transfer
                    && to.index() >= 4
                {
                    crossing += region.len();
                }
            }
        }
        crossing
    };
    assert_eq!(crossing(Algorithm::Hierarchical), 4096);
    assert_eq!(crossing(Algorithm::Direct), 4 * 4096);
}
