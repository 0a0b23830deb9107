//! Tests of the library of runs: lists, growth, damage, removal.

use std::io::Write;

use super::*;

const STARTED: &str = r#"{"t":10.0,"event":"run_started","name":"digits","plan":"ab","world_size":2,"logical_shards":8,"parameters":7,"steps":40000,"epochs":1,"samples":9}"#;

fn step(n: u64) -> String {
    format!(
        r#"{{"t":{n}.5,"event":"step_committed","step":{n},"epoch":0,"generation":1,"loss":{n}.25,"samples":64,"learning_rate":0.1,"gradient_norm":1.0,"duration_s":0.5}}"#
    )
}

fn run(root: &Path, name: &str, lines: &[String]) -> PathBuf {
    let folder = root.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let text = format!("{}\n", lines.join("\n"));
    std::fs::write(folder.join(EVENT_FILE), text).unwrap();
    folder
}

/// Waits until a condition holds, for at most a minute.
fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        let (lock, condition) = (Mutex::new(()), Condvar::new());
        drop(condition.wait_timeout(lock.lock().unwrap(), Duration::from_millis(10)));
    }
    panic!("the condition never holds");
}

fn find(library: &RunLibrary, id: &str) -> RunSummary {
    let (_, summaries, _) = library.summaries();
    let found = summaries.into_iter().find(|run| run.id == id);
    found.unwrap_or_else(|| panic!("no run {id}"))
}

#[test]
fn summaries_are_complete_when_the_library_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut lines = vec![STARTED.to_owned()];
    lines.extend((0..5_000).map(step));
    run(dir.path(), "long", &lines);
    run(dir.path(), "empty", &[]);
    std::fs::create_dir(dir.path().join("no run")).unwrap();
    let library = RunLibrary::open(dir.path()).unwrap();
    assert_eq!(library.summaries().1.len(), 2);
    let long = find(&library, "long");
    assert_eq!(
        (&*long.name, long.step, long.steps),
        ("digits", 5_000, 40_000)
    );
    assert_eq!((long.loss, long.rate), (Some(4_999.25), Some(128.0)));
    assert_eq!(long.phase, "ended without a result");
    assert_eq!(find(&library, "empty").name, "empty");
}

#[test]
fn the_totals_of_an_extended_run_are_those_of_its_newest_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let extended = STARTED
        .replace("40000", "60000")
        .replace("\"ab\"", "\"cd\"");
    let mut lines = vec![STARTED.to_owned()];
    lines.extend((38_000..40_000).map(step));
    lines.push(extended);
    lines.extend((40_000..41_000).map(step));
    let folder = run(dir.path(), "extended", &lines);
    let library = RunLibrary::open(dir.path()).unwrap();
    let summary = find(&library, "extended");
    assert_eq!((summary.step, summary.steps), (41_000, 60_000));
    assert_eq!(summary.plan, "cd");
    let mut file = std::fs::File::options()
        .append(true)
        .open(folder.join(EVENT_FILE))
        .unwrap();
    let again = STARTED.replace("40000", "90000");
    let more: Vec<String> = (41_000..43_000).map(step).collect();
    write!(file, "{again}\n{}\n", more.join("\n")).unwrap();
    until(|| find(&library, "extended").steps == 90_000);
    assert_eq!(find(&library, "extended").step, 43_000);
}

#[test]
fn a_requested_run_is_read_and_followed_and_a_removed_one_disappears() {
    let dir = tempfile::tempdir().unwrap();
    let mut lines = vec![STARTED.to_owned()];
    lines.extend((0..1_000).map(step));
    let folder = run(dir.path(), "one", &lines);
    let library = RunLibrary::open(dir.path()).unwrap();
    let steps = || {
        let steps = |run: RunSnapshot<'_>| run.history.view.progress.map_or(0, |now| now.committed);
        library.visit("one", steps).unwrap()
    };
    until(|| steps() == 1_000);
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .open(folder.join(EVENT_FILE))
        .unwrap();
    writeln!(file, "damaged\n{}", step(1_000)).unwrap();
    until(|| steps() == 1_001 && find(&library, "one").step == 1_001);
    assert_eq!(find(&library, "one").damaged_lines, 1);
    let version = library.version();
    std::fs::remove_dir_all(folder).unwrap();
    until(|| library.summaries().1.is_empty());
    assert!(library.version() > version);
    assert!(library.visit("one", |_| ()).is_none());
    assert!(library.visit("../one", |_| ()).is_none());
}

#[test]
fn a_locked_folder_is_a_run_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let folder = run(dir.path(), "one", &[STARTED.to_owned()]);
    let lock = std::fs::File::open(&folder).unwrap();
    lock.lock().unwrap();
    let library = RunLibrary::open(dir.path()).unwrap();
    assert_eq!(find(&library, "one").phase, "running");
    drop(lock);
    until(|| find(&library, "one").phase == "ended without a result");
}

#[test]
fn one_run_a_missing_folder_and_a_deleted_folder_are_handled() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let folder = run(&runs, "one", &[STARTED.to_owned()]);
    let single = RunLibrary::open(&folder).unwrap();
    assert_eq!(find(&single, "one").name, "digits");
    let library = RunLibrary::open(&runs).unwrap();
    std::fs::remove_dir_all(&runs).unwrap();
    until(|| library.summaries().2.is_some());
    let error = RunLibrary::open(&runs).err().unwrap().to_string();
    assert!(error.starts_with("cannot read folder "), "{error}");
}
