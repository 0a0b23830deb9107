//! Files written by TensorFlow, round trips, damage at every byte.

use std::borrow::Cow;

use proptest::prelude::*;

use super::write::{example, frame};
use super::*;
use crate::format::testing::{MemoryObject, read_all, scanned};
use crate::format::{NumberType, Value};

const PLAIN: &[u8] = include_bytes!("../../../tests/vectors/tensorflow.tfrecord");
const PACKED: &[u8] = include_bytes!("../../../tests/vectors/tensorflow.tfrecord.gz");

fn all() -> TfRecord {
    TfRecord::new(FieldSelection::All)
}

/// The records that TensorFlow wrote.
fn expected(index: u8) -> Vec<(&'static str, Value<'static>)> {
    let bytes: Vec<u8> = (index..index + 40).collect();
    let texts: [&[u8]; 3] = [b"a", b"", "café".as_bytes()];
    vec![
        ("empty", Value::integers(&[])),
        (
            "floats",
            Value::floats(&[f32::from(index) + 0.5, -1e-3, 3.25e30]),
        ),
        (
            "image/class/label",
            Value::integers(&[i64::from(index) * 100 - 1]),
        ),
        ("image/encoded", Value::Bytes(bytes.into())),
        ("many", Value::integers(&[-3, 26, 55, 84, 113, 142, 171])),
        (
            "texts",
            Value::List(texts.into_iter().map(Cow::Borrowed).collect()),
        ),
    ]
}

#[test]
fn records_of_tensorflow_are_read_value_for_value() {
    for file in [PLAIN, PACKED] {
        let records = read_all(&all(), file).unwrap();
        assert_eq!(records.len(), 3);
        for (index, record) in records.iter().enumerate() {
            let mut fields: Vec<_> = record.fields.clone();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            let expected = expected(index as u8);
            assert_eq!(fields.len(), expected.len());
            for ((name, value), (expected_name, expected)) in fields.iter().zip(expected) {
                assert_eq!((name.as_ref(), value), (expected_name, &expected));
            }
        }
    }
    let of = |file| scanned(&all(), file).unwrap().hash;
    assert_eq!(of(PLAIN), of(PACKED));
}

#[test]
fn records_are_written_as_by_tensorflow() {
    let mut out = Vec::new();
    for index in 0..3 {
        let mut fields: Vec<_> = expected(index)
            .into_iter()
            .map(|(name, value)| (Cow::Borrowed(name), value))
            .collect();
        fields.reverse();
        frame(&mut out, &example(&Record { fields }));
    }
    // A feature without a list is equivalent to an absent one, and is not written.
    let records = read_all(&all(), &out).unwrap();
    assert_eq!(
        records,
        read_all(&all(), PLAIN)
            .unwrap()
            .into_iter()
            .map(sorted)
            .collect::<Vec<_>>()
    );
}

fn sorted(mut record: Record<'static>) -> Record<'static> {
    record.fields.sort_by(|a, b| a.0.cmp(&b.0));
    record
}

#[test]
fn only_wanted_fields_are_kept() {
    let format = TfRecord::new(FieldSelection::fields(["floats", "absent"]));
    for record in read_all(&format, PLAIN).unwrap() {
        assert_eq!(record.fields.len(), 1);
        assert!(record.get("floats").is_some());
    }
}

/// Returns a file of records with these lengths.
fn file(lengths: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, &length) in lengths.iter().enumerate() {
        let value = Value::Bytes(vec![index as u8; length].into());
        let fields = vec![
            ("x".into(), value),
            ("i".into(), Value::integers(&[index as i64])),
        ];
        frame(&mut out, &example(&Record { fields }));
    }
    out
}

#[test]
fn small_records_share_extents_and_large_ones_do_not() {
    let bytes = file(&[100, 100, 20_000, 30_000, 10, 10, 10]);
    let found = scanned(&all(), &bytes).unwrap();
    let counts: Vec<_> = found.extents.iter().map(|e| e.records).collect();
    assert_eq!(counts, [2, 1, 1, 3]);
    let end = found.extents.iter().fold(0, |at, extent| {
        assert_eq!(extent.start, at);
        at + extent.bytes
    });
    assert_eq!(end, bytes.len() as u64);
    assert_eq!(read_all(&all(), &bytes).unwrap().len(), 7);
}

#[test]
fn damaged_bytes_are_found_and_the_next_record_follows() {
    let sound = file(&[50, 60, 70]);
    let before = scanned(&all(), &sound).unwrap();
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        let found = scanned(&all(), &bytes).unwrap();
        assert_eq!(found.bad.len(), 1, "byte {at}");
        assert_ne!(found.hash, before.hash);
        let bad = &found.bad[0];
        let records: u32 = found.extents.iter().map(|e| e.records).sum();
        match bad.problem.contains("length") {
            true => assert_eq!(u64::from(records), bad.record.unwrap()),
            false => assert_eq!(records, 2),
        }
        assert!(bad.offset <= at as u64);
        assert_eq!(read_all(&all(), &bytes).unwrap().len(), records as usize);
    }
    for end in 0..sound.len() {
        let found = scanned(&all(), &sound[..end]).unwrap();
        let records: u32 = found.extents.iter().map(|e| e.records).sum();
        assert!(records < 3);
        assert!(found.bad.len() <= 1);
    }
}

#[test]
fn packed_files_lose_damaged_records_and_keep_the_rest() {
    let mut bytes = file(&[50, 60, 70]);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let packed = crate::format::testing::gzip(&bytes);
    let found = scanned(&all(), &packed).unwrap();
    assert_eq!((found.extents.len(), found.bad.len()), (1, 1));
    assert_eq!(found.bad[0].record, Some(1));
    let records = read_all(&all(), &packed).unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[1].get("i"), Some(&Value::integers(&[2])));
    for at in 0..packed.len() {
        let mut bytes = packed.clone();
        bytes[at] ^= 0x10;
        // Detected by the checksums of the records or of gzip, or in an unused part of its header.
        match read_all(&all(), &bytes) {
            Ok(after) => {
                assert!(after == records || !scanned(&all(), &bytes).unwrap().bad.is_empty())
            }
            Err(error) => assert!(matches!(error, DataError::Record(_)), "{error}"),
        }
    }
}

#[test]
fn sequence_examples_and_zlib_are_refused_by_name() {
    // SequenceExample { context: {}, feature_lists: {} } as TensorFlow writes it.
    let mut bytes = file(&[10]);
    frame(&mut bytes, &[0x0a, 0, 0x12, 0]);
    let found = scanned(&all(), &bytes).unwrap();
    assert_eq!(found.bad.len(), 1);
    assert!(
        found.bad[0]
            .problem
            .contains("SequenceExample is not supported")
    );
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut zlib, &bytes).unwrap();
    let error = scanned(&all(), &zlib.finish().unwrap()).err().unwrap();
    assert!(
        error.to_string().contains("zlib is not supported"),
        "{error}"
    );
}

#[test]
fn a_file_that_changed_since_its_scan_is_an_error() {
    let bytes = file(&[50, 60]);
    let extent = scanned(&all(), &bytes).unwrap().extents[0];
    let open = all().open(MemoryObject::of(&bytes)).unwrap();
    let parse = |bytes: &[u8]| open.parse(&extent, vec![bytes.to_vec().into()]);
    assert!(parse(&bytes).is_ok());
    assert!(parse(&bytes[..bytes.len() - 1]).is_err());
    assert!(parse(&[]).is_err());
    assert!(open.parse(&extent, Vec::new()).is_err());
    let mut damaged = bytes.clone();
    damaged[30] ^= 1;
    let records = parse(&damaged).unwrap();
    let error = records.record(0).unwrap_err().to_string();
    assert!(
        error.contains("memory, at byte 0: its bytes are damaged"),
        "{error}"
    );
    assert!(records.record(1).is_ok() && records.record(2).is_err());
}

#[test]
fn unpacked_lists_unknown_fields_and_repeated_names_are_read() {
    // int64_list { value: 5; value: 300; unknown field 7 }, then the same name with a float that is not packed.
    let list = [0x08, 5, 0x08, 0xac, 0x02, 0x39, 1, 2, 3, 4, 5, 6, 7, 8];
    let wrap =
        |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat();
    let entry = |list: &[u8]| wrap(1, &[wrap(1, b"n"), wrap(2, list)].concat());
    let float = [
        &[0x0d][..],
        &1.5_f32.to_le_bytes(),
        &[0x0d],
        &2.5_f32.to_le_bytes(),
    ]
    .concat();
    let first = entry(&wrap(3, &list));
    let both = [first.clone(), entry(&wrap(2, &float)), wrap(9, b"unknown")].concat();
    let read = |features: &[u8]| {
        let example = wrap(1, features);
        super::example::check(&example).map_err(|error| error.to_string())?;
        let record = super::example::record(&example, &FieldSelection::All)
            .map_err(|error| error.to_string())?;
        Ok::<_, String>(record.get("n").map(|value| format!("{value:?}")))
    };
    let shown = |value: Value<'_>| Ok(Some(format!("{value:?}")));
    assert_eq!(read(&first), shown(Value::integers(&[5, 300])));
    assert_eq!(read(&both), shown(Value::floats(&[1.5, 2.5])));
    // Lists in two parts are one list.
    let parts = entry(&[wrap(3, &[0x08, 1]), wrap(3, &wrap(1, &[2, 3]))].concat());
    assert_eq!(read(&parts), shown(Value::integers(&[1, 2, 3])));
    // Lengths past the end, incomplete numbers, a part of a float.
    for broken in [
        &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f][..],
        &[0x0a],
        &[0x0b],
        &[0x02, 0],
    ] {
        assert!(super::example::check(broken).is_err(), "{broken:?}");
    }
    assert!(read(&entry(&wrap(2, &wrap(1, &[0; 5])))).is_err());
    assert!(read(&entry(&wrap(3, &wrap(1, &[0xff; 11])))).is_err());
}

fn values() -> impl Strategy<Value = Value<'static>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..50).prop_map(|bytes| Value::Bytes(bytes.into())),
        proptest::collection::vec(any::<i64>(), 0..9).prop_map(|n| Value::integers(&n)),
        proptest::collection::vec(any::<f32>(), 0..9).prop_map(|n| Value::floats(&n)),
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..5), 2..5)
            .prop_map(|list| Value::List(list.into_iter().map(Cow::Owned).collect())),
    ]
}

proptest! {
    #[test]
    fn written_records_are_read_back(
        records in proptest::collection::vec(
            proptest::collection::btree_map("[a-z/]{1,9}", values(), 0..6), 0..9)
    ) {
        let records: Vec<Record<'_>> = records.into_iter().map(|fields| Record {
            fields: fields.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        }).collect();
        let mut out = Vec::new();
        for record in &records {
            frame(&mut out, &example(record));
        }
        let read = read_all(&all(), &out).unwrap();
        prop_assert_eq!(read.len(), records.len());
        for (read, record) in read.iter().zip(&records) {
            // Compare the bits, also of NaN.
            prop_assert_eq!(format!("{:?}", read), format!("{:?}", record));
        }
    }

    #[test]
    fn hostile_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = super::example::check(&bytes);
        let sound = super::example::record(&bytes, &FieldSelection::All).is_ok();
        prop_assert!(!sound || super::example::check(&bytes).is_ok());
        let mut out = Vec::new();
        frame(&mut out, &bytes);
        prop_assert_eq!(scanned(&all(), &out).unwrap().bad.is_empty(), super::example::check(&bytes).is_ok());
    }
}

#[test]
fn numbers_of_other_types_are_written_as_those_that_the_format_has() {
    let mut out = Vec::new();
    let bytes = vec![1, 0, 2, 0].into();
    let value = Value::Numbers {
        dtype: NumberType::U16,
        bytes,
    };
    let double = Value::Numbers {
        dtype: NumberType::F64,
        bytes: 0.25_f64.to_le_bytes().to_vec().into(),
    };
    let fields = vec![("a".into(), value), ("b".into(), double)];
    frame(&mut out, &example(&Record { fields }));
    let records = read_all(&all(), &out).unwrap();
    assert_eq!(records[0].get("a"), Some(&Value::integers(&[1, 2])));
    assert_eq!(records[0].get("b"), Some(&Value::floats(&[0.25])));
}
