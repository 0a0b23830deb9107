//! [`ObjectName`]: a relative path that is valid on a disk and in a bucket, and cannot leave
//! either.

use std::fmt;

use crate::error::StoreError;

/// The maximum key length of S3 and of Azure Blob.
const NAME_BYTES_MAX: usize = 1024;
/// The maximum length of a file name.
const SEGMENT_BYTES_MAX: usize = 255;

/// The name of an object or of a folder of objects: segments joined by `/`. Any characters are
/// allowed except control characters and backslashes, so that users' files can be named.
///
/// A segment is never empty and never starts with a dot, so a name cannot leave the store or
/// collide with the store's own files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(String);

impl ObjectName {
    /// Parses and checks a name.
    ///
    /// # Errors
    /// [`StoreError::Name`] with the reason.
    pub fn new(name: impl Into<String>) -> Result<Self, StoreError> {
        let name = name.into();
        match problem(&name) {
            None => Ok(Self(name)),
            Some(problem) => Err(StoreError::Name { name, problem }),
        }
    }

    /// Returns the name of an object inside this folder.
    ///
    /// # Errors
    /// [`StoreError::Name`], as [`ObjectName::new`].
    pub fn join(&self, rest: &str) -> Result<Self, StoreError> {
        Self::new(format!("{}/{rest}", self.0))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the last segment.
    #[must_use]
    pub fn last(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Returns whether this object is inside `folder`, at any depth.
    #[must_use]
    pub fn is_in(&self, folder: &Self) -> bool {
        self.0
            .strip_prefix(&folder.0)
            .is_some_and(|rest| rest.starts_with('/'))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn problem(name: &str) -> Option<&'static str> {
    if name.len() > NAME_BYTES_MAX {
        return Some("it is longer than 1024 bytes");
    }
    for segment in name.split('/') {
        if segment.is_empty() {
            return Some("a segment is empty");
        }
        if segment.len() > SEGMENT_BYTES_MAX {
            return Some("a segment is longer than 255 bytes");
        }
        if segment.starts_with('.') {
            return Some("a segment starts with a dot");
        }
        if segment.chars().any(|c| c.is_control() || c == '\\') {
            return Some("it contains a control character or a backslash");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_leave_the_store() {
        for good in [
            "a",
            "step-1/manifest.json",
            "a_b/c=d/e.f-g",
            "Bilder von heute/ä, ö & ü (1).jpg",
            "~/$HOME/*?[x]{y}%20#",
            "c:/x",
        ] {
            assert_eq!(ObjectName::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "/a",
            "a/",
            "a//b",
            "..",
            "a/../b",
            ".tmp",
            "a\\b",
            "a\0",
            "a\n",
            "a/\u{85}",
            &"x".repeat(256),
            &"x/".repeat(600),
        ] {
            assert!(ObjectName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_neighbour_is_not_inside() {
        let folder = ObjectName::new("step-1").unwrap();
        assert!(folder.join("x").unwrap().is_in(&folder));
        assert!(!ObjectName::new("step-10/x").unwrap().is_in(&folder));
        assert!(!folder.is_in(&folder));
        assert_eq!(folder.join("y/z").unwrap().last(), "z");
    }
}
