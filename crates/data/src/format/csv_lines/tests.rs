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

#[test]
fn a_first_line_that_may_be_a_heading_or_a_record_is_refused_unless_it_is_set() {
    let floats = "0.12,-0.13,0.64,0.1\n0.36,1.3,0.94,1.5\n-0.7,-1.2,-0.6,2e-3\n";
    let with_index = "0,0.12,-0.13,0.64\n1,0.36,1.3,0.94\n2,-0.7,-1.2,-0.6\n";
    let integers = "4,5,6,7\n8,9,1,2\n3,4,5,6\n";
    for (heading, rows) in [
        // pandas: to_csv(index=False), to_csv(), two tables side by side, some columns, years.
        ("0,1,2,3", floats),
        ("0,1,2,3", integers),
        (",0,1,2", with_index),
        ("\"0\",\"1\",\"2\",\"3\"", integers),
        ("0,1,2,0", integers),
        ("0,2,5,7", floats),
        ("2019,2020,2021,2022", floats),
        ("label,0,1,2", integers),
        ("0,1,2,label", integers),
        ("0", "5\n6\n"),
        (",0", "0,5\n1,6\n"),
    ] {
        let file = format!("{heading}\n{rows}");
        let count = rows.lines().count();
        for file in [file.as_bytes().to_vec(), gzip(file.as_bytes())] {
            let error = read_all(&all(), &file).err().unwrap().to_string();
            assert!(
                error.contains("line 1, `") && error.contains("header = true }"),
                "{heading}: {error}"
            );
            for (header, records) in [(true, count), (false, count + 1)] {
                if header && heading == "0,1,2,0" {
                    // Two columns of one name.
                    continue;
                }
                let format = CsvLines::new(Some(header), FieldSelection::All);
                assert_eq!(texts(&format, &file).len(), records, "{heading}");
            }
        }
    }
    // First lines that are records for certain, or unlikely to be anything else.
    for (file, records) in [
        ("0.0,0,0\n0.1,1,1\n", 2),
        ("1,2,3\n4,5,6\n7,8,9\n2,2,2\n", 4),
        ("5,1,4\n0,0,1\n", 2),
        ("0,0,0\n0,1,1\n", 2),
        ("good film,1\nbad film,0\n", 2),
        ("1,0\n0.5,1\n0.25,0\n", 3),
        ("-0,1\n2,3\n", 2),
        ("x,y\n0,1\n", 1),
    ] {
        assert_eq!(texts(&all(), file.as_bytes()).len(), records, "{file}");
    }
}

#[test]
fn a_text_above_texts_is_a_heading_only_if_a_column_is_named_by_it() {
    let file = b"text,mood\ngood film,happy\nbad film,sad\n";
    let read = |header, fields: &[&str]| {
        let wanted = FieldSelection::fields(fields.iter().copied());
        read_all(&CsvLines::new(header, wanted), file).map(|records| records.len())
    };
    assert_eq!(read(None, &["mood"]).unwrap(), 2);
    let error = read(None, &["0", "1"]).unwrap_err().to_string();
    assert!(
        error.contains("line 1, `text,mood`, may be a heading"),
        "{error}"
    );
    assert_eq!(read(Some(true), &["0", "1"]).unwrap(), 2);
    assert_eq!(read(Some(false), &["0", "1"]).unwrap(), 3);
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
