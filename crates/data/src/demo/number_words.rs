//! Synthetic translations: numbers in English words and in French words.
//!
//! The task needs attention, because the rules depend on context: `seventy` and `ninety` depend on the next word, and
//! `vingts` and `cents` have their `s` only at the end.

use std::sync::Arc;

use ronde_core::Epoch;
use ronde_core::seed::{Purpose, SeedTree};

use super::SplitSizes;
use crate::dataset::DatasetDescription;
use crate::dataset::{IGNORED, Split};
use crate::memory::MemoryDataset;
use crate::memory::SampleSource;
use crate::vocabulary::Vocabulary;

/// All words; the index of a word is its number. The first one is padding, the second one marks beginning and end.
const WORDS: [&str; 57] = [
    "-",
    "|",
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
    "hundred",
    "thousand",
    "zéro",
    "un",
    "deux",
    "trois",
    "quatre",
    "cinq",
    "sept",
    "huit",
    "neuf",
    "dix",
    "onze",
    "douze",
    "treize",
    "quatorze",
    "quinze",
    "seize",
    "vingt",
    "trente",
    "quarante",
    "cinquante",
    "soixante",
    "cent",
    "mille",
    "et",
    "s",
];

/// Numbers are below this.
const NUMBERS: u64 = 1_000_000;
/// One in this many numbers is a test sample.
const TEST_OF: u64 = 8;
const TEST: u64 = 5;

/// The words of the longest English number.
const SOURCE: usize = 9;
/// The words of the longest French number, including the end.
const TARGET: usize = 15;

/// Samples of `[SOURCE + TARGET]` word numbers: the padded English words, then a begin marker and the French words. Targets:
/// the French words, then an end marker.
struct NumberWords {
    seed: u64,
    is_test: bool,
}

/// Returns a training set and a test set of other numbers.
pub(super) fn split(counts: SplitSizes, seed: u64) -> Split {
    counts.split(|numbers, is_test| {
        let samples = numbers.end - numbers.start;
        let part = if is_test { "test" } else { "train" };
        let identity = format!("number_words version 1: seed {seed}, samples {samples}, {part}");
        let description = DatasetDescription {
            targets_per_sample: TARGET,
            vocabulary: Some(Arc::new(Vocabulary::words(&WORDS, (0, 1)))),
            ..DatasetDescription::new(vec![SOURCE + TARGET], WORDS.len() as u32, identity)
        };
        MemoryDataset::of(
            Arc::new(NumberWords { seed, is_test }),
            samples,
            description,
        )
    })
}

impl NumberWords {
    fn number(&self, sample: u64) -> u64 {
        let coordinates = [u64::from(self.is_test), sample];
        let stream = SeedTree::new(self.seed).stream(Purpose::Synthetic, &coordinates);
        let [a, b, ..] = stream.block(0);
        // Short numbers are as frequent as long ones.
        let below = [100, 1000, 100_000, NUMBERS][a as usize % 4] / TEST_OF;
        let group = ((u64::from(b) * below) >> 32) * TEST_OF;
        let others = u64::from(a >> 8) % (TEST_OF - 1);
        group
            + if self.is_test {
                TEST
            } else {
                others + u64::from(others >= TEST)
            }
    }
}

impl SampleSource for NumberWords {
    fn write(&self, sample: u64, _epoch: Epoch, out: &mut [f32], targets: &mut [u32]) {
        let number = self.number(sample);
        out.fill(0.0);
        targets.fill(IGNORED);
        for (place, word) in out.iter_mut().zip(english(number)) {
            *place = index(word) as f32;
        }
        let target = french(number);
        out[SOURCE] = 1.0;
        for (place, word) in out[SOURCE + 1..].iter_mut().zip(&target) {
            *place = index(word) as f32;
        }
        for (place, word) in targets.iter_mut().zip(target.iter().chain(&["|"])) {
            *place = index(word);
        }
    }
}

fn index(word: &str) -> u32 {
    let found = WORDS.iter().position(|known| *known == word);
    found.expect("the rules use only words of the list") as u32
}

fn english(number: u64) -> Vec<&'static str> {
    let small = |n: u64| WORDS[2 + n as usize];
    let below_thousand = |n: u64, words: &mut Vec<&'static str>| {
        if n >= 100 {
            words.extend([small(n / 100), "hundred"]);
        }
        let rest = n % 100;
        if rest >= 20 {
            words.push(WORDS[22 + (rest / 10 - 2) as usize]);
            if !rest.is_multiple_of(10) {
                words.push(small(rest % 10));
            }
        } else if rest > 0 {
            words.push(small(rest));
        }
    };
    let mut words = Vec::new();
    if number >= 1000 {
        below_thousand(number / 1000, &mut words);
        words.push("thousand");
    }
    below_thousand(number % 1000, &mut words);
    if words.is_empty() {
        words.push("zero");
    }
    words
}

fn french(number: u64) -> Vec<&'static str> {
    let mut words = Vec::new();
    if number >= 1000 {
        if number >= 2000 {
            french_below_thousand(number / 1000, false, &mut words);
        }
        words.push("mille");
    }
    french_below_thousand(number % 1000, true, &mut words);
    if words.is_empty() {
        words.push("zéro");
    }
    words
}

/// Appends the words of a number below 1,000; `at_end` if no word follows, so that `cents` and `quatre vingts` have an `s`.
fn french_below_thousand(number: u64, at_end: bool, words: &mut Vec<&'static str>) {
    const SMALL: [&str; 17] = [
        "zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix",
        "onze", "douze", "treize", "quatorze", "quinze", "seize",
    ];
    const TENS: [&str; 5] = ["vingt", "trente", "quarante", "cinquante", "soixante"];
    let (hundreds, rest) = (number / 100, number % 100);
    if hundreds > 0 {
        if hundreds > 1 {
            words.push(SMALL[hundreds as usize]);
        }
        words.push("cent");
        if hundreds > 1 && rest == 0 && at_end {
            words.push("s");
        }
    }
    // In French, seventy is sixty and ten, and ninety is four twenties and ten.
    let below_twenty = match rest {
        0..=16 => rest,
        17..=19 => {
            words.push("dix");
            rest - 10
        }
        20..=69 => {
            words.push(TENS[(rest / 10 - 2) as usize]);
            rest % 10
        }
        70..=79 => {
            words.push("soixante");
            rest - 60
        }
        _ => {
            words.extend(["quatre", "vingt"]);
            if rest == 80 && at_end {
                words.push("s");
            }
            rest - 80
        }
    };
    if (20..80).contains(&rest) && (below_twenty == 1 || below_twenty == 11) {
        words.push("et");
    }
    match below_twenty {
        0 => {}
        1..=16 => words.push(SMALL[below_twenty as usize]),
        _ => words.extend(["dix", SMALL[below_twenty as usize - 10]]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetExt;

    #[test]
    fn numbers_are_written_correctly() {
        for (number, source, target) in [
            (0, "zero", "zéro"),
            (21, "twenty one", "vingt et un"),
            (80, "eighty", "quatre vingt s"),
            (97, "ninety seven", "quatre vingt dix sept"),
            (117, "one hundred seventeen", "cent dix sept"),
            (200, "two hundred", "deux cent s"),
            (1000, "one thousand", "mille"),
            (
                200_071,
                "two hundred thousand seventy one",
                "deux cent mille soixante et onze",
            ),
            (
                999_999,
                "nine hundred ninety nine thousand nine hundred ninety nine",
                "neuf cent quatre vingt dix neuf mille neuf cent quatre vingt dix neuf",
            ),
        ] {
            assert_eq!(english(number).join(" "), source);
            assert_eq!(french(number).join(" "), target);
        }
    }

    #[test]
    fn every_number_fits_and_the_test_set_has_other_numbers() {
        let longest = (0..NUMBERS).step_by(7).chain([777_777, 999_999]);
        for number in longest {
            assert!(english(number).len() <= SOURCE && french(number).len() < TARGET);
        }
        let split = split(SplitSizes::new(500, 100).unwrap(), 3);
        let test = split.test.unwrap();
        for (set, is_test) in [(split.train, false), (test, true)] {
            let words = NumberWords { seed: 3, is_test };
            for sample in 0..set.len() {
                let number = words.number(sample);
                assert!(number < NUMBERS && (number % TEST_OF == TEST) == is_test);
                let (out, targets) = set.sample(sample).unwrap();
                let said = french(number);
                assert_eq!(targets[said.len()], 1, "the end");
                assert!(targets[said.len() + 1..].iter().all(|&t| t == IGNORED));
                assert_eq!(out[SOURCE], 1.0);
                for (place, target) in said.iter().enumerate() {
                    assert_eq!(WORDS[targets[place] as usize], *target);
                    assert_eq!(out[SOURCE + 1 + place], targets[place] as f32);
                }
            }
        }
    }
}
