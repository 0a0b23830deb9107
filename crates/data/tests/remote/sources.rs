//! Patterns select the same files on services as on disk.

use std::path::Path;

use ronde_data::DataError;
use ronde_data::source::{FolderNames, SourceFile, expand};
use ronde_store::{Opener, RemoteSettings, StoreError};

use crate::services::{azure, everywhere, pattern, s3};

fn files() -> Vec<(&'static str, Vec<u8>)> {
    let names = [
        "train/a b-00000.tar",
        "train/a b-00001.tar",
        "train/a b-00002.tar",
        "train/deep/\u{e4} 100%.tar",
        "train/_SUCCESS",
        "val/a b-00000.tar",
    ];
    let contents = |number: usize| pattern(number as u64, 1000 + 37 * number);
    names
        .into_iter()
        .enumerate()
        .map(|(number, name)| (name, contents(number)))
        .collect()
}

type Case = (&'static [&'static str], &'static [&'static str]);

/// Patterns and the names of the files that they select without listings.
const NAMED: &[Case] = &[
    (
        &["train/a b-{00000..00002}.tar"],
        &["a b-00000.tar", "a b-00001.tar", "a b-00002.tar"],
    ),
    (&["train/a b-00001.tar"], &["a b-00001.tar"]),
    // As in a shell, a name that is listed twice counts twice.
    (
        &["{train,val}/a b-0000{0,0}.tar"],
        &[
            "train/a b-00000.tar",
            "train/a b-00000.tar",
            "val/a b-00000.tar",
            "val/a b-00000.tar",
        ],
    ),
];

/// Patterns that need listings.
const LISTED: &[Case] = &[
    (
        &["train"],
        &[
            "a b-00000.tar",
            "a b-00001.tar",
            "a b-00002.tar",
            "deep/\u{e4} 100%.tar",
        ],
    ),
    (
        &["*/a b-*[0-1].tar"],
        &[
            "train/a b-00000.tar",
            "train/a b-00001.tar",
            "val/a b-00000.tar",
        ],
    ),
    (&["train/**/\u{e4} ???%.tar"], &["deep/\u{e4} 100%.tar"]),
];

fn read(file: &SourceFile) -> Vec<u8> {
    let mut into = vec![0; file.bytes() as usize];
    file.open().unwrap().read_at(0, &mut into).unwrap();
    into
}

#[test]
fn the_same_patterns_find_the_same_files_with_the_same_names() {
    let files = files();
    for service in everywhere(&files) {
        let find = |patterns: &[&str]| {
            let whole = |pattern: &&str| format!("{}/{pattern}", service.folder);
            let patterns: Vec<String> = patterns.iter().map(whole).collect();
            let (base, opener) = (Path::new("."), service.opener());
            expand(&patterns, base, &opener, FolderNames::All).map(|found| found.files)
        };
        let cases = NAMED
            .iter()
            .chain(LISTED.iter().filter(|_| service.has_listings));
        for &(patterns, expected) in cases {
            // A web address is percent-encoded.
            let encoded: Vec<String> = patterns
                .iter()
                .map(|pattern| match service.has_listings {
                    true => (*pattern).to_owned(),
                    false => pattern.replace(' ', "%20"),
                })
                .collect();
            let encoded: Vec<&str> = encoded.iter().map(String::as_str).collect();
            let found = find(&encoded).unwrap();
            let names: Vec<&str> = found.iter().map(SourceFile::name).collect();
            assert_eq!(names, expected, "{} {patterns:?}", service.folder);
            for file in &found {
                assert!(file.is_remote());
                let whole = file.object().as_str();
                let (_, contents) = files
                    .iter()
                    .find(|(name, _)| whole.ends_with(name))
                    .unwrap();
                assert!(read(file) == *contents, "{file:?}");
            }
        }
        let error = find(&["train/{x,y,z}.tar"]).unwrap_err();
        assert!(
            matches!(error, DataError::MissingFiles { count: 3, .. }),
            "{error}"
        );
        let error = find(&["train/x.tar"]).unwrap_err();
        assert!(matches!(error, DataError::NoFiles { .. }), "{error}");
        if !service.has_listings {
            let error = find(&["train/*.tar"]).unwrap_err();
            assert!(matches!(error, DataError::Pattern { .. }), "{error}");
        }
    }
}

#[test]
fn lists_may_be_stored_beside_the_files() {
    let mut files = files();
    files.push((
        "list.txt",
        b"train/a%20b-00002.tar\nval/a%20b-00000.tar".to_vec(),
    ));
    files.push((
        "plain.txt",
        b"train/a b-00002.tar\nval/a b-00000.tar".to_vec(),
    ));
    for service in everywhere(&files) {
        let list = match service.has_listings {
            true => "plain.txt",
            false => "list.txt",
        };
        let list = format!("@{}/{list}", service.folder);
        let opener = service.opener();
        let found = expand(&[list], Path::new("."), &opener, FolderNames::All).unwrap();
        let names: Vec<&str> = found.files.iter().map(SourceFile::name).collect();
        assert_eq!(names, ["train/a b-00002.tar", "val/a b-00000.tar"]);
    }
}

#[test]
fn wrong_keys_and_missing_buckets_are_reported_by_the_first_request() {
    let find = |pattern: &str, settings: &RemoteSettings| {
        let opener = Opener::new(settings.clone());
        let patterns = [pattern.to_owned()];
        expand(&patterns, Path::new("."), &opener, FolderNames::All).unwrap_err()
    };
    for (bucket, settings, secret) in [
        ("s3://", s3(), "c29tZWJvZHkgZWxzZQ=="),
        ("az://", azure(), "c29tZWJvZHkgZWxzZQ=="),
    ] {
        let Some(settings) = settings else { continue };
        let mut wrong = settings.clone();
        wrong.options[1].1 = secret.to_owned();
        for pattern in [
            "ronde-test/*.tar",
            "ronde-test/{0..3}.tar",
            "ronde-test/x.tar",
        ] {
            let error = find(&format!("{bucket}{pattern}"), &wrong);
            let settings = matches!(error, DataError::Store(StoreError::Settings { .. }));
            assert!(settings, "{error}");
            // There are a few requests at most, and the error does not contain the key.
            assert!(!error.to_string().contains("asked"), "{error}");
            assert!(!error.to_string().contains(secret), "{error}");
        }
        for pattern in ["not-made/*.tar", "not-made/x.tar", "not-made"] {
            let error = find(&format!("{bucket}{pattern}"), &settings).to_string();
            assert!(error.contains("create it first"), "{error}");
        }
    }
}
