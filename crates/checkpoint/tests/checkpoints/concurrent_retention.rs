//! Verifies a store while the retention of a running job removes a checkpoint.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ronde_checkpoint::{Lineage, Proof, Retention, retain, verify_all};
use ronde_core::{Generation, Step};
use ronde_store::{
    Condition, ObjectEntry, ObjectName, Store, StoreError, StoredObject, Upload, Version,
};

use crate::state::{State, local};

/// A store that runs an action once, when the first file of step 1 besides its manifest is opened.
struct Interrupted {
    inner: Arc<dyn Store>,
    action: Mutex<Box<dyn FnMut() + Send>>,
    is_done: AtomicBool,
}

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Interrupted({:?})", self.inner)
    }
}

impl Store for Interrupted {
    fn create(&self, name: &ObjectName) -> Result<Box<dyn Upload>, StoreError> {
        self.inner.create(name)
    }

    fn put_if(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Version, StoreError> {
        self.inner.put_if(name, bytes, condition)
    }

    fn open(&self, name: &ObjectName) -> Result<Box<dyn StoredObject>, StoreError> {
        let is_file = name.as_str().starts_with("step-00000001/g");
        if is_file && !self.is_done.swap(true, Ordering::SeqCst) {
            (self.action.lock().unwrap())();
        }
        self.inner.open(name)
    }

    fn list(&self, folder: Option<&ObjectName>) -> Result<Vec<ObjectEntry>, StoreError> {
        self.inner.list(folder)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        self.inner.delete(name)
    }

    fn sweep(&self) -> Result<u64, StoreError> {
        self.inner.sweep()
    }
}

/// Saves steps 1 and 2, and verifies while `action` runs.
fn verified(action: impl Fn(&Arc<dyn Store>) + Send + 'static) -> (bool, Vec<Step>) {
    let folder = tempfile::tempdir().unwrap();
    let inner = local(folder.path());
    let fence = Lineage::claim_next(&*inner, Generation(0), Step(0), "run `test`").unwrap();
    State::small(1).save(&inner, fence, 1).unwrap();
    State::small(2).save(&inner, fence, 2).unwrap();
    let below = Arc::clone(&inner);
    let store: Arc<dyn Store> = Arc::new(Interrupted {
        inner,
        action: Mutex::new(Box::new(move || action(&below))),
        is_done: AtomicBool::new(false),
    });
    let report = verify_all(&store, 1).unwrap();
    let intact = report.intact().map(|entry| entry.step).collect();
    (report.is_damaged(), intact)
}

#[test]
fn a_checkpoint_that_retention_removes_meanwhile_is_not_damaged() {
    let newest = Retention {
        keep_last: 1,
        keep_every: 0,
        proof: Proof::Lengths,
    };
    let outcome = verified(move |store| {
        assert_eq!(retain(store, &newest).unwrap().steps, [Step(1)]);
    });
    assert_eq!(outcome, (false, vec![Step(2)]));
}

#[test]
fn a_checkpoint_published_meanwhile_is_verified_too() {
    let outcome = verified(|store| {
        let newest = Retention {
            keep_last: 1,
            keep_every: 0,
            proof: Proof::Lengths,
        };
        let fence = Lineage::claim_next(&**store, Generation(1), Step(2), "run `test`").unwrap();
        State::small(3).save(store, fence, 2).unwrap();
        retain(store, &newest).unwrap();
    });
    assert_eq!(outcome, (false, vec![Step(3), Step(2)]));
}

#[test]
fn a_file_that_disappears_from_a_checkpoint_is_damage() {
    let outcome = verified(|store| {
        let files = store.list(None).unwrap();
        let first = files
            .iter()
            .find(|entry| entry.name.as_str().starts_with("step-00000001/g"));
        store.delete(&first.unwrap().name).unwrap();
    });
    assert_eq!(outcome, (true, vec![Step(2)]));
}
