//! [`Selection`]: the records of an index that are the samples of a set.

/// The bits of a word.
const WORD: u64 = u64::BITS as u64;
/// The number of words between two entries of the rank table.
const STRIDE: usize = 8;

/// All records, or a subset.
#[derive(Debug)]
pub(crate) enum Selection {
    All(u64),
    /// A subset. Memory: one bit per record, and 8 bytes per 512 records.
    Chosen(RecordSet),
}

#[derive(Debug)]
pub(crate) struct RecordSet {
    words: Vec<u64>,
    /// The number of chosen records before each [`STRIDE`] of words.
    before: Vec<u64>,
    samples: u64,
}

impl Selection {
    /// Returns the records of `0..records` for which `is_chosen` returns true.
    pub(crate) fn of(records: u64, is_chosen: impl Fn(u64) -> bool) -> Self {
        let mut words = vec![0; records.div_ceil(WORD) as usize];
        for record in (0..records).filter(|&record| is_chosen(record)) {
            words[(record / WORD) as usize] |= 1 << (record % WORD);
        }
        let mut samples = 0;
        let before = words
            .chunks(STRIDE)
            .map(|words| {
                let before = samples;
                samples += words
                    .iter()
                    .map(|w: &u64| u64::from(w.count_ones()))
                    .sum::<u64>();
                before
            })
            .collect();
        Self::Chosen(RecordSet {
            words,
            before,
            samples,
        })
    }

    /// Returns the number of samples.
    pub(crate) fn samples(&self) -> u64 {
        match self {
            Self::All(records) => *records,
            Self::Chosen(chosen) => chosen.samples,
        }
    }

    /// Returns the record of a sample; `None` after the last one.
    pub(super) fn record(&self, sample: u64) -> Option<u64> {
        match self {
            Self::All(records) => (sample < *records).then_some(sample),
            Self::Chosen(chosen) => chosen.record(sample),
        }
    }
}

impl RecordSet {
    /// Returns a hash of the chosen record numbers.
    pub(super) fn identity(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for word in &self.words {
            hasher.update(&word.to_le_bytes());
        }
        let hash = hasher.finalize().to_hex();
        format!("{} samples {}", self.samples, &hash[..16])
    }

    fn record(&self, sample: u64) -> Option<u64> {
        if sample >= self.samples {
            return None;
        }
        let stride = self.before.partition_point(|&before| before <= sample) - 1;
        let mut left = sample - self.before[stride];
        let first = stride * STRIDE;
        for (number, &word) in self.words.iter().enumerate().skip(first) {
            let ones = u64::from(word.count_ones());
            if left < ones {
                let mut word = word;
                for _ in 0..left {
                    word &= word - 1;
                }
                return Some(number as u64 * WORD + u64::from(word.trailing_zeros()));
            }
            left -= ones;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_records_are_found_by_sample_number() {
        for records in [0, 1, 63, 64, 65, 511, 512, 513, 3000] {
            for every in [1, 2, 7, 100] {
                let selection = Selection::of(records, |record| record % every == 0);
                let expected: Vec<u64> = (0..records).step_by(every as usize).collect();
                assert_eq!(selection.samples(), expected.len() as u64);
                let found: Vec<u64> = (0..).map_while(|sample| selection.record(sample)).collect();
                assert_eq!(found, expected);
            }
        }
        let none = Selection::of(1000, |_| false);
        assert_eq!((none.samples(), none.record(0)), (0, None));
        let late = Selection::of(2000, |record| record >= 1990);
        assert_eq!(late.record(9), Some(1999));
        assert_eq!(late.record(10), None);
        assert_eq!(Selection::All(3).record(2), Some(2));
        assert_eq!(Selection::All(3).record(3), None);
    }
}
