//! The guarantees of the cache with real services: correct bytes, no network for the second read, sharing between
//! processes, and recovery from killed processes, damage and full disks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ronde_data::DataError;
use ronde_data::cache::{Cache, CacheEvent, CacheSettings};
use ronde_data::source::{FolderNames, SourceFile, expand};
use ronde_store::{MasterKey, Opener, RemoteSettings};

use crate::services::{WebServer, everywhere, pattern};

pub(crate) const PAGE: usize = 64 << 10;

pub(crate) fn settings() -> CacheSettings {
    CacheSettings {
        page_bytes: PAGE as u64,
        ..CacheSettings::default()
    }
}

/// Returns files whose length is not a multiple of any page or chunk.
fn files(count: usize) -> Vec<(String, Vec<u8>)> {
    (0..count)
        .map(|number| {
            let bytes = 10 * PAGE + 12_345 * number;
            (format!("set/{number}.bin"), pattern(number as u64, bytes))
        })
        .collect()
}

/// Reads a file in pieces that fit no page, and compares.
pub(crate) fn read_and_compare(cache: &Arc<Cache>, file: &SourceFile, contents: &[u8]) {
    let object = cache.object(file).unwrap();
    assert_eq!(object.bytes(), contents.len() as u64);
    let mut at = 0;
    for bytes in [1, 3_000, PAGE, 100_000, 3 * PAGE + 1].into_iter().cycle() {
        let bytes = bytes.min(contents.len() - at);
        let mut read = vec![0; bytes];
        object.read_at(at as u64, &mut read).unwrap();
        assert!(read == contents[at..at + bytes], "{file:?} at {at}");
        at += bytes;
        if at == contents.len() {
            return;
        }
    }
}

/// A set served by a web server.
struct Set {
    files: Vec<(String, Vec<u8>)>,
    place: tempfile::TempDir,
    server: Option<WebServer>,
}

impl Set {
    fn new(count: usize) -> Self {
        let place = tempfile::tempdir().unwrap();
        let files = files(count);
        std::fs::create_dir(place.path().join("set")).unwrap();
        for (name, contents) in &files {
            std::fs::write(place.path().join(name), contents).unwrap();
        }
        let server = Some(WebServer::start(place.path(), 0, &[]));
        Self {
            files,
            place,
            server,
        }
    }

    fn address(&self) -> String {
        self.server.as_ref().unwrap().address()
    }

    fn bytes(&self) -> u64 {
        self.files
            .iter()
            .map(|(_, contents)| contents.len() as u64)
            .sum()
    }

    fn find(&self) -> Vec<SourceFile> {
        find(&self.address(), self.files.len())
    }

    fn read_all(&self, cache: &Arc<Cache>) {
        for (file, (_, contents)) in self.find().iter().zip(&self.files) {
            read_and_compare(cache, file, contents);
        }
    }
}

fn find(address: &str, count: usize) -> Vec<SourceFile> {
    let patterns = [format!("{address}/set/{{0..{}}}.bin", count - 1)];
    let opener = Opener::new(RemoteSettings::default());
    let found = expand(&patterns, Path::new("."), &opener, FolderNames::All);
    found.unwrap().files
}

fn pages_of(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in std::fs::read_dir(folder.join("v1/pages")).unwrap() {
        let entries = std::fs::read_dir(folder.unwrap().path()).unwrap();
        pages.extend(entries.map(|entry| entry.unwrap().path()));
    }
    pages
}

#[test]
fn every_service_is_read_once_and_never_again() {
    let contents = files(3);
    let named: Vec<(&str, Vec<u8>)> = contents
        .iter()
        .map(|(name, contents)| (name.as_str(), contents.clone()))
        .collect();
    let bytes: u64 = contents.iter().map(|(_, c)| c.len() as u64).sum();
    for service in everywhere(&named) {
        let folder = tempfile::tempdir().unwrap();
        let pattern = [format!("{}/set/{{0..2}}.bin", service.folder)];
        let opener = service.opener();
        let found = expand(&pattern, Path::new("."), &opener, FolderNames::All);
        let found = found.unwrap().files;
        for pass in 0..2 {
            let cache = Cache::open(folder.path(), settings()).unwrap();
            for (file, (_, contents)) in found.iter().zip(&contents) {
                read_and_compare(&cache, file, contents);
            }
            let expected = if pass == 0 { bytes } else { 0 };
            let counters = cache.counters();
            assert_eq!(counters.remote_bytes, expected, "{}", service.folder);
            assert_eq!(cache.take_events(), []);
            assert!(pass == 0 || counters.cached_bytes == bytes);
        }
    }
}

#[test]
fn local_files_are_read_without_the_cache() {
    let set = Set::new(1);
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), settings()).unwrap();
    let opener = Opener::new(RemoteSettings::default());
    let (patterns, base) = (["set".to_owned()], set.place.path());
    let found = expand(&patterns, base, &opener, FolderNames::All);
    let found = found.unwrap().files;
    read_and_compare(&cache, &found[0], &set.files[0].1);
    assert_eq!(
        cache.counters(),
        ronde_data::cache::CacheCounters::default()
    );
}

#[test]
fn announced_bytes_are_cached_when_they_are_read() {
    let set = Set::new(1);
    let contents = &set.files[0].1;
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), settings()).unwrap();
    let object = cache.object(&set.find()[0]).unwrap();
    let ranges = [
        PAGE as u64 + 5..PAGE as u64 + 6,
        4 * PAGE as u64 - 1..7 * PAGE as u64,
    ];
    object.prefetch(&ranges);
    object.prefetch(&ranges);
    // Page 1, and 3 to 6: readers wait for the fetching threads, and fetch nothing themselves.
    for range in &ranges {
        let mut read = vec![0; (range.end - range.start) as usize];
        object.read_at(range.start, &mut read).unwrap();
        assert!(read == contents[range.start as usize..range.end as usize]);
    }
    assert_eq!(cache.counters().fetched, 5);
    assert_eq!(cache.counters().remote_bytes, 5 * PAGE as u64);
}

#[test]
fn damaged_pages_are_fetched_again_and_reported() {
    let set = Set::new(2);
    for key in [None, Some(MasterKey::generate().unwrap())] {
        let folder = tempfile::tempdir().unwrap();
        let settings = CacheSettings { key, ..settings() };
        let cache = Cache::open(folder.path(), settings.clone()).unwrap();
        set.read_all(&cache);
        let mut pages = pages_of(folder.path());
        pages.sort();
        for (number, page) in pages.iter().enumerate() {
            let mut bytes = std::fs::read(page).unwrap();
            match number % 4 {
                0 => continue,
                1 => bytes.truncate(number * 1000 % bytes.len()),
                2 => bytes.push(0),
                _ => {
                    let at = number * 7919 % bytes.len();
                    bytes[at] ^= 0x10;
                }
            }
            std::fs::write(page, bytes).unwrap();
        }
        // A page under the name of another one.
        std::fs::copy(&pages[0], &pages[4]).unwrap();
        let damaged = pages.len() - pages.len().div_ceil(4) + 1;
        let cache = Cache::open(folder.path(), settings).unwrap();
        set.read_all(&cache);
        assert_eq!(cache.counters().damaged, damaged as u64);
        assert_eq!(cache.counters().fetched, damaged as u64);
        let events = cache.take_events();
        assert_eq!(events.len(), damaged);
        assert!(
            events
                .iter()
                .all(|event| matches!(event, CacheEvent::Damaged { .. }))
        );
        assert!(events[0].to_string().contains("/set/"), "{}", events[0]);
        set.read_all(&cache);
        assert_eq!(cache.counters().damaged, damaged as u64);
    }
}

#[test]
fn encrypted_pages_reveal_nothing_and_other_keys_are_separate() {
    let set = Set::new(1);
    let folder = tempfile::tempdir().unwrap();
    let sealed = |key: &MasterKey| {
        let key = Some(key.clone());
        Cache::open(folder.path(), CacheSettings { key, ..settings() }).unwrap()
    };
    let (key, other) = (
        MasterKey::generate().unwrap(),
        MasterKey::generate().unwrap(),
    );
    let first = sealed(&key);
    set.read_all(&first);
    let window = &set.files[0].1[5 * PAGE + 100..5 * PAGE + 132];
    let shows = || {
        let pages = pages_of(folder.path());
        let holds = |page: &PathBuf| {
            let bytes = std::fs::read(page).unwrap();
            bytes.windows(window.len()).any(|bytes| bytes == window)
        };
        pages.iter().any(holds)
    };
    assert!(!shows());
    for (cache, remote_bytes) in [
        (sealed(&key), 0),
        (sealed(&other), set.bytes()),
        (Cache::open(folder.path(), settings()).unwrap(), set.bytes()),
        (sealed(&key), 0),
    ] {
        set.read_all(&cache);
        assert_eq!(cache.counters().remote_bytes, remote_bytes);
        assert_eq!(cache.counters().damaged, 0);
    }
    assert!(shows());
}

#[test]
fn a_replaced_file_is_another_one() {
    let mut set = Set::new(1);
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), settings()).unwrap();
    set.read_all(&cache);
    let before = set.find();
    let path = set.place.path().join(&set.files[0].0);
    set.files[0].1 = pattern(99, set.files[0].1.len());
    std::fs::write(&path, &set.files[0].1).unwrap();
    // Without an ETag the modification time decides, in seconds.
    let later = std::fs::metadata(&path).unwrap().modified().unwrap() + Duration::from_secs(2);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(later).unwrap();
    set.read_all(&cache);
    assert_eq!(cache.counters().remote_bytes, 2 * set.bytes());
    // A reader of the old version uses the cached pages, and gets an error for missing ones.
    let object = cache.object(&before[0]).unwrap();
    object.read_at(5, &mut [0; 5]).unwrap();
    let empty = tempfile::tempdir().unwrap();
    let cache = Cache::open(empty.path(), settings()).unwrap();
    let error = cache.object(&before[0]).unwrap().read_at(5, &mut [0; 5]);
    assert!(error.unwrap_err().is_conflict());
}

#[test]
fn everything_is_downloaded_first_where_it_fits() {
    let set = Set::new(3);
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), settings()).unwrap();
    let largest = std::sync::atomic::AtomicU64::new(0);
    let progress = |progress: ronde_data::cache::FillProgress| {
        assert_eq!(progress.bytes, set.bytes());
        largest.fetch_max(progress.done, std::sync::atomic::Ordering::Relaxed);
    };
    let found = set.find();
    cache.fill(&found, &progress).unwrap();
    assert_eq!(largest.into_inner(), set.bytes());
    assert_eq!(cache.counters().remote_bytes, set.bytes());
    cache.fill(&found, &|_| {}).unwrap();
    set.read_all(&cache);
    assert_eq!(cache.counters().remote_bytes, set.bytes());
    let small = CacheSettings {
        bytes_max: set.bytes(),
        ..settings()
    };
    let small = Cache::open(folder.path(), small).unwrap();
    let error = small.fill(&found, &|_| {}).unwrap_err();
    assert!(matches!(error, DataError::CacheTooSmall { .. }), "{error}");
}

#[test]
fn the_limit_holds_and_all_bytes_are_right() {
    let set = Set::new(3);
    let folder = tempfile::tempdir().unwrap();
    let bytes_max = 12 * PAGE as u64;
    let limited = CacheSettings {
        bytes_max,
        ..settings()
    };
    let cache = Cache::open(folder.path(), limited).unwrap();
    for _ in 0..2 {
        set.read_all(&cache);
    }
    let bytes: u64 = pages_of(folder.path())
        .iter()
        .map(|page| page.metadata().unwrap().len())
        .sum();
    assert!(bytes <= bytes_max && bytes > bytes_max / 2, "{bytes}");
    assert!(cache.counters().evicted > 0);
    assert_eq!(cache.take_events(), []);
}

#[test]
fn a_folder_that_cannot_be_written_is_reported_once() {
    let set = Set::new(1);
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("file"), b"in the way").unwrap();
    let cache = Cache::open(place.path().join("file/cache"), settings()).unwrap();
    set.read_all(&cache);
    set.read_all(&cache);
    let events = cache.take_events();
    assert!(
        matches!(&*events, [CacheEvent::NotKept { .. }]),
        "{events:?}"
    );
    assert!(cache.counters().not_kept > 0);
    for wrong in [
        CacheSettings {
            page_bytes: 100_000,
            ..settings()
        },
        CacheSettings {
            page_bytes: 32 << 10,
            ..settings()
        },
        CacheSettings {
            bytes_max: PAGE as u64,
            ..settings()
        },
        CacheSettings {
            threads: 0,
            ..settings()
        },
    ] {
        let error = Cache::open(place.path(), wrong).unwrap_err();
        assert!(matches!(error, DataError::CacheSettings { .. }), "{error}");
    }
}

#[test]
fn a_full_disk_makes_reading_slower_and_not_wrong() {
    let disk = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(disk.path())
        .output()
        .unwrap();
    if !mounted.status.success() {
        return ronde_testing::skip(&String::from_utf8_lossy(&mounted.stderr));
    }
    let set = Set::new(3);
    let (events, counters) = {
        let settings = CacheSettings {
            ahead_pages: 0,
            ..settings()
        };
        let cache = Cache::open(disk.path(), settings).unwrap();
        set.read_all(&cache);
        set.read_all(&cache);
        (cache.take_events(), cache.counters())
    };
    let unmounted = Command::new("umount")
        .arg("--lazy")
        .arg(disk.path())
        .status();
    assert!(unmounted.unwrap().success());
    let told: Vec<String> = events.iter().map(ToString::to_string).collect();
    assert!(
        told.iter().all(|text| text.contains("free some space")),
        "{told:?}"
    );
    assert!(!told.is_empty());
    assert!(counters.not_kept > 0 && counters.hits > 0);
    assert!(counters.remote_bytes < 2 * set.bytes());
}

#[test]
fn reading_continues_when_the_server_dies_and_returns() {
    let mut set = Set::new(4);
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), settings()).unwrap();
    let found = set.find();
    read_and_compare(&cache, &found[0], &set.files[0].1);
    let port = set.server.as_ref().unwrap().port;
    set.server = None;
    let (files, place) = (&set.files, &set.place);
    let second = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for (file, (_, contents)) in found.iter().zip(files) {
                read_and_compare(&cache, file, contents);
            }
        });
        let second = WebServer::start(place.path(), port, &[]);
        reader.join().unwrap();
        second
    });
    drop(second);
    assert!(cache.counters().remote_bytes >= set.bytes());
}
