//! The facts of the layers of a program's model: their work, and whether their weights are the initial ones.

use ronde_core::layout::{Arena, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_engine::{Activation, LayerExt, ModelConfig, Precision, Recomputation, StepShape};

#[test]
fn built_layers_have_the_work_of_their_model() {
    let kinds = [
        (r#"{"kind": "mlp", "hidden": [9, 5]}"#, &[2, 4][..]),
        (r#"{"kind": "digits_cnn"}"#, &[1, 8, 8]),
    ];
    for (text, sample) in kinds {
        let model: ModelConfig = serde_json::from_str(text).unwrap();
        let mut chain = model.build(sample, 3, &SeedTree::new(1)).unwrap();
        let step = StepShape {
            sample,
            classes: 3,
            samples: 4,
            shards: 1,
            is_by_layer: false,
            recomputation: &Recomputation::Off,
            precision: Precision::F32,
        };
        let expected = model.layer_work(&step).unwrap();
        assert_eq!(chain.layer_work(sample, 4), Some(expected), "{text}");
        assert!(chain.layers().iter().all(|layer| layer.is_initial()));
    }
}

#[test]
fn weights_are_the_initial_ones_until_others_are_loaded() {
    let model = ModelConfig::Mlp {
        hidden: vec![4],
        tensor_parts: 1,
    };
    let mut chain = model.build(&[2], 3, &SeedTree::new(1)).unwrap();
    let input = Activation::from_host(&[1, 2], vec![0.5, 1.0]);
    chain.evaluate(input).unwrap();
    assert!(chain.layers().iter().all(|layer| layer.is_initial()));
    let elements = chain.layers()[0].layout().tensors.iter();
    let arena = Arena::new(elements.map(TensorEntry::elements));
    chain.layers_mut()[0].load(&vec![0.0; arena.len()], arena.ranges());
    let is_initial: Vec<bool> = chain.layers().iter().map(|one| one.is_initial()).collect();
    assert_eq!(is_initial, [false, true]);
}
