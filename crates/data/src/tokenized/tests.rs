//! Tokens of text: those of the whole, made once, told where there is no text.
#![cfg(feature = "full")]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::*;
use crate::format::BadRecord;
use crate::format::testing::{Memory, gzip};

/// A byte-level one with 512 tokens.
const TOKENIZER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/data/tokenizer.json"
);
/// A novel's beginning, compressed.
const TEXT: &[u8] = include_bytes!("../../assets/pride.txt.gz");

struct InMemory {
    location: String,
    bytes: Vec<u8>,
    opened: AtomicUsize,
}

impl DataFile for InMemory {
    fn location(&self) -> &str {
        &self.location
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn stamp(&self) -> &str {
        "1"
    }

    fn open(&self) -> Result<Arc<dyn StoredObject>, DataError> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(Memory::at(&self.location, &self.bytes))
    }
}

fn file(location: &str, bytes: &[u8]) -> Arc<InMemory> {
    Arc::new(InMemory {
        location: location.to_owned(),
        bytes: bytes.to_vec(),
        opened: AtomicUsize::new(0),
    })
}

fn novel() -> String {
    use std::io::Read;
    let mut text = String::new();
    let mut unpacked = flate2::read::GzDecoder::new(TEXT);
    unpacked.read_to_string(&mut text).unwrap();
    text
}

fn recipe() -> Recipe {
    let tokenizer = Tokenizer::open(Path::new(TOKENIZER)).unwrap();
    Recipe {
        end_of_text: tokenizer.token("<|endoftext|>"),
        field: "text".to_owned(),
        tokenizer,
    }
}

fn place(folder: &TempDir, key: Option<MasterKey>) -> Place {
    let mut opening = Opening::new(Path::new("."), 0);
    opening.cache_folder = Some(folder.path().to_owned());
    Place::new(&opening, key).unwrap()
}

/// The tokens of a file, and what was left out of it.
type Made = (Vec<u32>, Vec<BadRecord>);

/// The tokens of files.
fn tokens(files: &[Arc<InMemory>], place: &Place, threads: usize) -> Result<Vec<Made>, DataError> {
    let files: Vec<Arc<dyn DataFile>> = files.iter().map(|file| file.clone() as _).collect();
    let made = tokenize(&files, &recipe(), place, threads, &|share| {
        assert!((0.0..=1.0).contains(&share), "{share}");
    })?;
    let read = |file: &Arc<dyn DataFile>| {
        let object = file.open()?;
        let told = Told::read(&*object).unwrap();
        let mut bytes = vec![0; told.bytes as usize];
        object.read_at(0, &mut bytes)?;
        let tokens = bytes.chunks_exact(2);
        let tokens = tokens.map(|two| u32::from(u16::from_le_bytes([two[0], two[1]])));
        Ok((tokens.collect(), told.bad().collect()))
    };
    made.iter().map(read).collect()
}

#[test]
fn long_documents_have_the_tokens_that_they_have_in_one_piece() {
    let text = novel().repeat(30);
    assert!(text.len() > 3 * BATCH_BYTES);
    let recipe = recipe();
    let mut expected = recipe.tokenizer.encode(&text).unwrap();
    expected.extend(recipe.end_of_text);
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("a.txt", text.as_bytes().to_vec()),
        ("a.txt.gz", gzip(text.as_bytes())),
    ] {
        let made = tokens(&[file(name, &bytes)], &place(&folder, None), 2).unwrap();
        assert!(made[0].0 == expected, "{name}");
        assert!(made[0].1.is_empty());
    }
}

#[test]
fn long_lines_of_json_and_texts_without_spaces_are_cut_between_characters() {
    let recipe = recipe();
    let folder = tempfile::tempdir().unwrap();
    let long = novel().repeat(3);
    let line = serde_json::to_vec(&serde_json::json!({ "text": long })).unwrap();
    let solid = "zwölf€".repeat(40_000);
    let files = [file("a.jsonl", &line), file("b.txt", solid.as_bytes())];
    let made = tokens(&files, &place(&folder, None), 2).unwrap();
    let mut expected = recipe.tokenizer.encode(&long).unwrap();
    expected.extend(recipe.end_of_text);
    assert!(made[0].0 == expected);
    // A text that can be cut nowhere has other tokens at the cuts, and the same characters.
    let decoded = recipe.tokenizer.decode(&made[1].0);
    assert!(decoded == solid && made[1].1.is_empty());
}

#[test]
fn lines_of_json_are_documents_and_those_that_are_none_are_left_out() {
    let lines = b"{\"text\": \"one\", \"id\": 1}\n\n{\"text\": 2}\nnothing\n{\"id\": 4}\n{\"text\": \"one\"}";
    let folder = tempfile::tempdir().unwrap();
    let made = tokens(&[file("d/a.jsonl", lines)], &place(&folder, None), 3).unwrap();
    let recipe = recipe();
    let mut one = recipe.tokenizer.encode("one").unwrap();
    one.extend(recipe.end_of_text);
    assert_eq!(made[0].0, [one.clone(), one].concat());
    let bad = &made[0].1;
    let places: Vec<_> = bad.iter().map(|bad| (bad.offset, bad.record)).collect();
    assert_eq!(places, [(26, Some(2)), (38, Some(3)), (46, Some(4))]);
    assert!(bad.iter().all(|bad| bad.file == "d/a.jsonl"));
    assert!(bad[0].problem.contains("is no text") && bad[2].problem.contains("no field"));
}

#[test]
fn what_is_no_text_is_left_out_and_told() {
    let mut text = novel().repeat(12).into_bytes();
    text[5] = 0xff;
    let folder = tempfile::tempdir().unwrap();
    let place = place(&folder, None);
    let half = gzip(&text);
    let made = tokens(
        &[
            file("a.txt", &text),
            file("empty.txt", b""),
            file("b.txt.gz", &half[..half.len() / 2]),
        ],
        &place,
        2,
    )
    .unwrap();
    assert!(made[0].0.len() > 1000 && made[0].1.len() == 1);
    assert!(made[0].1[0].problem.contains("no UTF-8") && made[0].1[0].offset == 5);
    assert_eq!(made[1], (vec![], vec![]));
    assert!(
        made[2]
            .1
            .last()
            .unwrap()
            .problem
            .contains("cannot decompress")
    );
}

#[test]
fn tokens_are_made_once_and_again_where_they_are_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let place = place(&folder, None);
    let files = [file("a.txt", b"some words"), file("b.txt", b"other words")];
    let first = tokens(&files, &place, 2).unwrap();
    assert_eq!(tokens(&files, &place, 2).unwrap(), first);
    let opened = || files.iter().map(|file| file.opened.load(Ordering::Relaxed));
    assert_eq!(opened().collect::<Vec<_>>(), [1, 1]);
    let kept: Vec<_> = std::fs::read_dir(&place.folder).unwrap().collect();
    assert_eq!(
        kept.len(),
        2,
        "no lock and no part of a file is left: {kept:?}"
    );
    let one = kept[0].as_ref().unwrap().path();
    let bytes = std::fs::read(&one).unwrap();
    std::fs::write(&one, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(tokens(&files, &place, 1).unwrap(), first);
    assert_eq!(opened().sum::<usize>(), 3);
}

#[test]
fn threads_that_want_the_same_tokens_make_them_once() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..6)
        .map(|n| file(&format!("{n}.txt"), novel().as_bytes()))
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| tokens(&files, &place(&folder, None), 2).unwrap());
        }
    });
    let opened = files.iter().map(|file| file.opened.load(Ordering::Relaxed));
    assert_eq!(opened.collect::<Vec<_>>(), [1; 6]);
}

#[test]
fn encrypted_tokens_are_not_those_of_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let files = [file("a.txt", b"some words, and some more words")];
    let plain = tokens(&files, &place(&folder, None), 1).unwrap();
    let sealed = tempfile::tempdir().unwrap();
    let place = place(&sealed, Some(MasterKey::generate().unwrap()));
    assert_eq!(tokens(&files, &place, 1).unwrap(), plain);
    let file = std::fs::read_dir(&place.folder).unwrap().next().unwrap();
    let bytes = std::fs::read(file.unwrap().path()).unwrap();
    assert!(!bytes.windows(8).any(|window| window == b"RONDETOK"));
}

#[test]
fn files_that_are_no_tokenizers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    for text in ["", "{}", "{\"model\": 3}"] {
        std::fs::write(&path, text).unwrap();
        let error = Tokenizer::open(&path).unwrap_err().to_string();
        assert!(error.starts_with("data.format.tokenizer: ") && error.contains("tokenizer.json"));
    }
    assert!(Tokenizer::open(Path::new("/no/such")).is_err());
}
