//! [`LoaderTimes`]: where the time of a loader went, and what to do when training waits for it.

use std::time::Duration;

/// Waiting below this share of the time is not worth a word.
const SHARE_MIN: f64 = 0.05;
/// Nor is waiting below this, as at the beginning of every run.
const WAITED_MIN: Duration = Duration::from_secs(1);
/// Busier than this, threads are what everybody waits for.
const BUSY_MIN: f64 = 0.8;

/// What a loader has done up to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoaderTimes {
    /// Threads that fetch and decode.
    pub threads: usize,
    /// Time since it was started.
    pub elapsed: Duration,
    /// Time that [`super::Loader::next`] waited.
    pub waited: Duration,
    /// Time in which a thread fetched: waited for disk or network.
    pub fetching: Duration,
    /// Time in which threads decoded; that of several threads adds up.
    pub decoding: Duration,
    /// Bytes that were fetched.
    pub bytes: u64,
    /// Samples that were decoded.
    pub samples: u64,
    /// Samples that were left out.
    pub skipped: u64,
}

impl LoaderTimes {
    /// What a user can do when training waits for data; `None` when it hardly does.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let elapsed = self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let waits = self.waited.as_secs_f64() / elapsed;
        if waits < SHARE_MIN || self.waited < WAITED_MIN {
            return None;
        }
        let threads = self.threads.max(1);
        let all = elapsed * threads as f64;
        let fetching = self.fetching.as_secs_f64() / elapsed;
        let decoding = self.decoding.as_secs_f64() / all;
        let busy = (self.fetching + self.decoding).as_secs_f64() / all;
        let rate = self.bytes as f64 / 1e6 / self.fetching.as_secs_f64().max(1e-9);
        let percent = |share: f64| (100.0 * share).round();
        let cause = if fetching >= BUSY_MIN && fetching >= decoding {
            format!(
                "fetch: busy {} % at {rate:.0} MB/s; disk or network are the bound: keep a cache on a local disk \
                 (data.cache), or a larger block (data.shuffle_block_kib)",
                percent(fetching)
            )
        } else if busy >= BUSY_MIN {
            let s = if threads == 1 { "" } else { "s" };
            format!(
                "decode: {threads} thread{s} busy {} %; raise loader.threads where cores are free, or store samples \
                 that are cheaper to decode",
                percent(busy)
            )
        } else {
            "its threads are not busy either: pieces come late; raise loader.memory_mib, or lower \
             data.shuffle_window_mib"
                .to_owned()
        };
        Some(format!(
            "training waited for data {} % of the time. {cause}",
            percent(waits)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(waited: u64, fetching: u64, decoding: u64) -> LoaderTimes {
        let s = Duration::from_secs;
        LoaderTimes {
            threads: 2,
            elapsed: s(100),
            waited: s(waited),
            fetching: s(fetching),
            decoding: s(decoding),
            bytes: 5_000_000_000,
            samples: 1,
            skipped: 0,
        }
    }

    #[test]
    fn hints_name_what_is_busy() {
        assert_eq!(times(4, 90, 90).hint(), None);
        let decode = times(37, 10, 188).hint().unwrap();
        assert!(
            decode.starts_with(
                "training waited for data 37 % of the time. decode: 2 threads busy 99 %"
            )
        );
        let fetch = times(50, 100, 20).hint().unwrap();
        assert!(fetch.contains("fetch: busy 100 % at 50 MB/s"), "{fetch}");
        assert!(
            times(50, 20, 20)
                .hint()
                .unwrap()
                .contains("loader.memory_mib")
        );
    }
}
