//! Features and labels of every kind, and invalid schemas.

use super::*;
use crate::format::{NumberType, Value};

fn features(text: &str) -> Result<Features, String> {
    toml_like(text)
}

/// Parses features as in a run file.
fn toml_like<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

#[cfg(feature = "full")]
pub(super) fn image_features(text: &str) -> ImageFeatures {
    toml_like(text).unwrap()
}

fn schema(features: &str, label: &str) -> Schema {
    Schema {
        features: toml_like(features).unwrap(),
        label: (!label.is_empty()).then(|| toml_like(label).unwrap()),
    }
}

fn record<'a>(fields: &[(&'static str, Value<'a>)]) -> Record<'a> {
    let fields = fields.iter().cloned();
    Record {
        fields: fields.map(|(name, value)| (name.into(), value)).collect(),
    }
}

fn decode(schema: &Schema, record: &Record<'_>) -> Result<(Vec<f32>, Vec<u32>), String> {
    let decoder =
        RecordDecoder::new(schema, SampleUse::Train, 1).map_err(|error| error.to_string())?;
    let mut out = vec![0.0; decoder.sample_shape().iter().product()];
    let mut targets = vec![9; decoder.targets_per_sample()];
    decoder
        .decode(
            record,
            0,
            0,
            &mut DecodeScratch::new(),
            &mut out,
            &mut targets,
        )
        .map_err(|error| error.to_string())?;
    Ok((out, targets))
}

fn raw(dtype: NumberType, bytes: &[u8]) -> Value<'_> {
    Value::Numbers {
        dtype,
        bytes: bytes.into(),
    }
}

const CLASSES: &str = "field = 'y'\nclasses = 3";

#[test]
fn numbers_come_from_fields_of_any_kind_in_the_order_of_the_schema() {
    let schema = schema(
        "decode = 'numbers'\nfield = ['b', 'a', 't']\nshape = [2, 3]\nscale = 2.0",
        CLASSES,
    );
    let one = record(&[
        ("a", Value::integers(&[7, -8])),
        ("t", Value::Bytes(b" 2.5 "[..].into())),
        ("b", Value::floats(&[1.0, 2.0, 3.0])),
        ("y", Value::integers(&[2])),
    ]);
    let (out, targets) = decode(&schema, &one).unwrap();
    assert_eq!(out, [0.5, 1.0, 1.5, 3.5, -4.0, 1.25]);
    assert_eq!(targets, [2]);
    let told = |fields: &[(&'static str, Value<'_>)]| decode(&schema, &record(fields)).unwrap_err();
    assert!(told(&[]).contains("no field `b`"));
    let text = |t: &'static [u8]| {
        told(&[
            ("b", Value::floats(&[1.0; 5])),
            ("a", Value::integers(&[])),
            ("t", Value::Bytes(t.into())),
            ("y", Value::integers(&[0])),
        ])
    };
    assert!(text(b"abc").contains("\"abc\", which is not a finite number"));
    assert!(text(b"inf").contains("\"inf\", which is not a finite number"));
    let lengths = |count| {
        let numbers = vec![0.0; count];
        told(&[
            ("b", Value::floats(&numbers)),
            ("a", Value::integers(&[])),
            ("t", Value::List(Vec::new())),
        ])
    };
    assert!(lengths(5).contains("hold 5 numbers, but the shape has 6"));
    assert!(lengths(7).contains("more than the 6 numbers"));
}

#[test]
fn columns_are_named_by_ranges() {
    let schema = schema(
        "decode = 'numbers'\nfield = '1..3'\nshape = [2]",
        "field = '0'\nclasses = 2",
    );
    let decoder = RecordDecoder::new(&schema, SampleUse::Test, 0).unwrap();
    assert_eq!(decoder.wanted(), FieldSelection::fields(["1", "2", "0"]));
    let texts = [("0", "1"), ("1", "5"), ("2", "6")];
    let texts = texts.map(|(name, text)| (name, Value::Bytes(text.as_bytes().into())));
    assert_eq!(
        decode(&schema, &record(&texts)).unwrap(),
        (vec![5.0, 6.0], vec![1])
    );
}

#[test]
fn raw_bytes_are_numbers_of_the_type_or_an_array_of_numpy() {
    let typed = schema(
        "decode = 'raw'\nfield = 'x'\ndtype = 'i16'\nshape = [3]",
        CLASSES,
    );
    let y = ("y", raw(NumberType::U8, &[1]));
    let x = |bytes: &'static [u8]| ("x", Value::Bytes(bytes.into()));
    let one = record(&[x(&[1, 0, 0xff, 0xff, 0, 1]), y.clone()]);
    assert_eq!(
        decode(&typed, &one).unwrap(),
        (vec![1.0, -1.0, 256.0], vec![1])
    );
    let short = decode(&typed, &record(&[x(&[1, 0]), y.clone()])).unwrap_err();
    assert!(short.contains("holds 2 bytes"), "{short}");
    let array = schema(
        "decode = 'raw'\nfield = 'x'\nshape = [3]\nscale = 4",
        CLASSES,
    );
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }\n";
    file.extend_from_slice(&(header.len() as u16).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&[4, 8, 1]);
    let read = |file: &[u8]| {
        decode(
            &array,
            &record(&[("x", Value::Bytes(file.into())), y.clone()]),
        )
    };
    assert_eq!(read(&file).unwrap().0, [1.0, 2.0, 0.25]);
    assert!(
        read(&file[..file.len() - 1])
            .unwrap_err()
            .contains("ends before")
    );
}

#[test]
fn the_target_of_a_token_is_the_next_one() {
    let schema = schema("decode = 'tokens'\ncontext = 3\nvocabulary = 300", "");
    let decoder = RecordDecoder::new(&schema, SampleUse::Train, 0).unwrap();
    assert_eq!((decoder.sample_shape(), decoder.classes()), (&[3][..], 300));
    assert_eq!(decoder.targets_per_sample(), 3);
    let tokens = |bytes: &'static [u8]| record(&[("tokens", raw(NumberType::U16, bytes))]);
    let (out, targets) = decode(&schema, &tokens(&[1, 0, 2, 0, 3, 1, 4, 0])).unwrap();
    assert_eq!((out, targets), (vec![1.0, 2.0, 259.0], vec![2, 259, 4]));
    let large = decode(&schema, &tokens(&[1, 0, 2, 0, 255, 255, 4, 0])).unwrap_err();
    assert!(large.contains("token 65535 at position 2"), "{large}");
    assert!(
        decode(&schema, &tokens(&[1, 0]))
            .unwrap_err()
            .contains("holds 1 tokens")
    );
}

#[test]
fn labels_are_numbers_names_or_values() {
    let features = "decode = 'raw'\nfield = 'x'\ndtype = 'u8'\nshape = [1]";
    let with = |label: &str, value: Value<'static>| {
        let x = ("x", Value::Bytes(b"\x05"[..].into()));
        decode(&schema(features, label), &record(&[x, ("y", value)])).map(|(_, targets)| targets)
    };
    let text = |text: &'static str| Value::Bytes(text.as_bytes().into());
    let first = "field = 'y'\nclasses = 1000\nfirst = 1";
    assert_eq!(with(first, Value::integers(&[1000])), Ok(vec![999]));
    assert_eq!(with(first, text("1\n")), Ok(vec![0]));
    assert_eq!(with(first, text("3.0")), Ok(vec![2]));
    assert_eq!(with(first, Value::floats(&[2.0])), Ok(vec![1]));
    let outside = with(first, Value::integers(&[0])).unwrap_err();
    assert!(
        outside.contains("class 0, but classes are 1 to 1000"),
        "{outside}"
    );
    for wrong in [
        Value::integers(&[]),
        Value::integers(&[1, 2]),
        text("x"),
        text("1.5"),
    ] {
        assert!(
            with(first, wrong)
                .unwrap_err()
                .contains("not the number of a class")
        );
    }
    let names = "field = 'y'\nnames = ['cat', 'dog']";
    assert_eq!(with(names, text("dog")), Ok(vec![1]));
    assert!(
        with(names, text("cow"))
            .unwrap_err()
            .contains("\"cow\", which is not in")
    );
    let spaced = "field = 'y'\nnames = [' cat', 'caf\u{e9}']";
    assert_eq!(with(spaced, text("cat ")), Ok(vec![0]));
    assert_eq!(with(spaced, text("cafe\u{301}")), Ok(vec![1]));
    let values = "field = 'y'\nvalues = 2\nscale = 10";
    let bits = vec![0.5_f32.to_bits(), (-1.0_f32).to_bits()];
    assert_eq!(with(values, Value::floats(&[5.0, -10.0])), Ok(bits));
}

#[test]
fn invalid_schemas_are_refused_with_their_key() {
    let numbers = "decode = 'numbers'\nfield = 'x'\nshape = [1]";
    for (features, label, key) in [
        (numbers, "", "data.label:"),
        (numbers, "field = 'y'", "data.label:"),
        (numbers, "field = 'y'\nclasses = 0", "data.label.classes:"),
        (
            numbers,
            "field = ['y', 'z']\nclasses = 2",
            "data.label.field:",
        ),
        (
            numbers,
            "field = 'y'\nnames = ['a', 'a']",
            "data.label.names:",
        ),
        (
            numbers,
            "field = 'y'\nnames = ['caf\u{e9}', ' cafe\u{301}']",
            "data.label.names: `caf\u{e9}` is listed twice",
        ),
        (numbers, "field = 'y'\nvalues = 0", "data.label.values:"),
        (
            numbers,
            "field = 'y'\nclasses = 2\nvalues = 1",
            "data.label:",
        ),
        (
            "decode = 'numbers'\nfield = []\nshape = [1]",
            CLASSES,
            "data.features.field:",
        ),
        (
            "decode = 'numbers'\nfield = '0..99999999'\nshape = [1]",
            CLASSES,
            "data.features.field:",
        ),
        (
            "decode = 'numbers'\nfield = 'x'\nshape = [1]\nscale = 0",
            CLASSES,
            "data.features.scale:",
        ),
        (
            "decode = 'tokens'\ncontext = 3\nvocabulary = 0",
            "",
            "data.features.vocabulary:",
        ),
        (
            "decode = 'tokens'\ncontext = 3\nvocabulary = 9",
            CLASSES,
            "data.label:",
        ),
        ("decode = 'numbers'\nfield = 'x'\nshape = []", CLASSES, ""),
        (
            "decode = 'numbers'\nfield = 'x'\nshape = [0]",
            CLASSES,
            "shape [0]",
        ),
    ] {
        let schema = schema(features, label);
        match RecordDecoder::new(&schema, SampleUse::Train, 0) {
            Err(error) => assert!(error.to_string().contains(key), "{error}, not {key}"),
            Ok(_) => assert!(key.is_empty(), "{features} {label}"),
        }
    }
}

#[test]
fn unknown_keys_and_kinds_are_refused() {
    for unknown in [
        "decode = 'numbers'\nfield = 'x'\nshape = [1]\nsize = 3",
        "decode = 'sound'\nfield = 'x'",
        "decode = 'numbers'\nfield = 3\nshape = [1]",
    ] {
        assert!(features(unknown).is_err(), "{unknown}");
    }
    assert!(
        features("decode = 'numbers'\nfield = 3\nshape = [1]")
            .unwrap_err()
            .contains("a name of a field")
    );
}
