//! Headings, quotes, blank lines, bad lines, damage at every byte.

use proptest::prelude::*;

use super::*;
use crate::format::testing::{gzip, read_all, scanned};

fn all() -> CsvLines {
    CsvLines::new(None, FieldSelection::All)
}

/// Returns names and texts of all records.
fn texts(format: &CsvLines, file: &[u8]) -> Vec<Vec<(String, String)>> {
    let text = |value: &Value<'_>| match value {
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    let records = read_all(format, file).unwrap();
    let fields = |record: &Record<'_>| {
        let fields = record.fields.iter();
        fields
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect()
    };
    records.iter().map(fields).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, text)| (name.to_string(), text.to_string()))
        .collect()
}

const FILE: &[u8] =
    b"\xEF\xBB\xBFname,\"the, value\"\r\nanna,1\r\n\r\n\"bo \"\"b\"\"\",\"2\n3\"\n, 4 ";

#[test]
fn lines_are_records_named_by_the_heading() {
    let expected = [
        pairs(&[("name", "anna"), ("the, value", "1")]),
        pairs(&[("name", "bo \"b\""), ("the, value", "2\n3")]),
        pairs(&[("name", ""), ("the, value", " 4 ")]),
    ];
    assert_eq!(texts(&all(), FILE), expected);
    assert_eq!(texts(&all(), &gzip(FILE)), expected);
    let hash = |file: &[u8]| scanned(&all(), file).unwrap().hash;
    assert_eq!(hash(FILE), hash(&gzip(FILE)));
    let wanted = FieldSelection::fields(["1", "name", "absent"]);
    let few = texts(&CsvLines::new(None, wanted), FILE);
    assert_eq!(few[0], pairs(&[("1", "1"), ("name", "anna")]));
}

#[test]
fn without_a_heading_columns_are_numbered() {
    let numbers = b"1,2\n3,4\n";
    assert_eq!(texts(&all(), numbers)[1], pairs(&[("0", "3"), ("1", "4")]));
    assert_eq!(
        texts(&CsvLines::new(Some(true), FieldSelection::All), numbers),
        [pairs(&[("1", "3"), ("2", "4")])]
    );
    let names = b"a,b\n3,4";
    assert_eq!(
        texts(&CsvLines::new(Some(false), FieldSelection::All), names)[0],
        pairs(&[("0", "a"), ("1", "b")])
    );
    assert!(
        texts(&all(), b"").is_empty()
            && texts(&all(), b"\n\n").is_empty()
            && texts(&all(), b"a,b\n").is_empty()
    );
}

#[test]
fn lines_with_other_numbers_of_fields_are_bad() {
    let file = b"a,b\n1,2\n3\n4,5\n6,7,8\n9,10\n11,\"12\n13,14\n";
    for file in [file.to_vec(), gzip(file)] {
        let found = scanned(&all(), &file).unwrap();
        let bad: Vec<_> = found
            .bad
            .iter()
            .map(|bad| (bad.record.unwrap(), bad.offset))
            .collect();
        assert_eq!(bad, [(1, 8), (3, 14), (5, 25)]);
        assert!(
            found.bad[0]
                .problem
                .contains("has 1 fields, but the first line has 2")
        );
        assert!(found.bad[2].problem.contains("quote"));
        let first: Vec<_> = texts(&all(), &file)
            .into_iter()
            .map(|record| record[0].1.clone())
            .collect();
        assert_eq!(first, ["1", "4", "9"]);
    }
}

#[test]
fn quotes_inside_of_unquoted_fields_are_characters() {
    let file = b"size,count\r\n5\" pipe,6\r\n6\" nail,7\r\n";
    let expected = [
        pairs(&[("size", "5\" pipe"), ("count", "6")]),
        pairs(&[("size", "6\" nail"), ("count", "7")]),
    ];
    assert_eq!(texts(&all(), file), expected);
    let end = file.len() - 2;
    assert_eq!(texts(&all(), &file[..end]), expected, "without a line end");
}

#[test]
fn the_last_line_needs_no_line_end_unless_a_quote_is_open() {
    for (end, expected) in [
        ("3,4", Some("4")),
        ("3,\"4\"", Some("4")),
        ("3,\"4\"\"\"", Some("4\"")),
        ("3,4\"", Some("4\"")),
        ("3,", Some("")),
        ("3,4\r", Some("4")),
        ("3,\"4", None),
        ("3,\"4\"\"", None),
        ("3,\"4\"\"\n", None),
    ] {
        let file = format!("a,b\n1,2\n{end}");
        for file in [file.as_bytes().to_vec(), gzip(file.as_bytes())] {
            let found = scanned(&all(), &file).unwrap();
            let last = texts(&all(), &file).pop().unwrap();
            assert_eq!(last[1].1, expected.unwrap_or("2"), "{end:?}");
            assert_eq!(found.bad.len(), usize::from(expected.is_none()), "{end:?}");
        }
    }
}

#[test]
fn other_encodings_and_duplicate_headings_are_refused_by_name() {
    let utf16: Vec<u8> = "a,b\n1,2\n"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let with_mark = [&[0xff, 0xfe][..], &utf16].concat();
    for (file, word) in [
        (&utf16[..], "UTF-16"),
        (&with_mark, "UTF-16"),
        (
            b"a,b,a\n1,2,3\n",
            "two columns of the heading have the name \"a\"",
        ),
    ] {
        for file in [file.to_vec(), crate::format::testing::gzip(file)] {
            let format = CsvLines::new(Some(true), FieldSelection::All);
            let error = scanned(&format, &file).err().unwrap().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}

#[test]
fn large_files_are_many_extents() {
    let mut file = b"n,text\n".to_vec();
    for number in 0..30_000 {
        file.extend_from_slice(format!("{number},\"line {number}\"\n").as_bytes());
    }
    let found = scanned(&all(), &file).unwrap();
    assert!(found.extents.len() > 5 && found.extents.iter().all(|extent| extent.bytes <= 64 << 10));
    let records = texts(&all(), &file);
    assert_eq!(records.len(), 30_000);
    assert!(
        records
            .iter()
            .enumerate()
            .all(|(n, record)| record[0].1 == n.to_string())
    );
}

#[test]
fn damage_changes_the_identity_and_never_panics() {
    for file in [FILE.to_vec(), gzip(FILE)] {
        let before = scanned(&all(), &file).unwrap();
        for at in 0..file.len() {
            for value in [b'"', b'\n', b',', 0xff] {
                let mut damaged = file.clone();
                damaged[at] = value;
                let Ok(found) = scanned(&all(), &damaged) else {
                    continue;
                };
                let is_same = damaged == file || found.hash == before.hash;
                let count: u32 = found.extents.iter().map(|extent| extent.records).sum();
                assert_eq!(read_all(&all(), &damaged).unwrap().len(), count as usize);
                assert!(!is_same || found.extents == before.extents);
            }
        }
    }
}

proptest! {
    #[test]
    fn written_lines_are_read_back(
        rows in proptest::collection::vec(("[a-z\",\n ]{0,8}", "[a-z\",\n]{1,8}"), 0..9)
    ) {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let mut file = "x,y\n".to_owned();
        for (a, b) in &rows {
            file += &format!("{},{}\n", quoted(a), quoted(b));
        }
        let read = texts(&all(), file.as_bytes());
        let expected: Vec<_> = rows.iter().map(|(a, b)| pairs(&[("x", a), ("y", b)])).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn any_bytes_are_lines_or_told(bytes in proptest::collection::vec(
        prop_oneof![any::<u8>(), Just(b'\n'), Just(b','), Just(b'"')], 0..200)
    ) {
        if let Ok(found) = scanned(&all(), &bytes) {
            let count: u32 = found.extents.iter().map(|extent| extent.records).sum();
            prop_assert_eq!(read_all(&all(), &bytes).unwrap().len(), count as usize);
        }
    }
}
