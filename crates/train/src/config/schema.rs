//! The JSON Schema of the run file, for editors. It is derived from the types that read the file.

use schemars::transform::{Transform, transform_subschemas};
use schemars::{Schema, generate::SchemaSettings};
use serde_json::Value;

use super::RunConfig;

/// Returns the JSON Schema of the run file, draft 2020-12. Every key has its description, its default and its type;
/// constraints between keys are checked by [`super::check::run`] alone.
#[must_use]
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(WithoutNull);
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<RunConfig>();
    schema.insert("title".to_owned(), "ronde run file".into());
    schema.to_value()
}

/// Removes null from the types of optional keys: TOML has no null.
#[derive(Debug, Clone)]
struct WithoutNull;

impl Transform for WithoutNull {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        if let Some(Value::Array(types)) = schema.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                let only = only.clone();
                schema.insert("type".to_owned(), only);
            }
        }
        let Some(Value::Array(alternatives)) = schema.get_mut("anyOf") else {
            return;
        };
        alternatives.retain(|one| one.get("type").is_none_or(|name| name != "null"));
        if let [Value::Object(only)] = alternatives.as_mut_slice() {
            let only = std::mem::take(only);
            schema.remove("anyOf");
            for (key, value) in only {
                schema.ensure_object().entry(key).or_insert(value);
            }
        }
    }
}
