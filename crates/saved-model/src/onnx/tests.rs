//! Every built-in model is translated into a graph whose values are defined before they are used.

use std::collections::BTreeSet;

use ronde_core::DataSignature;
use ronde_engine::ModelConfig;

use super::*;
use crate::export;
use crate::export::ExportFormat;
use crate::names::Naming;
use crate::testing::{SmallModel, built, every_model, save_to, saved};

#[test]
fn exported_files_have_names_and_units() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, mut manifest) = built(&ModelConfig::Linear {}, &[2], 1);
    manifest.signature = DataSignature {
        columns: vec!["height".to_owned(), "width".to_owned()],
        value_scale: Some(100.0),
        ..DataSignature::default()
    };
    save_to(folder.path(), &chain, &manifest);
    let saved = SavedModel::open(folder.path()).unwrap();
    let graph = translate(&saved).unwrap();
    let [.., product, end] = &*graph.nodes else {
        panic!("no nodes");
    };
    assert_eq!(product.operator, "Mul");
    assert_eq!(end.inputs, product.outputs);
    let mut written = Vec::new();
    write_onnx(&saved, &mut written).unwrap();
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|at| at == text.as_bytes());
    assert!(has(&written, r#"["height","width"]"#));
    assert!(has(&written, "the graph multiplies by 100"));
    let path = folder.path().join("exported.safetensors");
    export(&saved, ExportFormat::Safetensors, Naming::Ronde, &path).unwrap();
    let exported = std::fs::read(&path).unwrap();
    assert!(has(
        &exported,
        "outputs times 100 are in the units of the data"
    ));
    // The names and units of a model do not change its weights.
    let weights = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    assert!(!has(&weights, "height"));
    // The logits of masks have no unit.
    let loss = ("train.loss".to_owned(), "\"dice\"".to_owned());
    manifest.identity.push(loss);
    save_to(folder.path(), &chain, &manifest);
    let saved = SavedModel::open(folder.path()).unwrap();
    let graph = translate(&saved).unwrap();
    assert!(graph.nodes.iter().all(|node| node.operator != "Mul"));
}

#[test]
fn every_value_is_defined_before_it_is_used() {
    for SmallModel {
        model,
        shape,
        classes,
        ..
    } in every_model()
    {
        let folder = tempfile::tempdir().unwrap();
        let saved = saved(folder.path(), &model, &shape, classes);
        let graph = translate(&saved).unwrap();
        let mut names: BTreeSet<&str> = graph
            .constants
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        assert_eq!(names.len(), graph.constants.len());
        names.insert("input");
        names.insert("");
        for node in &graph.nodes {
            for input in &node.inputs {
                assert!(names.contains(input.as_str()), "{model:?}: {input}");
            }
            assert!(node.outputs.iter().all(|output| names.insert(output)));
        }
        assert!(names.contains("output"));
        // All tensors of the model are constants of the graph.
        for name in saved.weights().tensors().keys() {
            assert!(names.contains(name.as_str()), "{model:?}: {name}");
        }
        let mut written = Vec::new();
        write_onnx(&saved, &mut written).unwrap();
        assert!(written.len() > 4 * saved.weights().values().len() / 64);
    }
}
