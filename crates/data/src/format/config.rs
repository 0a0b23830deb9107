//! [`FormatConfig`]: the format of files, as set in a run file or inferred from file names.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_core::InvalidValue;
use serde::{Deserialize, Serialize};

use super::{
    CsvLines, FieldSelection, Format, ImageFolder, Npy, Npz, NumberType, TfRecord, TokenizedText,
    Tokens, WebDataset,
};
use crate::decode::{Features, Label, RecordDecoder, Schema};
use crate::error::DataError;
use crate::tokenized::{Tokenization, Tokenizer};

/// The number of tokens of a record if there is no schema.
const CONTEXT: usize = 64;

/// The supported file formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FormatKind {
    /// `tf.train.Example` records, as written by TensorFlow.
    TfRecord,
    /// Tar files in which the members with the same base name form a record.
    WebDataset,
    /// Parquet tables; each row is a record.
    Parquet,
    /// A folder of images per class.
    Folder,
    /// Comma-separated values; each line is a record.
    Csv,
    /// A numpy array; its rows are the records.
    Npy,
    /// Several numpy arrays with the same number of rows.
    Npz,
    /// Raw little-endian token numbers.
    Tokens,
    /// Text that a tokenizer converts to tokens.
    Text,
}

/// All formats.
const KINDS: [FormatKind; 9] = [
    FormatKind::TfRecord,
    FormatKind::WebDataset,
    FormatKind::Parquet,
    FormatKind::Folder,
    FormatKind::Csv,
    FormatKind::Npy,
    FormatKind::Npz,
    FormatKind::Tokens,
    FormatKind::Text,
];

impl fmt::Display for FormatKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TfRecord => "tfrecord",
            Self::WebDataset => "webdataset",
            Self::Parquet => "parquet",
            Self::Folder => "folder",
            Self::Csv => "csv",
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::Tokens => "tokens",
            Self::Text => "text",
        })
    }
}

impl std::str::FromStr for FormatKind {
    type Err = InvalidValue;

    fn from_str(name: &str) -> Result<Self, InvalidValue> {
        let found = KINDS.into_iter().find(|kind| kind.to_string() == name);
        found.ok_or_else(|| {
            let names = KINDS.map(|kind| kind.to_string()).join(", ");
            InvalidValue::new("format", name, format!("one of {names}"))
        })
    }
}

impl FormatKind {
    /// Returns a name in lower case without the ending of a compressed file.
    pub(crate) fn without_compression(name: &str) -> &str {
        let endings = [".gz", ".zst"];
        let mut short = endings.iter().filter_map(|end| name.strip_suffix(end));
        short.next().unwrap_or(name)
    }

    /// Returns the format that a file name indicates.
    #[must_use]
    pub fn of(location: &str) -> Option<Self> {
        let name = location.rsplit('/').next()?.to_ascii_lowercase();
        let name = Self::without_compression(&name);
        if is_shard(name) {
            return Some(Self::TfRecord);
        }
        Some(match name.rsplit_once('.')?.1 {
            "tfrecord" | "tfrecords" => Self::TfRecord,
            "tar" | "tgz" => Self::WebDataset,
            "parquet" => Self::Parquet,
            "jpg" | "jpeg" | "png" | "webp" => Self::Folder,
            "csv" => Self::Csv,
            "npy" => Self::Npy,
            "npz" => Self::Npz,
            "txt" | "text" | "jsonl" | "ndjson" => Self::Text,
            _ => return None,
        })
    }
}

/// Returns whether a name has the form of TensorFlow's shards: `train-00000-of-01024`.
fn is_shard(name: &str) -> bool {
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    name.rsplit_once("-of-").is_some_and(|(before, count)| {
        let number = before.rsplit_once('-').map(|(_, number)| number);
        is_number(count) && number.is_some_and(is_number)
    })
}

/// The format of files: its name, or a table with its name as `kind` and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    untagged,
    expecting = "expected a format: \"tfrecord\", \"webdataset\", \"parquet\", \"folder\", \"csv\", \"npy\", \"npz\", or a \
                 table such as { kind = \"tokens\", dtype = \"u16\" }, { kind = \"text\", tokenizer = \"tokenizer.json\" } \
                 or { kind = \"csv\", header = true }"
)]
pub enum FormatConfig {
    /// The name alone.
    Name(FormatKind),
    /// The name with settings.
    Table(FormatTable),
}

/// A format with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FormatTable {
    /// The name of the format.
    pub kind: FormatKind,
    /// For CSV: whether the first line is a heading. If absent, it is a heading when none of its fields is a number, and a first
    /// line that may be both is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// For tokens: `u8`, `u16` or `u32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<NumberType>,
    /// For text: the path of `tokenizer.json`, relative to the folder of the run file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// For text: the token that is appended to each document, such as `<|endoftext|>`; none if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_of_text: Option<String>,
    /// For JSON lines: the field that contains the text; default `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl FormatTable {
    /// Returns a format without settings.
    #[must_use]
    pub fn of(kind: FormatKind) -> Self {
        Self {
            kind,
            header: None,
            dtype: None,
            tokenizer: None,
            end_of_text: None,
            field: None,
        }
    }

    /// Checks that every setting belongs to the format.
    fn check(&self) -> Result<(), DataError> {
        let keys = [
            ("header", self.header.is_some(), FormatKind::Csv),
            ("dtype", self.dtype.is_some(), FormatKind::Tokens),
            ("tokenizer", self.tokenizer.is_some(), FormatKind::Text),
            ("end_of_text", self.end_of_text.is_some(), FormatKind::Text),
            ("field", self.field.is_some(), FormatKind::Text),
        ];
        let kind = self.kind;
        let stray = keys.iter().find(|(_, is_said, of)| *is_said && *of != kind);
        match stray {
            Some((key, _, of)) => Err(invalid(format!("`{key}` applies to {of}, not to {kind}"))),
            None => Ok(()),
        }
    }
}

fn invalid(problem: String) -> DataError {
    DataError::schema("format", problem)
}

impl FormatConfig {
    fn table(&self) -> FormatTable {
        match self {
            Self::Table(table) => table.clone(),
            Self::Name(kind) => FormatTable::of(*kind),
        }
    }

    /// Returns the format to read files with. Without a `config` it is inferred from the file names. `locations` are the
    /// training files, whose folders define the classes of a folder of images. Without a `schema` all fields are read.
    ///
    /// The evaluation files are read with the same format.
    ///
    /// # Errors
    /// Returns an error if the names indicate no format or several, if a setting does not belong to the format, or if a
    /// required setting is missing.
    pub fn format(
        config: Option<&Self>,
        locations: &[&str],
        schema: Option<&mut Schema>,
    ) -> Result<Arc<dyn Format>, DataError> {
        let table = match config {
            Some(config) => config.table(),
            None => Self::Name(inferred(locations)?).table(),
        };
        table.check()?;
        let FormatTable {
            kind,
            header,
            dtype,
            ..
        } = table;
        if kind == FormatKind::Folder {
            ImageFolder::new(locations.iter().copied(), FieldSelection::All).check_names()?;
        }
        let schema = schema.map(|schema| {
            if kind == FormatKind::Folder && schema.label.is_none() {
                let folder = ImageFolder::new(locations.iter().copied(), FieldSelection::All);
                schema.label = Some(Label::of_classes(folder.classes().len() as u32));
            }
            &*schema
        });
        let wanted = match schema {
            Some(schema) => RecordDecoder::new(schema, crate::decode::SampleUse::Test, 0)?.wanted(),
            None => FieldSelection::All,
        };
        Ok(match kind {
            FormatKind::TfRecord => Arc::new(TfRecord::new(wanted)),
            FormatKind::WebDataset => Arc::new(WebDataset::new(wanted)),
            FormatKind::Parquet => parquet(wanted)?,
            FormatKind::Folder => Arc::new(ImageFolder::new(locations.iter().copied(), wanted)),
            FormatKind::Csv => Arc::new(CsvLines::new(header, wanted)),
            FormatKind::Npy => Arc::new(Npy),
            FormatKind::Npz => Arc::new(Npz::new(wanted)),
            FormatKind::Tokens => {
                let context = context(schema)?;
                let dtype = dtype.ok_or_else(|| {
                    invalid(
                        "missing the type of the tokens: { kind = \"tokens\", dtype = \"u16\" }"
                            .to_owned(),
                    )
                })?;
                Arc::new(Tokens::new(dtype, context)?)
            }
            FormatKind::Text => {
                return Err(invalid("text needs a tokenizer".to_owned()));
            }
        })
    }

    /// Returns how text is converted to tokens and how these are read, or `None` for formats other than text. Sets the
    /// schema's vocabulary if it is absent.
    ///
    /// # Errors
    /// Returns an error if the tokenizer is missing or unreadable, or if a setting does not belong to text.
    pub(crate) fn tokenization(
        config: Option<&Self>,
        locations: &[&str],
        base: &Path,
        schema: Option<&mut Schema>,
    ) -> Result<Option<Tokenized>, DataError> {
        let table = match config {
            Some(config) => config.table(),
            None => Self::Name(inferred(locations)?).table(),
        };
        if table.kind != FormatKind::Text {
            return Ok(None);
        }
        table.check()?;
        let path = table.tokenizer.ok_or_else(|| {
            invalid(
                "missing the tokenizer: { kind = \"text\", tokenizer = \"tokenizer.json\" }"
                    .to_owned(),
            )
        })?;
        let tokenizer = Tokenizer::open(&base.join(path))?;
        let end_of_text = table.end_of_text.map(|end| {
            tokenizer.token(&end).ok_or_else(|| {
                invalid(format!(
                    "invalid end_of_text `{end}`: the tokenizer has no such token"
                ))
            })
        });
        let tokenization = Tokenization {
            end_of_text: end_of_text.transpose()?,
            field: table.field.unwrap_or_else(|| "text".to_owned()),
            tokenizer,
        };
        let context = context(schema.as_deref())?;
        if let Some(Features::Tokens(features)) = schema.map(|schema| &mut schema.features) {
            let tokens = tokenization.tokenizer.tokens();
            let vocabulary = *features.vocabulary.get_or_insert(tokens);
            if vocabulary < tokens {
                return Err(DataError::schema(
                    "features.vocabulary",
                    format_args!("{vocabulary} is less than the tokenizer's {tokens} tokens"),
                ));
            }
        }
        let format = TokenizedText::new(tokenization.dtype(), context, tokenization.identity())?;
        Ok(Some((tokenization, Arc::new(format))))
    }
}

/// The conversion of text to tokens, and the format of the result.
pub(crate) type Tokenized = (Tokenization, Arc<dyn Format>);

/// Returns the number of tokens of a record.
fn context(schema: Option<&Schema>) -> Result<usize, DataError> {
    match schema.map(|schema| &schema.features) {
        Some(Features::Tokens(features)) => Ok(features.context),
        Some(_) => {
            let problem = "files of tokens or text need features with decode = \"tokens\"";
            Err(invalid(problem.to_owned()))
        }
        None => Ok(CONTEXT),
    }
}

#[cfg(feature = "full")]
fn parquet(wanted: FieldSelection) -> Result<Arc<dyn Format>, DataError> {
    Ok(Arc::new(super::Parquet::new(wanted)))
}

#[cfg(not(feature = "full"))]
fn parquet(_: FieldSelection) -> Result<Arc<dyn Format>, DataError> {
    let what = "reading Parquet files (data.format = \"parquet\")".to_owned();
    Err(DataError::NotBuilt { what })
}

/// Returns the one format that the names indicate.
fn inferred(locations: &[&str]) -> Result<FormatKind, DataError> {
    if let Some(packed) = locations.iter().find(|location| location.ends_with(".zst")) {
        return Err(invalid(format!(
            "cannot read {packed}: files compressed by zstd are not supported: unpack them with `zstd -d`, or use gzip"
        )));
    }
    let mut kinds = locations
        .iter()
        .filter_map(|location| FormatKind::of(location).map(|kind| (kind, *location)));
    let Some((kind, first)) = kinds.next() else {
        let example = locations.first().copied().unwrap_or("no file");
        return Err(invalid(format!(
            "cannot infer the format from names such as `{example}`: set data.format"
        )));
    };
    match kinds.find(|(other, _)| *other != kind) {
        None => Ok(kind),
        Some((other, second)) => Err(invalid(format!(
            "ambiguous format: {first} looks like {kind}, {second} like {other}; set data.format, or use files of one format"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<FormatConfig, String> {
        #[derive(Deserialize)]
        struct Data {
            format: FormatConfig,
        }
        let data: Result<Data, _> = toml::from_str(&format!("format = {text}"));
        data.map(|data| data.format)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn formats_are_inferred_from_names() {
        for (location, kind) in [
            ("s3://b/train-00000-of-01024", Some(FormatKind::TfRecord)),
            ("a/x.tfrecord.gz", Some(FormatKind::TfRecord)),
            ("a/x.TAR", Some(FormatKind::WebDataset)),
            ("a/x.tar.gz", Some(FormatKind::WebDataset)),
            ("a/x.parquet", Some(FormatKind::Parquet)),
            ("cat/1.JPEG", Some(FormatKind::Folder)),
            ("a.csv.gz", Some(FormatKind::Csv)),
            ("a.npy", Some(FormatKind::Npy)),
            ("a.npz", Some(FormatKind::Npz)),
            ("tokens.bin", None),
            ("train-0-of-1", None),
            ("folder.tar/file", None),
        ] {
            assert_eq!(FormatKind::of(location), kind, "{location}");
        }
        let format = |locations: &[&str]| FormatConfig::format(None, locations, None);
        assert_eq!(
            format(&["README", "a.tar"]).unwrap().identity(),
            "webdataset version 1"
        );
        let error = format(&["a.tar", "b.csv"]).unwrap_err().to_string();
        assert!(
            error.contains("a.tar looks like webdataset, b.csv like csv"),
            "{error}"
        );
        assert!(
            format(&["a.bin"])
                .unwrap_err()
                .to_string()
                .contains("set data.format")
        );
        assert!(format(&[]).is_err());
        let error = format(&["b.csv", "c.csv.zst"]).unwrap_err().to_string();
        assert!(
            error.contains("c.csv.zst: files compressed by zstd"),
            "{error}"
        );
    }

    #[test]
    fn formats_are_read_from_run_files() {
        for kind in KINDS {
            assert_eq!(
                config(&format!("'{kind}'")).unwrap(),
                FormatConfig::Name(kind)
            );
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let tokens = config("{ kind = 'tokens', dtype = 'u16' }").unwrap();
        let format = |config: &FormatConfig| FormatConfig::format(Some(config), &["x"], None);
        assert_eq!(
            format(&tokens).unwrap().identity(),
            "tokens version 2, u16, context 64"
        );
        for (text, word) in [
            ("{ kind = 'tokens' }", "dtype"),
            ("{ kind = 'tokens', dtype = 'f32' }", "tokens are u8"),
            ("{ kind = 'npy', header = true }", "`header` applies to csv"),
            (
                "{ kind = 'csv', dtype = 'u8' }",
                "`dtype` applies to tokens",
            ),
            ("{ kind = 'csv', field = 'a' }", "`field` applies to text"),
            ("'text'", "needs a tokenizer"),
        ] {
            let error = format(&config(text).unwrap()).unwrap_err().to_string();
            assert!(
                error.contains("data.format") && error.contains(word),
                "{error}"
            );
        }
        assert!(
            config("'tfrecords'")
                .unwrap_err()
                .contains("expected a format")
        );
        assert!(
            config("{ kind = 'csv', heading = true }")
                .unwrap_err()
                .contains("expected a format")
        );
        assert!(
            "tape"
                .parse::<FormatKind>()
                .unwrap_err()
                .to_string()
                .contains("webdataset")
        );
    }
}
