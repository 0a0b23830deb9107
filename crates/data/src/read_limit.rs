//! [`ReadLimit`]: how much of a data set is read to check it; [`read_samples`] reads that much.

use std::time::Duration;

use ronde_clock::Stopwatch;
use ronde_core::Epoch;

use crate::dataset::Dataset;
use crate::decode::DecodeScratch;
use crate::error::DataError;
use crate::format::BadRecord;

/// The number of samples that are read together.
const SAMPLES_TOGETHER: usize = 64;
/// The number of samples that are read of a set without files, whose samples are computed.
const SAMPLES_WITHOUT_FILES: u64 = 256;

/// How much of a data set is read to check it, where training would read all of it. The time runs from the construction; half
/// of it is for finding files and samples, the rest for reading samples.
#[derive(Debug)]
pub struct ReadLimit {
    files_max: usize,
    time: Duration,
    since: Stopwatch,
}

/// The part of a data set that was opened under a [`ReadLimit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedPart {
    /// The number of files that were opened.
    pub files: usize,
    /// The number of those whose end was not reached.
    pub unfinished: usize,
    /// The number of files of the set.
    pub files_total: usize,
    /// The number of samples that were found; the length of the set is an estimate.
    pub samples: u64,
}

/// The samples that [`read_samples`] has read.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplesRead {
    /// The number of samples that were read.
    pub samples: u64,
    /// Whether these are all samples of the set.
    pub is_all: bool,
    /// The number of bad records among them, if the run file permits to skip them.
    pub bad: u64,
    /// The first of these.
    pub first_bad: Option<BadRecord>,
}

impl ReadLimit {
    /// Creates a limit of a number of files for each list of files, and of a time for everything.
    #[must_use]
    pub fn new(files_max: usize, time: Duration) -> Self {
        Self {
            files_max,
            time,
            since: Stopwatch::start(),
        }
    }

    /// Returns the remaining time.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.time.saturating_sub(self.since.elapsed())
    }

    /// Returns the remaining time for finding files and samples.
    #[must_use]
    pub fn left_for_opening(&self) -> Duration {
        (self.time / 2).saturating_sub(self.since.elapsed())
    }

    /// Returns whether the time for finding the records of a file is over whose samples are decoded when it is opened.
    pub(crate) fn is_finding_over(&self) -> bool {
        self.since.elapsed() >= self.time / 4
    }

    /// Returns whether the time for finding files and samples is over.
    pub(crate) fn is_opening_over(&self) -> bool {
        self.left_for_opening().is_zero()
    }

    /// Returns files from the whole list, at equal distances, if there are more than the limit.
    pub(crate) fn choose<T>(&self, files: Vec<T>) -> Vec<T> {
        let (count, most) = (files.len(), self.files_max.max(1));
        if count <= most {
            return files;
        }
        let is_chosen = |at: usize| (at * most) / count != ((at + 1) * most) / count;
        let files = files.into_iter().enumerate();
        files
            .filter(|(at, _)| is_chosen(*at))
            .map(|(_, file)| file)
            .collect()
    }
}

/// Returns a problem if a model cannot use the features and targets of a sample.
type CheckSample = dyn Fn(&[f32], &[u32]) -> Result<(), String>;

/// Reads samples of a data set as training does, until the time is over: the first one of each file, then blocks of neighbours that
/// are spread over the set, and in the end all.
///
/// `check` receives each sample.
///
/// # Errors
/// The first sample that cannot be used, unless bad records are skipped, and a source that cannot be read.
pub fn read_samples(
    dataset: &dyn Dataset,
    time: Duration,
    check: &CheckSample,
) -> Result<SamplesRead, DataError> {
    let since = Stopwatch::start();
    let description = dataset.description();
    let has_files = dataset.origin(0).is_some();
    let found = description
        .opened
        .map_or(dataset.len(), |part| part.samples);
    let skips = description.bad_records.skip_limit.is_some();
    let mut read = SamplesRead {
        samples: 0,
        is_all: false,
        bad: 0,
        first_bad: None,
    };
    let (firsts, end) = match has_files {
        true => (first_of_files(dataset, found), found),
        false => (Vec::new(), found.min(SAMPLES_WITHOUT_FILES)),
    };
    let block = description.locality.map_or(1, |one| one.block_samples);
    let rest = spread(end, block.max(SAMPLES_TOGETHER as u64));
    let rest = rest.filter(|sample| firsts.binary_search(sample).is_err());
    let mut order = firsts.iter().copied().chain(rest);
    let mut features = vec![0.0; description.sample_elements()];
    let mut targets = vec![0; description.targets_per_sample];
    let scratch = &mut DecodeScratch::default();
    let mut is_over = false;
    while !is_over {
        let numbers: Vec<u64> = order.by_ref().take(SAMPLES_TOGETHER).collect();
        if numbers.is_empty() {
            break;
        }
        let fetched = dataset.fetch(&numbers)?;
        for (index, number) in numbers.iter().enumerate() {
            is_over = since.elapsed() >= time && read.samples > 0;
            if is_over {
                break;
            }
            match fetched.decode(index, Epoch(0), scratch, &mut features, &mut targets) {
                Err(DataError::Record(bad)) if skips => {
                    read.bad += 1;
                    read.first_bad.get_or_insert(bad);
                }
                Err(error) => return Err(error),
                Ok(()) => check(&features, &targets)
                    .map_err(|problem| unusable(dataset, *number, problem))?,
            }
            read.samples += 1;
        }
    }
    if !has_files {
        read.samples = found;
    }
    read.is_all = read.samples == found && description.opened.is_none();
    Ok(read)
}

/// Returns the error of a sample that the model cannot use.
fn unusable(dataset: &dyn Dataset, sample: u64, problem: String) -> DataError {
    let file = match dataset.origin(sample) {
        Some(origin) => format!("{}, record {}", origin.file, origin.record),
        None => format!("sample {sample}"),
    };
    DataError::format(file, problem)
}

/// Returns the samples below `end` in blocks of neighbours: each further block is far from those before it, as the numbers of the blocks
/// are counted with their bits in reverse order.
fn spread(end: u64, block: u64) -> impl Iterator<Item = u64> {
    let blocks = end.div_ceil(block);
    let bits = u64::BITS - blocks.saturating_sub(1).leading_zeros();
    let reversed = move |number: u64| match bits {
        0 => 0,
        bits => number.reverse_bits() >> (u64::BITS - bits),
    };
    let numbers = (0..1_u64 << bits).map(reversed);
    let numbers = numbers.filter(move |number| *number < blocks);
    numbers.flat_map(move |number| number * block..((number + 1) * block).min(end))
}

/// Returns the first sample of each file, in ascending order. Cost: a binary search for each file.
fn first_of_files(dataset: &dyn Dataset, samples: u64) -> Vec<u64> {
    let mut firsts = Vec::new();
    let mut next = 0;
    while next < samples {
        firsts.push(next);
        let file = dataset.origin(next).map(|origin| origin.file);
        let (mut low, mut high) = (next + 1, samples);
        while low < high {
            let middle = low + (high - low) / 2;
            match dataset.origin(middle).map(|origin| origin.file) == file {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        next = low;
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_files_are_spread_over_the_whole_list() {
        let limit = ReadLimit::new(3, Duration::from_secs(1));
        assert_eq!(limit.choose((0..3).collect()), [0, 1, 2]);
        assert_eq!(limit.choose((0..9).collect()), [2, 5, 8]);
        for count in 4..200 {
            let chosen = limit.choose((0..count).collect());
            assert_eq!((chosen.len(), chosen[2]), (3, count - 1), "{count}");
        }
    }

    #[test]
    fn spread_samples_are_all_samples_once() {
        for (end, block) in [
            (0, 4),
            (1, 4),
            (4, 4),
            (5, 4),
            (64, 4),
            (1000, 7),
            (1000, 64),
        ] {
            let mut all: Vec<u64> = spread(end, block).collect();
            if end == 64 {
                assert_eq!(all[..12], [0, 1, 2, 3, 32, 33, 34, 35, 16, 17, 18, 19]);
            }
            all.sort_unstable();
            assert_eq!(all, (0..end).collect::<Vec<u64>>(), "{end} {block}");
        }
    }

    #[test]
    fn no_time_is_left_after_the_limit() {
        let limit = ReadLimit::new(3, Duration::ZERO);
        assert!(limit.is_opening_over() && limit.left().is_zero());
    }
}
