//! Records of consecutive members, long names, damage at every byte and every end.

use super::*;
use crate::format::testing::{MemoryObject, gzip, read_all, scanned};

fn all() -> WebDataset {
    WebDataset::new(FieldSelection::All)
}

/// A ustar entry.
fn entry(name: &str, kind: u8, contents: &[u8]) -> Vec<u8> {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{:011o}\0", contents.len()).as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].copy_from_slice(b"        ");
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut out = block.to_vec();
    out.extend_from_slice(contents);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut out = entries.concat();
    out.resize(out.len() + 1024, 0);
    out
}

fn two() -> Vec<u8> {
    archive(&[
        entry("./", b'5', b""),
        entry("a/1.jpg", b'0', b"first"),
        entry("a/1.cls", b'0', b"7"),
        entry("README", b'0', b"no record"),
        entry("a/2.JPG", b'0', &[5; 700]),
        entry("a/2.seg.png", b'0', b""),
    ])
}

fn fields(record: &Record<'_>) -> Vec<(String, Vec<u8>)> {
    let fields = record.fields.iter().map(|(name, value)| match value {
        Value::Bytes(bytes) => (name.to_string(), bytes.to_vec()),
        other => panic!("{other:?}"),
    });
    fields.collect()
}

#[test]
fn consecutive_members_of_one_name_form_a_record() {
    for file in [two(), gzip(&two())] {
        let records = read_all(&all(), &file).unwrap();
        let told: Vec<_> = records.iter().map(fields).collect();
        let field = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.to_vec());
        assert_eq!(
            told,
            [
                vec![
                    field("__key__", b"a/1"),
                    field("jpg", b"first"),
                    field("cls", b"7")
                ],
                vec![
                    field("__key__", b"a/2"),
                    field("jpg", &[5; 700]),
                    field("seg.png", b"")
                ],
            ]
        );
    }
    let hash = |file: &[u8]| scanned(&all(), file).unwrap().hash;
    assert_eq!(hash(&two()), hash(&gzip(&two())));
    let few = WebDataset::new(FieldSelection::fields(["cls"]));
    let records = read_all(&few, &two()).unwrap();
    assert_eq!((records[0].fields.len(), records[1].fields.len()), (1, 0));
}

#[test]
fn long_names_of_both_kinds_are_read() {
    let long = format!("{}/x.y.txt", "directory".repeat(20));
    let gnu = entry("././@LongLink", b'L', format!("{long}\0").as_bytes());
    let path = format!(" path={long}\n");
    let length = path.len() + 3;
    let pax = entry("pax", b'x', format!("{length}{path}").as_bytes());
    for header in [gnu, pax] {
        let file = archive(&[header, entry("cut.off", b'0', b"t")]);
        let records = read_all(&all(), &file).unwrap();
        let key = long.strip_suffix(".y.txt").unwrap();
        assert_eq!(
            records[0].get("__key__"),
            Some(&Value::Bytes(key.as_bytes().into()))
        );
        assert_eq!(
            records[0].get("y.txt"),
            Some(&Value::Bytes(b"t"[..].into()))
        );
    }
}

#[test]
fn large_records_have_their_own_extents() {
    let entries: Vec<_> = (0..9)
        .map(|n| entry(&format!("{n}.x"), b'0', &vec![n; 1 << (n + 8)]))
        .collect();
    let file = archive(&entries);
    let found = scanned(&all(), &file).unwrap();
    let counts: Vec<_> = found.extents.iter().map(|extent| extent.records).collect();
    assert_eq!(counts, [5, 1, 1, 1, 1]);
    let records = read_all(&all(), &file).unwrap();
    for (n, record) in records.iter().enumerate() {
        assert_eq!(
            record.get("x"),
            Some(&Value::Bytes(vec![n as u8; 1 << (n + 8)].into()))
        );
    }
}

#[test]
fn a_duplicate_field_makes_a_record_bad() {
    let file = archive(&[
        entry("1.a", b'0', b"x"),
        entry("2.a", b'0', b"x"),
        entry("2.a", b'0', b"y"),
        entry("3.a", b'0', b"z"),
    ]);
    for file in [file.clone(), gzip(&file)] {
        let found = scanned(&all(), &file).unwrap();
        assert_eq!(found.bad.len(), 1);
        assert_eq!(found.bad[0].record, Some(1));
        assert!(found.bad[0].problem.contains("the field \"a\" twice"));
        assert_eq!(read_all(&all(), &file).unwrap().len(), 2);
    }
}

/// A pax header with these fields.
fn pax_entry(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut records = Vec::new();
    for (key, value) in fields {
        let rest = key.len() + value.len() + 3;
        let length = (rest + 1..).find(|length| length.to_string().len() + rest == *length);
        records.extend_from_slice(format!("{} {key}={value}\n", length.unwrap()).as_bytes());
    }
    entry("pax", b'x', &records)
}

#[test]
fn hard_links_and_sparse_files_make_a_record_bad() {
    let sparse = [("path", "GNUSparseFile.1/2.b"), ("GNU.sparse.name", "2.b")];
    for file in [
        archive(&[
            entry("1.a", b'0', b"x"),
            entry("2.a", b'0', b"y"),
            entry("2.b", b'1', b""),
            entry("3.a", b'0', b"z"),
        ]),
        archive(&[
            entry("1.a", b'0', b"x"),
            entry("2.a", b'0', b"y"),
            pax_entry(&sparse),
            entry("short", b'0', b"map and data"),
            entry("3.a", b'0', b"z"),
        ]),
    ] {
        for file in [file.clone(), gzip(&file)] {
            let found = scanned(&all(), &file).unwrap();
            assert_eq!(found.bad.len(), 1);
            let problem = &found.bad[0].problem;
            assert!(problem.contains("member \"2.b\" is a"), "{problem}");
            assert!(problem.contains("which is not supported"), "{problem}");
            let records = read_all(&all(), &file).unwrap();
            let keys: Vec<_> = records
                .iter()
                .map(|record| fields(record)[0].1.clone())
                .collect();
            assert_eq!(keys, [b"1", b"3"]);
        }
    }
}

#[test]
fn damage_is_found_or_changes_the_identity() {
    let sound = two();
    let before = scanned(&all(), &sound).unwrap();
    let content = [1024 + 512 - 512, 1024 + 512].map(|at| at..at + 5);
    for at in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x11;
        let found = scanned(&all(), &damaged).unwrap();
        let is_harmless = found.hash == before.hash && found.extents == before.extents;
        if content[0].contains(&at) {
            assert_ne!(found.hash, before.hash, "byte {at}");
        }
        assert!(
            is_harmless || !found.bad.is_empty() || found.hash != before.hash,
            "byte {at}"
        );
        let count: u32 = found.extents.iter().map(|extent| extent.records).sum();
        assert_eq!(read_all(&all(), &damaged).unwrap().len(), count as usize);
    }
    for end in 0..sound.len() - 1024 {
        let found = scanned(&all(), &sound[..end]).unwrap();
        assert_eq!(found.bad.len(), 1, "cut at {end}");
        let count: u32 = found.extents.iter().map(|extent| extent.records).sum();
        assert_eq!(
            read_all(&all(), &sound[..end]).unwrap().len(),
            count as usize
        );
    }
    let packed = gzip(&sound);
    for at in 0..packed.len() {
        for damaged in [
            &packed[..at],
            &[&packed[..at], &[packed[at] ^ 0x10], &packed[at + 1..]].concat(),
        ] {
            let found = scanned(&all(), damaged).unwrap();
            let count: u32 = found.extents.iter().map(|extent| extent.records).sum();
            assert!(
                count < 2 || !found.bad.is_empty() || found.hash == before.hash,
                "byte {at}"
            );
            assert_eq!(read_all(&all(), damaged).unwrap().len(), count as usize);
        }
    }
}

/// Returns the keys of the records.
fn keys(file: &[u8]) -> Vec<String> {
    let records = read_all(&all(), file).unwrap();
    let key = |record: &Record<'_>| String::from_utf8(fields(record)[0].1.clone()).unwrap();
    records.iter().map(key).collect()
}

#[test]
fn archives_in_one_file_are_read_one_after_the_other() {
    let (first, second) = (
        archive(&[entry("1.a", b'0', b"x"), entry("2.a", b'0', b"y")]),
        archive(&[
            entry("folder/", b'5', b""),
            entry("2.a", b'0', b"z"),
            entry("3.a", b'0', &[7; 900]),
        ]),
    );
    let empty = archive(&[]);
    let padded = [first.clone(), vec![0; 9 * 1024 + 100]].concat();
    for (parts, expected) in [
        // A record ends with its archive: the second one has a record of the same name.
        (vec![&first, &second], &["1", "2", "2", "3"][..]),
        (vec![&first, &empty, &second, &empty], &["1", "2", "2", "3"]),
        (vec![&first, &first], &["1", "2", "1", "2"]),
        (vec![&padded], &["1", "2"]),
        (vec![&empty, &first], &["1", "2"]),
    ] {
        let joined = parts.iter().copied().flatten().copied().collect::<Vec<_>>();
        for file in [joined.clone(), gzip(&joined)] {
            let found = scanned(&all(), &file).unwrap();
            assert!(found.bad.is_empty(), "{:?}", found.bad);
            assert_eq!(keys(&file), expected);
        }
        let packed: Vec<u8> = parts.iter().flat_map(|part| gzip(part)).collect();
        assert_eq!(keys(&packed), expected);
    }
    // The end mark and its padding belong to no extent.
    let end = |file: &[u8]| {
        let extents = scanned(&all(), file).unwrap().extents;
        extents.last().map(|extent| extent.start + extent.bytes)
    };
    assert_eq!(end(&first), Some(2048));
    assert_eq!(end(&padded), Some(2048));
}

#[test]
fn what_follows_the_end_mark_and_is_no_archive_is_bad_with_its_length() {
    let sound = archive(&[entry("1.a", b'0', b"x"), entry("2.a", b'0', b"y")]);
    for rest in [
        vec![b'#'; 700],
        vec![b'#'; 3],
        [vec![0; 512], vec![1; 77]].concat(),
    ] {
        let file = [sound.clone(), rest.clone()].concat();
        let lost = rest.iter().filter(|byte| **byte != 0).count();
        for file in [file.clone(), gzip(&file)] {
            let found = scanned(&all(), &file).unwrap();
            assert_eq!(found.bad.len(), 1);
            let problem = &found.bad[0].problem;
            let told = format!("{lost} bytes after the end of the archive, from byte");
            assert!(problem.contains(&told), "{problem}");
            assert_eq!(keys(&file), ["1", "2"]);
        }
    }
    // The second archive is cut off inside its last member.
    let cut = [sound.clone(), sound[..1024 + 700].to_vec()].concat();
    let found = scanned(&all(), &cut).unwrap();
    assert_eq!(found.bad.len(), 1);
    assert_eq!(keys(&cut), ["1", "2", "1"]);
}

#[test]
fn hostile_lengths_take_no_memory() {
    let mut header = entry("1.x", b'0', b"");
    for size in [
        &b"77777777777\0"[..],
        &[
            0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ],
        &[0xff; 12],
    ] {
        header[124..136].copy_from_slice(size);
        header[148..156].copy_from_slice(b"        ");
        let sum: u64 = header[..512].iter().map(|&byte| u64::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let found = scanned(&all(), &header).unwrap();
        assert_eq!((found.extents.len(), found.bad.len()), (0, 1));
    }
    // An archive with an empty file, and a file that is not an archive.
    assert!(scanned(&all(), &archive(&[])).unwrap().extents.is_empty());
    assert_eq!(scanned(&all(), b"no archive").unwrap().bad.len(), 1);
}

#[test]
fn a_file_that_changed_since_its_scan_is_an_error() {
    let file = two();
    let extent = scanned(&all(), &file).unwrap().extents[0];
    let open = all().open(MemoryObject::of(&file)).unwrap();
    let mut bytes = file[extent.start as usize..][..extent.bytes as usize].to_vec();
    bytes[0] ^= 1;
    let error = open.parse(&extent, vec![bytes.into()]).err().unwrap();
    assert!(
        error.to_string().contains("changed after it was scanned"),
        "{error}"
    );
}

#[test]
fn values_in_json_members_are_fields() {
    let file = archive(&[
        entry("1.json", b'0', br#"{"label": 3, "size": [4, 5]}"#),
        entry("2.json", b'0', b"{"),
        entry("3.txt", b'0', b"none"),
    ]);
    let format = WebDataset::new(FieldSelection::fields([
        "json.label",
        "json.size",
        "json.absent",
    ]));
    let open = format.open(MemoryObject::of(&file)).unwrap();
    let extent = scanned(&format, &file).unwrap().extents[0];
    let records = open.parse(&extent, vec![file.clone().into()]).unwrap();
    let first = records.record(0).unwrap();
    assert_eq!(first.get("json.label"), Some(&Value::integers(&[3])));
    assert_eq!(first.get("json.size"), Some(&Value::integers(&[4, 5])));
    assert_eq!(first.fields.len(), 2);
    assert!(
        records
            .record(1)
            .err()
            .unwrap()
            .to_string()
            .contains("is not valid JSON")
    );
    assert!(records.record(2).unwrap().fields.is_empty());
}
