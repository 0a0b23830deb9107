//! [`Address`]: where objects are kept, as a user writes it, and [`open`], which goes there.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::{LocalStore, ObjectName, Store, StoreError};

/// A place for objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A folder: `checkpoints`, `/data/run/checkpoints`.
    Folder(PathBuf),
    /// `s3://bucket/prefix`.
    S3 {
        /// The bucket.
        bucket: String,
        /// Names of all objects start with it.
        prefix: Option<ObjectName>,
    },
    /// `az://container/prefix` of Azure Blob Storage; the account is a setting.
    Azure {
        /// The container.
        container: String,
        /// Names of all objects start with it.
        prefix: Option<ObjectName>,
    },
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let wrong = |problem: String| StoreError::Address {
            address: text.to_owned(),
            problem,
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            if text.is_empty() {
                return Err(wrong("it is empty".to_owned()));
            }
            return Ok(Self::Folder(text.into()));
        };
        if !["s3", "az"].contains(&scheme) {
            return Err(wrong(format!(
                "{scheme}:// is not known; known are a folder, s3://bucket/prefix and az://container/prefix"
            )));
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return Err(wrong(format!("{bucket:?} is no bucket")));
        }
        let bucket = bucket.to_owned();
        let prefix = Some(prefix.trim_end_matches('/'))
            .filter(|prefix| !prefix.is_empty())
            .map(ObjectName::new)
            .transpose()
            .map_err(|error| wrong(error.to_string()))?;
        Ok(match scheme {
            "s3" => Self::S3 { bucket, prefix },
            _ => Self::Azure {
                container: bucket,
                prefix,
            },
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, bucket, prefix) = match self {
            Self::Folder(path) => return write!(f, "{}", path.display()),
            Self::S3 { bucket, prefix } => ("s3", bucket, prefix),
            Self::Azure { container, prefix } => ("az", container, prefix),
        };
        write!(f, "{scheme}://{bucket}")?;
        prefix
            .as_ref()
            .map_or(Ok(()), |prefix| write!(f, "/{prefix}"))
    }
}

/// How to talk to a remote store. A folder needs none of it.
#[derive(Debug, Clone)]
pub struct RemoteSettings {
    /// Names and values as the `object_store` crate knows them: `aws_access_key_id`, `aws_endpoint`, `aws_region`,
    /// `azure_storage_account_name`, `azure_storage_account_key` and so on. An unknown name is an error.
    pub options: Vec<(String, String)>,
    /// The same from the environment of the process, where other programs and the other service have variables,
    /// too: names that the service does not know are left out. `options` take precedence.
    pub ambient: Vec<(String, String)>,
    /// Repetitions of a request that failed in passing.
    pub retries: usize,
    /// Limit for one request with its repetitions.
    pub limit: Duration,
}

impl Default for RemoteSettings {
    fn default() -> Self {
        Self {
            options: Vec::new(),
            ambient: Vec::new(),
            retries: 5,
            limit: Duration::from_secs(120),
        }
    }
}

/// The store at `address`. For a remote one this starts the I/O thread that owns its runtime (see `IoThread`) and asks it
/// for one listing, so that wrong settings are told at once.
///
/// # Errors
/// [`StoreError::Settings`] when the address or the settings cannot be used, or this build has no remote stores.
pub fn open(address: &Address, settings: &RemoteSettings) -> Result<Arc<dyn Store>, StoreError> {
    match address {
        Address::Folder(path) => Ok(Arc::new(LocalStore::new(path))),
        #[cfg(feature = "full")]
        remote => {
            let io = Arc::new(crate::IoThread::start()?);
            Ok(Arc::new(crate::RemoteStore::connect(remote, settings, io)?))
        }
        #[cfg(not(feature = "full"))]
        remote => {
            let _ = settings;
            Err(StoreError::Settings {
                operation: "open",
                location: remote.to_string(),
                cause: "this build has no remote stores; build ronde with `--features full`"
                    .to_owned(),
            })
        }
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
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        let address: Address = "s3://bucket/runs/".parse().unwrap();
        assert_eq!(address.to_string(), "s3://bucket/runs");
    }

    #[test]
    fn wrong_addresses_are_explained() {
        for (text, part) in [
            ("", "empty"),
            ("gs://bucket", "gs:// is not known"),
            ("s3://", "no bucket"),
            ("s3://a b/c", "no bucket"),
            ("az://c/../d", "dot"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
