//! Files written by pyarrow in every compression, projection, damage at every byte.

use super::*;
use crate::format::testing::{MemoryObject, read_all, scanned};
use crate::format::{NumberType, Record, Value};

const FILES: [(&str, &[u8]); 5] = [
    (
        "none",
        include_bytes!("../../../tests/vectors/table.none.parquet"),
    ),
    (
        "snappy",
        include_bytes!("../../../tests/vectors/table.snappy.parquet"),
    ),
    (
        "zstd",
        include_bytes!("../../../tests/vectors/table.zstd.parquet"),
    ),
    (
        "gzip",
        include_bytes!("../../../tests/vectors/table.gzip.parquet"),
    ),
    (
        "lz4",
        include_bytes!("../../../tests/vectors/table.lz4.parquet"),
    ),
];

fn wanted(fields: &[&str]) -> Parquet {
    Parquet::new(FieldSelection::fields(fields.iter().copied()))
}

/// All columns but the one with a null in a list.
const SOUND: [&str; 16] = [
    "i",
    "u",
    "small",
    "f",
    "d",
    "h",
    "b",
    "s",
    "bin",
    "fixed",
    "cat",
    "image.bytes",
    "image.path",
    "tags",
    "nums",
    "maybe",
];

fn floats(dtype: NumberType, value: &Value<'_>) -> Vec<f64> {
    match value {
        Value::Numbers { dtype: of, bytes } => {
            assert_eq!(*of, dtype);
            (0..bytes.len() / of.bytes())
                .map(|at| of.float(bytes, at).unwrap())
                .collect()
        }
        other => panic!("{other:?}"),
    }
}

fn check(record: &Record<'_>, k: i64) {
    let get = |name: &str| {
        record
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in row {k}"))
    };
    let number = |name, dtype| floats(dtype, get(name));
    let sign = if k % 2 == 0 { 1 } else { -1 };
    assert_eq!(
        get("i"),
        &Value::integers(&[sign * k * 1_000_000_000_000_000])
    );
    assert_eq!(number("u", NumberType::U32), [(4_294_967_295 - k) as f64]);
    assert_eq!(number("small", NumberType::I32), [(k - 3) as f64]);
    assert_eq!(number("f", NumberType::F32), [k as f64 / 4.0]);
    assert_eq!(number("d", NumberType::F64), [k as f64 / 3.0]);
    assert_eq!(number("h", NumberType::F16), [k as f64 / 2.0]);
    assert_eq!(
        number("b", NumberType::Bool),
        [f64::from(u8::from(k % 3 == 0))]
    );
    let bytes = |bytes: &[u8]| Value::Bytes(bytes.to_vec().into());
    assert_eq!(get("s"), &bytes(format!("label {}", k % 2).as_bytes()));
    assert_eq!(get("bin"), &bytes(&vec![k as u8; k as usize]));
    assert_eq!(get("fixed"), &bytes(&[k as u8, k as u8 + 1]));
    assert_eq!(get("cat"), &bytes(&[b"xyxxyxy"[k as usize]]));
    assert_eq!(get("image.bytes"), &bytes(format!("img{k}").as_bytes()));
    let path = record.get("image.path");
    assert_eq!(
        path,
        (k != 2).then(|| bytes(format!("p{k}").as_bytes())).as_ref()
    );
    let tags = (0..k).map(|_| b"t"[..].into()).collect();
    assert_eq!(get("tags"), &Value::List(tags));
    let counted: Vec<f64> = (0..k).map(|n| n as f64).collect();
    assert_eq!(number("nums", NumberType::I32), counted);
    assert_eq!(record.get("maybe").is_some(), k % 2 == 0);
}

#[test]
fn files_of_pyarrow_are_read_value_for_value() {
    for (compression, file) in FILES {
        let format = wanted(&SOUND);
        let records = read_all(&format, file).unwrap();
        assert_eq!(records.len(), 7, "{compression}");
        for (k, record) in records.iter().enumerate() {
            check(record, k as i64);
        }
        let extents = scanned(&format, file).unwrap().extents;
        let counts: Vec<_> = extents.iter().map(|extent| extent.records).collect();
        assert_eq!(counts, [3, 3, 1], "{compression}");
    }
}

#[test]
fn only_wanted_columns_are_read() {
    let (_, file) = FILES[1];
    let bytes = |fields: &[&str]| {
        let open = wanted(fields).open(MemoryObject::of(file)).unwrap();
        let extents = scanned(&wanted(fields), file).unwrap().extents;
        let ranges = open.ranges(&extents[0]);
        assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
        ranges
            .iter()
            .map(|range| range.end - range.start)
            .sum::<u64>()
    };
    assert!(0 < bytes(&["b"]) && bytes(&["b"]) * 5 < bytes(&SOUND));
    let records = read_all(&wanted(&["d", "s", "absent"]), file).unwrap();
    let names: Vec<_> = records[0].fields.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["d", "s"]);
    assert!(
        read_all(&wanted(&["absent"]), file).unwrap()[0]
            .fields
            .is_empty()
    );
}

#[test]
fn nulls_in_lists_make_a_row_bad_and_empty_lists_are_empty() {
    let (_, file) = FILES[2];
    let format = wanted(&["holes"]);
    let error = read_all(&format, file).unwrap_err().to_string();
    assert!(
        error.contains("row 1 of the row group: the list in column \"holes\" has a null"),
        "{error}"
    );
    let open = format.open(MemoryObject::of(file)).unwrap();
    let extent = scanned(&format, file).unwrap().extents[0];
    let pieces = open.ranges(&extent).into_iter();
    let pieces = pieces.map(|range| {
        file[range.start as usize..range.end as usize]
            .to_vec()
            .into()
    });
    let records = open.parse(&extent, pieces.collect()).unwrap();
    for (row, expected) in [(0, &[][..]), (1, &[1]), (2, &[])] {
        assert_eq!(
            records.record(row).unwrap().get("holes"),
            Some(&Value::integers(expected))
        );
    }
    assert!(records.record(3).is_err());
}

#[test]
fn damage_is_found_or_harmless() {
    let format = wanted(&SOUND);
    for (compression, file) in [FILES[0], FILES[1], FILES[2]] {
        let before = scanned(&format, file).unwrap();
        let records = read_all(&format, file).unwrap();
        let footer = file.len() - 9;
        for at in 0..file.len() {
            // The footer is long.
            if at > 4 && at < footer && at % 7 != 0 {
                continue;
            }
            let mut damaged = file.to_vec();
            damaged[at] ^= 0x55;
            let Ok(found) = scanned(&format, &damaged) else {
                continue;
            };
            if found.hash == before.hash {
                // Outside the footer: detected by the checksums of pages, or in unused bytes.
                match read_all(&format, &damaged) {
                    Ok(read) => assert_eq!(read, records, "{compression}, byte {at}"),
                    Err(error) => assert!(matches!(error, DataError::Record(_)), "{error}"),
                }
            } else {
                let _ = read_all(&format, &damaged);
            }
        }
        for end in (0..file.len()).step_by(11) {
            assert!(scanned(&format, &file[..end]).is_err(), "cut at {end}");
        }
    }
}

fn vector(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors");
    std::fs::read(format!("{folder}/{name}.parquet")).unwrap()
}

#[test]
fn decimals_are_the_numbers_that_were_written() {
    for name in ["decimals", "decimals.integers"] {
        let format = wanted(&["price", "medium", "large", "small", "list"]);
        let records = read_all(&format, &vector(name)).unwrap();
        let column = |name: &str| -> Vec<Vec<f64>> {
            let values = records.iter().map(|record| record.get(name));
            values
                .map(|value| value.map_or(Vec::new(), |value| floats(NumberType::F64, value)))
                .collect()
        };
        assert_eq!(
            column("price"),
            [vec![0.57], vec![-1.25], vec![], vec![99_999.99]]
        );
        assert_eq!(
            column("medium").concat(),
            [0.57, -1.25, 90_071_992_547.409_93, 1.0]
        );
        assert_eq!(
            column("large").concat(),
            [1.234_567_890_123_457e34, -0.001, 0.1, 7.0]
        );
        assert_eq!(column("small").concat(), [1.5, 2.0, -3.25, 0.0]);
        assert_eq!(
            column("list"),
            [vec![0.5], vec![], vec![1.5, 2.5], vec![-1.0]]
        );
    }
}

#[test]
fn unsupported_columns_are_refused_by_name() {
    for (file, column, word) in [
        ("decimals", "huge", "decimals of 60 digits"),
        ("unsupported", "date", "dates"),
        ("unsupported", "time", "times"),
        ("unsupported", "when", "timestamps"),
        ("unsupported", "none", "columns of nulls"),
        ("unsupported", "pairs.key_value.key", "maps"),
        ("unsupported", "nested", "nested lists"),
        ("table.zstd", "matrix", "nested lists"),
        ("int96", "when", "INT96 timestamps"),
        ("brotli", "good", "compressed by brotli"),
        ("encrypted", "good", "encrypted Parquet files"),
        ("encrypted.plain_footer", "good", "encrypted Parquet files"),
    ] {
        let error = read_all(&wanted(&[column]), &vector(file))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(word) && error.contains("not supported"),
            "{error}"
        );
    }
    // Without a selection of fields the supported columns are read.
    let all = Parquet::new(FieldSelection::All);
    let records = read_all(&all, &vector("unsupported")).unwrap();
    let names: Vec<_> = records[0].fields.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["good"]);
}

#[test]
fn every_byte_of_the_requested_columns_is_part_of_the_content_hash() {
    // Without checksums of pages, as most writers leave them out.
    let file = vector("unsupported");
    let format = wanted(&["good"]);
    let before = scanned(&format, &file).unwrap().hash;
    let extent = scanned(&format, &file).unwrap().extents[0];
    let open = format.open(MemoryObject::of(&file)).unwrap();
    for at in open.ranges(&extent).into_iter().flatten() {
        let mut damaged = file.clone();
        damaged[at as usize] ^= 1;
        assert_ne!(
            scanned(&format, &damaged).unwrap().hash,
            before,
            "byte {at}"
        );
    }
}

#[test]
fn a_file_that_changed_since_its_scan_is_an_error() {
    let (_, file) = FILES[0];
    let format = wanted(&["i"]);
    let open = format.open(MemoryObject::of(file)).unwrap();
    let extent = scanned(&format, file).unwrap().extents[0];
    let error = |extent: &Extent, pieces| open.parse(extent, pieces).err().unwrap().to_string();
    assert!(error(&extent, Vec::new()).contains("changed after it was scanned"));
    let other = Extent {
        start: extent.start + 1,
        ..extent
    };
    assert!(error(&other, Vec::new()).contains("no such row group"));
    assert!(open.ranges(&other).is_empty());
    let other = Extent {
        records: 2,
        ..extent
    };
    assert!(error(&other, Vec::new()).contains("different rows"));
}
