//! [`ImageFolder`]: a folder of images per class; each file is a record.
//!
//! Fields: `image` (the file's bytes), `class` (the index of its folder's name in the sorted list of all folder names),
//! `class_name`. There is nothing to scan. The identity of such a set covers folders, names and lengths, not the bytes
//! of the images.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ronde_core::NameList;
use ronde_store::StoredObject;

use super::{
    Extent, FieldSelection, Format, Record, RecordFile, Records, ScanItem, SharedBytes, Value,
};
use crate::error::DataError;
use crate::names::{positions, standard_name, standard_names};

/// File name extensions of images.
const ENDINGS: [&str; 4] = ["jpg", "jpeg", "png", "webp"];

/// Describes the names of images, for messages.
pub(crate) const IMAGE: &str = "an image (.jpg, .jpeg, .png or .webp)";

/// The format of image folders.
#[derive(Debug, Clone)]
pub struct ImageFolder {
    classes: Arc<BTreeMap<String, i64>>,
    wanted: Arc<FieldSelection>,
}

impl ImageFolder {
    /// Creates the format with the classes of these files: the sorted names of their folders. Evaluation files are read
    /// with the classes of the training files.
    pub fn new<'a>(locations: impl IntoIterator<Item = &'a str>, wanted: FieldSelection) -> Self {
        let images = locations.into_iter().filter(|location| is_image(location));
        let names: BTreeSet<&str> = images.filter_map(folder_of).collect();
        let numbered = names.into_iter().zip(0..);
        Self {
            classes: Arc::new(
                numbered
                    .map(|(name, class)| (name.to_owned(), class))
                    .collect(),
            ),
            wanted: Arc::new(wanted),
        }
    }

    /// Checks that no two folders have names that differ in white space around them or in the form of characters alone.
    ///
    /// # Errors
    /// The name of such folders.
    pub fn check_names(&self) -> Result<(), DataError> {
        let distinct = positions(&self.class_names());
        distinct.map(drop).map_err(|problem| {
            DataError::schema(
                "train",
                format_args!("the folders of two classes have one name: {problem}"),
            )
        })
    }

    /// Returns the number of the class of a folder.
    fn class_of(&self, folder: &str) -> Option<i64> {
        let exact = self.classes.get(folder).copied();
        exact.or_else(|| {
            let name = standard_name(folder);
            let mut classes = self.classes.iter();
            let same = classes.find(|(known, _)| standard_name(known) == name);
            same.map(|(_, class)| *class)
        })
    }

    /// Returns the names of the classes in the order of their numbers.
    #[must_use]
    pub fn classes(&self) -> Vec<&str> {
        self.classes.keys().map(String::as_str).collect()
    }
}

/// Returns whether the name of a file is that of an image.
pub(crate) fn is_image(location: &str) -> bool {
    let ending = location.rsplit_once('.').map(|(_, ending)| ending);
    ending.is_some_and(|ending| ENDINGS.iter().any(|one| ending.eq_ignore_ascii_case(one)))
}

/// Returns the name of the folder that contains a file.
fn folder_of(location: &str) -> Option<&str> {
    let (folder, _) = location.rsplit_once('/')?;
    let name = folder.rsplit_once('/').map_or(folder, |(_, name)| name);
    (!name.is_empty()).then_some(name)
}

impl Format for ImageFolder {
    fn identity(&self) -> String {
        "folder version 1".to_owned()
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let refused = |problem: &dyn std::fmt::Display| DataError::format(file.location(), problem);
        let name = folder_of(file.location())
            .ok_or_else(|| refused(&"the image is not in a folder that names its class"))?;
        let class = self.class_of(name).ok_or_else(|| {
            refused(&format_args!(
                "the folder {name:?} is not one of the {} training classes: {}",
                self.classes.len(),
                NameList(&self.class_names())
            ))
        })?;
        Ok(Box::new(ImageFile {
            bytes: file.bytes(),
            class,
            name: name.to_owned(),
            wanted: self.wanted.clone(),
        }))
    }

    fn takes(&self, location: &str) -> bool {
        is_image(location)
    }

    fn class_names(&self) -> Vec<String> {
        standard_names(&self.classes())
    }

    fn file_kind(&self) -> &'static str {
        IMAGE
    }

    fn covers_content(&self) -> bool {
        false
    }

    fn is_file_a_record(&self) -> bool {
        true
    }
}

#[derive(Clone)]
struct ImageFile {
    bytes: u64,
    class: i64,
    name: String,
    wanted: Arc<FieldSelection>,
}

impl RecordFile for ImageFile {
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        if self.bytes > 0 {
            found(ScanItem::Extent(Extent {
                start: 0,
                bytes: self.bytes,
                records: 1,
            }))?;
        }
        let mut hasher = blake3::Hasher::new_derive_key("ronde image file, version 1");
        hasher.update(self.name.as_bytes());
        hasher.update(&self.bytes.to_le_bytes());
        Ok(*hasher.finalize().as_bytes())
    }

    fn parse(
        &self,
        _: &Extent,
        mut pieces: Vec<SharedBytes>,
    ) -> Result<Box<dyn Records>, DataError> {
        let (image, piece) = (self.clone(), pieces.pop());
        Ok(Box::new(ImageRecord { image, piece }))
    }
}

struct ImageRecord {
    image: ImageFile,
    piece: Option<SharedBytes>,
}

impl Records for ImageRecord {
    fn record(&self, _: u32) -> Result<Record<'_>, DataError> {
        let bytes = self.piece.as_ref().map_or(&[][..], AsRef::as_ref);
        let all = [
            ("image", Value::Bytes(bytes.into())),
            ("class", Value::integers(&[self.image.class])),
            (
                "class_name",
                Value::Bytes(self.image.name.as_bytes().into()),
            ),
        ];
        let wanted = all
            .into_iter()
            .filter(|(name, _)| self.image.wanted.has(name));
        let fields = wanted.map(|(name, value)| (name.into(), value)).collect();
        Ok(Record { fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing::{MemoryObject, read_object};

    #[test]
    fn classes_are_the_sorted_names_of_the_folders() {
        let files = [
            "s3://b/train/dog/1.jpg",
            "s3://b/train/cat/2.PNG",
            "s3://b/train/dog/x.webp",
        ];
        let format = ImageFolder::new(
            files.iter().copied().chain(["s3://b/train/read/me.txt"]),
            FieldSelection::All,
        );
        assert_eq!(format.classes(), ["cat", "dog"]);
        assert!(format.takes(files[1]) && !format.takes("a/.DS_Store") && !format.takes("jpg"));
        let records = read_object(&format, MemoryObject::at(files[0], b"bytes")).unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(
            records[0].get("image"),
            Some(&Value::Bytes(b"bytes"[..].into()))
        );
        assert_eq!(records[0].get("class"), Some(&Value::integers(&[1])));
        assert_eq!(
            records[0].get("class_name"),
            Some(&Value::Bytes(b"dog"[..].into()))
        );
        let few = ImageFolder::new(files, FieldSelection::fields(["class"]));
        assert_eq!(
            read_object(&few, MemoryObject::at(files[1], b"b")).unwrap()[0]
                .fields
                .len(),
            1
        );
    }

    #[test]
    fn forms_of_a_name_are_one_class() {
        let composed = ImageFolder::new(["train/caf\u{e9}/1.jpg"], FieldSelection::All);
        let decomposed = "test/cafe\u{301}/1.jpg";
        assert!(composed.open(MemoryObject::at(decomposed, b"x")).is_ok());
        assert_eq!(composed.class_names(), ["caf\u{e9}"]);
        assert!(composed.check_names().is_ok());
        let both = ImageFolder::new([decomposed, "test/caf\u{e9}/2.jpg"], FieldSelection::All);
        let error = both.check_names().unwrap_err().to_string();
        assert!(error.contains("`caf\u{e9}` is listed twice"), "{error}");
    }

    #[test]
    fn an_unknown_class_folder_is_an_error() {
        let format = ImageFolder::new(["train/dog/1.jpg"], FieldSelection::All);
        let error = format
            .open(MemoryObject::at("test/cow/1.jpg", b"x"))
            .err()
            .unwrap();
        assert!(
            error
                .to_string()
                .contains("the folder \"cow\" is not one of the 1 training classes"),
            "{error}"
        );
        assert!(format.open(MemoryObject::at("1.jpg", b"x")).is_err());
    }
}
