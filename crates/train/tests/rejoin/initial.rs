//! Runs from the weights of a file, which rank 0 reads: whichever workers are lost meanwhile, all start with the same bits.

use ronde_core::layout::{Arena, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_engine::LayerExt;
use ronde_saved_model::{NamedTensor, write_safetensors};

use super::*;

/// Returns the settings of a run from the weights of another seed, which are written to `folder`.
fn from_file(folder: &tempfile::TempDir, more: &[&str]) -> RunSettings {
    let chain = config(STEPS, more).model.config;
    let chain = chain.build(&[1, 4, 4], 3, &SeedTree::new(77)).unwrap();
    let tensors = &chain.layout().tensors;
    let arena = Arena::new(tensors.iter().map(TensorEntry::elements));
    let mut values = vec![0.0; arena.len()];
    chain.save_state(&mut values, arena.ranges());
    let named = tensors.iter().zip(arena.ranges());
    let named = named.map(|(entry, range)| NamedTensor {
        name: &entry.name,
        shape: &entry.shape,
        values: &values[range.clone()],
    });
    let path = folder.path().join("weights.safetensors");
    let mut file = std::fs::File::create(&path).unwrap();
    write_safetensors(named, &mut file).unwrap();
    let init = format!("model.init='{}'", path.display());
    let init: &'static str = Box::leak(init.into_boxed_str());
    let more = more
        .iter()
        .map(|set| &*Box::leak((*set).to_owned().into_boxed_str()));
    let sets: Vec<&'static str> = std::iter::once(init).chain(more).collect();
    RunSettings {
        steps: STEPS,
        sets: Box::leak(sets.into_boxed_slice()),
    }
}

#[test]
fn workers_that_are_lost_while_weights_are_sent_change_no_bits() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = train_with(PLAIN, 1, &[], false, None);
    for more in [
        &["train.average_decay=0.6"][..],
        &["parallel.zero=2", "parallel.copies=2"],
        &["parallel.pipeline=3", "parallel.copies=2"],
        &["parallel.pipeline=2", "parallel.copies=2"],
        &["parallel.zero=3", "parallel.copies=2"],
    ] {
        let run = from_file(&folder, more);
        let whole = train_with(run, 1, &[], false, None);
        assert!(
            !whole.bits[0].agree_with(&drawn.bits[0]),
            "the file matters"
        );
        for lost in [0, 1] {
            for operation in 0..16 {
                let is_replaced = operation % 3 == 0;
                let end = train_with(run, 3, &[(lost, operation)], is_replaced, None);
                for bits in &end.bits {
                    assert!(
                        bits.agree_with(&whole.bits[0]),
                        "{more:?}, {lost} at {operation}"
                    );
                }
                assert!(end.bits.len() >= 2, "{more:?}, {lost} at {operation}");
                assert_eq!(steps(&end.events), steps(&whole.events));
            }
        }
    }
}

#[test]
fn a_run_that_begins_again_reads_the_file_again() {
    let folder = tempfile::tempdir().unwrap();
    for more in [
        &["parallel.zero=2", "parallel.copies=1"][..],
        &["parallel.zero=3", "parallel.copies=1"],
        &["parallel.pipeline=3", "parallel.copies=1"],
        &[
            "compression.codec=top_k",
            "compression.senders=5",
            "compression.ratio=0.2",
        ],
    ] {
        let run = from_file(&folder, more);
        let whole = train_with(run, 1, &[], false, None);
        begins_again(run, 3, &whole.bits[0]);
    }
}
