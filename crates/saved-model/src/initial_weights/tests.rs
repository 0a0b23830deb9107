//! Weights return from every naming with their bits, and everything that does not fit is named.

use ronde_core::seed::SeedTree;
use ronde_engine::{Activation, LayerExt, ModelConfig};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::*;
use crate::export;
use crate::export::ExportFormat;
use crate::saved_model::SavedModel;
use crate::testing::saved;

/// No exclusions.
fn all() -> TensorExclusions {
    TensorExclusions::default()
}

fn without(drawn: &[&str], ignored: &[&str]) -> TensorExclusions {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    TensorExclusions {
        drawn: owned(drawn),
        ignored: owned(ignored),
    }
}

/// A tensor of a file.
type FileTensor = (String, Vec<usize>, Vec<f32>);

/// Returns the tensors of a file.
fn tensors_of(file: &WeightFile) -> Vec<FileTensor> {
    let tensors = file.tensors().iter().map(|(name, stored)| {
        let values = file.values_of(name).unwrap().to_vec();
        (name.clone(), stored.shape.clone(), values)
    });
    tensors.collect()
}

/// Writes tensors to a file and reads it.
fn written(tensors: &[FileTensor]) -> WeightFile {
    let named = tensors
        .iter()
        .map(|(name, shape, values)| crate::NamedTensor {
            name,
            shape,
            values,
        });
    let mut bytes = Vec::new();
    crate::write_safetensors(named, &mut bytes).unwrap();
    let path = Path::new("changed.safetensors");
    WeightFile::read_from(&*bytes, bytes.len() as u64, path).unwrap()
}

fn config(text: &str) -> ModelConfig {
    serde_json::from_str(text).unwrap()
}

fn drawn(model: &ModelConfig, shape: &[usize], classes: u32) -> Chain {
    model.build(shape, classes, &SeedTree::new(99)).unwrap()
}

fn state(chain: &Chain) -> Vec<f32> {
    let arena = Arena::new(chain.layout().tensors.iter().map(TensorEntry::elements));
    let mut values = vec![0.0; arena.len()];
    chain.save_state(&mut values, arena.ranges());
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
            let weights = InitialWeights::new(file, Some(&model), chain.layout(), &all()).unwrap();
            assert_eq!((weights.naming, weights.harmless.len()), (naming, 0));
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
    let refused = InitialWeights::new(file.clone(), Some(&model), chain.layout(), &all());
    let message = refused.unwrap_err().to_string();
    for words in [
        "`fc.weight` has shape [5, 512]",
        "expects [7, 512]",
        "`fc.bias`",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let before = state(&chain);
    let patterns = without(&["fc.*"], &[]);
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
    for unknown in [without(&["head.*"], &[]), without(&[], &["head.*"])] {
        let refused = InitialWeights::new(file.clone(), Some(&model), chain.layout(), &unknown);
        assert!(matches!(refused, Err(ModelError::Pattern { .. })));
    }
}

#[test]
fn files_of_hugging_face_may_lack_the_prefix_and_have_more_positions() {
    let model = config(r#"{"kind": "gpt", "layers": 1, "width": 8, "heads": 2, "tied": true}"#);
    let folder = tempfile::tempdir().unwrap();
    let saved = saved(folder.path(), &model, &[6], 11);
    let file = exported(&saved, folder.path(), Naming::HuggingFace);
    let mut tensors = tensors_of(&file);
    for (name, shape, values) in &mut tensors {
        if name.ends_with("wpe.weight") {
            shape[0] += 4;
            values.extend([9.0; 32]);
        }
        *name = name.strip_prefix("transformer.").unwrap().to_owned();
    }
    let masks = [
        ("h.0.attn.bias", vec![1, 1, 10, 10]),
        ("h.0.attn.masked_bias", vec![]),
    ];
    for (name, shape) in masks {
        let values = vec![1.0; shape.iter().product()];
        tensors.push((name.to_owned(), shape, values));
    }
    let mut chain = drawn(&model, &[6], 11);
    let weights = InitialWeights::new(written(&tensors), Some(&model), chain.layout(), &all());
    let weights = weights.unwrap();
    assert_eq!(weights.harmless, ["h.0.attn.bias", "h.0.attn.masked_bias"]);
    let summary = weights.summary();
    for words in [
        "not used by any model: `h.0.attn.bias`, `h.0.attn.masked_bias`",
        "the first 6 of 10 rows of `transformer.wpe.weight`",
    ] {
        assert!(summary.contains(words), "{summary}");
    }
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
    let weights = InitialWeights::new(file, Some(&model), chain.layout(), &all()).unwrap();
    weights.load_into(&mut loaded);
    let input = Activation::from_host(&[1, 2], vec![1.0, 2.0]);
    let found = loaded.evaluate(input).unwrap();
    assert_eq!(found.as_slice(), [1.0 + 6.0 + 0.5, -0.5 + 0.5 - 2.0]);
    let refused = InitialWeights::new(write(Dtype::I64), Some(&model), chain.layout(), &all());
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("type I64"), "{message}");
    let other = config(r#"{"kind": "gpt", "layers": 1, "width": 8, "heads": 2}"#);
    let gpt = drawn(&other, &[6], 11);
    let refused = InitialWeights::new(write(Dtype::F64), Some(&other), gpt.layout(), &all());
    assert!(matches!(refused, Err(ModelError::ForeignNames { .. })));
}

/// A tensor that is added to a file: the naming of the file, its name and shape, the pattern that leaves it out, and whether the file
/// is accepted.
type AddedTensor = (
    Naming,
    &'static str,
    &'static [usize],
    Option<&'static str>,
    bool,
);

/// Tensors that are added to a file of a model.
const ADDED: [(&str, &[usize], &[AddedTensor]); 2] = [
    (
        r#"{"kind": "resnet18", "small_input": true}"#,
        &[3, 8, 8],
        &[
            (
                Naming::Torchvision,
                "bn1.num_batches_tracked",
                &[],
                None,
                true,
            ),
            (Naming::Ronde, "bn1.num_batches_tracked", &[], None, true),
            (
                Naming::Torchvision,
                "layer5.0.conv1.weight",
                &[2],
                None,
                false,
            ),
            (
                Naming::Torchvision,
                "layer5.0.conv1.weight",
                &[2],
                Some("layer5.*"),
                true,
            ),
            (Naming::Ronde, "layer5.0.conv1.weight", &[2], None, false),
        ],
    ),
    (
        r#"{"kind": "gpt", "layers": 2, "width": 8, "heads": 2, "tied": true}"#,
        &[6],
        &[
            (
                Naming::HuggingFace,
                "transformer.h.2.ln_1.bias",
                &[8],
                None,
                false,
            ),
            (
                Naming::HuggingFace,
                "transformer.h.1.attn.bias",
                &[1, 1, 9, 9],
                None,
                true,
            ),
            // A vector is not a mask.
            (
                Naming::HuggingFace,
                "transformer.h.1.attn.bias",
                &[8],
                None,
                false,
            ),
            (
                Naming::Ronde,
                "block1.attn.bias",
                &[1, 1, 9, 9],
                None,
                false,
            ),
            (Naming::Ronde, "embedding.position_ids", &[1, 6], None, true),
            (Naming::Ronde, "block3.norm.beta", &[8], None, false),
            (
                Naming::Ronde,
                "block3.norm.beta",
                &[8],
                Some("block3.*"),
                true,
            ),
        ],
    ),
];

#[test]
fn every_tensor_of_a_file_is_used_or_named() {
    for (text, shape, added) in ADDED {
        let model = config(text);
        let folder = tempfile::tempdir().unwrap();
        let saved = saved(folder.path(), &model, shape, 11);
        for (naming, name, of_added, ignored, is_accepted) in added {
            let mut tensors = tensors_of(&exported(&saved, folder.path(), *naming));
            let values = vec![0.5; of_added.iter().product()];
            tensors.push(((*name).to_owned(), of_added.to_vec(), values));
            let chain = drawn(&model, shape, 11);
            let exclusions = without(&[], ignored.as_slice());
            let file = written(&tensors);
            let found = InitialWeights::new(file, Some(&model), chain.layout(), &exclusions);
            assert_eq!(
                found.is_ok(),
                *is_accepted,
                "{naming:?} {name} {of_added:?}"
            );
            let (message, expected) = match found {
                Ok(found) => (found.summary(), format!("`{name}`")),
                Err(error) => (
                    error.to_string(),
                    format!("the model has no tensor `{name}`"),
                ),
            };
            assert!(message.contains(&expected), "{message}");
        }
    }
}

#[test]
fn a_tied_model_accepts_an_output_layer_with_the_values_of_the_embedding_alone() {
    let (shape, classes) = (&[6][..], 11);
    let [tied, own] = [true, false].map(|tied| {
        config(&format!(
            r#"{{"kind": "gpt", "layers": 1, "width": 8, "heads": 2, "tied": {tied}}}"#
        ))
    });
    let folder = tempfile::tempdir().unwrap();
    let trained = saved(folder.path(), &own, shape, classes);
    let tensors = tensors_of(&exported(&trained, folder.path(), Naming::HuggingFace));
    let values = |tensors: &[FileTensor], name: &str| {
        let found = tensors.iter().find(|tensor| tensor.0 == name);
        found.map(|tensor| tensor.2.clone())
    };
    let vectors = values(&tensors, "transformer.wte.weight").unwrap();
    let head = values(&tensors, "lm_head.weight").unwrap();
    assert_ne!(vectors, head);
    let load = |tensors: &[FileTensor], exclusions: &TensorExclusions| {
        let mut chain = drawn(&tied, shape, classes);
        let file = written(tensors);
        let weights = InitialWeights::new(file, Some(&tied), chain.layout(), exclusions)?;
        weights.load_into(&mut chain);
        let at = chain.layout().tensors.iter();
        let at = at.take_while(|entry| entry.name != "embedding.token");
        let start: usize = at.map(TensorEntry::elements).sum();
        Ok::<_, ModelError>(state(&chain)[start..start + vectors.len()].to_vec())
    };
    let refused = load(&tensors, &all()).unwrap_err().to_string();
    let expected = "`lm_head.weight` has other values than `transformer.wte.weight`";
    assert!(refused.contains(expected), "{refused}");
    // The user chooses one.
    let chosen = load(&tensors, &without(&[], &["lm_head.*"])).unwrap();
    assert_eq!(chosen, vectors);
    let chosen = load(&tensors, &without(&[], &["*wte.weight"])).unwrap();
    assert_eq!(chosen, head);
    let mut equal = tensors.clone();
    for tensor in &mut equal {
        if tensor.0 == "lm_head.weight" {
            tensor.2.clone_from(&vectors);
        }
    }
    assert_eq!(load(&equal, &all()).unwrap(), vectors);
    // The same values under the name without the prefix.
    let again = ("wte.weight".to_owned(), vec![11, 8], head);
    equal.push(again);
    let refused = load(&equal, &all()).unwrap_err().to_string();
    assert!(
        refused.contains("`wte.weight` has other values"),
        "{refused}"
    );
    // A model with a separate output layer takes both, and the embedding if the file has no output layer.
    for (file, expected) in [
        (&tensors[..], &tensors[..]),
        (&tensors[1..], &equal[..tensors.len()]),
    ] {
        let mut chain = drawn(&own, shape, classes);
        let weights = InitialWeights::new(written(file), Some(&own), chain.layout(), &all());
        weights.unwrap().load_into(&mut chain);
        let mut whole = drawn(&own, shape, classes);
        let weights = InitialWeights::new(written(expected), Some(&own), whole.layout(), &all());
        weights.unwrap().load_into(&mut whole);
        assert!(state(&chain) == state(&whole));
    }
}
