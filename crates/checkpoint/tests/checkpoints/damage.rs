//! Changes every byte and truncates every file of a checkpoint: the damage is detected and the previous one is used.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_checkpoint::{
    Checkpoint, CheckpointEntry, CheckpointStatus, Lineage, Proof, PublishOutcome, Retention,
    last_good, list, retain, verify_all,
};
use ronde_core::{Generation, Step};
use ronde_store::{Encrypted, MasterKey, Store};

use crate::state::{State, local, plan};

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.file_name().unwrap().to_string_lossy().starts_with('.') {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Checks that damage of `path` is reported and the right checkpoint is used.
fn check(store: &Arc<dyn Store>, path: &Path, what: &str) {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let found = last_good(store, &plan(), 1).unwrap().unwrap();
    let report = verify_all(store, 1).unwrap();
    assert!(!report.is_clean(), "{name}, {what}");
    if name == "lineage.json" {
        let warning = found.warning.expect("damaged claims are reported");
        assert!(warning.contains("lineage.json"), "{what}: {warning}");
        assert_eq!(found.checkpoint.step(), Step(2), "{what}");
        return;
    }
    assert_eq!(found.checkpoint.step(), Step(1), "{name}, {what}");
    assert_eq!(found.skipped.len(), 1);
    let reason = &found.skipped[0].reason;
    assert!(reason.contains(&name), "{what}: {reason}");
}

fn every_change_is_found(store: &Arc<dyn Store>, folder: &Path, stride: usize) {
    let fence = Lineage::claim_next(&**store, Generation(0), Step(0), "run `test`").unwrap();
    State::small(1).save(store, fence, 1).unwrap();
    State::small(2).save(store, fence, 2).unwrap();
    let mut changes = 0;
    for path in files(folder) {
        if path.to_string_lossy().contains("step-00000001") {
            continue;
        }
        let good = std::fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(stride) {
            let mut changed = good.clone();
            changed[at] ^= 1 << (at % 8);
            std::fs::write(&path, &changed).unwrap();
            check(store, &path, &format!("byte {at}"));
            std::fs::write(&path, &good[..at]).unwrap();
            check(store, &path, &format!("cut at {at}"));
            changes += 2;
        }
        std::fs::write(&path, [&good[..], b"\n"].concat()).unwrap();
        check(store, &path, "one byte more");
        std::fs::write(&path, &good).unwrap();
    }
    assert!(changes > 500, "{changes}");
    let report = verify_all(store, 1).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let intact: Vec<Step> = report.intact().map(|entry| entry.step).collect();
    assert_eq!(intact, [Step(2), Step(1)]);
    let found = last_good(store, &plan(), 1).unwrap().unwrap();
    assert!(found.skipped.is_empty());
    State::small(2).assert_is(&found.checkpoint);
}

#[test]
fn every_changed_byte_and_every_truncation_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    every_change_is_found(&local(folder.path()), folder.path(), 1);
}

#[test]
fn every_changed_byte_of_an_encrypted_checkpoint_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let key = MasterKey::generate().unwrap();
    let store: Arc<dyn Store> = Arc::new(Encrypted::new(local(folder.path()), key));
    every_change_is_found(&store, folder.path(), 5);
}

#[test]
fn damage_names_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    State::small(1).save(&store, fence, 1).unwrap();
    let checkpoint = Checkpoint::open(Arc::clone(&store), Step(1)).unwrap();
    let file = &checkpoint.manifest().files[0];
    let path = folder.path().join(&file.name);
    let mut bytes = std::fs::read(&path).unwrap();
    // The weights are first: t0 has 64 elements with its padding, t1 64, t3 128. adam.m follows.
    for (at, tensor) in [
        (0, "t0 of weights"),
        (64 * 4, "t1 of weights"),
        (128 * 4 + 9, "t3 of weights"),
        (256 * 4, "t0 of adam.m"),
        (file.bytes as usize - 1, "counts"),
    ] {
        bytes[at] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        let damage = checkpoint.verify(2).unwrap();
        assert_eq!(damage.len(), 1);
        let message = damage[0].to_string();
        assert!(message.contains(&format!(" in {tensor}:")), "{message}");
        assert!(message.contains(&file.name), "{message}");
        bytes[at] ^= 4;
    }
    bytes[0] ^= 1;
    bytes[64 * 4] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(checkpoint.verify(1).unwrap().len(), 2);
}

#[test]
fn a_missing_file_is_detected_and_saving_the_step_again_repairs_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    State::small(1).save(&store, fence, 1).unwrap();
    State::small(2).save(&store, fence, 3).unwrap();
    let checkpoint = Checkpoint::open(Arc::clone(&store), Step(2)).unwrap();
    let lost = checkpoint.manifest().files[1].name.clone();
    std::fs::remove_file(folder.path().join(&lost)).unwrap();
    let found = last_good(&store, &plan(), 1).unwrap().unwrap();
    assert_eq!(found.checkpoint.step(), Step(1));
    assert_eq!(
        found.skipped[0].reason,
        format!("checkpoint {lost} is damaged: the file is missing")
    );
    let message = checkpoint.load(1).unwrap_err().to_string();
    assert!(message.contains(&lost), "{message}");
    let listed: Vec<CheckpointEntry> = list(&*store).unwrap();
    assert!(matches!(listed[0].status, CheckpointStatus::Damaged(_)));
    assert_eq!(listed[1].status, CheckpointStatus::Complete);
    let again = State::small(2).save(&store, fence, 3).unwrap();
    assert_eq!(again, PublishOutcome::Replaced);
    let found = last_good(&store, &plan(), 1).unwrap().unwrap();
    State::small(2).assert_is(&found.checkpoint);
}

#[test]
fn damaged_claims_do_not_prevent_resuming() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let first = Lineage::claim_next(&*store, Generation(3), Step(0), "run `test`").unwrap();
    State::small(1).save(&store, first, 1).unwrap();
    std::fs::write(folder.path().join("lineage.json"), b"{}").unwrap();
    assert!(State::small(2).save(&store, first, 1).is_err());
    let found = last_good(&store, &plan(), 1).unwrap().unwrap();
    State::small(1).assert_is(&found.checkpoint);
    let second = Lineage::claim_next(&*store, Generation(0), Step(1), "run `test`").unwrap();
    assert!(second > first);
    State::small(2).save(&store, second, 2).unwrap();
    let found = last_good(&store, &plan(), 1).unwrap().unwrap();
    assert!(found.warning.is_none());
    State::small(2).assert_is(&found.checkpoint);
}

#[test]
fn a_checkpoint_of_another_format_version_is_skipped_kept_and_not_called_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    for step in [1, 2] {
        State::small(step).save(&store, fence, 1).unwrap();
    }
    let written_by_another_version = |step: usize| {
        let path = folder.path().join(format!("step-{step:08}/manifest.json"));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("\"version\":1", "\"version\":7", 1)).unwrap();
    };
    written_by_another_version(1);
    let message = list(&*store).unwrap()[1].status.clone();
    let CheckpointStatus::OtherVersion(message) = message else {
        panic!("{message:?}");
    };
    for part in [
        "step-00000001",
        "written by another version of ronde",
        "version is 7",
        "supports version 1",
        "start a new run",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let report = verify_all(&store, 1).unwrap();
    assert!(!report.is_damaged() && !report.is_clean(), "{report:?}");
    let newest = Retention {
        keep_last: 1,
        keep_every: 0,
        proof: Proof::Lengths,
    };
    retain(&store, &newest).unwrap();
    assert_eq!(list(&*store).unwrap().len(), 2);
    written_by_another_version(2);
    let error = last_good(&store, &plan(), 1).unwrap_err().to_string();
    assert!(
        error.contains("version is 7") && !error.contains("damaged"),
        "{error}"
    );
}

#[test]
fn a_wrong_key_is_reported_and_does_not_look_like_an_empty_store() {
    let folder = tempfile::tempdir().unwrap();
    let below = local(folder.path());
    let store: Arc<dyn Store> = Arc::new(Encrypted::new(
        Arc::clone(&below),
        MasterKey::generate().unwrap(),
    ));
    let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    State::small(1).save(&store, fence, 2).unwrap();
    let wrong: Arc<dyn Store> = Arc::new(Encrypted::new(below, MasterKey::generate().unwrap()));
    let error = last_good(&wrong, &plan(), 1).unwrap_err().to_string();
    assert!(error.contains("encrypted with another key"), "{error}");
    assert!(matches!(
        list(&*wrong).unwrap()[0].status,
        CheckpointStatus::Locked(_)
    ));
}
