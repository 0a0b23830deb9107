//! Saves every built-in model at a small size with random weights, exports it in all formats, and writes samples with the
//! model's outputs, for a comparison with other programs. Usage: `every_model FOLDER`.

use std::error::Error;
use std::path::Path;

use ronde_core::layout::{Arena, Role, TensorEntry};
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::{DataSignature, FormatHeader};
use ronde_engine::{Activation, Chain, LayerExt, ModelConfig};
use ronde_saved_model::{
    ExportFormat, ModelManifest, NamedTensor, Naming, SavedModel, export, save, write_safetensors,
};
use serde::Deserialize;

/// A model, the shape of a sample and the number of classes.
#[derive(Deserialize)]
struct SmallModel {
    name: String,
    model: ModelConfig,
    shape: Vec<usize>,
    classes: u32,
}

const SAMPLES: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: every_model FOLDER")?;
    let models: Vec<SmallModel> = serde_json::from_str(include_str!("../tests/models.json"))?;
    for model in models {
        let folder = Path::new(&folder).join(&model.name);
        std::fs::create_dir_all(&folder)?;
        model.write(&folder)?;
    }
    Ok(())
}

/// Returns numbers from 0 to 1 for a name.
fn uniform(name: &str, count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    let stream = SeedTree::new(5).named(Purpose::InitialWeights, name);
    stream.fill_uniform(&mut values);
    values
}

impl SmallModel {
    fn write(&self, folder: &Path) -> Result<(), Box<dyn Error>> {
        let chain = self
            .model
            .build(&self.shape, self.classes, &SeedTree::new(3))?;
        let manifest = ModelManifest {
            header: FormatHeader::of(FormatHeader::MODEL),
            run: self.name.clone(),
            model: Some(self.model.clone()),
            input_shape: self.shape.clone(),
            classes: self.classes,
            images: None,
            targets: None,
            signature: DataSignature::default(),
            vocabulary: None,
            steps: 0,
            plan: "0".repeat(64),
            identity: Vec::new(),
            unrepeatable: None,
            blake3: String::new(),
            evaluation: None,
            best: None,
        };
        save_trained(folder, &chain, &manifest)?;
        let saved = SavedModel::open(folder)?;
        for (format, naming) in [
            (ExportFormat::Onnx, Naming::Ronde),
            (ExportFormat::Torch, Naming::counterpart(&self.model)),
            (ExportFormat::Safetensors, Naming::counterpart(&self.model)),
        ] {
            let path = folder.join(match format {
                ExportFormat::Onnx => "model.onnx".to_owned(),
                _ => format!("exported.{}", format.extension()),
            });
            export(&saved, format, naming, &path)?;
        }
        let input = self.samples();
        let mut chain = saved.chain()?;
        let output = chain.evaluate(input.clone())?;
        write_values(&folder.join("input.safetensors"), &input)?;
        write_values(&folder.join("output.safetensors"), &output)
    }

    fn samples(&self) -> Activation {
        let shape = [&[SAMPLES], self.shape.as_slice()].concat();
        let mut values = uniform("input", shape.iter().product());
        for (position, value) in values.iter_mut().enumerate() {
            *value = match &self.model {
                ModelConfig::MatrixFactorisation { users, items, .. } => {
                    (*value * [*users, *items][position % 2] as f32).floor()
                }
                ModelConfig::Gpt { .. }
                | ModelConfig::Bert { .. }
                | ModelConfig::Transformer { .. } => (*value * self.classes as f32).floor(),
                _ => 2.0 * *value - 1.0,
            };
        }
        if let ModelConfig::Transformer {
            source,
            padding: Some(token),
            ..
        } = self.model
        {
            // The first text is padded after two tokens, the second one is empty, the last one is full.
            for (text, from) in [(0, 2), (1, 0)] {
                let start = text * self.shape[0];
                values[start + from..start + source].fill(token as f32);
            }
        }
        Activation::from_host(&shape, values)
    }
}

/// Saves a model whose biases and statistics are those of no initial state.
fn save_trained(
    folder: &Path,
    chain: &Chain,
    manifest: &ModelManifest,
) -> Result<(), Box<dyn Error>> {
    let tensors = &chain.layout().tensors;
    let arena = Arena::new(tensors.iter().map(TensorEntry::elements));
    let mut values = vec![0.0; arena.len()];
    chain.save_state(&mut values, arena.ranges());
    for (entry, range) in tensors.iter().zip(arena.ranges()) {
        if entry.shape.len() > 1 {
            continue;
        }
        let random = uniform(&entry.name, range.len());
        let is_factor = entry.name.ends_with("gamma") || entry.name.ends_with("var");
        for (value, random) in values[range.clone()].iter_mut().zip(random) {
            *value = match (is_factor, entry.role) {
                (true, _) => 0.5 + random,
                (false, Role::Buffer) => 0.2 * random - 0.1,
                (false, _) => 0.4 * random - 0.2,
            };
        }
    }
    let named = tensors.iter().zip(arena.ranges());
    let named = named.map(|(entry, range)| NamedTensor {
        name: &entry.name,
        shape: &entry.shape,
        values: &values[range.clone()],
    });
    save(folder, named, manifest)?;
    Ok(())
}

fn write_values(path: &Path, values: &Activation) -> Result<(), Box<dyn Error>> {
    let tensor = NamedTensor {
        name: "values",
        shape: values.shape(),
        values: values.as_slice(),
    };
    let mut file = std::fs::File::create(path)?;
    write_safetensors([tensor], &mut file)?;
    Ok(())
}
