//! Tests of the JSON Schema, and of the documentation and identity of all keys that it has.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::super::{identity, schema};
use super::{DEFAULT_RUN_FILE, RunConfig, load};

/// The sections and keys that do not change the trained bits.
const OUTSIDE_IDENTITY: [&str; 34] = [
    "check",
    "checkpoint",
    "comm",
    "data.bad_record_limit",
    "data.cache",
    "data.cache_encrypt",
    "data.cache_folder",
    "data.cache_limit_gib",
    "data.file",
    "data.retry_s",
    "data.test",
    "data.test_samples",
    "data.train",
    "elastic",
    "events",
    "job",
    "loader",
    "parallel",
    "run.base",
    "run.folder",
    "run.name",
    "run.output",
    "sync.copies",
    "sync.lease_s",
    "sync.servers",
    "track",
    "train.evaluate_every_epochs",
    "train.metrics",
    "train.recompute_activations",
    "train.shards_together",
    "workers.balance",
    "workers.count",
    "workers.pin_cores",
    "workers.threads",
];

/// Returns the files of `examples/`.
fn examples() -> Vec<(String, String)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let paths = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|name| name == "toml"));
    files
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            (path.display().to_string(), text)
        })
        .collect()
}

/// Returns the problems that a JSON Schema validator finds in a run file.
fn validate(text: &str) -> Result<(), String> {
    let run: toml::Table = toml::from_str(text).unwrap();
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.add_resource("run", schema::schema()).unwrap();
    let index = compiler.compile("run", &mut schemas).unwrap();
    let run = serde_json::to_value(run).unwrap();
    schemas
        .validate(&run, index)
        .map_err(|error| format!("{error:#}"))
}

#[test]
fn the_schema_accepts_the_default_and_all_examples() {
    let all: Vec<String> = DEFAULT_RUN_FILE
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.contains(" = ") => rest.to_owned(),
            _ => line.to_owned(),
        })
        .collect();
    let mut files = examples();
    assert!(files.len() > 5, "{} examples", files.len());
    files.push(("default".to_owned(), DEFAULT_RUN_FILE.to_owned()));
    files.push(("default, uncommented".to_owned(), all.join("\n")));
    let (run, _) = load(DEFAULT_RUN_FILE).unwrap();
    files.push(("resolved".to_owned(), run.to_toml().unwrap()));
    for (name, text) in files {
        validate(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn the_schema_rejects_wrong_keys_types_and_words() {
    for (right, wrong) in [
        ("seed = 42", "sed = 42"),
        ("seed = 42", "seed = \"42\""),
        ("count = 2", "count = -2"),
        ("count = 2", "count = 2.5"),
        ("source = \"digits\"", "source = \"digit\""),
        ("source = \"digits\"", "source = \"digits\"\nclasses = 10"),
        ("kind = \"digits_cnn\"", "kind = \"mlp\""),
        ("kind = \"adamw\"", "kind = \"adamw\"\nmomentum = 0.9"),
        ("algorithm = \"auto\"", "algorithm = \"ring\""),
        ("transport = \"auto\"", "transport = \"udp\""),
        ("succession = \"lease\"", "succession = \"none\""),
        ("tensorboard = false", "tensorboard = 1"),
        ("[check]", "[checks]"),
    ] {
        let text = DEFAULT_RUN_FILE.replacen(right, wrong, 1);
        assert_ne!(text, DEFAULT_RUN_FILE, "{right}");
        assert!(validate(&text).is_err(), "{wrong}");
    }
}

/// The schema with its definitions.
struct Definitions(Value);

impl Definitions {
    /// Follows a reference.
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(path) => self.0.pointer(&path[1..]).unwrap(),
            None => schema,
        }
    }

    /// Calls `visit` with the path and schema of every key.
    fn keys(&self, prefix: &str, schema: &Value, visit: &mut dyn FnMut(&str, &Value)) {
        let schema = self.resolve(schema);
        for alternatives in ["oneOf", "anyOf"] {
            for alternative in schema[alternatives].as_array().into_iter().flatten() {
                self.keys(prefix, alternative, visit);
            }
        }
        for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{prefix}{key}");
            visit(&path, inner);
            self.keys(&format!("{path}."), inner, visit);
            self.keys(&format!("{path}."), &inner["items"], visit);
        }
    }

    /// Returns values that together have every key, each with a value other than the default.
    fn samples(&self, schema: &Value) -> Vec<Value> {
        let schema = self.resolve(schema);
        if let Some(word) = schema.get("const") {
            return vec![word.clone()];
        }
        if let Some(words) = schema["enum"].as_array() {
            return vec![words.last().unwrap().clone()];
        }
        if let Some(examples) = schema["examples"].as_array() {
            return vec![examples.last().unwrap().clone()];
        }
        let alternatives = schema.get("oneOf").or_else(|| schema.get("anyOf"));
        if let Some(alternatives) = alternatives.and_then(Value::as_array) {
            let is_default =
                |one: &&Value| one.get("const").is_some_and(|c| *c == schema["default"]);
            let others = alternatives.iter().filter(|one| !is_default(one));
            return others.flat_map(|one| self.samples(one)).collect();
        }
        match schema["type"]
            .as_str()
            .unwrap_or_else(|| panic!("{schema}"))
        {
            "boolean" => vec![Value::Bool(schema["default"] != true)],
            "integer" => vec![7.into()],
            "number" => vec![0.375.into()],
            "string" => vec!["text".into()],
            "array" => {
                let items = schema["prefixItems"].as_array();
                let length = schema["minItems"].as_u64().unwrap_or(1) as usize;
                let item = |index| items.map_or(&schema["items"], |items| &items[index]);
                let first = |index| self.samples(item(index)).remove(0);
                vec![(0..length).map(first).collect()]
            }
            "object" => self.objects(&schema["properties"]),
            other => panic!("no sample of {other}"),
        }
    }

    fn objects(&self, properties: &Value) -> Vec<Value> {
        let properties = properties.as_object().cloned().unwrap_or_default();
        let samples = |schema: &Value| {
            let mut samples = self.samples(&with_default(self.resolve(schema), schema));
            samples.reverse();
            samples
        };
        let base: Map<String, Value> = properties
            .iter()
            .map(|(key, schema)| (key.clone(), samples(schema).remove(0)))
            .collect();
        let mut objects = vec![Value::Object(base.clone())];
        for (key, schema) in &properties {
            for other in samples(schema).into_iter().skip(1) {
                let mut object = base.clone();
                object.insert(key.clone(), other);
                objects.push(object.into());
            }
        }
        objects
    }
}

/// Returns a type's schema with the default of a key.
fn with_default(schema: &Value, key: &Value) -> Value {
    let mut schema = schema.clone();
    if let (Some(default), Some(schema)) = (key.get("default"), schema.as_object_mut()) {
        schema.insert("default".to_owned(), default.clone());
    }
    schema
}

#[test]
fn every_key_is_documented() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
    let documentation = read("run-file.md") + &read("data.md");
    let schema = Definitions(schema::schema());
    let mut missing = BTreeSet::new();
    let mut count = 0;
    schema.keys("", &schema.0, &mut |path, key| {
        count += 1;
        let is_tag = schema.resolve(key).get("const").is_some();
        let described = [key, schema.resolve(key)].iter().any(|schema| {
            schema["description"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        });
        if !described && !is_tag {
            missing.insert(format!("{path} has no doc comment"));
        }
        let name = path.rsplit('.').next().unwrap();
        let forms = [
            format!("`{name}`"),
            format!("`[{name}]`"),
            format!("{name} = "),
        ];
        if !forms.iter().any(|form| documentation.contains(form)) {
            missing.insert(format!("{path} is not in docs/run-file.md or docs/data.md"));
        }
    });
    assert!(count > 100, "{count} keys");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_key_is_part_of_the_identity_or_declared_not_to_be() {
    let schema = Definitions(schema::schema());
    let base: toml::Table = toml::from_str(DEFAULT_RUN_FILE).unwrap();
    let default: RunConfig = base.clone().try_into().unwrap();
    let mut declared = BTreeSet::new();
    for (section, contents) in schema.0["properties"].as_object().unwrap() {
        for sample in schema.samples(contents) {
            let mut table = base.clone();
            let sample = toml::Value::try_from(&sample).unwrap();
            table.insert(section.clone(), sample.clone());
            if section == "version" {
                continue;
            }
            let run: RunConfig = toml::Value::Table(table)
                .try_into()
                .unwrap_or_else(|error| panic!("{section}: {error}\n{sample}"));
            if run == default {
                // A word for the default, which is not written.
                continue;
            }
            let outside = identity::paths_outside(&run);
            let parts = run.identity_parts().unwrap();
            let mut paths = Vec::new();
            leaves(section, &sample, &mut paths);
            for path in paths {
                let is_part = parts.iter().any(|(part, _)| *part == path);
                let is_outside = outside
                    .iter()
                    .any(|one| path == *one || path.starts_with(&format!("{one}.")));
                assert!(is_part != is_outside, "{path} in {sample}: {is_part}");
            }
            declared.extend(outside);
        }
    }
    let declared: Vec<&str> = declared.iter().map(String::as_str).collect();
    assert_eq!(declared, OUTSIDE_IDENTITY);
}

/// Collects the paths of all values that are not tables.
fn leaves(path: &str, value: &toml::Value, paths: &mut Vec<String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                leaves(&format!("{path}.{key}"), value, paths);
            }
        }
        _ => paths.push(path.to_owned()),
    }
}
