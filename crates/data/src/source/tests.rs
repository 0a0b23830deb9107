//! Tests of patterns in folders.

use std::path::Path;

use ronde_store::{Opener, RemoteSettings, Stamp};

use super::{SourceFile, expand};
use crate::DataError;

/// Creates a folder of files, each with its path as contents.
fn tree(paths: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for path in paths {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, path.to_str().unwrap()).unwrap();
    }
    folder
}

fn find(patterns: &[&str], base: &Path) -> Result<Vec<SourceFile>, DataError> {
    let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
    expand(&patterns, base, &Opener::new(RemoteSettings::default()))
}

fn names(files: &[SourceFile]) -> Vec<&str> {
    files.iter().map(SourceFile::name).collect()
}

const TREE: [&str; 10] = [
    "data/train/a/1.jpg",
    "data/train/a/2.jpg",
    "data/train/b c/3.jpg",
    "data/train/b c/notes.txt",
    "data/train/_SUCCESS",
    "data/train/.hidden/4.jpg",
    "data/val/a/1.jpg",
    "data/s-08.tar",
    "data/s-09.tar",
    "data/s-10.tar",
];

#[test]
fn patterns_match_files_with_names_relative_to_the_common_folder() {
    let folder = tree(&TREE);
    let base = folder.path();
    let whole = base.to_str().unwrap();
    let absolute = format!("{whole}/data/train");
    let absolute_glob = format!("{whole}/data/*.tar");
    let train = ["a/1.jpg", "a/2.jpg", "b c/3.jpg", "b c/notes.txt"];
    for (patterns, expected) in [
        (&["data/train"][..], &train[..]),
        (&["./data/train/"], &train),
        (&["data/val/../train/"], &train),
        (&[&*absolute], &train),
        (&["data/train/**"], &train),
        (&["data/train/**/*.jpg"], &train[..3]),
        (&["data/train/*/[13].jpg"], &["a/1.jpg", "b c/3.jpg"]),
        (&["data/train/a/1.jpg"], &["1.jpg"]),
        (&["data/*.tar"], &["s-08.tar", "s-09.tar", "s-10.tar"]),
        (&[&*absolute_glob], &["s-08.tar", "s-09.tar", "s-10.tar"]),
        (
            &["data/s-{08..10}.tar"],
            &["s-08.tar", "s-09.tar", "s-10.tar"],
        ),
        (&["data/s-{10,08}.tar"], &["s-08.tar", "s-10.tar"]),
        (
            &["data/{train,val}/a"],
            &["train/a/1.jpg", "train/a/2.jpg", "val/a/1.jpg"],
        ),
        (
            &["data/{train/b,val/}*/*.jpg"],
            &["train/b c/3.jpg", "val/a/1.jpg"],
        ),
        (
            &["data/train/a", "data/val/a"],
            &["train/a/1.jpg", "train/a/2.jpg", "val/a/1.jpg"],
        ),
        (
            &["data/val", "data/train/a"],
            &["train/a/1.jpg", "train/a/2.jpg", "val/a/1.jpg"],
        ),
        (
            &["data/s-08.tar", "data/s-0*.tar", "data/s-08.tar"],
            &["s-08.tar", "s-09.tar"],
        ),
    ] {
        let files = find(patterns, base).unwrap();
        assert_eq!(names(&files), expected, "{patterns:?}");
        for file in &files {
            assert!(!file.is_remote());
            let mut read = vec![0; file.bytes() as usize];
            file.open().unwrap().read_at(0, &mut read).unwrap();
            let written = String::from_utf8(read).unwrap();
            assert!(written.ends_with(file.name()), "{written} {file:?}");
            let normal = |path: &str| std::fs::canonicalize(path).unwrap();
            assert_eq!(normal(&file.location()), normal(&written));
        }
    }
    assert_eq!(
        names(&find(&["."], &base.join("data/val")).unwrap()),
        ["a/1.jpg"]
    );
}

#[test]
fn an_existing_path_is_taken_literally() {
    let folder = tree(&["x[1]{a}*.csv", "x1.csv", "dir {1}/y"]);
    assert_eq!(
        names(&find(&["x[1]{a}*.csv"], folder.path()).unwrap()),
        ["x[1]{a}*.csv"]
    );
    assert_eq!(
        names(&find(&["x[1].csv"], folder.path()).unwrap()),
        ["x1.csv"]
    );
    assert_eq!(names(&find(&["dir {1}"], folder.path()).unwrap()), ["y"]);
}

#[test]
fn lists_are_relative_to_their_own_folder() {
    let folder = tree(&TREE);
    let base = folder.path();
    let list = "# the good ones\n\ntrain/a/2.jpg\n  train/b c/3.jpg\nval/*/*.jpg\n";
    std::fs::write(base.join("data/list.txt"), list).unwrap();
    let files = find(&["@data/list.txt"], base).unwrap();
    assert_eq!(
        names(&files),
        ["train/a/2.jpg", "train/b c/3.jpg", "val/a/1.jpg"]
    );
    std::fs::write(base.join("nested.txt"), "@data/list.txt").unwrap();
    std::fs::write(base.join("bytes.txt"), [0xff]).unwrap();
    std::fs::write(base.join("empty.txt"), "# nothing\n").unwrap();
    for (list, told) in [
        ("@nested.txt", "another list"),
        ("@bytes.txt", "UTF-8"),
        ("@absent.txt", "absent.txt: it does not exist"),
    ] {
        let error = find(&[list], base).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    assert!(find(&["@empty.txt"], base).unwrap().is_empty());
}

#[test]
fn missing_files_are_reported_with_the_contents_of_the_folder() {
    let folder = tree(&TREE);
    for (pattern, told) in [
        ("data/*.csv", "contains s-08.tar, s-09.tar"),
        (
            "data/train/c",
            "data/train contains .hidden, _SUCCESS, a, b c",
        ),
        ("nowhere/*.csv", "contains data"),
        ("data/s-{08..12}.tar", "2 of the files"),
        ("data/s-{08..12}.tar", "s-11.tar, s-12.tar"),
        ("data/s-{08..12.tar", "not closed"),
        ("data/*/../x", ".. cannot follow"),
        ("data/*/", "wildcards match files"),
        ("", "empty"),
        ("s3://{a,b}/x", "cannot contain wildcards"),
        ("https://host/x/*.tar", "a web server does not have"),
        ("https://host/x/", "a web server does not have"),
        ("https://host/x?y=geheim", "a password or a query"),
        ("s3://key:geheim@{a,b}/x", "a password or a query"),
        ("ftp://host/x", "unknown scheme"),
    ] {
        let error = find(&[pattern], folder.path()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(told), "{pattern}: {text}");
        assert!(!text.contains("geheim"), "{text}");
        assert_eq!(error.recovery(), ronde_core::Recovery::Abort);
    }
}

#[test]
fn a_replaced_file_is_reported_when_it_is_opened() {
    let folder = tree(&["a", "b"]);
    let before = find(&["*"], folder.path()).unwrap();
    std::fs::write(folder.path().join("a"), "other").unwrap();
    let error = before[0].open().err().unwrap().to_string();
    assert!(error.contains("replaced after it was listed"), "{error}");
    before[1].open().unwrap();
    let after = find(&["*"], folder.path()).unwrap();
    assert_ne!(after[0].stamp(), before[0].stamp());
    assert_eq!(after[1].stamp(), before[1].stamp());
    assert_eq!(
        Stamp::from_bytes(after[1].stamp().to_bytes()),
        after[1].stamp()
    );
    std::fs::remove_file(folder.path().join("b")).unwrap();
    let error = after[1].open().err().unwrap().to_string();
    assert!(error.contains("does not exist"), "{error}");
}

#[test]
fn many_files_are_found_once_each() {
    let folder = tempfile::tempdir().unwrap();
    for class in 0..20 {
        let class = folder.path().join(format!("class {class:02}"));
        std::fs::create_dir(&class).unwrap();
        for image in 0..150 {
            std::fs::write(class.join(format!("{image:03}.png")), [0; 8]).unwrap();
        }
    }
    let files = find(&["."], folder.path()).unwrap();
    assert_eq!(files.len(), 3000);
    assert!(files.windows(2).all(|two| two[0].name() < two[1].name()));
    assert_eq!(files[151].name(), "class 01/001.png");
}
