//! Data that other programs change, cut off or delete while a run reads it, or before it resumes.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::support::{RONDE, TestFolder};

const RUN_FILE: &str = r#"
[run]
name = "changed"
[workers]
logical_shards = 4
[data]
source = "records"
train = "data"
features = { decode = "numbers", field = "0..4", shape = [4] }
label = { field = "y", classes = 3 }
shuffle_block_kib = 64
shuffle_window_mib = 1
[model]
kind = "mlp"
hidden = [4]
[train]
epochs = 5
global_batch_size = 256
learning_rate = 0.002
[checkpoint]
every_steps = 40
[loader]
memory_mib = 2
"#;

/// Returns a file of records, whose lines all have the same length.
fn records(first: u32) -> String {
    let mut text = "a,b,c,d,y\n".to_owned();
    for number in first..first + 30_000 {
        let value = |factor: u32| number * factor % 97;
        let (a, b, c, d) = (value(7), value(13), value(29), value(61));
        let _ = writeln!(
            text,
            "0.{a:02}00000,0.{b:02}00000,0.{c:02}00000,0.{d:02}00000,{}",
            number % 3
        );
    }
    text
}

#[test]
fn data_that_changes_under_a_run_ends_it_and_the_original_data_continues_it() {
    let dir = TestFolder::new();
    dir.write("run.toml", RUN_FILE);
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let files = [("data/a.csv", records(0)), ("data/b.csv", records(30_000))];
    let restore = || files.iter().for_each(|(name, text)| dir.write(name, text));
    restore();
    let run = |more: &[&'static str]| [&["train", "run.toml", "--json"], more].concat();
    let expected = dir
        .run(&run(&["--set", "run.output=reference"]))
        .expect(0, &[])
        .blake3();
    let cut_off = |text: &String| text.len() as u64 / 2;
    type Change<'a> = &'a dyn Fn(&str, &String);
    let changes: [(Change<'_>, &str); 2] = [
        (
            // The lines keep their form, so that only the values are wrong.
            &|name, text| {
                let file = OpenOptions::new()
                    .write(true)
                    .open(dir.path().join(name))
                    .unwrap();
                file.write_all_at(text.replace("0.0", "9.9").as_bytes(), 0)
                    .unwrap();
            },
            "a program has written to it since it was opened",
        ),
        (
            &|name, text| {
                let file = OpenOptions::new()
                    .write(true)
                    .open(dir.path().join(name))
                    .unwrap();
                file.set_len(cut_off(text)).unwrap();
            },
            ".csv is damaged: ",
        ),
    ];
    let output = ["-n", "2", "--overwrite", "--set", "run.output=out"];
    for (change, words) in changes {
        let mut started = dir.start(RONDE, &run(&output), &[]);
        started.wait_stdout("\"event\":\"checkpoint_saved\"", 1);
        files.iter().for_each(|(name, text)| change(name, text));
        started.wait().expect(2, &[words, "data/", "resume with"]);
        let resume = ["train", "--resume", "out", "--json"];
        let refused = dir.run(&resume);
        assert_ne!(refused.code, 0, "{refused:#?}");
        restore();
        let resumed = dir.run(&resume).expect(0, &[]);
        assert_eq!(resumed.blake3(), expected, "{words}");
    }
    // Open files keep their contents when they are deleted or replaced.
    let mut started = dir.start(RONDE, &run(&output), &[]);
    started.after_steps(45);
    std::fs::rename(dir.path().join("data/a.csv"), dir.path().join("a.csv")).unwrap();
    dir.write("data/a.csv", "other contents");
    std::fs::remove_file(dir.path().join("data/b.csv")).unwrap();
    let ended = started.wait().expect(0, &[]);
    assert_eq!(ended.blake3(), expected);
}
