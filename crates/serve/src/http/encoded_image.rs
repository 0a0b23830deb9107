//! [`EncodedImage`]: an image of a request, as base64 text.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// The bytes of an image file.
#[derive(PartialEq, Eq)]
pub(crate) struct EncodedImage(pub(crate) Vec<u8>);

impl fmt::Debug for EncodedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodedImage({} bytes)", self.0.len())
    }
}

impl<'de> Deserialize<'de> for EncodedImage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Base64Visitor)
    }
}

/// Reads a base64 text with the standard alphabet and padding (RFC 4648, section 4).
struct Base64Visitor;

impl Visitor<'_> for Base64Visitor {
    type Value = EncodedImage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the base64 text of an image")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<EncodedImage, E> {
        let bytes = BASE64_STANDARD.decode(text);
        let bytes = bytes.map_err(|error| E::custom(format!("an image is not base64: {error}")))?;
        Ok(EncodedImage(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_base64() {
        let read = |text: &str| {
            let image: Result<EncodedImage, _> = serde_json::from_str(text);
            image
                .map(|image| image.0)
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("\"iVBORw==\"").unwrap(), b"\x89PNG");
        assert_eq!(read("\"iVBOR\\u0077==\"").unwrap(), b"\x89PNG");
        for (text, problem) in [
            ("\"iVBORw=\"", "not base64"),
            ("\"data:image/png;base64,iVBORw==\"", "not base64"),
            ("\"iVBO Rw==\"", "not base64"),
            ("7", "expected the base64 text of an image"),
            ("null", "expected the base64 text of an image"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
