//! Tests of patterns in folders.

use std::path::Path;
use std::time::Duration;

use ronde_store::{Opener, RemoteSettings, Stamp};

use super::{FolderNames, FoundFiles, SourceFile, expand};
use crate::error::DataError;

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
    search(patterns, base, FolderNames::All).map(|found| found.files)
}

fn search(patterns: &[&str], base: &Path, names: FolderNames) -> Result<FoundFiles, DataError> {
    let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
    let opener = Opener::new(RemoteSettings {
        retry_limit: Duration::ZERO,
        ..RemoteSettings::default()
    });
    expand(&patterns, base, &opener, names)
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
            &["s-08.tar", "s-08.tar", "s-08.tar", "s-09.tar"],
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

/// Returns the notices of the files of a search.
fn notices(patterns: &[&str], base: &Path, names: FolderNames) -> Vec<String> {
    search(patterns, base, names).unwrap().notices("data.train")
}

#[test]
fn a_folder_without_a_format_has_the_files_of_known_formats() {
    let folder = tree(&[
        "data/a.csv",
        "data/a.csv~",
        "data/a.csv.bak",
        "data/b.csv.gz.part",
        "data/#a.csv#",
        "data/.a.csv.swp",
        "data/_class/b.csv",
        "data/_temporary/0/c.csv",
        "data/.ipynb_checkpoints/a-checkpoint.csv",
        "data/deep/README",
        "data/deep/train-00000-of-00002",
        "only/a.csv.old",
        "only/.b.csv",
    ]);
    let base = folder.path();
    let known = FolderNames::KnownFormats;
    let data = ["_class/b.csv", "a.csv", "deep/train-00000-of-00002"];
    let found = search(&["data"], base, known).unwrap();
    assert_eq!(names(&found.files), data);
    assert_eq!(
        found.notices("data.train"),
        ["leaving out 8 files of data.train because of their names, the first: data/#a.csv#"]
    );
    // A given format takes all but hidden files and what table writers write beside tables.
    let found = search(&["data"], base, FolderNames::All).unwrap();
    assert_eq!(found.files.len(), 8);
    assert_eq!(
        found.notices("data.train"),
        ["leaving out 3 files of data.train because of their names, the first: data/.a.csv.swp"]
    );
    // Wildcards, lists and names take names as they are.
    std::fs::write(base.join("list"), "data/a.csv.bak\nonly/a.csv.old\n").unwrap();
    for (patterns, expected) in [
        (&["data/a*"][..], &["a.csv", "a.csv.bak", "a.csv~"][..]),
        (&["data/a.csv~"], &["a.csv~"]),
        (&["@list"], &["data/a.csv.bak", "only/a.csv.old"]),
    ] {
        let found = search(patterns, base, known).unwrap();
        assert_eq!(names(&found.files), expected);
        assert!(found.notices("data.train").is_empty());
    }
    let error = search(&["data/a.csv", "only"], base, known).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, DataError::LeftOut { count: 2, .. }),
        "{text}"
    );
    assert!(
        text.starts_with("no data files in only: all 2 are left out")
            && text.contains("the first: only/.b.csv")
            && text.contains("help: "),
        "{text}"
    );
}

#[test]
fn each_address_counts_and_files_that_are_read_several_times_are_reported() {
    let folder = tree(&["a.csv", "b.csv", "c.csv"]);
    let base = folder.path();
    std::fs::hard_link(base.join("b.csv"), base.join("other.csv")).unwrap();
    let absolute = base.join("a.csv").to_str().unwrap().to_owned();
    std::fs::write(base.join("list"), "a.csv\na.csv\n").unwrap();
    for (patterns, count, told) in [
        (
            &["a.csv", "a.csv"][..],
            2,
            Some(
                "1 file of data.train is listed more than once, so the samples count as often, the first: a.csv, 2 times",
            ),
        ),
        (
            &["a.csv", "[a].csv", "{a,a}.csv"],
            4,
            Some("a.csv, 4 times"),
        ),
        (&["@list"], 2, Some("a.csv, 2 times")),
        (
            &["a.csv", "[ac].csv", "c.csv"],
            4,
            Some("2 files of data.train are"),
        ),
        (&["b.csv", "other.csv"], 2, Some("b.csv, 2 times")),
        (&["a.csv", &absolute], 2, Some("2 times")),
        (&["a.csv", "c.csv"], 2, None),
        (&["[a-c].csv"], 3, None),
    ] {
        let found = search(patterns, base, FolderNames::KnownFormats).unwrap();
        assert_eq!(found.files.len(), count, "{patterns:?}");
        let notices = found.notices("data.train");
        match told {
            Some(told) => assert!(notices[0].contains(told), "{notices:?}"),
            None => assert!(notices.is_empty(), "{notices:?}"),
        }
    }
}

#[test]
fn an_entry_that_may_be_data_and_cannot_be_read_is_an_error_with_its_name() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    let known = FolderNames::KnownFormats;
    let latin = |name: &[u8]| OsStr::from_bytes(name).to_owned();
    type Damage<'a> = &'a dyn Fn(&Path);
    let cases: [(Damage<'_>, &str, &str); 6] = [
        (
            &|data| symlink("/mnt/not-mounted/b.csv", data.join("b.csv")).unwrap(),
            "data/b.csv: the link leads to /mnt/not-mounted/b.csv, which does not exist",
            "data/b.csv",
        ),
        // It may be a folder.
        (
            &|data| symlink("nowhere", data.join("part")).unwrap(),
            "data/part: the link leads to nowhere, which does not exist",
            "data/part",
        ),
        (
            &|data| symlink("itself.csv", data.join("itself.csv")).unwrap(),
            "data/itself.csv: Too many levels of symbolic links",
            "data/itself.csv",
        ),
        (
            &|data| std::fs::write(data.join(latin(b"caf\xe9.csv")), "1,2").unwrap(),
            "data/caf\\xE9.csv: its name is not valid UTF-8",
            "",
        ),
        (
            &|data| {
                std::fs::create_dir(data.join(latin(b"caf\xe9"))).unwrap();
                std::fs::write(data.join(latin(b"caf\xe9/b.csv")), "1,2").unwrap();
            },
            "data/caf\\xE9/b.csv: its name is not valid UTF-8",
            "",
        ),
        (
            &|data| std::fs::write(data.join("a\tb.csv"), "1,2").unwrap(),
            "b.csv: it contains a control character or a backslash",
            "",
        ),
    ];
    for (damage, told, named) in cases {
        let folder = tree(&["data/a.csv", "other/a.csv"]);
        let base = folder.path();
        damage(&base.join("data"));
        for (pattern, names) in [
            ("data", known),
            ("data", FolderNames::All),
            ("data/**", known),
            (".", known),
            (named, known),
        ] {
            if pattern.is_empty() {
                continue;
            }
            let text = search(&[pattern], base, names).unwrap_err().to_string();
            assert!(text.contains(told), "{pattern}: {text}");
        }
        // What no address means is not examined.
        assert_eq!(names(&find(&["data/a.*"], base).unwrap()), ["a.csv"]);
        assert_eq!(names(&find(&["other"], base).unwrap()), ["a.csv"]);
    }
}

#[test]
fn an_entry_that_is_no_data_may_have_any_name() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = tree(&["data/a.csv"]);
    let name = OsStr::from_bytes(b"caf\xe9.bak");
    std::fs::write(folder.path().join("data").join(name), "x").unwrap();
    let known = FolderNames::KnownFormats;
    assert_eq!(
        notices(&["data"], folder.path(), known),
        ["leaving out 1 file of data.train because of its name, the first: data/caf\u{fffd}.bak"]
    );
}
