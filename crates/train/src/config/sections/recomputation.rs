//! The value of `train.recompute_activations`.

use ronde_engine::Recomputation;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The value that chooses the layers by the memory of the host.
const AUTO: &str = "auto";

/// The layers whose activations the backward pass computes again: `false`, `true`, `"auto"`, or names of layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecomputedLayers {
    /// These layers.
    Named(Recomputation),
    /// As many of the first layers as are needed for the run to fit into memory.
    Auto,
}

impl Default for RecomputedLayers {
    fn default() -> Self {
        Self::Named(Recomputation::Off)
    }
}

impl RecomputedLayers {
    /// Returns the layers. Those of [`RecomputedLayers::Auto`] are chosen where a run is started; until then, and where ranks are
    /// started by another program, they are all layers, so that all ranks compute the same ones.
    #[must_use]
    pub fn layers(&self) -> &Recomputation {
        match self {
            Self::Named(layers) => layers,
            Self::Auto => &Recomputation::All,
        }
    }

    /// Returns whether the layers are not chosen yet.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RecomputationValue {
    All(bool),
    Word(String),
    Names(Vec<String>),
}

impl Serialize for RecomputedLayers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => AUTO.serialize(serializer),
            Self::Named(Recomputation::Off) => false.serialize(serializer),
            Self::Named(Recomputation::All) => true.serialize(serializer),
            Self::Named(Recomputation::Layers(names)) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RecomputedLayers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let named = match RecomputationValue::deserialize(deserializer) {
            Ok(RecomputationValue::All(false)) => Recomputation::Off,
            Ok(RecomputationValue::All(true)) => Recomputation::All,
            Ok(RecomputationValue::Word(word)) if word == AUTO => return Ok(Self::Auto),
            Ok(RecomputationValue::Names(names)) => Recomputation::Layers(names),
            _ => {
                return Err(D::Error::custom(
                    "expected true, false, \"auto\", or a list of layers, such as [\"block1..block4\"]",
                ));
            }
        };
        Ok(Self::Named(named))
    }
}

/// Returns the JSON Schema of the value.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for RecomputedLayers {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "RecomputedLayers".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "oneOf": [
                { "type": "boolean" },
                { "type": "string", "const": AUTO },
                { "type": "array", "items": { "type": "string" } },
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_the_same_after_writing_and_reading() {
        let names = vec!["block1..block4".to_owned(), "head".to_owned()];
        for (value, text) in [
            (RecomputedLayers::default(), "false"),
            (RecomputedLayers::Named(Recomputation::All), "true"),
            (RecomputedLayers::Auto, "\"auto\""),
            (
                RecomputedLayers::Named(Recomputation::Layers(names)),
                "[\"block1..block4\",\"head\"]",
            ),
        ] {
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
            assert_eq!(
                serde_json::from_str::<RecomputedLayers>(text).unwrap(),
                value
            );
        }
        for text in ["1", "\"some\"", "[1]"] {
            let error = serde_json::from_str::<RecomputedLayers>(text).unwrap_err();
            assert!(error.to_string().contains("block1..block4"), "{error}");
        }
    }
}
