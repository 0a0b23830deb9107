//! [`CacheSettings`] and [`CacheMode`]: how much is kept, and how it is filled.

use std::fmt;
use std::time::Duration;

use ronde_store::MasterKey;
use serde::{Deserialize, Serialize};

use crate::DataError;

/// What is done with remote files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMode {
    /// What is read is kept, page by page; the next pages are fetched ahead.
    #[default]
    Stream,
    /// Everything is fetched before the first step.
    DownloadFirst,
    /// Nothing is kept.
    Off,
}

/// How a cache keeps pages.
#[derive(Clone)]
pub struct CacheSettings {
    /// Most bytes of all pages of the folder. A few pages that are just being written may come on top. Default 64 GiB.
    pub bytes_max: u64,
    /// Bytes of a page: what is fetched at least. A power of two of 64 KiB to 64 MiB; default 4 MiB. Pages of another
    /// length are other pages.
    pub page_bytes: u64,
    /// Pages are sealed with it; default none.
    pub key: Option<MasterKey>,
    /// Pages that are fetched ahead of somebody who reads one after the other; default 8.
    pub ahead_pages: u64,
    /// Threads that fetch ahead and download; each holds up to four pages in memory. Default 4.
    pub threads: usize,
    /// How long to wait for a page that somebody else fetches, before fetching it as well. Default 30 s.
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
    /// Least and most bytes of a page.
    const PAGE: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;

    pub(super) fn check(&self) -> Result<(), DataError> {
        let problem =
            if !self.page_bytes.is_power_of_two() || !Self::PAGE.contains(&self.page_bytes) {
                format!(
                    "pages of {} bytes are not possible: a power of two from 64 KiB to 64 MiB is",
                    self.page_bytes
                )
            } else if self.bytes_max < 2 * self.page_bytes {
                format!(
                    "{} bytes hold not even two pages of {} bytes",
                    self.bytes_max, self.page_bytes
                )
            } else if self.threads == 0 {
                "0 threads fetch nothing".to_owned()
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
