//! Retention removes old checkpoints, but never the last good one.

use std::path::Path;
use std::sync::Arc;

use ronde_checkpoint::{
    Checkpoint, CheckpointStatus, Lineage, Proof, Retention, last_good, list, retain,
};
use ronde_core::{Generation, Step};
use ronde_store::{LocalStore, Store};

use crate::state::{State, local, plan};

const HASHES: Retention = Retention {
    keep_last: 2,
    keep_every: 0,
    proof: Proof::Hashes { threads: 1 },
};

fn complete(store: &Arc<dyn Store>) -> Vec<u64> {
    list(&**store)
        .unwrap()
        .into_iter()
        .filter(|listed| listed.status == CheckpointStatus::Complete)
        .map(|listed| listed.step.0)
        .collect()
}

fn saved(folder: &Path, steps: impl Iterator<Item = u64>) -> Arc<dyn Store> {
    let store = local(folder);
    let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    for step in steps {
        State::small(step).save(&store, fence, 2).unwrap();
    }
    store
}

/// Changes a byte of a checkpoint; only its digest can detect that.
fn spoil(store: &Arc<dyn Store>, folder: &Path, step: u64) {
    let checkpoint = Checkpoint::open(Arc::clone(store), Step(step)).unwrap();
    let path = folder.join(&checkpoint.manifest().files[0].name);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[3] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn the_newest_and_every_kth_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = saved(folder.path(), 1..=9);
    let retention = Retention {
        keep_every: 4,
        ..HASHES
    };
    let removed = retain(&store, &retention).unwrap();
    assert_eq!(complete(&store), [9, 8, 4]);
    assert_eq!(removed.steps, [1, 2, 3, 5, 6, 7].map(Step));
    // Two slice files and a cursor each.
    assert_eq!(removed.objects, 6 * 4);
    assert!(!folder.path().join("step-00000001").exists());
    assert_eq!(retain(&store, &retention).unwrap().objects, 0);
    let none = Retention {
        keep_last: 0,
        proof: Proof::Lengths,
        ..HASHES
    };
    retain(&store, &none).unwrap();
    assert_eq!(complete(&store), [9]);
}

#[test]
fn the_last_good_checkpoint_stays_when_newer_ones_are_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = saved(folder.path(), 1..=6);
    for step in 4..=6 {
        spoil(&store, folder.path(), step);
    }
    let removed = retain(&store, &HASHES).unwrap();
    assert_eq!(removed.damaged.len(), 3);
    assert!(removed.damaged[0].reason.contains("t0 of weights"));
    assert_eq!(removed.steps, [1, 2].map(Step));
    let found = last_good(&store, &plan(), 1).unwrap().unwrap();
    State::small(3).assert_is(&found.checkpoint);
    assert_eq!(found.skipped.len(), 3);
}

#[test]
fn nothing_is_removed_when_no_checkpoint_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let store = saved(folder.path(), 1..=4);
    for step in 1..=4 {
        spoil(&store, folder.path(), step);
    }
    let removed = retain(&store, &HASHES).unwrap();
    assert_eq!((removed.steps.len(), removed.objects), (0, 0));
    assert_eq!(complete(&store), [4, 3, 2, 1]);
    let error = last_good(&store, &plan(), 1).unwrap_err().to_string();
    assert!(error.contains("and 1 more"), "{error}");
}

#[test]
fn leftovers_are_removed_once_a_newer_checkpoint_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let store = saved(folder.path(), 1..=2);
    let fence = Lineage::claim_next(&*store, Generation(0), Step(2), "run `test`").unwrap();
    State::small(3).write(&store, fence, 2).unwrap();
    std::fs::write(folder.path().join("step-00000003/.tmp-ronde-x"), b"x").unwrap();
    let removed = retain(&store, &HASHES).unwrap();
    // No process holds the temporary file, so it is removed; the slices may belong to a running save, so they stay.
    assert_eq!((removed.steps.len(), removed.objects), (0, 1));
    State::small(4).save(&store, fence, 2).unwrap();
    let removed = retain(&store, &HASHES).unwrap();
    assert_eq!(removed.steps, [Step(1)]);
    assert_eq!(removed.objects, 2 + 4);
    assert!(!folder.path().join("step-00000003").exists());
    assert_eq!(complete(&store), [4, 2]);
    // The leftovers of a replaced checkpoint are removed once it is no longer the newest.
    State::small(4).save(&store, fence, 2).unwrap();
    State::small(5).save(&store, fence, 2).unwrap();
    let four = |store: &dyn Store| {
        let files = store.list(None).unwrap();
        let in_four = |name: &str| name.starts_with("step-00000004/");
        files.iter().filter(|e| in_four(e.name.as_str())).count()
    };
    assert_eq!(four(&LocalStore::new(folder.path())), 2 * 3 + 1);
    retain(&store, &HASHES).unwrap();
    assert_eq!(four(&LocalStore::new(folder.path())), 3 + 1);
    assert_eq!(complete(&store), [5, 4]);
}
