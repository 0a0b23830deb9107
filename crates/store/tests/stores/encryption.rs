//! Detection of damage in encrypted objects, and confidentiality of their contents.

use std::sync::Arc;

use proptest::prelude::*;
use ronde_store::{Encrypted, LocalStore, MasterKey, Store, StoreError, StoreExt};

use crate::{name, pattern};

const CHUNK: usize = (256 << 10) + 16;
const HEADER: usize = 52;
const LIMIT: u64 = 64 << 20;

struct EncryptedFolder {
    _folder: tempfile::TempDir,
    below: Arc<dyn Store>,
    store: Encrypted,
}

fn place() -> EncryptedFolder {
    let folder = tempfile::tempdir().unwrap();
    let below: Arc<dyn Store> = Arc::new(LocalStore::new(folder.path()));
    let store = Encrypted::new(Arc::clone(&below), MasterKey::generate().unwrap());
    EncryptedFolder {
        _folder: folder,
        below,
        store,
    }
}

/// Replaces an object with `sealed` and returns whether reading it is refused.
fn is_refused(place: &EncryptedFolder, object: &str, sealed: &[u8]) -> bool {
    place.below.put(&name(object), sealed).unwrap();
    match place.store.get(&name(object), LIMIT) {
        Ok(_) => false,
        Err(StoreError::Damaged { location, .. } | StoreError::OtherKey { location, .. }) => {
            location.ends_with(object)
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_changed_byte_and_every_cut_is_found_and_named() {
    let place = place();
    place.store.put(&name("small"), b"a small object").unwrap();
    let sealed = place.below.get(&name("small"), LIMIT).unwrap();
    assert!(!sealed.windows(5).any(|window| window == b"small"));
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 0x40;
        assert!(is_refused(&place, "small", &changed), "byte {at}");
        assert!(is_refused(&place, "small", &sealed[..at]), "cut at {at}");
    }
    let longer = [&sealed[..], b"x"].concat();
    assert!(is_refused(&place, "small", &longer));
    assert!(!is_refused(&place, "small", &sealed));
}

#[test]
fn chunks_cannot_be_moved_dropped_or_taken_from_elsewhere() {
    let place = place();
    let contents = pattern(1, 700_000);
    place.store.put(&name("a"), &contents).unwrap();
    place.store.put(&name("b"), &contents).unwrap();
    let a = place.below.get(&name("a"), LIMIT).unwrap();
    let b = place.below.get(&name("b"), LIMIT).unwrap();
    let chunk = |sealed: &[u8], index: usize| {
        sealed[HEADER + index * CHUNK..(HEADER + (index + 1) * CHUNK).min(sealed.len())].to_vec()
    };
    let header = a[..HEADER].to_vec();
    let (first, second, last) = (chunk(&a, 0), chunk(&a, 1), chunk(&a, 2));
    for (what, parts) in [
        ("swapped", [&header, &second, &first, &last].as_slice()),
        ("dropped", &[&header, &first, &last]),
        ("cut at a chunk", &[&header, &first, &second]),
        ("repeated", &[&header, &first, &first, &last]),
        (
            "of another object",
            &[&header, &chunk(&b, 0), &second, &last],
        ),
        ("without its first", &[&header, &second, &last]),
    ] {
        let sealed: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        assert!(is_refused(&place, "a", &sealed), "{what}");
    }
    assert!(is_refused(&place, "a", &b), "another object's contents");
    assert!(!is_refused(&place, "a", &a));
}

#[test]
fn another_key_is_distinguished_from_damage() {
    let place = place();
    place.store.put(&name("secret"), b"secret").unwrap();
    let other = Encrypted::new(Arc::clone(&place.below), MasterKey::generate().unwrap());
    let error = other.get(&name("secret"), LIMIT).unwrap_err();
    assert!(matches!(error, StoreError::OtherKey { .. }), "{error}");
    assert!(error.to_string().contains("another key"), "{error}");
    place.below.put(&name("plain"), &[7; 100]).unwrap();
    let error = place.store.get(&name("plain"), LIMIT).unwrap_err();
    assert!(error.to_string().contains("does not start"), "{error}");
}

#[test]
fn the_same_contents_are_never_sealed_alike() {
    let place = place();
    let sealed: Vec<Vec<u8>> = (0..2)
        .map(|_| {
            place.store.put(&name("x"), b"contents").unwrap();
            place.below.get(&name("x"), LIMIT).unwrap()
        })
        .collect();
    assert_ne!(sealed[0][HEADER..], sealed[1][HEADER..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_range_of_any_length_reads_back(
        bytes in 0_usize..900_000,
        a in 0.0..=1.0_f64,
        b in 0.0..=1.0_f64,
        pieces in 1_usize..400_000,
    ) {
        let place = place();
        let contents = pattern(3, bytes);
        let mut upload = place.store.create(&name("x")).unwrap();
        for piece in contents.chunks(pieces) {
            upload.write(piece).unwrap();
        }
        upload.publish().unwrap();
        let at = |part: f64| (part * bytes as f64) as usize;
        let (start, end) = (at(a.min(b)), at(a.max(b)));
        let read = place.store.get_range(&name("x"), start as u64, end - start).unwrap();
        prop_assert!(read == contents[start..end]);
    }
}
