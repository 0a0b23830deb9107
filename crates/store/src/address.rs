//! [`Address`]: the location of a set of objects, as a user writes it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::StoreError;
use crate::name::ObjectName;

mod web;

/// The location of a set of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A folder: `checkpoints`, `/data/run/checkpoints`.
    Folder(PathBuf),
    /// `s3://bucket/prefix`.
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix of all object names.
        prefix: Option<ObjectName>,
    },
    /// `az://container/prefix` of Azure Blob Storage; the account is a setting.
    Azure {
        /// The container.
        container: String,
        /// The prefix of all object names.
        prefix: Option<ObjectName>,
    },
    /// `gs://bucket/prefix` of Google Cloud Storage.
    Google {
        /// The bucket.
        bucket: String,
        /// The prefix of all object names.
        prefix: Option<ObjectName>,
    },
    /// `https://host/path` or `http://host:port/path`, for reading. It cannot be listed. A user
    /// name, a password or a query is refused, because addresses are printed and saved.
    Web {
        /// `https://host` or `http://host:port`, in lower case.
        server: String,
        /// The prefix of all object names; decoded, so that `a%20b` is `a b`.
        prefix: Option<ObjectName>,
    },
}

const KNOWN: &str = "expected a folder, s3://bucket/prefix, az://container/prefix, gs://bucket/prefix or \
                     https://host/path";

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let wrong = |problem: String| StoreError::Address {
            address: web::without_secrets(text),
            problem,
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            if text.is_empty() {
                return Err(wrong("it is empty".to_owned()));
            }
            return Ok(Self::Folder(text.into()));
        };
        let scheme = scheme.to_ascii_lowercase();
        if ["http", "https"].contains(&&*scheme) {
            return web::parse(&scheme, rest).map_err(wrong);
        }
        if !["s3", "az", "gs"].contains(&&*scheme) {
            return Err(wrong(format!("unknown scheme {scheme}://; {KNOWN}")));
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains('@') {
            return Err(wrong(web::NO_SECRETS.to_owned()));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return Err(wrong(format!("`{bucket}` is not a valid bucket name")));
        }
        let bucket = bucket.to_owned();
        let prefix = prefix_of(prefix).map_err(|error| wrong(error.to_string()))?;
        Ok(match &*scheme {
            "s3" => Self::S3 { bucket, prefix },
            "gs" => Self::Google { bucket, prefix },
            _ => Self::Azure {
                container: bucket,
                prefix,
            },
        })
    }
}

fn prefix_of(text: &str) -> Result<Option<ObjectName>, StoreError> {
    Some(text.trim_end_matches('/'))
        .filter(|prefix| !prefix.is_empty())
        .map(ObjectName::new)
        .transpose()
}

impl Address {
    /// Returns the prefix of all object names; `None` for a folder.
    #[must_use]
    pub fn prefix(&self) -> Option<&ObjectName> {
        match self {
            Self::Folder(_) => None,
            Self::S3 { prefix, .. }
            | Self::Azure { prefix, .. }
            | Self::Google { prefix, .. }
            | Self::Web { prefix, .. } => prefix.as_ref(),
        }
    }

    /// Returns the whole bucket, container or server; a folder is returned unchanged.
    #[must_use]
    pub fn root(&self) -> Self {
        let mut root = self.clone();
        match &mut root {
            Self::Folder(_) => {}
            Self::S3 { prefix, .. }
            | Self::Azure { prefix, .. }
            | Self::Google { prefix, .. }
            | Self::Web { prefix, .. } => *prefix = None,
        }
        root
    }

    /// Returns the address of the object `name` in this location.
    ///
    /// # Errors
    /// [`StoreError::Name`] when the joined name is not valid.
    pub fn join(&self, name: &ObjectName) -> Result<Self, StoreError> {
        let mut whole = self.clone();
        match &mut whole {
            Self::Folder(path) => path.push(name.as_str()),
            Self::S3 { prefix, .. }
            | Self::Azure { prefix, .. }
            | Self::Google { prefix, .. }
            | Self::Web { prefix, .. } => {
                *prefix = Some(match prefix {
                    Some(folder) => folder.join(name.as_str())?,
                    None => name.clone(),
                });
            }
        }
        Ok(whole)
    }

    /// Returns whether the location is on another machine.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        !matches!(self, Self::Folder(_))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, bucket, prefix) = match self {
            Self::Folder(path) => return write!(f, "{}", path.display()),
            Self::S3 { bucket, prefix } => ("s3", bucket, prefix),
            Self::Azure { container, prefix } => ("az", container, prefix),
            Self::Google { bucket, prefix } => ("gs", bucket, prefix),
            Self::Web { server, prefix } => {
                f.write_str(server)?;
                return prefix.as_ref().map_or(Ok(()), |prefix| {
                    write!(f, "/{}", web::encoded(prefix.as_str()))
                });
            }
        };
        write!(f, "{scheme}://{bucket}")?;
        prefix
            .as_ref()
            .map_or(Ok(()), |prefix| write!(f, "/{prefix}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_written() {
        for text in [
            "checkpoints",
            "/a/b c",
            "s3://bucket",
            "s3://bucket/runs/one",
            "az://container/x",
            "gs://bucket/x y/z",
            "https://host",
            "http://127.0.0.1:8080/a%20b/100%25.tar",
            "https://[::1]:443/x",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for (text, same) in [
            ("s3://bucket/runs/", "s3://bucket/runs"),
            ("HTTPS://Host:80/A/", "https://host:80/A"),
            ("https://host/%C3%A4", "https://host/\u{e4}"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), same);
            assert_eq!(same.parse::<Address>().unwrap(), address);
        }
        let address: Address = "https://host/a%20b".parse().unwrap();
        assert_eq!(address.prefix().unwrap().as_str(), "a b");
        assert_eq!(address.root().to_string(), "https://host");
        let whole = address.join(&ObjectName::new("c d").unwrap()).unwrap();
        assert_eq!(whole.to_string(), "https://host/a%20b/c%20d");
    }

    #[test]
    fn wrong_addresses_are_explained() {
        for (text, part) in [
            ("", "empty"),
            ("ftp://bucket", "unknown scheme ftp://"),
            ("s3://", "not a valid bucket"),
            ("s3://a b/c", "not a valid bucket"),
            ("az://c/../d", "dot"),
            ("https://", "not a valid server"),
            ("https://host:99999/x", "not a valid server"),
            ("https://host/%zz", "two hexadecimal"),
            ("https://host/%ff", "UTF-8"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn secrets_in_addresses_are_refused_and_not_shown() {
        for text in [
            "https://user:geheim@host/x",
            "https://user:ge/geheim@host/x",
            "https://host/x?sig=geheim",
            "https://host/x#geheim",
            "https://host?geheim",
            "s3://key:geheim@bucket/x",
            "ftp://key:geheim@bucket/x?geheim",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            for shown in [error.to_string(), format!("{error:?}")] {
                assert!(!shown.contains("geheim"), "{shown}");
            }
        }
    }
}
