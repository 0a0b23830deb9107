//! The test suite that every [`Store`] passes.

use std::sync::Arc;

use ronde_store::{Condition, Store, StoreError, StoreExt};

use crate::{name, pattern};

const LIMIT: u64 = 64 << 20;

/// Checks every guarantee of the interface on an empty store.
pub(crate) fn check(store: &Arc<dyn Store>) {
    objects_are_whole_or_absent(&**store);
    ranges_are_read_and_ends_are_reported(&**store);
    listings_are_sorted_and_know_folders(&**store);
    stamps_tell_replacements(&**store);
    names_of_users_are_kept(&**store);
    conditions_hold(&**store);
    one_of_many_wins(store);
    readers_see_one_version(store);
    assert_eq!(store.sweep().unwrap(), 0);
}

fn objects_are_whole_or_absent(store: &dyn Store) {
    let it = name("whole/one");
    assert!(store.open(&it).err().unwrap().is_not_found());
    assert!(store.list(None).unwrap().is_empty());
    let mut upload = store.create(&it).unwrap();
    upload.write(b"never seen").unwrap();
    drop(upload);
    assert!(store.open(&it).err().unwrap().is_not_found());
    for (seed, bytes) in [0, 1, 262_143, 262_144, 262_145, 11 << 20]
        .into_iter()
        .enumerate()
    {
        let contents = pattern(seed as u64, bytes);
        let mut upload = store.create(&it).unwrap();
        for piece in contents.chunks(1_000_003) {
            upload.write(piece).unwrap();
        }
        upload.publish().unwrap();
        assert!(store.get(&it, LIMIT).unwrap() == contents, "{bytes} bytes");
        assert_eq!(store.list(None).unwrap()[0].bytes, bytes as u64);
    }
    store.put(&it, b"replaced").unwrap();
    assert_eq!(store.get(&it, LIMIT).unwrap(), b"replaced");
    assert!(matches!(store.get(&it, 3), Err(StoreError::Damaged { .. })));
    store.delete(&it).unwrap();
    store.delete(&it).unwrap();
    assert!(store.open(&it).err().unwrap().is_not_found());
}

fn ranges_are_read_and_ends_are_reported(store: &dyn Store) {
    let it = name("ranges");
    let contents = pattern(9, 600_000);
    store.put(&it, &contents).unwrap();
    for (start, bytes) in [
        (0, 0),
        (0, 1),
        (262_143, 2),
        (262_144, 262_144),
        (599_999, 1),
        (5, 599_995),
        (600_000, 0),
    ] {
        let read = store.get_range(&it, start as u64, bytes).unwrap();
        assert!(read == contents[start..start + bytes], "{start} {bytes}");
    }
    for (start, bytes) in [(600_000, 1), (0, 600_001), (u64::MAX, 1)] {
        let error = store.get_range(&it, start, bytes).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    }
    store.delete(&it).unwrap();
}

fn listings_are_sorted_and_know_folders(store: &dyn Store) {
    let names = ["b", "a/y", "a/x/deep", "ab", "a-b/x"];
    for text in names {
        store.put(&name(text), text.as_bytes()).unwrap();
    }
    let list = |folder: Option<&str>| -> Vec<String> {
        let folder = folder.map(name);
        let entries = store.list(folder.as_ref()).unwrap();
        entries.iter().map(|entry| entry.name.to_string()).collect()
    };
    let mut sorted = names.map(str::to_owned);
    sorted.sort();
    assert_eq!(list(None), sorted);
    assert_eq!(list(Some("a")), ["a/x/deep", "a/y"]);
    assert!(list(Some("absent")).is_empty());
    for text in names {
        store.delete(&name(text)).unwrap();
    }
    assert!(list(None).is_empty());
}

fn stamps_tell_replacements(store: &dyn Store) {
    let (it, other) = (name("stamped/one"), name("stamped/other"));
    let listed = || store.list(Some(&name("stamped"))).unwrap();
    store.put(&it, &pattern(1, 5_000)).unwrap();
    store.put(&other, &pattern(2, 5_000)).unwrap();
    let before = listed();
    assert_eq!(before.len(), 2);
    for entry in &before {
        let object = store.open(&entry.name).unwrap();
        assert_eq!(object.stamp(), entry.stamp);
        let object = store.open_listed(entry).unwrap();
        assert_eq!((object.stamp(), object.bytes()), (entry.stamp, entry.bytes));
        let mut read = vec![0; 100];
        object.read_at(50, &mut read).unwrap();
        let seed = if entry.name == it { 1 } else { 2 };
        assert!(read == pattern(seed, 5_000)[50..150]);
        assert_eq!(
            object.version().unwrap(),
            store.open(&entry.name).unwrap().version().unwrap()
        );
    }
    // Contents of the same length, written immediately afterwards.
    store.put(&it, &pattern(3, 5_000)).unwrap();
    let after = listed();
    assert_ne!(after[0].stamp, before[0].stamp);
    assert_eq!(after[1].stamp, before[1].stamp);
    let stale = store
        .open_listed(&before[0])
        .and_then(|object| object.read_at(0, &mut [0; 10]));
    assert!(stale.unwrap_err().is_conflict());
    for entry in &after {
        store.delete(&entry.name).unwrap();
    }
}

fn names_of_users_are_kept(store: &dyn Store) {
    let names = [
        "with spaces/and more.txt",
        "\u{e4}\u{f6}\u{fc}/\u{6587}\u{5b57}.txt",
        "signs/100%25 {a,b} [x] ~#&+=;'@.txt",
        "signs/a*b.txt",
    ];
    for text in names {
        store.put(&name(text), text.as_bytes()).unwrap();
    }
    let entries = store.list(None).unwrap();
    let mut sorted = names;
    sorted.sort_unstable();
    let listed: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(listed, sorted);
    for text in names {
        assert_eq!(store.get(&name(text), LIMIT).unwrap(), text.as_bytes());
        store.delete(&name(text)).unwrap();
    }
}

fn conditions_hold(store: &dyn Store) {
    let it = name("conditional/one");
    let first = store.put_if(&it, b"first", &Condition::Absent).unwrap();
    let error = store.put_if(&it, b"again", &Condition::Absent).unwrap_err();
    assert!(error.is_conflict(), "{error}");
    let seen = store.get_versioned(&it, LIMIT).unwrap().unwrap();
    assert_eq!(seen.contents.unwrap(), b"first");
    assert_eq!(seen.version, first);
    let second = Condition::Unchanged(first.clone());
    store.put_if(&it, b"second", &second).unwrap();
    let error = store.put_if(&it, b"third", &second).unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert_eq!(store.get(&it, LIMIT).unwrap(), b"second");
    store.delete(&it).unwrap();
    let error = store.put_if(&it, b"third", &second).unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert!(store.get_versioned(&it, LIMIT).unwrap().is_none());
}

fn one_of_many_wins(store: &Arc<dyn Store>) {
    let it = name("conditional/race");
    let winners: Vec<u64> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..6_u64)
            .map(|me| {
                let (store, it) = (Arc::clone(store), it.clone());
                scope.spawn(move || {
                    let put = store.put_if(&it, &pattern(me, 400), &Condition::Absent);
                    match put {
                        Ok(_) => Some(me),
                        Err(error) if error.is_conflict() => None,
                        Err(error) => panic!("{error}"),
                    }
                })
            })
            .collect();
        racers
            .into_iter()
            .filter_map(|racer| racer.join().unwrap())
            .collect()
    });
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(store.get(&it, LIMIT).unwrap(), pattern(winners[0], 400));
    store.delete(&it).unwrap();
}

fn readers_see_one_version(store: &Arc<dyn Store>) {
    let it = name("replaced/often");
    store.put(&it, &pattern(0, 300_000)).unwrap();
    std::thread::scope(|scope| {
        let (writing, written) = (Arc::clone(store), it.clone());
        let writer = scope.spawn(move || {
            for seed in 1..8 {
                writing.put(&written, &pattern(seed, 300_000)).unwrap();
            }
        });
        while !writer.is_finished() {
            let mut read = vec![0; 300_000];
            // A remote reader may get the error that the object was replaced, but never mixed
            // contents.
            match store
                .open(&it)
                .and_then(|object| object.read_at(0, &mut read))
            {
                Ok(()) => assert!((0..8).any(|seed| read == pattern(seed, 300_000))),
                Err(error) => assert!(error.is_conflict(), "{error}"),
            }
        }
        writer.join().unwrap();
    });
    store.delete(&it).unwrap();
}
