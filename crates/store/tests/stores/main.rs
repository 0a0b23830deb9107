//! What every store promises, asked of each of them; and what only some have: locks, full disks, keys.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may stop at what should not be, and says what it skips"
)]

#[cfg(feature = "full")]
mod certificates;
mod conformance;
mod encryption;
mod local;
#[cfg(feature = "full")]
mod remote;
#[cfg(feature = "full")]
mod web;

use std::sync::Arc;

use ronde_store::{Encrypted, LocalStore, MasterKey, ObjectName, Store};

fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

/// Bytes that differ from place to place and from `seed` to `seed`.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| ((at ^ (seed << 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

#[test]
fn a_folder_keeps_the_promises() {
    let folder = tempfile::tempdir().unwrap();
    conformance::check(&(Arc::new(LocalStore::new(folder.path().join("a/b"))) as Arc<dyn Store>));
}

#[test]
fn an_encrypted_folder_keeps_the_promises() {
    let folder = tempfile::tempdir().unwrap();
    let below: Arc<dyn Store> = Arc::new(LocalStore::new(folder.path()));
    let key = MasterKey::generate().unwrap();
    conformance::check(&(Arc::new(Encrypted::new(below, key)) as Arc<dyn Store>));
}
