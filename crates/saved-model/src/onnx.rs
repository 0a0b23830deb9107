//! Export as ONNX: the operations of a built-in model as nodes of operator set 17.
//!
//! The translation reads the graph of operations ([`ronde_engine::GraphOutline`]), so a model needs no separate code.
//! The input is called `input`: `float32`, or `int64` for models of texts and of users and items. The output is called
//! `output`. The first dimension of both is `batch`, which may be any number. The output is in the units of the data: where the
//! target values were divided by a number, the last node multiplies by it. The properties of the file have the names of
//! classes and columns.

mod attention;
mod graph;
mod images;
mod protobuf;
mod translate;

use std::io::Write;

use ronde_core::protobuf::ProtoMessage;

use self::graph::OnnxGraph;
use self::translate::Translator;
use crate::error::ModelError;
use crate::metadata::graph_properties;
use crate::saved_model::SavedModel;

/// The version of ONNX's operator set that exported models use.
pub const ONNX_OPSET: u64 = 17;

/// The version of ONNX's file format that has [`ONNX_OPSET`].
const IR_VERSION: u64 = 8;

/// The limit of a protobuf message, and so of a file, in bytes.
const FILE_BYTES_MAX: u64 = i32::MAX as u64;

/// Writes a saved model as an ONNX file. Values are computed in f32, also for a model that was trained in a short format.
/// Memory: that of the saved model; the weights are not copied.
///
/// # Errors
/// The model is not a built-in one, its weights do not fit it or need 2 GiB or more, or the writer fails.
pub fn write_onnx(saved: &SavedModel, to: &mut dyn Write) -> Result<(), ModelError> {
    let graph = translate(saved)?;
    let head = ProtoMessage::default()
        .number(1, IR_VERSION)
        .text(2, "ronde")
        .text(3, env!("CARGO_PKG_VERSION"));
    let manifest = saved.manifest();
    let opset = ProtoMessage::default().text(1, "").number(2, ONNX_OPSET);
    let own = [("run", &manifest.run), ("blake3", &manifest.blake3)];
    let own = own.map(|(key, value)| (key, value.clone()));
    let mut tail = ProtoMessage::default().message(8, &opset);
    for (key, value) in own.into_iter().chain(graph_properties(manifest)) {
        let property = ProtoMessage::default().text(1, key).text(2, &value);
        tail = tail.message(14, &property);
    }
    let graph = graph.message(&manifest.run);
    if graph.length() >= FILE_BYTES_MAX {
        return Err(ModelError::NotExportable {
            format: "ONNX",
            problem: format!(
                "the weights need {} bytes, and a file has fewer than {FILE_BYTES_MAX}",
                graph.length()
            ),
        });
    }
    let written = to
        .write_all(head.as_bytes())
        .and_then(|()| graph.write(7, to))
        .and_then(|()| to.write_all(tail.as_bytes()));
    written.map_err(ModelError::Write)
}

/// Translates all layers of a saved model.
fn translate(saved: &SavedModel) -> Result<OnnxGraph<'_>, ModelError> {
    let manifest = saved.manifest();
    let layers = saved.outline()?;
    saved.check_tensors(&layers)?;
    let mut translator = Translator::new(saved.weights(), &manifest.input_shape, &layers);
    let mut value = Translator::INPUT.to_owned();
    for layer in &layers {
        value = translator.layer(layer, value)?;
    }
    let output = layers.last().map_or(&[][..], |layer| layer.output());
    if let Some(scale) = manifest.output_scale() {
        value = translator.scaled(&value, scale);
    }
    Ok(translator.finish(&value, output))
}

#[cfg(test)]
mod tests;
