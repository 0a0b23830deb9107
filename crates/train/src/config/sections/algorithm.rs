//! The value of `comm.algorithm`: `auto`, or the name of an algorithm that can carry an exact sum.

use ronde_schedule::Algorithm;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// The value that lets the group choose.
const AUTO: &str = "auto";

/// All valid values.
const NAMES: [&str; Algorithm::EXACT_SUM.len() + 1] = {
    let mut names = [AUTO; Algorithm::EXACT_SUM.len() + 1];
    let mut index = 0;
    while index < Algorithm::EXACT_SUM.len() {
        names[index + 1] = Algorithm::EXACT_SUM[index].name();
        index += 1;
    }
    names
};

#[expect(clippy::ref_option, reason = "the signature that serde requires")]
pub(super) fn serialize<S: Serializer>(
    algorithm: &Option<Algorithm>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(algorithm.map_or(AUTO, Algorithm::name))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Algorithm>, D::Error> {
    let word = String::deserialize(deserializer)?;
    let known = Algorithm::EXACT_SUM.into_iter();
    match known.clone().find(|algorithm| algorithm.name() == word) {
        None if word != AUTO => Err(D::Error::unknown_variant(&word, &NAMES)),
        found => Ok(found),
    }
}

/// Returns the JSON Schema of the value.
#[cfg(feature = "schema")]
pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": NAMES })
}
