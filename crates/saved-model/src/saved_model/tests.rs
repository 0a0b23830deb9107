//! A saved model is loaded with its bits, and each kind of damage is reported by file.

use ronde_core::layout::{Arena, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_engine::{Activation, Chain, LayerExt, ModelConfig};

use super::*;
use crate::initial_weights::{InitialWeights, TensorExclusions};
use crate::testing::{built, save_to};

fn trained() -> (Chain, ModelManifest) {
    let model = ModelConfig::Mlp {
        hidden: vec![7, 5],
        tensor_parts: 1,
    };
    built(&model, &[6], 3)
}

#[test]
fn a_saved_model_computes_the_bits_of_the_original() {
    let (mut chain, manifest) = trained();
    let folder = tempfile::tempdir().unwrap();
    save_to(folder.path(), &chain, &manifest);
    let input = Activation::from_host(&[2, 6], (0..12).map(|x| x as f32 / 5.0).collect());
    let expected = chain.evaluate(input.clone()).unwrap();
    for path in ["", "model.json", "model.safetensors"] {
        let saved = SavedModel::open(folder.path().join(path)).unwrap();
        assert_eq!(saved.manifest().steps, 5);
        assert_eq!(saved.manifest().setting("run.seed"), Some("11"));
        let found = saved.chain().unwrap().evaluate(input.clone()).unwrap();
        assert_eq!(found.as_slice(), expected.as_slice());
    }
}

#[test]
fn an_earlier_manifest_has_the_names_and_units_of_its_settings() {
    let (chain, mut manifest) = trained();
    let settings = [
        ("data.label.names", "[\"a \", \"b\", \"c\"]"),
        ("data.label.scale", "100.0"),
        ("data.features.scale", "1.0"),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
    manifest.identity.extend(settings);
    let folder = tempfile::tempdir().unwrap();
    save_to(folder.path(), &chain, &manifest);
    let text = std::fs::read_to_string(folder.path().join(MANIFEST_FILE)).unwrap();
    assert!(!text.contains("signature"));
    let saved = SavedModel::open(folder.path()).unwrap();
    let signature = &saved.manifest().signature;
    assert_eq!(signature.class_names, ["a", "b", "c"]);
    assert_eq!(signature.feature_scale, None);
    assert_eq!(saved.manifest().output_scale(), Some(100.0));
}

#[test]
fn damage_is_reported_by_file() {
    let (chain, manifest) = trained();
    let folder = tempfile::tempdir().unwrap();
    save_to(folder.path(), &chain, &manifest);
    let weights = std::fs::read(folder.path().join(WEIGHTS_FILE)).unwrap();
    let text = std::fs::read_to_string(folder.path().join(MANIFEST_FILE)).unwrap();
    let mut flipped = weights.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let newer = text.replace("\"version\": 1", "\"version\": 2");
    let foreign = text.replace("ronde.model", "ronde.events");
    let cases: [(&str, &[u8], &str); 8] = [
        (WEIGHTS_FILE, &flipped, "BLAKE3"),
        (
            WEIGHTS_FILE,
            &weights[..weights.len() - 4],
            "its tensors need",
        ),
        (WEIGHTS_FILE, &weights[..20], "cut off"),
        (WEIGHTS_FILE, b"", "not a safetensors file"),
        (
            WEIGHTS_FILE,
            b"\xff\xff\xff\xff\xff\xff\xff\xff{}",
            "the limit",
        ),
        (MANIFEST_FILE, newer.as_bytes(), "format version is 2"),
        (MANIFEST_FILE, foreign.as_bytes(), "ronde.events"),
        (MANIFEST_FILE, &text.as_bytes()[..50], "not the manifest"),
    ];
    for (name, contents, expected) in cases {
        save_to(folder.path(), &chain, &manifest);
        std::fs::write(folder.path().join(name), contents).unwrap();
        let error = SavedModel::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(name), "{error}");
    }
    let error = SavedModel::open(folder.path().join("absent")).unwrap_err();
    assert!(matches!(error, ModelError::NoModel { .. }));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let (chain, manifest) = trained();
    let folder = tempfile::tempdir().unwrap();
    save_to(folder.path(), &chain, &manifest);
    let saved = SavedModel::open(folder.path()).unwrap();
    let mut other = ModelConfig::Mlp {
        hidden: vec![7],
        tensor_parts: 1,
    }
    .build(&[6], 3, &SeedTree::new(1))
    .unwrap();
    let error = saved.load_into(&mut other).unwrap_err().to_string();
    assert!(
        error.contains("has shape") && error.contains("no tensor"),
        "{error}"
    );
    let own = ModelManifest {
        model: None,
        ..manifest
    };
    save_to(folder.path(), &chain, &own);
    let error = SavedModel::open(folder.path()).unwrap().chain().map(drop);
    assert!(matches!(error, Err(ModelError::OwnModel { .. })));
}

#[test]
fn values_that_are_not_finite_are_refused_with_their_tensor() {
    let (mut chain, manifest) = trained();
    let tensors = &chain.layout().tensors;
    let arena = Arena::new(tensors.iter().map(TensorEntry::elements));
    let mut values = vec![0.5; arena.len()];
    let (name, range) = (tensors[1].name.clone(), arena.ranges()[1].clone());
    (values[range.start], values[range.start + 1]) = (f32::NAN, f32::INFINITY);
    chain.load(&values, arena.ranges());
    let folder = tempfile::tempdir().unwrap();
    save_to(folder.path(), &chain, &manifest);
    let saved = SavedModel::open(folder.path()).unwrap();
    let expected = format!("`{name}` has values that are infinite or not a number: 2");
    let to = folder.path().join("exported");
    for error in [
        saved.chain().map(drop),
        saved.check(),
        crate::export(
            &saved,
            crate::ExportFormat::Torch,
            crate::Naming::Ronde,
            &to,
        ),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
    }
    let file = WeightFile::read(&folder.path().join(WEIGHTS_FILE)).unwrap();
    let model = manifest.model.as_ref();
    let start = InitialWeights::new(
        file.clone(),
        model,
        chain.layout(),
        &TensorExclusions::default(),
    );
    let error = start.map(drop).unwrap_err().to_string();
    assert!(error.contains(&expected), "{error}");
    // A new tensor in its place is not read.
    let exclusions = TensorExclusions {
        drawn: vec![name],
        ignored: Vec::new(),
    };
    assert!(InitialWeights::new(file, model, chain.layout(), &exclusions).is_ok());
}
