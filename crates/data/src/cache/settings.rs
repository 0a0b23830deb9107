//! [`CacheSettings`] and [`CacheMode`]: the size of the cache and how it is filled.

use std::fmt;
use std::time::Duration;

use ronde_store::MasterKey;
use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// The treatment of remote files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CacheMode {
    /// Pages are stored as they are read, and the next pages are fetched ahead.
    #[default]
    Stream,
    /// All files are downloaded before the first step.
    DownloadFirst,
    /// No pages are stored.
    Off,
}

/// The settings of a cache.
#[derive(Clone)]
pub struct CacheSettings {
    /// The maximum number of bytes of all pages in the folder, without a few pages that are being written. Default 64 GiB.
    pub bytes_max: u64,
    /// The bytes of a page, which is the smallest unit of fetching. A power of two from 64 KiB to 64 MiB; default 4 MiB. Pages
    /// of different lengths are not shared.
    pub page_bytes: u64,
    /// The key to encrypt pages with; default none.
    pub key: Option<MasterKey>,
    /// The number of pages fetched ahead of a sequential reader; default 8.
    pub ahead_pages: u64,
    /// The number of threads that fetch ahead and download; each holds up to four pages in memory. Default 4.
    pub threads: usize,
    /// How long to wait for a page that another process fetches before fetching it here as well. Default 30 s.
    pub wait_limit: Duration,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            bytes_max: 64 << 30,
            page_bytes: 4 << 20,
            key: None,
            ahead_pages: 8,
            threads: 4,
            wait_limit: Duration::from_secs(30),
        }
    }
}

impl CacheSettings {
    /// The range of valid page sizes in bytes.
    const PAGE: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;

    pub(super) fn check(&self) -> Result<(), DataError> {
        let problem =
            if !self.page_bytes.is_power_of_two() || !Self::PAGE.contains(&self.page_bytes) {
                format!(
                    "page size {} bytes: expected a power of two from 64 KiB to 64 MiB",
                    self.page_bytes
                )
            } else if self.bytes_max < 2 * self.page_bytes {
                format!(
                    "limit {} bytes: expected at least two pages of {} bytes",
                    self.bytes_max, self.page_bytes
                )
            } else if self.threads == 0 {
                "0 threads: expected at least 1".to_owned()
            } else {
                return Ok(());
            };
        Err(DataError::CacheSettings { problem })
    }
}

impl fmt::Debug for CacheSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSettings")
            .field("bytes_max", &self.bytes_max)
            .field("page_bytes", &self.page_bytes)
            .field("is_sealed", &self.key.is_some())
            .field("ahead_pages", &self.ahead_pages)
            .field("threads", &self.threads)
            .field("wait_limit", &self.wait_limit)
            .finish()
    }
}
