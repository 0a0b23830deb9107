//! Tests of tokenization: the same tokens as for the whole text, encoded once, with invalid text reported.
#![cfg(feature = "full")]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use super::*;
use crate::format::BadRecord;
use crate::format::testing::{MemoryObject, gzip};

/// A byte-level tokenizer with 512 tokens.
const TOKENIZER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/data/tokenizer.json"
);
/// The compressed beginning of a novel.
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
        Ok(MemoryObject::at(&self.location, &self.bytes))
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

fn tokenization() -> Tokenization {
    let tokenizer = Tokenizer::open(Path::new(TOKENIZER)).unwrap();
    Tokenization {
        end_of_text: tokenizer.token("<|endoftext|>"),
        field: "text".to_owned(),
        tokenizer,
    }
}

fn token_store(folder: &TempDir, key: Option<MasterKey>) -> TokenStore {
    let mut opening = OpenContext::new(Path::new("."), 0);
    opening.cache_folder = Some(folder.path().to_owned());
    TokenStore::new(&opening, key).unwrap()
}

/// The tokens of a file, and its skipped records.
type FileTokens = (Vec<u32>, Vec<BadRecord>);

/// Returns the tokens of files.
fn tokens(
    files: &[Arc<InMemory>],
    token_store: &TokenStore,
    threads: usize,
) -> Result<Vec<FileTokens>, DataError> {
    let files: Vec<Arc<dyn DataFile>> = files.iter().map(|file| file.clone() as _).collect();
    let made = tokenize(
        &files,
        &tokenization(),
        token_store,
        (threads, None),
        &|share| {
            assert!((0.0..=1.0).contains(&share), "{share}");
        },
    )?;
    let read = |file: &Arc<dyn DataFile>| {
        let object = file.open()?;
        let footer = TokenFileFooter::read(&*object).unwrap();
        let mut bytes = vec![0; footer.bytes as usize];
        object.read_at(0, &mut bytes)?;
        let tokens = bytes.chunks_exact(2);
        let tokens = tokens.map(|two| u32::from(u16::from_le_bytes([two[0], two[1]])));
        Ok((tokens.collect(), footer.bad().collect()))
    };
    made.0.iter().map(read).collect()
}

#[test]
fn long_documents_have_the_same_tokens_as_in_one_piece() {
    let text = novel().repeat(30);
    assert!(text.len() > 3 * BATCH_BYTES);
    let tokenization = tokenization();
    let mut expected = tokenization.tokenizer.encode(&text).unwrap();
    expected.extend(tokenization.end_of_text);
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("a.txt", text.as_bytes().to_vec()),
        ("a.txt.gz", gzip(text.as_bytes())),
    ] {
        let made = tokens(&[file(name, &bytes)], &token_store(&folder, None), 2).unwrap();
        assert!(made[0].0 == expected, "{name}");
        assert!(made[0].1.is_empty());
    }
}

#[test]
fn long_lines_of_json_and_texts_without_spaces_have_the_same_tokens() {
    let tokenization = tokenization();
    let folder = tempfile::tempdir().unwrap();
    let long = novel().repeat(3);
    let line = serde_json::to_vec(&serde_json::json!({ "text": long })).unwrap();
    let solid = "zwölf€".repeat(40_000);
    let files = [file("a.jsonl", &line), file("b.txt", solid.as_bytes())];
    let made = tokens(&files, &token_store(&folder, None), 2).unwrap();
    for (made, text) in made.iter().zip([long, solid]) {
        let mut expected = tokenization.tokenizer.encode(&text).unwrap();
        expected.extend(tokenization.end_of_text);
        assert!(made.0 == expected && made.1.is_empty());
    }
}

#[test]
fn texts_without_cuts_are_encoded_at_once_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let token_store = token_store(&folder, None);
    // One word, which no position divides.
    let word = "z".repeat(1 << 20);
    let short = serde_json::json!({ "text": word }).to_string();
    let long = serde_json::json!({ "text": word.repeat(5) }).to_string();
    let lines = format!("{long}\n{short}\n");
    let files = [
        file("a.txt", word.as_bytes()),
        file("b.txt", word.repeat(5).as_bytes()),
        file("c.jsonl", lines.as_bytes()),
    ];
    let made = tokens(&files, &token_store, 1).unwrap();
    let tokenization = tokenization();
    let mut expected = tokenization.tokenizer.encode(&word).unwrap();
    expected.extend(tokenization.end_of_text);
    assert!(made[0] == (expected.clone(), vec![]));
    assert!(made[1].0.is_empty() && made[2].0 == expected);
    for made in &made[1..] {
        assert_eq!((made.1.len(), made.1[0].offset), (1, 0));
        let problem = &made.1[0].problem;
        assert!(problem.contains("no position within 4 MiB"), "{problem}");
    }
}

#[test]
fn texts_that_would_exhaust_the_tokenizer_are_refused() {
    let tokenization = tokenization();
    let spaces = |count| format!("a{}b c", " ".repeat(count));
    let tokens = tokenization.tokenizer.encode(&spaces(400_000)).unwrap();
    let short = tokenization.tokenizer.encode(" b c").unwrap();
    assert!(tokens.ends_with(&short));
    let error = tokenization.tokenizer.encode(&spaces(500_001)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("500001 characters of white space"),
        "{error}"
    );
    let vocabulary = crate::Vocabulary::tokenizer(Arc::new(tokenization));
    let error = vocabulary.encode(&"ab ".repeat(2 << 20)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the text has 6291456 bytes, the limit is 4194304"
    );
}

#[test]
fn lines_of_json_are_documents_and_invalid_ones_are_skipped() {
    let lines = b"{\"text\": \"one\", \"id\": 1}\n\n{\"text\": 2}\nnothing\n{\"id\": 4}\n{\"text\": \"one\"}";
    let folder = tempfile::tempdir().unwrap();
    let made = tokens(&[file("d/a.jsonl", lines)], &token_store(&folder, None), 3).unwrap();
    let tokenization = tokenization();
    let mut one = tokenization.tokenizer.encode("one").unwrap();
    one.extend(tokenization.end_of_text);
    assert_eq!(made[0].0, [one.clone(), one].concat());
    let bad = &made[0].1;
    let places: Vec<_> = bad.iter().map(|bad| (bad.offset, bad.record)).collect();
    assert_eq!(places, [(26, Some(2)), (38, Some(3)), (46, Some(4))]);
    assert!(bad.iter().all(|bad| bad.file == "d/a.jsonl"));
    assert!(bad[0].problem.contains("is not a string") && bad[2].problem.contains("no field"));
}

#[test]
fn invalid_text_is_skipped_and_reported() {
    let mut text = novel().repeat(12).into_bytes();
    text[5] = 0xff;
    let folder = tempfile::tempdir().unwrap();
    let token_store = token_store(&folder, None);
    let half = gzip(&text);
    let made = tokens(
        &[
            file("a.txt", &text),
            file("empty.txt", b""),
            file("b.txt.gz", &half[..half.len() / 2]),
        ],
        &token_store,
        2,
    )
    .unwrap();
    assert!(made[0].0.len() > 1000 && made[0].1.len() == 1);
    assert!(made[0].1[0].problem.contains("not valid UTF-8") && made[0].1[0].offset == 5);
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
fn tokens_are_encoded_once_and_again_if_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let token_store = token_store(&folder, None);
    let files = [file("a.txt", b"some words"), file("b.txt", b"other words")];
    let first = tokens(&files, &token_store, 2).unwrap();
    assert_eq!(tokens(&files, &token_store, 2).unwrap(), first);
    let opened = || files.iter().map(|file| file.opened.load(Ordering::Relaxed));
    assert_eq!(opened().collect::<Vec<_>>(), [1, 1]);
    let kept: Vec<_> = std::fs::read_dir(&token_store.folder).unwrap().collect();
    assert_eq!(
        kept.len(),
        2,
        "no lock file and no partial file remains: {kept:?}"
    );
    let one = kept[0].as_ref().unwrap().path();
    let bytes = std::fs::read(&one).unwrap();
    std::fs::write(&one, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(tokens(&files, &token_store, 1).unwrap(), first);
    assert_eq!(opened().sum::<usize>(), 3);
}

#[test]
fn concurrent_requests_for_the_same_tokens_encode_them_once() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..6)
        .map(|n| file(&format!("{n}.txt"), novel().as_bytes()))
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| tokens(&files, &token_store(&folder, None), 2).unwrap());
        }
    });
    let opened = files.iter().map(|file| file.opened.load(Ordering::Relaxed));
    assert_eq!(opened.collect::<Vec<_>>(), [1; 6]);
}

#[test]
fn encrypted_tokens_are_not_readable_as_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let files = [file("a.txt", b"some words, and some more words")];
    let plain = tokens(&files, &token_store(&folder, None), 1).unwrap();
    let sealed = tempfile::tempdir().unwrap();
    let token_store = token_store(&sealed, Some(MasterKey::generate().unwrap()));
    assert_eq!(tokens(&files, &token_store, 1).unwrap(), plain);
    let file = std::fs::read_dir(&token_store.folder)
        .unwrap()
        .next()
        .unwrap();
    let bytes = std::fs::read(file.unwrap().path()).unwrap();
    assert!(!bytes.windows(8).any(|window| window == b"RONDETOK"));
}

#[test]
fn invalid_tokenizer_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    for text in ["", "{}", "{\"model\": 3}"] {
        std::fs::write(&path, text).unwrap();
        let error = Tokenizer::open(&path).unwrap_err().to_string();
        assert!(
            error.starts_with("invalid data.format.tokenizer: ")
                && error.contains("tokenizer.json")
        );
    }
    assert!(Tokenizer::open(Path::new("/no/such")).is_err());
}
