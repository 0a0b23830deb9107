//! `[model]`: the model, and the weights from which its training starts.

use std::path::PathBuf;

use ronde_engine::ModelConfig;
use serde::{Deserialize, Serialize};

use crate::config::ConfigProblem;

/// `[model]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSection {
    /// The weights from which the training starts. Read first: the model rejects all keys that it does not know.
    #[serde(flatten)]
    pub start: StartSection,
    /// The model and its size.
    #[serde(flatten)]
    pub config: ModelConfig,
}

/// The keys of `[model]` about the initial weights.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StartSection {
    /// A safetensors file, or the folder of a run or saved model, with the initial weights, for fine-tuning. Names of ronde,
    /// torchvision (ResNet, VGG) and Hugging Face (GPT-2) are recognised. Absent: the seed determines all weights. The
    /// trained bits depend on the contents of the file, not on its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// The tensors that are not loaded from `init`, such as a new head: names in which `*` stands for any text. The seed
    /// determines their weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_new: Vec<String>,
    /// The tensors of `init` that the model does not need: names in the file, in which `*` stands for any text. All other tensors of
    /// the file must be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_ignore: Vec<String>,
}

impl StartSection {
    /// The names of the keys.
    pub(in crate::config) const KEYS: [&str; 3] = ["init", "init_new", "init_ignore"];

    pub(in crate::config) fn check(&self, problems: &mut Vec<ConfigProblem>) {
        if self.init.is_some() {
            return;
        }
        for (key, patterns) in [
            ("model.init_new", &self.init_new),
            ("model.init_ignore", &self.init_ignore),
        ] {
            if !patterns.is_empty() {
                let message = format!("`{key}` has no effect without `model.init`");
                let hint = "set `model.init` to the file with the initial weights";
                problems.push(ConfigProblem::error(key, message).hint(hint));
            }
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ModelSection {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ModelSection".into()
    }

    /// Adds the keys about the initial weights to each kind of model.
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        use serde_json::Value;

        let start = StartSection::json_schema(generator).to_value();
        let mut schema = ModelConfig::json_schema(generator);
        let kinds = schema.get_mut("oneOf").and_then(Value::as_array_mut);
        for kind in kinds.into_iter().flatten() {
            let properties = kind.get_mut("properties").and_then(Value::as_object_mut);
            if let (Some(properties), Some(more)) = (properties, start["properties"].as_object()) {
                properties.extend(more.clone());
            }
        }
        schema
    }
}
