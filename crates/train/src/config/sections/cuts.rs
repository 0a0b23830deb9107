//! The value of `parallel.cuts`: `auto`, or names of layers.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The value that divides the layers by their work.
const AUTO: &str = "auto";

#[derive(Deserialize)]
#[serde(untagged)]
enum CutsValue {
    Word(String),
    Names(Vec<String>),
}

pub(super) fn serialize<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    match names {
        [] => AUTO.serialize(serializer),
        names => names.serialize(serializer),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<String>, D::Error> {
    match CutsValue::deserialize(deserializer) {
        Ok(CutsValue::Word(word)) if word == AUTO => Ok(Vec::new()),
        Ok(CutsValue::Names(names)) => Ok(names),
        _ => Err(D::Error::custom(
            "expected \"auto\" or a list of names of layers, such as [\"block3\"]",
        )),
    }
}

/// Returns the JSON Schema of the value.
#[cfg(feature = "schema")]
pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "oneOf": [
            { "type": "string", "const": AUTO },
            { "type": "array", "items": { "type": "string" } },
        ]
    })
}
