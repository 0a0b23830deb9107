//! The presets: tables of numbers, errors with line and column, equal sets from plain and compressed files.

use std::io::Write;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::dataset::{Dataset, DatasetExt, Targets};
use crate::format::object::InMemory;
use crate::format::testing::gzip;

fn table() -> DataConfig {
    DataConfig::Csv {
        train: "train.csv".into(),
        test: None,
        shape: vec![2],
        classes: 3,
        scale: Some(2.0),
        header: None,
    }
}

/// Opens a section whose training file has these bytes.
fn opened(config: &DataConfig, file: &[u8]) -> Result<Split, DataError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("train.csv"), file).unwrap();
    open(config, &OpenContext::new(folder.path(), 0))
}

/// The features and targets of a sample.
type FeaturesAndTargets = (Vec<f32>, Vec<u32>);

fn samples(set: &dyn Dataset) -> Vec<FeaturesAndTargets> {
    let samples = (0..set.len()).map(|number| set.sample(number).unwrap());
    samples.collect()
}

#[test]
fn lines_of_numbers_are_samples_however_they_are_written() {
    let expected = [(vec![0.5, 1.0], vec![0]), (vec![-1.5, 2.0], vec![2])];
    let mut identities = Vec::new();
    for text in [
        "1,2,0\n-3,4,2\n",
        "1,2,0\r\n-3,4,2",
        "\u{feff}1,2,0\n\n-3,4,2\n\n",
        "left,right,label\n1,2,0\n-3,4,2\n",
        "same,same,same\n1,2,0\n-3,4,2\n",
        " \n1,2,0\n  \t\n-3,4,2\n  ",
        " 1 , 2.0 , 0.0 \n-3e0,+4,2e0\n",
        "\"1\",2,0\n-3,\"4\",2\n",
    ] {
        for file in [text.as_bytes().to_vec(), gzip(text.as_bytes())] {
            let set = opened(&table(), &file).unwrap().train;
            assert_eq!(samples(&*set), expected, "{text:?}");
            let description = set.description();
            assert_eq!((&*description.shape, description.classes), (&[2][..], 3));
            assert_eq!(description.locality, None, "the samples are in memory");
            assert_eq!(description.files[0].name, "train.csv");
            identities.push(description.identity.clone());
        }
    }
    identities.dedup();
    assert_eq!(
        identities,
        ["blake3:788e5edd8e9b6d0114bb8846188dfc2dcebe43970c46d0c6a458063aa9c19298"]
    );
}

#[test]
fn the_columns_of_the_test_file_are_those_of_the_training_file_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let mut config = table();
    if let DataConfig::Csv { test, .. } = &mut config {
        *test = Some("test.csv".into());
    }
    let open = || open(&config, &OpenContext::new(folder.path(), 0));
    write("train.csv", "left,right,label\n1,2,0\n");
    for test in [
        "label,right ,left\n2,4,-3\n",
        "left,right,label\n-3,4,2\n",
        "-3,4,2\n",
    ] {
        write("test.csv", test);
        let split = open().unwrap();
        assert_eq!(
            split.train.description().signature.columns,
            ["left", "right"]
        );
        let found = samples(&*split.test.unwrap());
        assert_eq!(found, [(vec![-1.5, 2.0], vec![2])], "{test}");
    }
    write("test.csv", "left,top,label\n-3,4,2\n");
    let error = open().unwrap_err().to_string();
    assert!(error.contains("`left`, `top`, `label` are not"), "{error}");
    assert!(error.contains("`left`, `right`, `label`"), "{error}");
}

#[test]
fn errors_name_file_line_column_and_value() {
    for (text, expected) in [
        (
            "1,2,0\n1,x,0\n",
            "train.csv: line 2: field `column 2` holds \"x\"",
        ),
        ("1,2,0\r\n\r\n1,x,0\r\n", "line 3: field `column 2`"),
        ("1,2,0\r\r1,x,0\r", "line 3: field `column 2`"),
        ("\n\na,b,c\n \n1,x,0\n", "line 5: field `column 2`"),
        ("1,nan,0\n", "line 1: field `column 2` holds \"nan\""),
        ("1,1e999,0\n", "line 1: field `column 2` holds \"1e999\""),
        ("1,,0\n", "line 1: field `column 2` holds \"\""),
        (
            "1,2,3\n",
            "line 1: field `column 3` holds class 3, but classes are 0 to 2",
        ),
        ("1,2,-1\n", "field `column 3` holds class -1"),
        ("1,2,1.5\n", "field `column 3` holds \"1.5\""),
        ("1,2\n", "line 1: expected 3 columns"),
        ("1,2,0,1\n", "but the line has 4"),
        ("1,2,0\n1,2\n", "line 2: the line has 2 fields"),
        ("1,2,0\nleft,right,label\n", "line 2: field `column 1`"),
        ("1,2,0\n1,2,\"0\n", "line 2: a quote is not closed"),
        ("", "no samples in"),
        ("a,b,c\n", "no samples in"),
    ] {
        for file in [text.as_bytes().to_vec(), gzip(text.as_bytes())] {
            let error = opened(&table(), &file).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
    let long = format!("{}1,x,0\n", "1,2,0\n".repeat(40_000));
    let error = opened(&table(), long.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("line 40001: "), "{error}");
}

#[test]
fn missing_and_broken_files_and_invalid_parameters_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let opening = OpenContext::new(folder.path(), 0);
    for config in [
        table(),
        DataConfig::Text {
            file: Some("train.csv".into()),
            context: 8,
            masked: None,
        },
    ] {
        let missing = open(&config, &opening).unwrap_err().to_string();
        assert!(missing.contains("train.csv"), "{missing}");
        let broken = opened(&config, b"\x1f\x8b\x08not gzip at all").unwrap_err();
        let broken = broken.to_string();
        assert!(broken.contains("cannot decompress"), "{broken}");
    }
    for scale in [0.0, f32::NAN, f32::INFINITY] {
        let mut config = table();
        if let DataConfig::Csv { scale: into, .. } = &mut config {
            *into = Some(scale);
        }
        let error = opened(&config, b"1,2,0\n").unwrap_err();
        assert!(matches!(error, DataError::Schema { .. }), "{error}");
    }
}

#[test]
fn values_are_targets_without_conversion() {
    let config = DataConfig::CsvValues {
        train: "train.csv".into(),
        test: None,
        shape: vec![2],
        header: None,
    };
    let set = opened(&config, b"a,b,y\n1,2,-0.5\n3,4,1e3\n")
        .unwrap()
        .train;
    let description = set.description();
    assert_eq!(
        (description.targets, description.classes),
        (Targets::Values, 1)
    );
    assert!(description.identity.starts_with("values blake3:"));
    let expected = [
        (vec![1.0, 2.0], vec![(-0.5_f32).to_bits()]),
        (vec![3.0, 4.0], vec![1000_f32.to_bits()]),
    ];
    assert_eq!(samples(&*set), expected);
    let refused = opened(&config, b"1,2,nan\n").unwrap_err().to_string();
    assert!(refused.contains("field `column 3`"), "{refused}");
}

#[test]
fn a_heading_of_column_numbers_is_refused_unless_the_setting_says_what_it_is() {
    let file = b"0,1,2\n0.5,1.5,1\n0.25,4.5,2\n";
    for (kind, classes) in [("csv", "classes = 3\n"), ("csv_values", "")] {
        let section = format!("source = '{kind}'\ntrain = 'train.csv'\nshape = [2]\n{classes}");
        let config =
            |header: &str| -> DataConfig { toml::from_str(&format!("{section}{header}")).unwrap() };
        let error = opened(&config(""), file).unwrap_err().to_string();
        assert!(
            error.contains("line 1, `0,1,2`, may be a heading or a sample")
                && error.contains("set data.header = true if it is a heading, or false"),
            "{error}"
        );
        let set = opened(&config("header = true"), file).unwrap().train;
        assert_eq!((set.len(), set.sample(0).unwrap().0), (2, vec![0.5, 1.5]));
        let set = opened(&config("header = false"), file).unwrap().train;
        assert_eq!((set.len(), set.sample(0).unwrap().0), (3, vec![0.0, 1.0]));
    }
}

#[test]
fn the_test_file_may_be_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let text = b"16,8,1\n0,4,0\n";
    std::fs::write(folder.path().join("plain [1].csv"), text).unwrap();
    let mut packed = std::fs::File::create(folder.path().join("packed.csv.gz")).unwrap();
    packed.write_all(&gzip(text)).unwrap();
    let config = DataConfig::Csv {
        train: "plain [1].csv".into(),
        test: Some("packed.csv.gz".into()),
        shape: vec![1, 2],
        classes: 2,
        scale: Some(16.0),
        header: None,
    };
    let split = open(&config, &OpenContext::new(folder.path(), 0)).unwrap();
    let test = split.test.unwrap();
    assert_eq!(
        split.train.description().identity,
        test.description().identity
    );
    assert_eq!(test.sample(0).unwrap(), (vec![1.0, 0.5], vec![1]));
}

/// Reads bytes as a table of two features and three classes.
fn parsed(bytes: &[u8]) -> Result<Vec<FeaturesAndTargets>, DataError> {
    let config = table();
    let Pipeline::Decoded(records) = Pipeline::of(&config)? else {
        unreachable!("lines of numbers are decoded");
    };
    let file = OpenedFile {
        object: Arc::new(InMemory::new("train.csv", bytes)),
        name: None,
    };
    Ok(samples(&decoded::set(&records, &file)?))
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parsed(&bytes);
    }

    #[test]
    fn random_tables_are_read_or_rejected(text in "[0-9.,eE+\\-\n nai\"]{0,200}") {
        for (features, targets) in parsed(text.as_bytes()).unwrap_or_default() {
            prop_assert!(features.iter().all(|value| value.is_finite()));
            prop_assert!(targets.len() == 1 && targets[0] < 3);
        }
    }
}
