//! A state saved by N ranks and loaded by M has the same bits; inconsistent parts are rejected.

use std::sync::Arc;

use proptest::prelude::*;
use ronde_checkpoint::{
    CheckpointError, Fence, Lineage, ReadRequest, SaveRequest, Saver, Slice, last_good, share,
    to_safetensors,
};
use ronde_core::{Generation, PlanIdentity, Rank, Step, WorldSize};
use ronde_store::{Encrypted, MasterKey, Store};

use crate::state::{LIMIT, State, local, plan};

fn round_trip(store: &Arc<dyn Store>, state: &State, n: u32) {
    let fence = Lineage::claim_next(&**store, Generation(0), Step(0), "run `test`").unwrap();
    state.save(store, fence, n).unwrap();
    let found = last_good(store, &plan(), 2).unwrap().unwrap();
    assert!(found.skipped.is_empty() && found.warning.is_none());
    let checkpoint = found.checkpoint;
    assert_eq!(checkpoint.manifest().world_size, n);
    state.assert_is(&checkpoint);
    for m in 1..=5 {
        for rank in 0..m {
            for (vector, values) in state.vectors.iter().zip(&state.values) {
                let size = vector.dtype.size();
                let range = share(vector.elements, rank, m);
                let expected = &values[range.start as usize * size..range.end as usize * size];
                let mut into = vec![0xff; expected.len()];
                let request = ReadRequest {
                    vector: &vector.name,
                    start: range.start,
                    into: &mut into,
                };
                checkpoint.read_into(&mut [request], 1).unwrap();
                assert!(into == expected, "{} of rank {rank} of {m}", vector.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn saved_by_n_and_loaded_by_m_is_the_same(
        tensors in prop::collection::vec(prop_oneof![0_usize..9, 0_usize..3000], 0..7),
        step in 0_u64..100_000_000,
        encrypted in any::<bool>(),
    ) {
        for n in 1..=5 {
            let folder = tempfile::tempdir().unwrap();
            let mut store = local(folder.path());
            if encrypted {
                store = Arc::new(Encrypted::new(store, MasterKey::generate().unwrap()));
            }
            round_trip(&store, &State::new(step, &tensors), n);
        }
    }

    #[test]
    fn any_range_is_verified_and_correct(
        a in 0_u64..=4_500_000,
        b in 0_u64..=4_500_000,
        threads in 1_usize..4,
    ) {
        // 17 MiB, so that parts and batches are split within tensors, too.
        let shared = big();
        let (from, to) = (a.min(b), a.max(b));
        let mut into = vec![0; (to - from) as usize * 4];
        let request = ReadRequest { vector: "weights", start: from, into: &mut into };
        shared.1.read_into(&mut [request], threads).unwrap();
        prop_assert!(into == shared.0.values[0][from as usize * 4..to as usize * 4]);
    }
}

fn big() -> &'static (State, ronde_checkpoint::Checkpoint, tempfile::TempDir) {
    static BIG: std::sync::OnceLock<(State, ronde_checkpoint::Checkpoint, tempfile::TempDir)> =
        std::sync::OnceLock::new();
    BIG.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let store = local(folder.path());
        let state = State::new(3, &[1_000, 4_000_000, 7, 500_000]);
        let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
        state.save(&store, fence, 3).unwrap();
        let found = last_good(&store, &plan(), 2).unwrap().unwrap();
        (state, found.checkpoint, folder)
    })
}

#[test]
fn another_plan_is_rejected_and_the_world_size_is_not_part_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    State::small(1).save(&store, fence, 3).unwrap();
    let mut other = plan();
    other.set("run.seed", "8");
    let error = last_good(&store, &other, 1).unwrap_err().to_string();
    assert!(error.contains("run.seed changed from 7 to 8"), "{error}");
    let parts = State::small(1).write(&store, fence, 2).unwrap();
    let error = State::small(1)
        .publish(&store, fence, &other, &parts)
        .unwrap_err();
    assert!(
        matches!(error, CheckpointError::OtherPlan { .. }),
        "{error}"
    );
}

#[test]
fn an_empty_store_has_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(&folder.path().join("absent"));
    assert!(
        last_good(&store, &PlanIdentity::default(), 1)
            .unwrap()
            .is_none()
    );
}

#[test]
fn inconsistent_parts_are_rejected_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    let state = State::small(4);
    let whole = state.write(&store, fence, 3).unwrap();
    let of_two = state.write(&store, fence, 2).unwrap();
    let later = State::small(5).write(&store, fence, 3).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let unseen = state.write(&local(elsewhere.path()), fence, 3).unwrap();
    let mut lying = whole.clone();
    lying[0].file.slices[0].start += 64;
    let mut outside = whole.clone();
    outside[1].file.name = "step-00000004/../secret".into();
    for (parts, reason) in [
        (
            vec![whole[0].clone(), whole[1].clone(), whole[1].clone()],
            "rank 1 appears twice",
        ),
        (
            vec![whole[0].clone(), of_two[1].clone(), whole[2].clone()],
            "with world size 2",
        ),
        (
            vec![whole[0].clone(), whole[1].clone(), later[2].clone()],
            "saved step 5",
        ),
        (
            vec![whole[0].clone(), unseen[1].clone(), whole[2].clone()],
            "same store",
        ),
        (lying, "no slice has element"),
        (outside, "secret"),
    ] {
        let error = state.publish(&store, fence, &plan(), &parts).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Parts { .. }) && error.to_string().contains(reason),
            "{error}"
        );
    }
    assert!(last_good(&store, &plan(), 1).unwrap().is_none());
    state.publish(&store, fence, &plan(), &whole).unwrap();
    state.assert_is(&last_good(&store, &plan(), 1).unwrap().unwrap().checkpoint);
}

#[test]
fn invalid_slices_and_a_second_save_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = Saver::start(local(folder.path()), 0).unwrap();
    let state = State::small(1);
    let save = |slices: &'static [Slice<'static>]| SaveRequest {
        step: Step(1),
        fence: Fence::default(),
        rank: Rank(0),
        world_size: WorldSize::ONE,
        vectors: &[],
        slices,
    };
    let slice = |vector, start, bytes| {
        vec![Slice {
            vector,
            start,
            bytes,
        }]
    };
    for (slices, reason) in [
        (slice("absent", 0, &[0; 4]), "no such vector"),
        (slice("weights", 0, &[0; 3]), "do not fit"),
        (slice("weights", 320, &[0; 4]), "do not fit"),
        (slice("weights", u64::MAX, &[0; 4]), "do not fit"),
    ] {
        let error = saver
            .begin(&SaveRequest {
                vectors: &state.vectors,
                slices: &slices,
                ..save(&[])
            })
            .unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert!(saver.wait(LIMIT).is_err());
    saver.begin(&save(&[])).unwrap();
    let error = saver.begin(&save(&[])).unwrap_err();
    assert!(matches!(error, CheckpointError::Busy { .. }), "{error}");
    assert_eq!(saver.wait(LIMIT).unwrap().file.bytes, 0);
    saver.begin(&save(&[])).unwrap();
    while saver.poll().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(saver.under_way(), None);
}

#[test]
fn an_export_is_the_same_for_any_number_of_ranks_and_can_be_read_back() {
    let exports: Vec<Vec<u8>> = [1, 4]
        .into_iter()
        .map(|n| {
            let folder = tempfile::tempdir().unwrap();
            let store = local(folder.path());
            let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
            State::small(9).save(&store, fence, n).unwrap();
            let found = last_good(&store, &plan(), 1).unwrap().unwrap();
            let error = to_safetensors(&found.checkpoint, "adam.v", 1).unwrap_err();
            assert!(error.to_string().contains("weights, adam.m, counts"));
            to_safetensors(&found.checkpoint, "adam.m", 1).unwrap()
        })
        .collect();
    assert!(exports[0] == exports[1]);
    let read = safetensors::SafeTensors::deserialize(&exports[0]).unwrap();
    let state = State::small(9);
    let place = &state.vectors[1].tensors[3];
    let from = place.start as usize * 4;
    assert!(read.tensor("t3").unwrap().data() == &state.values[1][from..from + 70 * 4]);
}
