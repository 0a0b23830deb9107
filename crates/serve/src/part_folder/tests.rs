//! Tests of interrupted, damaged and foreign parts.

use super::*;

fn identity(samples: u64) -> ScoringIdentity {
    ScoringIdentity {
        model: "a".to_owned(),
        data: "digits".to_owned(),
        samples,
        format: OutputFormat::Csv,
        settings: "classes".to_owned(),
    }
}

fn publish(parts: &PartFolder, chunk: u64) {
    let text = format!("sample\n{chunk}\n");
    let samples = parts.plan.samples(chunk);
    let rows = samples.end - samples.start - 1;
    let skipped = vec![format!("bad {chunk}")];
    parts
        .publish((chunk, rows), skipped, text.as_bytes())
        .unwrap();
}

#[test]
fn parts_in_any_order_are_joined_in_the_order_of_samples() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.csv");
    let path = PartFolder::path_of(&output);
    let parts = PartFolder::claim(&path, &identity(150), false).unwrap();
    assert_eq!(parts.missing(), [0, 1, 2]);
    publish(&parts, 2);
    drop(parts);
    let parts = PartFolder::claim(&path, &identity(150), false).unwrap();
    assert_eq!(parts.missing(), [0, 1]);
    publish(&parts, 1);
    publish(&parts, 0);
    let joined = parts.join(&output, 0.1).unwrap();
    assert_eq!(joined.rows, 147);
    assert_eq!(joined.skipped, ["bad 0", "bad 1", "bad 2"]);
    assert_eq!(
        std::fs::read_to_string(&output).unwrap(),
        "sample\n0\n1\n2\n"
    );
    assert!(!path.exists());
}

#[test]
fn parts_of_another_job_and_of_a_running_command_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.csv.parts");
    let parts = PartFolder::claim(&path, &identity(150), false).unwrap();
    let message = PartFolder::claim(&path, &identity(150), false)
        .unwrap_err()
        .to_string();
    assert!(message.contains("another command"), "{message}");
    assert!(PartFolder::open(&path, &identity(150)).is_ok());
    drop(parts);
    let mut other = identity(150);
    other.model = "b".to_owned();
    let message = PartFolder::claim(&path, &other, false)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("the model changed from `a` to `b`"),
        "{message}"
    );
    std::fs::write(path.join(JOB_FILE), "{").unwrap();
    assert!(PartFolder::claim(&path, &identity(150), false).is_err());
}

#[test]
fn parts_of_another_job_are_replaced_on_request_and_own_parts_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.csv.parts");
    publish(&PartFolder::claim(&path, &identity(150), true).unwrap(), 1);
    let parts = PartFolder::claim(&path, &identity(150), true).unwrap();
    assert_eq!(parts.missing(), [0, 2]);
    drop(parts);
    let parts = PartFolder::claim(&path, &identity(151), true).unwrap();
    assert_eq!(parts.missing(), [0, 1, 2]);
    drop(parts);
    assert!(PartFolder::claim(&path, &identity(150), false).is_err());
    let absent = folder.path().join("no/out.csv.parts");
    assert!(PartFolder::claim(&absent, &identity(150), false).is_err());
}

#[test]
fn an_output_without_too_many_samples_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.csv");
    for limit in [0.0, 0.01] {
        let path = PartFolder::path_of(&output);
        let parts = PartFolder::claim(&path, &identity(60), false).unwrap();
        publish(&parts, 0);
        let message = parts.join(&output, limit).unwrap_err().to_string();
        assert!(
            message.contains("1 of 60") && message.contains("bad 0"),
            "{message}"
        );
        assert!(!output.exists());
    }
}

#[test]
fn a_damaged_part_is_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.csv");
    let path = PartFolder::path_of(&output);
    let parts = PartFolder::claim(&path, &identity(61), false).unwrap();
    (0..2).for_each(|chunk| publish(&parts, chunk));
    std::fs::write(parts.part_path(1), "sample\n").unwrap();
    let message = parts.join(&output, 0.1).unwrap_err().to_string();
    assert!(message.contains("00000001.part"), "{message}");
    assert!(!output.exists());
    let parts = PartFolder::claim(&path, &identity(61), false).unwrap();
    assert_eq!(parts.missing(), [1]);
    publish(&parts, 1);
    std::fs::write(parts.record_path(0), "junk").unwrap();
    assert_eq!(parts.missing(), [0]);
}

#[test]
fn an_interruption_after_the_output_appeared_is_finished_by_the_next_command() {
    // Each round stops the removal after a number of files, in its order.
    for removed in 0..=7 {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out.csv");
        let path = PartFolder::path_of(&output);
        let parts = PartFolder::claim(&path, &identity(61), false).unwrap();
        (0..2).for_each(|chunk| publish(&parts, chunk));
        let joined = parts.publish_joined(&output, 0.1).unwrap();
        drop(parts);
        let order = [
            "00000000.json",
            "00000001.json",
            "00000000.part",
            "00000001.part",
            JOB_FILE,
            LOCK_FILE,
            JOINED_FILE,
        ];
        for name in &order[..removed] {
            std::fs::remove_file(path.join(name)).unwrap();
        }
        assert_eq!(
            PartFolder::finish_joined(&output, &identity(62)).unwrap(),
            None
        );
        let found = PartFolder::finish_joined(&output, &identity(61)).unwrap();
        let expected = (removed < order.len()).then_some(joined);
        assert_eq!(found, expected, "{removed} files removed");
        assert!(output.exists() && !path.exists(), "{removed} files removed");
    }
}

#[test]
fn an_output_of_another_command_is_not_that_of_the_parts() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.csv");
    let path = PartFolder::path_of(&output);
    let parts = PartFolder::claim(&path, &identity(61), false).unwrap();
    (0..2).for_each(|chunk| publish(&parts, chunk));
    assert_eq!(
        PartFolder::finish_joined(&output, &identity(61)).unwrap(),
        None
    );
    parts.publish_joined(&output, 0.1).unwrap();
    assert!(
        PartFolder::finish_joined(&output, &identity(61)).is_err(),
        "it is in use"
    );
    drop(parts);
    std::fs::write(&output, "other").unwrap();
    assert_eq!(
        PartFolder::finish_joined(&output, &identity(61)).unwrap(),
        None
    );
    assert!(path.join(JOB_FILE).exists());
}
