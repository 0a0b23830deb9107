//! Metadata of exported files: the names and the units of inputs and outputs as keys with texts.

use std::collections::HashMap;

use crate::manifest::ModelManifest;

/// The key of the metadata of a safetensors file.
const SIGNATURE: &str = "ronde.signature";

/// Returns the names and the units of a model as keys and texts, for an exported graph whose outputs are in the units of the
/// data. Lists are JSON arrays.
pub(crate) fn graph_properties(manifest: &ModelManifest) -> Vec<(&'static str, String)> {
    properties(manifest, |scale| {
        format!("the units of the data: the graph multiplies by {scale}")
    })
}

/// Returns the metadata of a file of weights, whose outputs a program computes: one JSON object, because the order of several
/// entries is not fixed. `None` if there is nothing to state.
pub(crate) fn weight_metadata(manifest: &ModelManifest) -> Option<HashMap<String, String>> {
    let properties = properties(manifest, |scale| {
        format!("outputs times {scale} are in the units of the data")
    });
    let object: serde_json::Map<String, serde_json::Value> = properties
        .into_iter()
        .map(|(key, text)| (key.to_owned(), text.into()))
        .collect();
    let text = serde_json::Value::from(object.clone()).to_string();
    (!object.is_empty()).then(|| HashMap::from([(SIGNATURE.to_owned(), text)]))
}

fn properties(
    manifest: &ModelManifest,
    output_units: impl FnOnce(f32) -> String,
) -> Vec<(&'static str, String)> {
    let signature = &manifest.signature;
    let lists = [
        ("columns", signature.columns.clone()),
        (
            "class_names",
            signature.class_labels(manifest.classes as usize),
        ),
        ("value_names", signature.value_names.clone()),
    ];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    let mut properties: Vec<(&str, String)> = lists
        .map(|(key, names)| (key, serde_json::Value::from(names).to_string()))
        .collect();
    if let Some(scale) = signature.feature_scale {
        let units = format!("the numbers of the data divided by {scale}");
        properties.push(("input_units", units));
    }
    if let Some(scale) = manifest.output_scale() {
        properties.push(("output_units", output_units(scale)));
    }
    properties
}
