//! Tests that packed shards can be read back, are reproducible, and are not overwritten without `force`.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::format::FormatConfig;
use crate::inspect::{Inspection, inspect};

const JPEG: &[u8] = include_bytes!("../../tests/vectors/pattern.jpg");
const GREY: &[u8] = include_bytes!("../../tests/vectors/grey.jpg");

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Writes two classes with ten images each.
fn images(folder: &Path) {
    for number in 0..10 {
        write(folder, &format!("images/cat/{number}.jpg"), JPEG);
        write(folder, &format!("images/dog/{number}.JPEG"), GREY);
    }
    write(folder, "images/README.txt", b"not an image");
}

fn settings(format: FormatKind) -> PackSettings {
    PackSettings {
        from: "images".into(),
        to: "out".into(),
        format,
        prefix: "train".into(),
        shard_bytes: 5000,
        threads: 2,
        first_label: 0,
        keeps_order: false,
        force: false,
    }
}

fn run(folder: &Path, settings: &PackSettings) -> Result<PackReport, DataError> {
    pack(settings, &OpenContext::new(folder, 0))
}

fn look(folder: &Path, format: FormatKind) -> Inspection {
    let addresses = ["out/train-*".to_owned()];
    let format = FormatConfig::Name(format);
    inspect(&addresses, Some(&format), 20, &OpenContext::new(folder, 0)).unwrap()
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder.join("out"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.is_file());
    let named = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(path).unwrap())
    };
    files.map(named).collect()
}

fn formats() -> Vec<FormatKind> {
    let mut formats = vec![FormatKind::TfRecord, FormatKind::WebDataset];
    if cfg!(feature = "full") {
        formats.push(FormatKind::Parquet);
    }
    formats
}

#[test]
fn packed_images_can_be_read_back() {
    for format in formats() {
        let folder = tempfile::tempdir().unwrap();
        images(folder.path());
        let packed = run(folder.path(), &settings(format)).unwrap();
        assert_eq!((packed.samples, packed.shards), (20, 4));
        assert_eq!(packed.classes, ["cat", "dog"]);
        let first = contents(folder.path());
        assert!(
            first
                .keys()
                .next()
                .unwrap()
                .starts_with("train-00000-of-00004")
        );
        assert_eq!(
            packed.bytes,
            first.values().map(|bytes| bytes.len() as u64).sum::<u64>()
        );
        let seen = look(folder.path(), format);
        assert_eq!((seen.samples, seen.files, seen.bad_count), (20, 4, 0));
        let (image, label) = match format {
            FormatKind::TfRecord => ("image/encoded", "image/class/label"),
            FormatKind::WebDataset => ("jpg", "cls"),
            _ => ("image.bytes", "label"),
        };
        let text = &packed.run_file;
        let names_image = text.contains(&format!("field = \"{image}\""));
        assert!(names_image && text.contains("classes = 2"), "{text}");
        let place = |name| {
            seen.fields
                .iter()
                .position(|(field, _)| field == name)
                .unwrap()
        };
        let mut labels = Vec::new();
        for row in &seen.first {
            let is_cat = row[place(image)] == format!("JPEG 64 x 48, {} bytes", JPEG.len());
            let told = row[place(label)]
                .trim_matches('"')
                .split(' ')
                .next()
                .unwrap();
            assert_eq!(told, if is_cat { "0" } else { "1" });
            labels.push(told.to_owned());
        }
        // The images are shuffled, so neighbours belong to both classes.
        assert!(labels[..10].contains(&"0".to_owned()) && labels[..10].contains(&"1".to_owned()));
    }
}

#[test]
fn shards_are_overwritten_only_with_force_and_equal_files_give_equal_bytes() {
    for format in formats() {
        let folder = tempfile::tempdir().unwrap();
        images(folder.path());
        let packed = run(folder.path(), &settings(format)).unwrap();
        let first = contents(folder.path());
        let again = run(folder.path(), &settings(format))
            .unwrap_err()
            .to_string();
        assert!(
            again.contains("train-00000-of-00004") && again.contains("--force"),
            "{again}"
        );
        let forced = PackSettings {
            force: true,
            threads: 1,
            ..settings(format)
        };
        assert_eq!(run(folder.path(), &forced).unwrap(), packed);
        assert_eq!(contents(folder.path()), first);
        let fewer = PackSettings {
            shard_bytes: 1 << 20,
            ..forced
        };
        run(folder.path(), &fewer).unwrap();
        assert_eq!(contents(folder.path()).len(), 1);
    }
}

#[test]
fn field_names_and_types_are_those_of_tensorflow() {
    let folder = tempfile::tempdir().unwrap();
    images(folder.path());
    let ordered = PackSettings {
        keeps_order: true,
        first_label: 1,
        ..settings(FormatKind::TfRecord)
    };
    run(folder.path(), &ordered).unwrap();
    let seen = look(folder.path(), FormatKind::TfRecord);
    let fields: Vec<_> = seen
        .fields
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        fields,
        [
            ("image/class/label", "1 (i64)"),
            ("image/class/text", "\"cat\""),
            ("image/encoded", "JPEG 64 x 48, 1040 bytes"),
            ("image/filename", "\"0.jpg\""),
            ("image/format", "\"JPEG\""),
            ("image/height", "48 (i64)"),
            ("image/width", "64 (i64)"),
        ]
    );
}

#[test]
fn texts_are_packed_with_and_without_classes() {
    for format in formats() {
        for prefix in ["", "a/"] {
            let folder = tempfile::tempdir().unwrap();
            for number in 0..3 {
                write(
                    folder.path(),
                    &format!("images/{prefix}{number}.txt"),
                    b"some text",
                );
            }
            let packed = run(folder.path(), &settings(format)).unwrap();
            assert_eq!(packed.classes.len(), prefix.len() / 2);
            let seen = look(folder.path(), format);
            assert_eq!(seen.samples, 3);
            assert!(
                seen.fields
                    .iter()
                    .any(|(_, value)| value == "\"some text\""),
                "{:?}",
                seen.fields
            );
        }
    }
}

#[test]
fn invalid_files_are_reported_and_leave_no_shards() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "images/x.doc", b"");
    let error = |settings: &PackSettings| run(folder.path(), settings).unwrap_err().to_string();
    let tfrecord = settings(FormatKind::TfRecord);
    assert!(error(&tfrecord).contains("no images"));
    write(folder.path(), "images/cat/1.jpg", b"no jpeg");
    assert!(
        error(&tfrecord).contains("1.jpg: not a JPEG"),
        "{}",
        error(&tfrecord)
    );
    assert!(!folder.path().join("out").exists() || contents(folder.path()).is_empty());
    write(folder.path(), "images/2.jpg", JPEG);
    assert!(error(&tfrecord).contains("2.jpg: the file is not in a class folder"));
    assert!(error(&settings(FormatKind::Csv)).contains("cannot write csv"));
    assert!(
        error(&PackSettings {
            prefix: "a/b".into(),
            ..tfrecord.clone()
        })
        .contains("prefix")
    );
    assert!(
        error(&PackSettings {
            shard_bytes: 0,
            ..tfrecord
        })
        .contains("shard size")
    );
}
