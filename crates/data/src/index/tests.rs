//! Locations of samples, stored indexes and their lifetime, several processes at once, bad records.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::format::testing::MemoryObject;
use crate::format::tfrecord::write::{example, frame};
use crate::format::{FieldSelection, Record, TfRecord, Value};

/// A file that counts how often it is opened.
struct Counted {
    location: String,
    stamp: String,
    bytes: Vec<u8>,
    opened: AtomicUsize,
}

impl DataFile for Counted {
    fn location(&self) -> &str {
        &self.location
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn stamp(&self) -> &str {
        &self.stamp
    }

    fn open(&self) -> Result<Arc<dyn StoredObject>, DataError> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(MemoryObject::at(&self.location, &self.bytes))
    }
}

/// Returns a file with `count` records, numbered from `first`.
fn records(first: usize, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in first..first + count {
        let value = Value::integers(&[number as i64]);
        let fields = vec![("n".into(), value)];
        frame(&mut bytes, &example(&Record { fields }));
    }
    bytes
}

fn files(counts: &[usize]) -> Vec<Arc<Counted>> {
    let mut first = 0;
    let file = |(number, &count): (usize, &usize)| {
        first += count;
        Arc::new(Counted {
            location: format!("memory/{number}"),
            stamp: "1".into(),
            bytes: records(first - count, count),
            opened: AtomicUsize::new(0),
        })
    };
    counts.iter().enumerate().map(file).collect()
}

fn build(files: &[Arc<Counted>], settings: &IndexSettings) -> Result<Index, DataError> {
    let files: Vec<Arc<dyn DataFile>> = files.iter().map(|file| file.clone() as _).collect();
    Index::build(
        &files,
        &TfRecord::new(FieldSelection::All),
        settings,
        &|_| {},
    )
}

fn kept(folder: &Path, threads: usize) -> IndexSettings {
    IndexSettings {
        folder: Some(folder.to_owned()),
        threads,
        on_bad_record: OnBadRecord::Skip,
        ..IndexSettings::default()
    }
}

/// Returns the number in the record that the index locates.
fn read(index: &Index, files: &[Arc<Counted>], sample: u64) -> i64 {
    let location = index.locate(sample).unwrap();
    let file = &files[location.file];
    let open = TfRecord::new(FieldSelection::All);
    let open = crate::format::Format::open(&open, MemoryObject::of(&file.bytes)).unwrap();
    let bytes = open.ranges(&location.extent).into_iter().map(|range| {
        let part = &file.bytes[range.start as usize..range.end as usize];
        part.to_vec().into()
    });
    let parsed = open.parse(&location.extent, bytes.collect()).unwrap();
    let record = parsed.record(location.record).unwrap();
    match record.get("n") {
        Some(Value::Numbers { dtype, bytes }) => dtype.integer(bytes, 0).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn samples_are_numbered_through_all_files_including_empty_ones() {
    let files = files(&[3, 0, 1, 700, 0]);
    let index = build(&files, &IndexSettings::default()).unwrap();
    assert_eq!(index.samples(), 704);
    assert!(index.block_samples() > 100 && index.sample_bytes() > 10);
    for sample in [0, 2, 3, 4, 100, 703] {
        assert_eq!(read(&index, &files, sample), sample as i64);
    }
    assert_eq!(index.locate(704), None);
    assert_eq!(
        build(&self::files(&[0]), &IndexSettings::default())
            .unwrap()
            .samples(),
        0
    );
}

#[test]
fn indexes_are_stored_until_the_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = files(&[5, 6, 7]);
    let opened = |files: &[Arc<Counted>]| -> Vec<usize> {
        files
            .iter()
            .map(|f| f.opened.load(Ordering::Relaxed))
            .collect()
    };
    let first = build(&files, &kept(folder.path(), 2)).unwrap();
    assert_eq!(opened(&files), [1, 1, 1]);
    let again = build(&files, &kept(folder.path(), 2)).unwrap();
    assert_eq!(opened(&files), [1, 1, 1]);
    assert_eq!(first.identity(), again.identity());
    assert_eq!(first.locate(11), again.locate(11));
    // Another stamp, and a damaged index.
    Arc::get_mut(&mut files[1]).unwrap().stamp = "2".into();
    let damaged = std::fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut bytes = std::fs::read(&damaged).unwrap();
    bytes[80] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let after = build(&files, &kept(folder.path(), 2)).unwrap();
    let scans: usize = opened(&files).iter().sum();
    assert!((4..=5).contains(&scans), "{scans}");
    assert_eq!(after.identity(), first.identity());
    let names = || std::fs::read_dir(folder.path()).unwrap();
    assert!(names().all(|entry| entry.unwrap().path().extension().unwrap() == "index"));
}

#[test]
fn the_identity_depends_on_the_content_and_its_order() {
    let identity = |files: &[Arc<Counted>]| {
        let index = build(files, &IndexSettings::default()).unwrap();
        index.identity().to_owned()
    };
    let mut one = files(&[5, 6]);
    let before = identity(&one);
    Arc::get_mut(&mut one[0]).unwrap().location = "elsewhere".into();
    assert_eq!(identity(&one), before);
    one.reverse();
    assert_ne!(identity(&one), before);
    assert_ne!(identity(&files(&[5, 7])), before);
    assert_eq!(identity(&files(&[5, 6])), before);
}

#[test]
fn bad_records_are_skipped_or_an_error() {
    let mut damaged = files(&[2, 3]);
    let bytes = &mut Arc::get_mut(&mut damaged[1]).unwrap().bytes;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let index = build(&damaged, &kept(folder.path(), 1)).unwrap();
        assert_eq!((index.samples(), index.bad_count()), (4, 1));
        let bad = &index.bad()[0];
        assert_eq!((bad.file.as_str(), bad.record), ("memory/1", Some(1)));
        let numbers: Vec<_> = (0..4)
            .map(|sample| read(&index, &damaged, sample))
            .collect();
        assert_eq!(numbers, [0, 1, 2, 4]);
        let strict = IndexSettings {
            on_bad_record: OnBadRecord::Error,
            ..kept(folder.path(), 1)
        };
        let error = build(&damaged, &strict).unwrap_err();
        assert_eq!(error.to_string(), bad.to_string());
    }
}

#[test]
fn concurrent_builds_scan_each_file_once() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(&[9; 40]);
    let identities = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let index = build(&files, &kept(folder.path(), 2)).unwrap();
                let identity = index.identity().to_owned();
                identities.lock().unwrap().push(identity);
            });
        }
    });
    let identities = identities.into_inner().unwrap();
    assert!(identities.len() == 4 && identities.iter().all(|one| *one == identities[0]));
    for file in &files {
        assert_eq!(file.opened.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn an_unusable_folder_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, b"").unwrap();
    let index = build(&files(&[4]), &kept(&path, 1)).unwrap();
    assert_eq!(index.samples(), 4);
    assert!(
        index.warnings()[0].contains("cannot store the index"),
        "{:?}",
        index.warnings()
    );
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_an_index_does_not_block() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(&[4]);
    build(&files, &kept(folder.path(), 1)).unwrap();
    let entry = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().path();
    let mut names = std::fs::read_dir(folder.path()).unwrap().map(entry);
    let index = names
        .find(|path| path.extension().is_some_and(|name| name == "index"))
        .unwrap();
    std::fs::remove_file(&index).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&index).status();
    assert!(made.unwrap().success());
    assert_eq!(build(&files, &kept(folder.path(), 1)).unwrap().samples(), 4);
    assert!(std::fs::metadata(&index).unwrap().is_file());
}

#[test]
fn waiting_for_a_claim_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(&[4]);
    let kept_index = index_file::IndexFile::new(folder.path(), &*files[0], "tfrecord version 1");
    let claim = kept_index.claim().unwrap().unwrap();
    let settings = IndexSettings {
        claim_timeout: Duration::from_millis(30),
        ..kept(folder.path(), 1)
    };
    assert_eq!(build(&files, &settings).unwrap().samples(), 4);
    drop(claim);
}

#[test]
fn progress_is_reported() {
    let files = files(&[4, 5]);
    let all: Vec<Arc<dyn DataFile>> = files.iter().map(|file| file.clone() as _).collect();
    let last = Mutex::new(IndexProgress::default());
    let format = TfRecord::new(FieldSelection::All);
    Index::build(&all, &format, &IndexSettings::default(), &|progress| {
        *last.lock().unwrap() = progress;
    })
    .unwrap();
    let last = last.into_inner().unwrap();
    assert_eq!(
        (last.files, last.scanned, last.files_total, last.samples),
        (2, 2, 2, 9)
    );
    assert_eq!(last.bytes, last.bytes_total);
}

/// Reads of one large file take long, most of all from another machine.
#[test]
fn progress_is_reported_within_a_file_of_every_format() {
    use crate::format::{CsvLines, Format, Npy, NumberType, Tokens};

    let rows = 3 << 20;
    let mut array = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    array.extend_from_slice(
        format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows}, 2)}}").as_bytes(),
    );
    array.resize(127, b' ');
    array.push(b'\n');
    array.resize(128 + 2 * rows, 7);
    let lines = b"1,2,3,4,5,6,7\n".repeat(1 << 19);
    // Stored, so that the compressed file is large.
    let level = flate2::Compression::none();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), level);
    std::io::Write::write_all(&mut packed, &lines).unwrap();
    let formats: [(Box<dyn Format>, Vec<u8>); 5] = [
        (Box::new(Npy), array),
        (
            Box::new(Tokens::new(NumberType::U8, 64).unwrap()),
            vec![1; 7 << 20],
        ),
        (Box::new(CsvLines::new(None, FieldSelection::All)), lines),
        (
            Box::new(TfRecord::new(FieldSelection::All)),
            records(0, 200_000),
        ),
        (
            Box::new(CsvLines::new(None, FieldSelection::All)),
            packed.finish().unwrap(),
        ),
    ];
    for (format, bytes) in formats {
        let total = bytes.len() as u64;
        let file = Counted {
            location: "memory/0".to_owned(),
            stamp: "1".into(),
            bytes,
            opened: AtomicUsize::new(0),
        };
        let seen = Mutex::new(Vec::new());
        let settings = IndexSettings::default();
        Index::build(&[Arc::new(file)], &*format, &settings, &|progress| {
            seen.lock().unwrap().push(progress.bytes);
        })
        .unwrap();
        let seen = seen.into_inner().unwrap();
        let format = format.identity();
        assert!(seen.len() > 3 && seen.is_sorted(), "{format}: {seen:?}");
        assert!(seen[0] < total && seen.last() == Some(&total), "{format}");
    }
}
