//! The value of `train.shards_together`.

use std::num::NonZeroU32;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The value that chooses the number by the memory that the shards take.
const AUTO: &str = "auto";

/// How many logical shards of a worker pass through the layers together: `"auto"`, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShardsTogether {
    /// As many as fit into a fixed number of bytes, if the layers gain from it.
    #[default]
    Auto,
    /// This many, or all of a worker that has fewer.
    Count(NonZeroU32),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TogetherValue {
    Word(String),
    Count(NonZeroU32),
}

impl Serialize for ShardsTogether {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => AUTO.serialize(serializer),
            Self::Count(count) => count.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ShardsTogether {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match TogetherValue::deserialize(deserializer) {
            Ok(TogetherValue::Word(word)) if word == AUTO => Ok(Self::Auto),
            Ok(TogetherValue::Count(count)) => Ok(Self::Count(count)),
            _ => Err(D::Error::custom(
                "expected \"auto\" or a number of logical shards, at least 1",
            )),
        }
    }
}

/// Returns the JSON Schema of the value.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for ShardsTogether {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ShardsTogether".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "oneOf": [
                { "type": "string", "const": AUTO },
                { "type": "integer", "minimum": 1 },
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_the_same_after_writing_and_reading() {
        let eight = ShardsTogether::Count(NonZeroU32::new(8).unwrap());
        for (value, text) in [(ShardsTogether::Auto, "\"auto\""), (eight, "8")] {
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
            assert_eq!(serde_json::from_str::<ShardsTogether>(text).unwrap(), value);
        }
        for text in ["0", "-1", "\"all\"", "1.5", "[2]"] {
            let error = serde_json::from_str::<ShardsTogether>(text).unwrap_err();
            assert!(error.to_string().contains("at least 1"), "{text}: {error}");
        }
    }
}
