//! Files of records, from their addresses to batches: each sample once, in an order that only the seed changes.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ronde_core::batch::BatchPlan;
use ronde_core::order::Shuffle;
use ronde_core::shards::ShardPlan;
use ronde_core::{GroupRank, WorldSize};
use ronde_data::cache::CacheMode;
use ronde_data::decode::{Features, Fields, Label, NumberFeatures};
use ronde_data::format::tfrecord::write::{example, frame};
use ronde_data::format::{FormatConfig, FormatKind, Record, Value};
use ronde_data::index::OnBadRecord;
use ronde_data::records::{Addresses, RecordsConfig};
use ronde_data::{
    Batch, DataConfig, DataError, DataEvent, Dataset, DatasetExt, Loader, LoaderPlan,
    LoaderSettings, OpenContext, Split, open,
};

/// Records of each file: shards of very different sizes, an empty one, one with a single record.
const SHARDS: [u64; 5] = [40, 0, 1, 97, 12];

/// Returns a record that contains its number, with padding so that combined reads pay off.
fn record(number: u64) -> Vec<u8> {
    let padding = vec![number as u8; 200 + (number % 7) as usize * 100];
    example(&Record {
        fields: vec![
            (
                "value".into(),
                Value::floats(&[number as f32, -(number as f32)]),
            ),
            ("label".into(), Value::integers(&[number as i64 % 5])),
            ("padding".into(), Value::Bytes(padding.into())),
        ],
    })
}

fn write(folder: &Path, shards: &[u64]) {
    let mut number = 0;
    for (shard, &records) in shards.iter().enumerate() {
        let mut bytes = Vec::new();
        for _ in 0..records {
            frame(&mut bytes, &record(number));
            number += 1;
        }
        let name = format!("train-{shard:05}-of-{:05}.tfrecord", shards.len());
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

fn config(train: &str) -> RecordsConfig {
    RecordsConfig {
        train: Addresses::One(train.to_owned()),
        test: None,
        validation: None,
        format: None,
        features: Features::Numbers(NumberFeatures {
            field: Fields::One("value".to_owned()),
            shape: vec![2],
            scale: None,
        }),
        label: Some(Label {
            field: Fields::One("label".to_owned()),
            classes: Some(5),
            first: 0,
            names: None,
            values: None,
            scale: None,
        }),
        on_bad_record: OnBadRecord::Error,
        bad_record_limit: 0.01,
        shuffle_block_kib: 2,
        shuffle_window_mib: 1,
        cache: CacheMode::Stream,
        cache_folder: None,
        cache_limit_gib: 1.0,
        cache_encrypt: None,
        retry_s: 1.0,
    }
}

fn open_at(config: &RecordsConfig, folder: &Path) -> Result<Split, DataError> {
    let mut opening = OpenContext::new(folder, 3);
    opening.cache_folder = Some(folder.join("cache"));
    open(&DataConfig::Records(Box::new(config.clone())), &opening)
}

fn shuffle(set: &dyn Dataset) -> Shuffle {
    let locality = set.description().locality.unwrap();
    Shuffle::Blocks {
        block: locality.block_samples,
        window: locality.window_blocks,
    }
}

/// Returns all batches of some steps, in the order of steps and shards, from one loader per worker.
fn load(
    set: &Arc<dyn Dataset>,
    batches: BatchPlan,
    (shards, workers): (u32, u32),
    first: u64,
    threads: usize,
) -> Vec<(u64, Batch)> {
    let shards = ShardPlan::new(shards, WorldSize::new(workers).unwrap()).unwrap();
    let mut all = Vec::new();
    for rank in 0..workers {
        let plan = LoaderPlan {
            batches,
            shards: shards.clone(),
            run: shards.run(GroupRank(rank)),
            steps: first..batches.steps_per_epoch() * 2,
            stride: 1,
        };
        let settings = LoaderSettings {
            threads,
            memory_bytes: 64 << 10,
        };
        let mut loader = Loader::start(Arc::clone(set), plan, settings).unwrap();
        while let Some(step) = loader.next().unwrap() {
            all.extend(step.batches.into_iter().map(|batch| (step.step.0, batch)));
        }
    }
    all.sort_by_key(|(step, batch)| (*step, batch.shard));
    all
}

#[test]
fn every_sample_is_read_once_per_epoch_in_one_order_for_all_workers_threads_and_starts() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &SHARDS);
    let set = open_at(&config("*.tfrecord"), folder.path()).unwrap().train;
    let samples: u64 = SHARDS.iter().sum();
    assert_eq!(set.len(), samples);
    let description = set.description();
    assert_eq!((&*description.shape, description.classes), (&[2][..], 5));
    for batch_size in [1, 7, 64, 1000] {
        let batches = BatchPlan::new(samples, batch_size, false, shuffle(&*set), 9).unwrap();
        let alone = load(&set, batches, (3, 1), 0, 1);
        let steps = batches.steps_per_epoch();
        for epoch in 0..2 {
            let mut values = Vec::new();
            for (_, batch) in alone.iter().filter(|(step, _)| step / steps == epoch) {
                for (row, label) in batch.features.chunks(2).zip(&batch.labels) {
                    assert_eq!(row[1], -row[0]);
                    assert_eq!(*label, row[0] as u32 % 5);
                    values.push(row[0] as u64);
                }
            }
            assert_ne!(
                values,
                (0..samples).collect::<Vec<_>>(),
                "they are shuffled"
            );
            values.sort_unstable();
            assert_eq!(values, (0..samples).collect::<Vec<_>>());
        }
        for (workers, threads) in [(2, 2), (3, 1)] {
            assert_eq!(load(&set, batches, (3, workers), 0, threads), alone);
        }
        for first in [1, steps - 1, steps, 2 * steps - 1] {
            let rest = load(&set, batches, (3, 2), first, 1);
            let expected = alone.iter().filter(|(step, _)| *step >= first);
            assert!(rest.iter().eq(expected), "from step {first} on");
        }
    }
}

#[test]
fn the_same_files_elsewhere_are_the_same_set_and_other_contents_are_not() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(one.path(), &SHARDS);
    write(two.path(), &SHARDS);
    let here = open_at(&config("*.tfrecord"), one.path()).unwrap().train;
    let again = open_at(
        &config("train-{00000..00004}-of-00005.tfrecord"),
        one.path(),
    );
    let there = open_at(&config("*.tfrecord"), two.path()).unwrap().train;
    assert_eq!(
        here.description().identity,
        again.unwrap().train.description().identity
    );
    assert_eq!(here.description().identity, there.description().identity);
    write(two.path(), &[40, 0, 1, 97, 13]);
    let longer = open_at(&config("*.tfrecord"), two.path()).unwrap().train;
    assert_ne!(here.description().identity, longer.description().identity);
}

#[test]
fn the_validation_split_depends_on_names_and_numbers_alone() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[60, 60]);
    let mut held = config("*.tfrecord");
    held.validation = Some(0.25);
    let values = |set: &dyn Dataset| -> Vec<u32> {
        (0..set.len())
            .map(|number| set.sample(number).unwrap().0[0] as u32)
            .collect()
    };
    let split = open_at(&held, folder.path()).unwrap();
    let (train, test) = (
        values(&*split.train),
        values(&**split.test.as_ref().unwrap()),
    );
    assert!((15..45).contains(&test.len()), "{} of 120", test.len());
    let mut all = [train.clone(), test.clone()].concat();
    all.sort_unstable();
    assert_eq!(all, (0..120).collect::<Vec<_>>());
    // An additional file moves no sample of the others.
    write(folder.path(), &[60, 60]);
    let mut bytes = Vec::new();
    (120..160).for_each(|number| frame(&mut bytes, &record(number)));
    std::fs::write(folder.path().join("train-later.tfrecord"), bytes).unwrap();
    let later = open_at(&held, folder.path()).unwrap();
    let now = values(&**later.test.as_ref().unwrap());
    assert_eq!(now.iter().filter(|&&value| value < 120).count(), test.len());
    assert!(test.iter().all(|value| now.contains(value)));
    assert_ne!(
        split.train.description().identity,
        later.train.description().identity
    );
    for share in [0.0, 1.0, -1.0, f64::NAN] {
        held.validation = Some(share);
        let error = open_at(&held, folder.path()).unwrap_err().to_string();
        assert!(error.contains("data.validation"), "{error}");
    }
    held.validation = Some(1e-9);
    let error = open_at(&held, folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("of 160 samples, none would remain"),
        "{error}"
    );
}

#[test]
fn a_damaged_record_is_reported_with_its_position_or_skipped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[30]);
    let path = folder.path().join("train-00000-of-00001.tfrecord");
    let mut bytes = std::fs::read(&path).unwrap();
    let place = (0..7)
        .map(|number| record(number).len() + 16)
        .sum::<usize>();
    bytes[place + 40] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let mut skipping = config("*.tfrecord");
    let error = open_at(&skipping, folder.path()).unwrap_err().to_string();
    for part in [
        "train-00000-of-00001.tfrecord",
        "record 7",
        &format!("byte {place}"),
    ] {
        assert!(error.contains(part), "{error}");
    }
    skipping.on_bad_record = OnBadRecord::Skip;
    let refused = open_at(&skipping, folder.path()).unwrap_err().to_string();
    assert!(refused.contains("1 of 30 records"), "{refused}");
    assert!(refused.contains("bad_record_limit = 0.01"), "{refused}");
    skipping.bad_record_limit = 0.04;
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut opening = OpenContext::new(folder.path(), 3);
    opening.report = {
        let told = Arc::clone(&told);
        Arc::new(move |news| {
            if let DataEvent::Finding(message) = news {
                told.lock().unwrap().push(message.clone());
            }
        })
    };
    let set = open(&DataConfig::Records(Box::new(skipping)), &opening);
    let set = set.unwrap().train;
    assert_eq!(set.len(), 29);
    let told = told.lock().unwrap();
    assert_eq!(told[0], "skipping 1 bad record of 30:");
    assert!(told[1].contains("record 7"), "{told:?}");
    let batches = BatchPlan::new(29, 10, false, shuffle(&*set), 9).unwrap();
    let mut seen = BTreeMap::new();
    for (_, batch) in load(&set, batches, (2, 1), 3, 2) {
        for row in batch.features.chunks(2) {
            *seen.entry(row[0] as u64).or_insert(0) += 1;
        }
    }
    assert!(!seen.contains_key(&7) && seen.len() == 29);
}

#[test]
fn a_file_that_vanishes_or_changes_is_an_error_that_names_it() {
    for changes in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &[30, 30]);
        let set = open_at(&config("*.tfrecord"), folder.path()).unwrap().train;
        let path = folder.path().join("train-00001-of-00002.tfrecord");
        if changes {
            std::fs::write(&path, vec![0; 100]).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        let error = (0..60).find_map(|sample| set.sample(sample).err()).unwrap();
        let error = error.to_string();
        assert!(error.contains("train-00001-of-00002.tfrecord"), "{error}");
    }
}

#[test]
fn errors_of_opening_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[0]);
    let refused = |config: &RecordsConfig| open_at(config, folder.path()).unwrap_err().to_string();
    assert!(refused(&config("*.tfrecord")).contains("no samples in *.tfrecord"));
    assert!(refused(&config("*.parquet")).contains("*.parquet"));
    std::fs::write(folder.path().join("what.ever"), b"x").unwrap();
    assert!(refused(&config("what.ever")).contains("data.format"));
    let mut wrong = config("what.ever");
    wrong.format = Some(FormatConfig::Name(FormatKind::TfRecord));
    assert!(refused(&wrong).contains("what.ever"));
}
