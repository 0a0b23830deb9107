//! Kills a saving process at 200 random moments: there is always a good checkpoint to resume from.

use std::time::Duration;

use ronde_checkpoint::{CheckpointStatus, Lineage, Proof, Retention, last_good, list, retain};
use ronde_core::{Generation, Step};

use crate::child::{Child, store};
use crate::state::{State, plan};

const KILLS: u64 = 200;

/// Kills `kills` children and checks the store after each kill.
fn rounds(seed: u64, kills: u64, is_encrypted: bool) {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), is_encrypted);
    let mut newest = 0;
    let mut random = seed;
    for round in 0..kills {
        let world_size = 1 + (round % 5) as u32;
        let mut child = Child::save_on(folder.path(), world_size, is_encrypted);
        // Every second child is killed only after a save, so that the test makes progress on a slow machine, too.
        let word = if round % 2 == 0 {
            "starts"
        } else {
            "published"
        };
        assert!(child.wait_for(word), "round {round}: the child ended");
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // Up to 33 ms: a few saves, at any point of the last one.
        std::thread::sleep(Duration::from_micros(random >> 49));
        let reported = child.kill().unwrap_or(newest);
        let found = last_good(&store, &plan(), 1).unwrap();
        let Some(found) = found else {
            assert_eq!(
                reported, 0,
                "round {round}: step {reported} was published and is missing"
            );
            continue;
        };
        assert_eq!(found.skipped, [], "round {round}");
        assert_eq!(found.warning, None, "round {round}");
        let step = found.checkpoint.step().0;
        assert!(
            step >= reported.max(newest),
            "round {round}: step {step} after {reported} and {newest}"
        );
        State::small(step).assert_is(&found.checkpoint);
        // No older checkpoint is partially removed.
        for listed in list(&*store).unwrap() {
            let is_whole = matches!(
                listed.status,
                CheckpointStatus::Complete | CheckpointStatus::Unpublished
            );
            assert!(is_whole, "round {round}: {:?}", listed.status);
        }
        newest = step;
    }
    println!("{kills} kills, {newest} steps");
    assert!(newest >= kills / 2, "published steps are missing: {newest}");
    check_cleanup(&store, newest, folder.path());
}

/// Saves once more and checks that all leftovers of killed saves are removed.
fn check_cleanup(
    store: &std::sync::Arc<dyn ronde_store::Store>,
    newest: u64,
    folder: &std::path::Path,
) {
    let fence = Lineage::claim_next(&**store, Generation(0), Step(newest), "run `test`").unwrap();
    // Two steps later, because killed children may have left files in the folder of the next step.
    State::small(newest + 2).save(store, fence, 2).unwrap();
    let retention = Retention {
        keep_last: 1,
        keep_every: 0,
        proof: Proof::Hashes { threads: 1 },
    };
    retain(store, &retention).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let kept = format!("step-{:08}", newest + 2);
    assert_eq!(names, [".ronde.lock", "lineage.json", &kept]);
    // Manifest, cursor and two slices.
    assert_eq!(store.list(None).unwrap().len(), 4 + 1);
}

#[test]
fn there_is_always_a_good_checkpoint() {
    rounds(1, KILLS, false);
}

#[test]
fn there_is_always_a_good_encrypted_checkpoint() {
    rounds(2, KILLS / 4, true);
}
