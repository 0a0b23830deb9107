//! Hostile values in random associations; exhaustive covers of small trees.

use proptest::prelude::*;

use super::*;

fn tree_of(values: &[f32], order: &[usize]) -> f32 {
    let shards = values.len() as u32;
    let mut sum = TreeSum::new(shards);
    for &shard in order {
        sum.add_shard(shard as u32, Buffer::copy_of(&[values[shard]]));
    }
    let rest = sum.take();
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0].0, Node::root(shards));
    rest[0].1.as_slice::<f32>()[0]
}

#[test]
fn covers_of_all_runs_are_disjoint_ordered_and_complete() {
    for shards in 1..=17 {
        for start in 0..=shards {
            for end in start..=shards {
                let nodes = cover(start..end, shards);
                let leaves: Vec<u32> = nodes
                    .iter()
                    .flat_map(|n| (n.index << n.level)..((n.index + 1) << n.level).min(shards))
                    .collect();
                assert_eq!(
                    leaves,
                    (start..end).collect::<Vec<_>>(),
                    "{start}..{end} of {shards}"
                );
            }
        }
        assert!(cover(0..shards, shards) == vec![Node::root(shards)]);
    }
}

#[test]
fn powers_of_two_ship_one_subtree_a_rank() {
    for (size, shards) in [(1_u32, 8_u32), (2, 8), (4, 8), (8, 8), (4, 64)] {
        let bounds = (0..=size).map(|r| r * shards / size).collect();
        assert!(ExactSum::new(bounds).unwrap().is_balanced());
    }
    assert!(!ExactSum::new(vec![0, 3, 6, 8]).unwrap().is_balanced());
    assert!(ExactSum::new(vec![0, 5, 3]).is_none());
    assert!(ExactSum::new(vec![0, 0]).is_none());
}

#[test]
fn the_most_buffers_are_those_of_the_worst_rank() {
    let most = |bounds: &[u32]| ExactSum::new(bounds.to_vec()).unwrap().buffers_max();
    assert_eq!(most(&[0, 8]), 4, "0-3, 4-5, 6, and 7 being filled");
    assert_eq!(most(&[0, 1, 2]), 1);
    assert_eq!(most(&[0, 4, 8]), 3);
    assert_eq!(
        most(&[0, 3, 6, 8]),
        4,
        "two subtrees remain, and their joined copy"
    );
}

fn hostile() -> impl Strategy<Value = f32> {
    prop_oneof![
        Just(1e30_f32),
        Just(-1e30),
        Just(1e-30),
        Just(-1e-30),
        Just(1e-41),
        Just(-0.0),
        Just(f32::INFINITY),
        Just(f32::from_bits(0x7fc0_1234)),
        Just(f32::from_bits(0xffc0_0001)),
        any::<f32>(),
        -1.0_f32..1.0,
    ]
}

proptest! {
    #[test]
    fn any_order_of_arrival_gives_the_same_bits(
        (values, order) in prop::collection::vec(hostile(), 1..40).prop_flat_map(|values| {
            let order: Vec<usize> = (0..values.len()).collect();
            (Just(values), Just(order).prop_shuffle())
        })
    ) {
        let in_order: Vec<usize> = (0..values.len()).collect();
        prop_assert_eq!(tree_of(&values, &in_order).to_bits(), tree_of(&values, &order).to_bits());
    }

    #[test]
    fn any_spread_over_ranks_gives_the_same_bits(
        values in prop::collection::vec(hostile(), 1..40),
        cuts in prop::collection::vec(0_usize..40, 0..9),
    ) {
        let shards = values.len() as u32;
        let mut bounds: Vec<u32> = cuts.iter().map(|&cut| cut.min(values.len()) as u32).collect();
        bounds.extend([0, shards]);
        bounds.sort_unstable();
        let spread = ExactSum::new(bounds).unwrap();
        let (mut nodes, mut sums) = (Vec::new(), Vec::new());
        for rank in 0..spread.size() {
            let mut local = TreeSum::new(shards);
            for shard in spread.run(GroupRank(rank as u32)) {
                local.add_shard(shard, Buffer::copy_of(&[values[shard as usize]]));
            }
            let rest = local.take();
            prop_assert_eq!(
                rest.iter().map(|(node, _)| *node).collect::<Vec<_>>(),
                spread.nodes(GroupRank(rank as u32))
            );
            for (node, sum) in rest {
                nodes.push(node);
                sums.push(sum.as_slice::<f32>()[0]);
            }
        }
        for (into, from) in additions(&nodes, shards) {
            let mut left = [sums[into]];
            add(DType::F32, bytemuck::cast_slice_mut(&mut left), bytemuck::bytes_of(&sums[from]));
            sums[into] = left[0];
        }
        let in_order: Vec<usize> = (0..values.len()).collect();
        let alone = tree_of(&values, &in_order);
        if shards > 1 {
            prop_assert_eq!(sums[0].to_bits(), alone.to_bits());
        }
    }
}
