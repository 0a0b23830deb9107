//! Tests of following event files: growth, damage, rotation, replacement.

use std::fs::OpenOptions;
use std::io::Write;

use super::*;

fn notice(n: u32) -> String {
    format!("{{\"t\":{n}.0,\"event\":\"notice\",\"rank\":null,\"message\":\"{n}\"}}\n")
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Reads to the end and returns the messages of the notices, and whether the files were replaced.
fn read(follower: &mut EventFollower, bytes_max: usize) -> (Vec<String>, bool) {
    let (mut found, mut restarted) = (Vec::new(), false);
    for _ in 0..10_000 {
        let progress = follower
            .read(bytes_max, &mut |_, event| {
                if let Event::Notice { message, .. } = event {
                    found.push(message.clone());
                }
            })
            .unwrap();
        restarted |= progress.restarted;
        if progress.at_end {
            return (found, restarted);
        }
    }
    panic!("the end is never reached");
}

#[test]
fn events_are_read_once_as_the_file_grows_and_for_any_size_of_reads() {
    for bytes_max in [1, 7, 64, 1 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut follower = EventFollower::new(&path);
        assert!(follower.read(1, &mut |_, _| {}).is_err(), "no file yet");
        append(&path, "{\"format\":\"ronde.events\",\"version\":1}\n");
        append(&path, &notice(1));
        append(&path, &notice(2)[..20]);
        assert_eq!(read(&mut follower, bytes_max).0, ["1"]);
        append(&path, &notice(2)[20..]);
        append(&path, "damaged \0 line\n{\"t\":1}\n\n");
        append(&path, &notice(3));
        assert_eq!(read(&mut follower, bytes_max).0, ["2", "3"]);
        assert_eq!(follower.damaged(), 3);
    }
}

#[test]
fn the_rest_of_a_renamed_file_is_read_before_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    append(&previous(&path), &notice(1));
    append(&path, &notice(2));
    let mut follower = EventFollower::new(&path);
    assert_eq!(read(&mut follower, 4096).0, ["1", "2"]);
    append(&path, &notice(3));
    std::fs::rename(&path, previous(&path)).unwrap();
    append(&path, &notice(4));
    assert_eq!(
        read(&mut follower, 4096),
        (vec!["3".to_owned(), "4".to_owned()], false)
    );
}

#[test]
fn a_replaced_or_shortened_file_is_read_from_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    append(&path, &format!("{}{}", notice(1), notice(2)));
    let mut follower = EventFollower::new(&path);
    read(&mut follower, 4096);
    let other = dir.path().join("other");
    append(&other, &notice(5));
    std::fs::rename(&other, &path).unwrap();
    assert_eq!(read(&mut follower, 4096), (vec!["5".to_owned()], true));
    std::fs::write(&path, notice(6).trim_end_matches('\n')).unwrap();
    append(&path, "\n");
    std::fs::write(&path, "").unwrap();
    assert_eq!(read(&mut follower, 4096), (vec![], true));
    std::fs::remove_file(&path).unwrap();
    assert!(follower.read(1, &mut |_, _| {}).is_err());
}

#[test]
fn a_line_beyond_the_limit_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    append(&path, &"x".repeat(LINE_BYTES_MAX + READ_BYTES));
    append(&path, &format!("\n{}", notice(1)));
    let mut follower = EventFollower::new(&path);
    assert_eq!(read(&mut follower, 1 << 20).0, ["1"]);
    assert_eq!(follower.damaged(), 1);
}

#[test]
fn the_ends_of_a_file_are_read_without_its_middle() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    (0..1000).for_each(|n| append(&path, &notice(n)));
    let mut times = Vec::new();
    ends(&path, 256, &mut |_, t, _| times.push(t)).unwrap();
    assert!(times.len() < 12, "{times:?}");
    assert_eq!((times[0], *times.last().unwrap()), (0.0, 999.0));
    let mut all = 0;
    ends(&path, 1 << 20, &mut |_, _, _| all += 1).unwrap();
    assert_eq!(all, 1000);
}
