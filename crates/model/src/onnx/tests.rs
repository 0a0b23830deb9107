//! Every built-in model is translated into a graph whose values are defined before they are used.

use std::collections::BTreeSet;

use super::*;
use crate::testing::{SmallModel, every_model, saved};

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
