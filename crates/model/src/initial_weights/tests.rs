//! Weights come back from every naming with their bits, and everything that does not fit is named.

use ronde_core::seed::SeedTree;
use ronde_engine::{Activation, ModelConfig};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::*;
use crate::testing::saved;
use crate::{ExportFormat, SavedModel, export};

fn config(text: &str) -> ModelConfig {
    serde_json::from_str(text).unwrap()
}

fn drawn(model: &ModelConfig, shape: &[usize], classes: u32) -> Chain {
    model.build(shape, classes, &SeedTree::new(99)).unwrap()
}

fn state(chain: &Chain) -> Vec<f32> {
    let arena = Arena::new(chain.layout().tensors.iter().map(TensorEntry::elements));
    let mut values = vec![0.0; arena.len()];
    chain.save(&mut values, arena.ranges());
    values
}

/// Exports a model in a naming and reads the file.
fn exported(saved: &SavedModel, folder: &Path, naming: Naming) -> WeightFile {
    let path = folder.join(format!("{}.safetensors", naming.name()));
    export(saved, ExportFormat::Safetensors, naming, &path).unwrap();
    WeightFile::read(&path).unwrap()
}

#[test]
fn weights_of_every_naming_give_the_bits_of_the_original() {
    for (text, shape, classes) in [
        (
            r#"{"kind": "resnet18", "small_input": true}"#,
            &[3, 8, 8][..],
            5,
        ),
        (
            r#"{"kind": "vgg16", "small_input": true, "normalisation": "batch"}"#,
            &[3, 32, 32],
            5,
        ),
        (
            r#"{"kind": "gpt", "layers": 2, "width": 8, "heads": 2, "tied": true}"#,
            &[6],
            11,
        ),
        (
            r#"{"kind": "gpt", "layers": 2, "width": 8, "heads": 2}"#,
            &[6],
            11,
        ),
    ] {
        let model = config(text);
        let folder = tempfile::tempdir().unwrap();
        let saved = saved(folder.path(), &model, shape, classes);
        let expected = state(&saved.chain().unwrap());
        for naming in [Naming::Ronde, Naming::counterpart(&model)] {
            let file = exported(&saved, folder.path(), naming);
            let mut chain = drawn(&model, shape, classes);
            assert_ne!(state(&chain), expected);
            let weights = InitialWeights::new(file, Some(&model), chain.layout(), &[]).unwrap();
            assert_eq!((weights.naming, weights.unused.len()), (naming, 0));
            weights.load_into(&mut chain);
            assert!(state(&chain) == expected, "{text} {naming:?}");
        }
    }
}

#[test]
fn a_head_of_another_size_keeps_its_drawn_values() {
    let model = config(r#"{"kind": "resnet18", "small_input": true}"#);
    let folder = tempfile::tempdir().unwrap();
    let saved = saved(folder.path(), &model, &[3, 8, 8], 5);
    let file = exported(&saved, folder.path(), Naming::Torchvision);
    let mut chain = drawn(&model, &[3, 8, 8], 7);
    let refused = InitialWeights::new(file.clone(), Some(&model), chain.layout(), &[]);
    let message = refused.unwrap_err().to_string();
    for words in [
        "`fc.weight` has shape [5, 512]",
        "expects [7, 512]",
        "`fc.bias`",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let before = state(&chain);
    let patterns = ["fc.*".to_owned()];
    let weights = InitialWeights::new(file.clone(), Some(&model), chain.layout(), &patterns);
    let weights = weights.unwrap();
    assert_eq!(weights.drawn, ["fc.weight", "fc.bias"]);
    weights.load_into(&mut chain);
    let after = state(&chain);
    let arena = Arena::new(chain.layout().tensors.iter().map(TensorEntry::elements));
    for (entry, range) in chain.layout().tensors.iter().zip(arena.ranges()) {
        let is_kept = after[range.clone()] == before[range.clone()];
        let is_initial = !entry.name.ends_with("weight");
        assert!(
            is_kept == entry.name.starts_with("fc.") || is_initial,
            "{}",
            entry.name
        );
    }
    let unknown = ["head.*".to_owned()];
    let refused = InitialWeights::new(file, Some(&model), chain.layout(), &unknown);
    assert!(matches!(refused, Err(ModelError::Pattern { .. })));
}

#[test]
fn files_of_hugging_face_may_lack_the_prefix_and_have_more_positions() {
    let model = config(r#"{"kind": "gpt", "layers": 1, "width": 8, "heads": 2, "tied": true}"#);
    let folder = tempfile::tempdir().unwrap();
    let saved = saved(folder.path(), &model, &[6], 11);
    let file = exported(&saved, folder.path(), Naming::HuggingFace);
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for (name, stored) in file.tensors() {
        let mut shape = stored.shape.clone();
        let mut values = file.values_of(name).unwrap().to_vec();
        if name.ends_with("wpe.weight") {
            shape[0] += 4;
            values.extend([9.0; 32]);
        }
        let inner = name.strip_prefix("transformer.").unwrap().to_owned();
        tensors.push((inner, shape, values));
    }
    tensors.push(("h.0.attn.bias".to_owned(), vec![1], vec![1.0]));
    tensors.push(("h.7.extra".to_owned(), vec![1], vec![1.0]));
    let named = tensors
        .iter()
        .map(|(name, shape, values)| crate::NamedTensor {
            name,
            shape,
            values,
        });
    let path = folder.path().join("inner.safetensors");
    let mut to = std::fs::File::create(&path).unwrap();
    crate::write_safetensors(named, &mut to).unwrap();
    let file = WeightFile::read(&path).unwrap();
    let mut chain = drawn(&model, &[6], 11);
    let weights = InitialWeights::new(file, Some(&model), chain.layout(), &[]).unwrap();
    assert_eq!(weights.unused, ["h.7.extra"]);
    assert!(
        weights
            .summary()
            .contains("not used by the model: `h.7.extra`")
    );
    weights.load_into(&mut chain);
    let tokens = || Activation::from_host(&[1, 6], vec![1.0, 5.0, 0.0, 10.0, 3.0, 3.0]);
    let expected = saved.chain().unwrap().evaluate(tokens()).unwrap();
    let found = chain.evaluate(tokens()).unwrap();
    assert_eq!(found.as_slice(), expected.as_slice());
}

#[test]
fn short_and_long_formats_are_converted_and_integers_are_refused() {
    let model = config(r#"{"kind": "linear"}"#);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let bias = [0.5_f64, -2.0].map(f64::to_le_bytes).concat();
    let weight = [1.0_f32, -0.5, 3.0, 0.25].map(|value| half::bf16::from_f32(value).to_le_bytes());
    let weight = weight.concat();
    let chain = drawn(&model, &[2], 2);
    let names: Vec<&str> = chain
        .layout()
        .tensors
        .iter()
        .map(|one| &*one.name)
        .collect();
    let write = |dtype| {
        let bytes = if dtype == Dtype::F64 {
            &bias[..]
        } else {
            &bias[..16]
        };
        let views = [
            (
                names[0],
                TensorView::new(Dtype::BF16, vec![2, 2], &weight).unwrap(),
            ),
            (names[1], TensorView::new(dtype, vec![2], bytes).unwrap()),
        ];
        std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
        WeightFile::read(&path).unwrap()
    };
    let file = write(Dtype::F64);
    let mut loaded = drawn(&model, &[2], 2);
    let weights = InitialWeights::new(file, Some(&model), chain.layout(), &[]).unwrap();
    weights.load_into(&mut loaded);
    let input = Activation::from_host(&[1, 2], vec![1.0, 2.0]);
    let found = loaded.evaluate(input).unwrap();
    assert_eq!(found.as_slice(), [1.0 + 6.0 + 0.5, -0.5 + 0.5 - 2.0]);
    let refused = InitialWeights::new(write(Dtype::I64), Some(&model), chain.layout(), &[]);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("type I64"), "{message}");
    let other = config(r#"{"kind": "gpt", "layers": 1, "width": 8, "heads": 2}"#);
    let gpt = drawn(&other, &[6], 11);
    let refused = InitialWeights::new(write(Dtype::F64), Some(&other), gpt.layout(), &[]);
    assert!(matches!(refused, Err(ModelError::ForeignNames { .. })));
}
