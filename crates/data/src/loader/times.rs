//! [`LoaderTimes`]: time statistics of a loader, and a hint when training waits for it.

use std::time::Duration;

/// The minimum share of waiting time for a hint.
const SHARE_MIN: f64 = 0.05;
/// The minimum waiting time for a hint; every run waits a little at its start.
const WAITED_MIN: Duration = Duration::from_secs(1);
/// The share of busy time above which threads are the bottleneck.
const BUSY_MIN: f64 = 0.8;

/// The statistics of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoaderTimes {
    /// The number of threads that fetch and decode.
    pub threads: usize,
    /// The time since the start.
    pub elapsed: Duration,
    /// The time that [`super::Loader::next`] waited.
    pub waited: Duration,
    /// The time that threads spent waiting for disk or network.
    pub fetching: Duration,
    /// The time that threads spent decoding, summed over all threads.
    pub decoding: Duration,
    /// The number of fetched bytes.
    pub bytes: u64,
    /// The number of decoded samples.
    pub samples: u64,
    /// The number of skipped samples.
    pub skipped: u64,
}

impl LoaderTimes {
    /// Returns advice for the user when training waits for data; `None` when it hardly waits.
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
                "fetch: busy {} % at {rate:.0} MB/s; disk or network are the bottleneck: use a cache on a local disk \
                 (data.cache), or larger blocks (data.shuffle_block_kib)",
                percent(fetching)
            )
        } else if busy >= BUSY_MIN {
            let s = if threads == 1 { "" } else { "s" };
            format!(
                "decode: {threads} thread{s} busy {} %; raise loader.threads if cores are idle, or store samples \
                 that are cheaper to decode",
                percent(busy)
            )
        } else {
            "the loader's threads are not busy either: too few samples fit in memory; raise loader.memory_mib, or lower \
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
    fn hints_name_the_bottleneck() {
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
