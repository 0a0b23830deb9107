//! Records of images, with the field names of TensorFlow's tools.

use super::{PackItem, invalid};
use crate::error::DataError;
use crate::format::{Record, Value};
use crate::picture::Picture;

/// The field of the class number in TFRecord files.
pub(super) const LABEL: &str = "image/class/label";

/// Returns the field of images in a WebDataset: their extension if all images have the same one, otherwise `image`.
pub(super) fn field(items: &[PackItem]) -> String {
    let mut endings = items.iter().map(|item| {
        let ending = item.file.name().rsplit('.').next().unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "jpeg" => "jpg".to_owned(),
            other => other.to_owned(),
        }
    });
    let first = endings.next().unwrap_or_default();
    match endings.all(|ending| ending == first) {
        true => first,
        false => "image".to_owned(),
    }
}

/// Returns the format and size of an image to pack.
pub(super) fn picture(item: &PackItem, bytes: &[u8]) -> Result<Picture, DataError> {
    let none = || invalid(&item.file.location(), "not a JPEG, PNG or WebP image");
    Picture::of(bytes).ok_or_else(none)
}

/// Returns the last segment of a file's name.
pub(super) fn file_name(item: &PackItem) -> &str {
    item.file.name().rsplit('/').next().unwrap_or_default()
}

/// Returns the fields of a TFRecord.
pub(super) fn record<'a>(
    item: &'a PackItem,
    bytes: &'a [u8],
    is_text: bool,
) -> Result<Record<'a>, DataError> {
    let text = |text: &'a str| Value::Bytes(text.as_bytes().into());
    let mut fields = Vec::new();
    let (label, name) = match is_text {
        true => ("class/label", "class/text"),
        false => (LABEL, "image/class/text"),
    };
    if let Some((number, class)) = &item.class {
        fields.push((label.into(), Value::integers(&[*number])));
        fields.push((name.into(), text(class)));
    }
    if is_text {
        fields.push(("text".into(), Value::Bytes(bytes.into())));
        fields.push(("filename".into(), text(item.file.name())));
        return Ok(Record { fields });
    }
    let picture = picture(item, bytes)?;
    fields.push(("image/encoded".into(), Value::Bytes(bytes.into())));
    fields.push(("image/filename".into(), text(file_name(item))));
    fields.push(("image/format".into(), text(picture.kind)));
    fields.push((
        "image/height".into(),
        Value::integers(&[i64::from(picture.height)]),
    ));
    fields.push((
        "image/width".into(),
        Value::integers(&[i64::from(picture.width)]),
    ));
    Ok(Record { fields })
}
