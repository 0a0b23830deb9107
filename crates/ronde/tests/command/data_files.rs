//! Which files are data, and which of their contents: nothing is left out, used twice or taken for a sample without a word.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use crate::support::{TestFolder, of_kind};

/// Ten lines of two features and a class.
fn lines() -> String {
    (0..10)
        .map(|n| format!("0.{n},{n},{}\n", n % 2))
        .collect::<String>()
}

/// Writes a run file; `data` has further keys of the section.
fn write_run(dir: &TestFolder, data: &str) {
    dir.write(
        "run.toml",
        &format!(
            "[data]\nsource = \"records\"\n{data}\n\
             features = {{ decode = \"numbers\", field = \"0..2\", shape = [2] }}\n\
             label = {{ field = \"2\", classes = 2 }}\n\
             [model]\nkind = \"linear\"\n[train]\nepochs = 1\nglobal_batch_size = 4\n"
        ),
    );
}

/// Trains with the number of workers, expects success, and returns the hash of the model and the notices.
fn trained(dir: &TestFolder, workers: u32) -> (String, Vec<String>) {
    let workers = format!("workers.count={workers}");
    let arguments = [
        "train",
        "run.toml",
        "--json",
        "--overwrite",
        "--set",
        &workers,
    ];
    let ended = dir.run(&arguments).expect(0, &[]);
    let notices = of_kind(&ended.events(), "notice")
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect();
    (ended.blake3(), notices)
}

#[test]
fn backups_and_partial_files_of_a_folder_are_left_out_with_a_word() {
    let dir = TestFolder::new();
    std::fs::create_dir_all(dir.path().join("data/_class")).unwrap();
    dir.write("data/a.csv", &lines());
    dir.write("data/_class/b.csv", &lines());
    write_run(&dir, "train = [\"data/_class/b.csv\", \"data/a.csv\"]");
    let (alone, notices) = trained(&dir, 1);
    assert!(!notices.iter().any(|notice| notice.contains("leaving out")));

    for ending in ["~", ".bak", ".tmp", ".old", ".part", ".incomplete"] {
        dir.write(&format!("data/a.csv{ending}"), &lines());
    }
    dir.write("data/.a.csv.swp", &lines());
    dir.write("data/#a.csv#", &lines());
    write_run(&dir, "train = \"data\"");
    let told = "leaving out 8 files of data.train because of their names, the first: data/#a.csv#";
    dir.run(&["check", "run.toml"]).expect(0, &[told]);
    for workers in [1, 3] {
        let (hash, notices) = trained(&dir, workers);
        assert_eq!(hash, alone);
        let times = notices.iter().filter(|notice| *notice == told).count();
        assert_eq!(times, 1, "{notices:?}");
    }
    let seen = dir.run(&["data", "inspect", "data"]).expect(0, &[]);
    assert!(seen.stdout.contains("samples       20"), "{}", seen.stdout);
    assert!(
        seen.stdout.contains("leaving out 8 files of data because"),
        "{}",
        seen.stdout
    );

    // Patterns and a given format take names as they are.
    for (data, files) in [("data/a.csv*", 7), ("data", 9)] {
        let seen = dir
            .run(&["data", "inspect", data, "--format", "csv"])
            .expect(0, &[]);
        let samples = format!("samples       {}", 10 * files);
        assert!(seen.stdout.contains(&samples), "{}", seen.stdout);
    }
    std::fs::create_dir(dir.path().join("only")).unwrap();
    dir.write("only/a.csv~", &lines());
    write_run(&dir, "train = \"only\"");
    for command in ["check", "train"] {
        dir.run(&[command, "run.toml", "--set", "run.name=\"only\""])
            .expect(
                2,
                &[
                    "no data files in only: all 1 are left out",
                    "the first: only/a.csv~",
                    "help: ",
                ],
            );
    }
}

#[test]
fn an_entry_that_cannot_be_read_is_an_error_also_when_bad_records_are_skipped() {
    for kind in ["link", "name"] {
        let dir = TestFolder::new();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        dir.write("data/a.csv", &lines());
        let told = match kind {
            "link" => {
                symlink("/mnt/not-mounted/b.csv", dir.path().join("data/b.csv")).unwrap();
                "data/b.csv: the link leads to /mnt/not-mounted/b.csv, which does not exist"
            }
            _ => {
                let name = OsStr::from_bytes(b"data/caf\xe9.csv");
                std::fs::write(dir.path().join(name), lines()).unwrap();
                "data/caf\\xE9.csv: its name is not valid UTF-8"
            }
        };
        write_run(
            &dir,
            "train = \"data\"\non_bad_record = \"skip\"\nbad_record_limit = 1.0",
        );
        for command in ["check", "train"] {
            dir.run(&[command, "run.toml"]).expect(2, &[told]);
        }
        dir.run(&["data", "inspect", "data"]).expect(2, &[told]);
    }
}

#[test]
fn a_file_that_is_listed_twice_counts_twice() {
    let dir = TestFolder::new();
    dir.write("a.csv", &lines());
    write_run(&dir, "train = [\"a.csv\", \"a.csv\"]");
    dir.run(&["check", "run.toml"]).expect(
        0,
        &["1 file of data.train is listed more than once, so the samples count as often, the first: a.csv, 2 times"],
    );
    let twice = trained(&dir, 1).0;
    assert_eq!(trained(&dir, 3).0, twice);
    dir.run(&["train", "run.toml", "--overwrite"])
        .expect(0, &["20 samples used once"]);
    // The same as a copy beside it.
    dir.write("b.csv", &lines());
    write_run(&dir, "train = [\"a.csv\", \"b.csv\"]");
    assert_eq!(trained(&dir, 1).0, twice);
}

#[test]
fn a_heading_of_column_numbers_is_refused_unless_it_is_set() {
    let dir = TestFolder::new();
    dir.write("a.csv", &format!("0,1,2\n{}", lines()));
    write_run(&dir, "train = \"a.csv\"");
    let told = [
        "a.csv: line 1, `0,1,2`, may be a heading or a sample",
        "header = true",
    ];
    dir.run(&["check", "run.toml"]).expect(2, &told);
    dir.run(&["train", "run.toml"]).expect(2, &told);
    dir.run(&["data", "inspect", "a.csv"]).expect(2, &told);
    for (header, samples) in [("true", 10), ("false", 11)] {
        let seen = dir
            .run(&["data", "inspect", "a.csv", "--header", header])
            .expect(0, &[]);
        let samples = format!("samples       {samples}");
        assert!(seen.stdout.contains(&samples), "{}", seen.stdout);
    }
    let format = "data.format={kind=\"csv\",header=true}";
    dir.run(&["train", "run.toml", "--set", format])
        .expect(0, &["10 samples used once"]);
}

#[test]
fn joined_archives_are_used_completely() {
    let dir = TestFolder::new();
    let names = ["cat", "dog"];
    for name in names {
        let folder = dir.path().join(name).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..3 {
            std::fs::write(
                folder.join(format!("{number}.txt")),
                format!("{name} {number}"),
            )
            .unwrap();
        }
        let out = format!("{name}.shards");
        dir.run(&["data", "pack", name, &out, "--format", "webdataset"])
            .expect(0, &["packed 3 samples"]);
    }
    let shard = |name: &str| {
        let path = format!("{name}.shards/train-00000-of-00001.tar");
        std::fs::read(dir.path().join(path)).unwrap()
    };
    let joined = names.map(shard).concat();
    std::fs::write(dir.path().join("joined.tar"), &joined).unwrap();
    let seen = dir
        .run(&["data", "inspect", "joined.tar", "--samples", "6"])
        .expect(0, &[]);
    assert!(seen.stdout.contains("samples       6"), "{}", seen.stdout);
    for text in ["\"cat 2\"", "\"dog 2\""] {
        assert!(seen.stdout.contains(text), "{text} in\n{}", seen.stdout);
    }
    std::fs::write(
        dir.path().join("bad.tar"),
        [&joined[..], b"not an archive"].concat(),
    )
    .unwrap();
    let seen = dir.run(&["data", "inspect", "bad.tar"]).expect(0, &[]);
    assert!(
        seen.stdout
            .contains("14 bytes after the end of the archive"),
        "{}",
        seen.stdout
    );
}
