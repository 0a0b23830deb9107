//! Arrays of every type and in every kind of archive, damage, impossible shapes.

use super::super::NumberType;
use super::*;
use crate::format::testing::{MemoryObject, read_all, scanned};
use crate::format::{FieldSelection, Record, Value};

fn npy(descr: &str, shape: &str, numbers: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&(header.len() as u16).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(numbers);
    file
}

fn row(record: &Record<'_>, name: &str) -> (NumberType, Vec<u8>) {
    match record.get(name) {
        Some(Value::Numbers { dtype, bytes }) => (*dtype, bytes.to_vec()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rows_of_a_file_are_records() {
    let numbers: Vec<u8> = (0..240).collect();
    let file = npy("<u2", "(10, 3, 4)", &numbers);
    let records = read_all(&Npy, &file).unwrap();
    assert_eq!(records.len(), 10);
    assert_eq!(
        row(&records[3], "array"),
        (NumberType::U16, numbers[72..96].to_vec())
    );
    let flat = read_all(&Npy, &npy("|u1", "(240,)", &numbers)).unwrap();
    assert_eq!(row(&flat[7], "array"), (NumberType::U8, vec![7]));
    assert!(
        read_all(&Npy, &npy("<f4", "(0, 5)", &[]))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn large_arrays_are_many_extents() {
    let numbers: Vec<u8> = (0..300_000_u32).map(|n| (n % 253) as u8).collect();
    let file = npy("|u1", "(1000, 300)", &numbers);
    assert!(scanned(&Npy, &file).unwrap().extents.len() > 3);
    let records = read_all(&Npy, &file).unwrap();
    let all: Vec<u8> = records
        .iter()
        .flat_map(|record| row(record, "array").1)
        .collect();
    assert_eq!(all, numbers);
}

#[test]
fn arrays_without_records_are_refused() {
    for (descr, shape, bytes, word) in [
        ("<f4", "()", 4, "single number"),
        ("<f4", "(3, 0)", 0, "empty"),
        ("<f4", "(3, 2)", 23, "does not match"),
        ("<f4", "(3, 2)", 25, "does not match"),
        ("<f4", "(4611686018427387904, 4)", 24, "too many"),
        (">f4", "(3, 2)", 24, "little-endian"),
    ] {
        let error = scanned(&Npy, &npy(descr, shape, &vec![0; bytes]))
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(word) && error.contains("memory"), "{error}");
    }
}

#[test]
fn damage_changes_the_identity_or_is_found() {
    let file = npy("<i2", "(4, 3)", &[9; 24]);
    let before = scanned(&Npy, &file).unwrap();
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        if let Ok(found) = scanned(&Npy, &damaged) {
            assert_ne!(found.hash, before.hash, "byte {at}");
            read_all(&Npy, &damaged).unwrap();
        }
        assert!(scanned(&Npy, &file[..at]).is_err());
    }
}

const STORED: &[u8] = include_bytes!("../../../tests/vectors/stored.npz");
const PACKED: &[u8] = include_bytes!("../../../tests/vectors/packed.npz");

#[test]
fn archives_of_numpy_are_read_stored_and_compressed() {
    // x = arange(60, dtype="<f4").reshape(5, 3, 4) / 4, y = [3, 1, 4, 1, 5] as i8, both with 5 rows; z has 2.
    let both = || FieldSelection::fields(["x", "y"]);
    for file in [STORED, PACKED] {
        let records = read_all(&Npz::new(both()), file).unwrap();
        assert_eq!(records.len(), 5);
        for (number, record) in records.iter().enumerate() {
            let expected: Vec<u8> = (0..12)
                .flat_map(|n| ((number * 12 + n) as f32 / 4.0).to_le_bytes())
                .collect();
            assert_eq!(row(record, "x"), (NumberType::F32, expected));
            assert_eq!(
                row(record, "y"),
                (NumberType::I8, vec![[3, 1, 4, 1, 5][number]])
            );
        }
        let one = read_all(&Npz::new(FieldSelection::fields(["z"])), file).unwrap();
        assert_eq!(one.len(), 2);
        let error = scanned(&Npz::new(FieldSelection::All), file)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("must be equal"), "{error}");
        let none = Npz::new(FieldSelection::fields(["absent"]));
        assert!(scanned(&none, file).is_err());
    }
}

#[test]
fn damaged_numbers_of_stored_arrays_are_found_by_their_checksum() {
    let format = Npz::new(FieldSelection::fields(["x"]));
    let open = format.open(MemoryObject::of(STORED)).unwrap();
    let found = scanned(&format, STORED).unwrap();
    assert_eq!((found.bad.len(), found.extents.len()), (0, 1));
    for at in open.ranges(&found.extents[0]).into_iter().flatten() {
        let mut damaged = STORED.to_vec();
        damaged[at as usize] ^= 1;
        let found = scanned(&format, &damaged).unwrap();
        assert_eq!((found.bad.len(), found.extents.len()), (1, 0), "byte {at}");
        assert!(
            found.bad[0]
                .problem
                .contains("array \"x\" is damaged: wrong CRC-32")
        );
    }
}

#[test]
fn the_hash_of_a_large_array_covers_every_byte() {
    let file = npy("<f4", "(100000, 2)", &vec![7; 800_000]);
    let before = scanned(&Npy, &file).unwrap().hash;
    for at in [100_000, 400_000, 700_000] {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        assert_ne!(scanned(&Npy, &damaged).unwrap().hash, before, "byte {at}");
    }
}

#[test]
fn damaged_archives_are_detected_or_differ() {
    let format = Npz::new(FieldSelection::fields(["x", "y"]));
    for file in [STORED, PACKED] {
        let before = scanned(&format, file).unwrap().hash;
        let records = read_all(&format, file).unwrap();
        for at in 0..file.len() {
            for value in [0, 0xff, file[at] ^ 1] {
                let mut damaged = file.to_vec();
                damaged[at] = value;
                if let Ok(found) = scanned(&format, &damaged) {
                    let read = read_all(&format, &damaged);
                    // A damaged byte outside the arrays, such as in a local header, changes nothing.
                    let is_harmless = || read.is_ok_and(|read| read == records);
                    assert!(found.hash != before || is_harmless(), "byte {at}");
                }
            }
            assert!(scanned(&format, &file[..at]).is_err(), "cut at {at}");
        }
    }
    // A file that changes after its scan.
    let open = format.open(MemoryObject::of(PACKED)).unwrap();
    let extent = scanned(&format, PACKED).unwrap().extents[0];
    let ranges = open.ranges(&extent);
    let mut pieces: Vec<Vec<u8>> = ranges
        .iter()
        .map(|range| PACKED[range.start as usize..range.end as usize].to_vec())
        .collect();
    pieces[0][20] ^= 1;
    let pieces = pieces.into_iter().map(SharedBytes::from).collect();
    assert!(
        open.parse(&extent, pieces)
            .err()
            .unwrap()
            .to_string()
            .contains("changed after it was scanned")
    );
}
