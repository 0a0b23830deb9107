//! Tests with valid files, invalid files, and random bytes.

use std::io::Write;
use std::path::Path;

use proptest::prelude::*;

use std::fs::File;

use super::*;
use crate::{DataConfig, OpenContext, open};

fn layout() -> CsvLayout {
    CsvLayout::new(&[2], 3, Some(2.0)).unwrap()
}

fn parse(text: &[u8]) -> Result<(Vec<f32>, Vec<u32>), DataError> {
    read_lines(text, Path::new("some.csv"), &layout())
}

#[test]
fn valid_lines_are_parsed() {
    let expected = (vec![0.5, 1.0, -1.5, 2.0], vec![0, 2]);
    for text in [
        "1,2,0\n-3,4,2\n",
        "1,2,0\r\n-3,4,2",
        "\u{feff}1,2,0\n\n-3,4,2\n\n",
        "left,right,label\n1,2,0\n-3,4,2\n",
        " 1 , 2.0 , 0.0 \n-3e0,+4,2e0\n",
    ] {
        assert_eq!(parse(text.as_bytes()).unwrap(), expected, "{text:?}");
    }
}

#[test]
fn errors_name_file_line_column_and_value() {
    for (text, expected) in [
        (
            "1,2,0\n1,x,0\n",
            "some.csv line 2, column 2: expected a finite number, found \"x\"",
        ),
        (
            "1,nan,0\n",
            "line 1, column 2: expected a finite number, found \"nan\"",
        ),
        ("1,1e999,0\n", "column 2: expected a finite number"),
        ("1,,0\n", "column 2: expected a finite number, found \"\""),
        (
            "1,2,3\n",
            "line 1, column 3: expected a label from 0 to 2, found \"3\"",
        ),
        ("1,2,-1\n", "column 3: expected a label"),
        ("1,2,1.5\n", "column 3: expected a label"),
        (
            "1,2\n",
            "column 2: expected 3 columns (2 features and the label), but the line has 2",
        ),
        (
            "1,2,0,1\n",
            "column 4: expected 3 columns (2 features and the label), but the line has 4",
        ),
        ("1,2,0\nleft,right,label\n", "line 2, column 1"),
        ("", "some.csv has no samples"),
        ("a,b,c\n", "some.csv has no samples"),
    ] {
        let error = parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn a_line_without_an_end_is_rejected_at_the_limit() {
    let endless = std::io::repeat(b'1');
    let error = read_lines(BufReader::new(endless), Path::new("x"), &layout()).unwrap_err();
    assert!(matches!(
        error,
        DataError::Limit {
            line: 1,
            limit: 195,
            ..
        }
    ));
}

#[test]
fn plain_and_compressed_files_are_the_same_set() {
    let folder = tempfile::tempdir().unwrap();
    let text = b"16,8,1\n0,4,0\n";
    std::fs::write(folder.path().join("plain.csv"), text).unwrap();
    let packed = File::create(folder.path().join("packed.csv.gz")).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap();
    let config = DataConfig::Csv {
        train: "plain.csv".into(),
        test: Some("packed.csv.gz".into()),
        shape: vec![1, 2],
        classes: 2,
        scale: Some(16.0),
    };
    let split = open(&config, &OpenContext::new(folder.path(), 0)).unwrap();
    let test = split.test.unwrap();
    assert_eq!(split.train.identity(), test.identity());
    let mut sample = [0.0; 2];
    assert_eq!(test.read(0, &mut sample).unwrap(), 1);
    assert_eq!(sample, [1.0, 0.5]);
}

#[test]
fn missing_and_broken_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = read_file(&folder.path().join("none.csv"), &layout())
        .err()
        .unwrap();
    assert!(missing.to_string().contains("none.csv"), "{missing}");
    let path = folder.path().join("broken.csv.gz");
    std::fs::write(&path, b"\x1f\x8bnot gzip at all").unwrap();
    let broken = read_file(&path, &layout()).err().unwrap();
    assert!(matches!(broken, DataError::Io { .. }), "{broken}");
    for scale in [0.0, f32::NAN, f32::INFINITY] {
        let error = CsvLayout::new(&[2], 3, Some(scale)).err().unwrap();
        assert!(matches!(error, DataError::Scale { .. }));
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn random_tables_are_read_or_rejected(text in "[0-9.,eE+\\-\n nai\"]{0,200}") {
        if let Ok((features, labels)) = parse(text.as_bytes()) {
            prop_assert_eq!(features.len(), 2 * labels.len());
            prop_assert!(labels.iter().all(|&label| label < 3));
            prop_assert!(features.iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn values_are_targets_without_conversion() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("values.csv");
    std::fs::write(&path, "a,b,y\n1,2,-0.5\n3,4,1e3\n").unwrap();
    let config = DataConfig::CsvValues {
        train: "values.csv".into(),
        test: None,
        shape: vec![2],
    };
    let set = open(&config, &OpenContext::new(folder.path(), 0))
        .unwrap()
        .train;
    assert_eq!((set.targets(), set.classes()), (crate::Targets::Values, 1));
    let mut out = [0.0; 2];
    let read = |sample: u64, out: &mut [f32]| f32::from_bits(set.read(sample, out).unwrap());
    assert_eq!((read(0, &mut out), read(1, &mut out)), (-0.5, 1000.0));
    assert_eq!(out, [3.0, 4.0]);
    std::fs::write(&path, "1,2,nan\n").unwrap();
    let refused = open(&config, &OpenContext::new(folder.path(), 0))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("expected a finite number"), "{refused}");
}
