//! A full disk gives a clear error and leaves the older checkpoint intact.

use std::process::Command;

use ronde_checkpoint::{Lineage, last_good};
use ronde_core::{Generation, Step};

use crate::state::{State, local, plan};

/// Unmounts when dropped.
struct Mounted(tempfile::TempDir);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_keeps_the_older_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
        .arg(folder.path())
        .output();
    match mount {
        Ok(output) if output.status.success() => {}
        other => {
            return ronde_testing::skip(&format!("a small disk cannot be mounted: {other:?}"));
        }
    }
    let disk = Mounted(folder);
    let store = local(disk.0.path());
    let fence = Lineage::claim_next(&*store, Generation(0), Step(0), "run `test`").unwrap();
    let state = |step| State::new(step, &[60_000]);
    state(1).save(&store, fence, 3).unwrap();
    state(2).save(&store, fence, 2).unwrap();
    for step in 3..6 {
        // 1.6 MB with 1 MB free: the writes of some ranks fail.
        let error = State::new(step, &[200_000])
            .save(&store, fence, 4)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("step-0000000{step}/")) && error.contains("free some space"),
            "{error}"
        );
        let found = last_good(&store, &plan(), 1).unwrap().unwrap();
        assert!(found.skipped.is_empty());
        state(2).assert_is(&found.checkpoint);
    }
}
