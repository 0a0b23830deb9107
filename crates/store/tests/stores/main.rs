//! The guarantees of every store, and features that only some have: locks, full disks, keys.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[cfg(feature = "full")]
mod certificates;
mod conformance;
mod encryption;
mod local;
#[cfg(feature = "full")]
mod remote;
#[cfg(feature = "full")]
mod silent;
#[cfg(feature = "full")]
mod uploads;
#[cfg(feature = "full")]
mod web;

use std::sync::Arc;

use ronde_store::{Encrypted, LocalStore, MasterKey, ObjectName, Store};

fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

/// Returns bytes that differ by position and by `seed`.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| ((at ^ (seed << 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

#[test]
fn a_folder_passes_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    conformance::check(&(Arc::new(LocalStore::new(folder.path().join("a/b"))) as Arc<dyn Store>));
}

#[test]
fn an_encrypted_folder_passes_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    let below: Arc<dyn Store> = Arc::new(LocalStore::new(folder.path()));
    let key = MasterKey::generate().unwrap();
    conformance::check(&(Arc::new(Encrypted::new(below, key)) as Arc<dyn Store>));
}
