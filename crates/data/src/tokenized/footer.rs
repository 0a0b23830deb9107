//! [`TokenFileFooter`]: the metadata after the tokens of a token file.
//!
//! Bytes: the tokens, then JSON, the JSON's length (8 bytes), its blake3 hash (32 bytes), `RONDETOK`.

use ronde_store::StoredObject;
use serde::{Deserialize, Serialize};

use crate::format::{BadRecord, NumberType};
use crate::index::BAD_LISTED_MAX;

const MAGIC: &[u8; 8] = b"RONDETOK";
const HASH_BYTES: usize = 32;
/// The bytes after the JSON.
const END_BYTES: usize = 8 + HASH_BYTES + MAGIC.len();
/// The maximum bytes of the JSON.
const JSON_BYTES_MAX: u64 = 1 << 20;
/// The maximum stored characters of an error message.
const PROBLEM_CHARS_MAX: usize = 200;

/// The metadata of a token file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenFileFooter {
    /// The location of the text; the name of the token file depends on it.
    location: String,
    pub(crate) dtype: NumberType,
    /// The bytes of the tokens.
    pub(crate) bytes: u64,
    pub(crate) hash: [u8; HASH_BYTES],
    /// The first skipped documents.
    bad: Vec<(u64, Option<u64>, String)>,
    bad_count: u64,
}

impl TokenFileFooter {
    pub(super) fn new(location: &str, dtype: NumberType) -> Self {
        Self {
            location: location.to_owned(),
            dtype,
            bytes: 0,
            hash: [0; HASH_BYTES],
            bad: Vec::new(),
            bad_count: 0,
        }
    }

    pub(super) fn refuse(&mut self, bad: &BadRecord) {
        if self.bad.len() < BAD_LISTED_MAX {
            let problem = bad.problem.chars().take(PROBLEM_CHARS_MAX).collect();
            self.bad.push((bad.offset, bad.record, problem));
        }
        self.bad_count += 1;
    }

    /// Returns the skipped documents: the first ones with their errors, then the ones that were only counted.
    pub(crate) fn bad(&self) -> impl Iterator<Item = BadRecord> {
        let bad = |offset, record, problem: &str| {
            BadRecord::new(self.location.clone(), offset, record, problem)
        };
        let listed = self.bad.iter();
        let listed = listed.map(move |(offset, record, problem)| bad(*offset, *record, problem));
        let more = self.bad_count - self.bad.len() as u64;
        listed.chain((0..more).map(move |_| bad(0, None, "see the previous records")))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = serde_json::to_vec(self).expect("numbers and text can be encoded as JSON");
        let (length, hash) = (out.len() as u64, blake3::hash(&out));
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(hash.as_bytes());
        out.extend_from_slice(MAGIC);
        out
    }

    /// Reads the footer of a file; `None` if it is not a token file, or its footer is truncated or damaged.
    pub(crate) fn read(file: &dyn StoredObject) -> Option<Self> {
        let end_at = file.bytes().checked_sub(END_BYTES as u64)?;
        let mut end = [0; END_BYTES];
        file.read_at(end_at, &mut end).ok()?;
        let (length, end) = end.split_first_chunk::<8>()?;
        let hash = end.strip_suffix(MAGIC)?;
        let length = u64::from_le_bytes(*length);
        if length > JSON_BYTES_MAX {
            return None;
        }
        let mut json = vec![0; length as usize];
        let json_at = end_at.checked_sub(length)?;
        file.read_at(json_at, &mut json).ok()?;
        if blake3::hash(&json).as_bytes() != hash {
            return None;
        }
        let footer: Self = serde_json::from_slice(&json).ok()?;
        let is_sound = footer.bytes == json_at && footer.bad.len() as u64 <= footer.bad_count;
        is_sound.then_some(footer)
    }
}
