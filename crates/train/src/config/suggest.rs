//! "Did you mean": suggests the known word nearest to an unknown one.

/// The largest distance of a suggestion, in edits per letter.
const EDITS_PER_LETTER_MAX: f64 = 0.4;

/// Names of run-file keys in other tools.
const ALIASES: [(&str, &str); 3] = [
    ("lr", "learning_rate"),
    ("batch_size", "global_batch_size"),
    ("wd", "weight_decay"),
];

/// Names of gradient accumulation in other tools.
const ACCUMULATION: [&str; 7] = [
    "accumulate_steps",
    "accumulate_grad_batches",
    "accumulation_steps",
    "gradient_accumulation",
    "gradient_accumulation_steps",
    "micro_batch_size",
    "per_device_train_batch_size",
];

/// Returns a hint for a word that is not in `known`.
pub(super) fn hint<S: AsRef<str>>(word: &str, known: &[S]) -> Option<String> {
    if ACCUMULATION.contains(&word.to_lowercase().as_str()) {
        return Some(
            "gradients are always accumulated: set `train.global_batch_size` to all samples of an update, and \
             `workers.logical_shards` to that divided by the samples of a micro-batch"
                .to_owned(),
        );
    }
    if let Some(nearest) = nearest(word, known) {
        return Some(format!("did you mean `{nearest}`?"));
    }
    let words: Vec<String> = known.iter().map(|k| format!("`{}`", k.as_ref())).collect();
    match words.len() {
        0 => None,
        1 => Some(format!("expected {}", words[0])),
        _ => Some(format!("expected one of {}", words.join(", "))),
    }
}

/// Returns the known word that `word` is probably meant to be.
pub(crate) fn nearest<'a, S: AsRef<str>>(word: &str, known: &'a [S]) -> Option<&'a str> {
    const LETTERS_MAX: usize = 64;
    if word.chars().count() > LETTERS_MAX {
        return None;
    }
    let lower = word.to_lowercase();
    let alias = ALIASES.iter().find(|(alias, _)| *alias == lower);
    if let Some(key) = alias.and_then(|(_, key)| known.iter().find(|known| known.as_ref() == *key))
    {
        return Some(key.as_ref());
    }
    known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(&lower, known.as_ref()), known))
        .min_by_key(|(edits, _)| *edits)
        .filter(|(edits, _)| *edits as f64 <= EDITS_PER_LETTER_MAX * lower.chars().count() as f64)
        .map(|(_, known)| known.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_words_are_suggested_and_others_listed() {
        let known = ["epochs", "steps", "learning_rate"];
        for (word, expected) in [
            ("epoch", Some("epochs")),
            ("EPOCHS", Some("epochs")),
            ("setps", Some("steps")),
            ("learningrate", Some("learning_rate")),
            ("lr", Some("learning_rate")),
            ("batch_size", None),
            ("momentum", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &known), expected, "{word}");
        }
        assert_eq!(
            hint("momentum", &known).unwrap(),
            "expected one of `epochs`, `steps`, `learning_rate`"
        );
        assert_eq!(hint::<&str>("x", &[]), None);
        let accumulation = hint("gradient_accumulation_steps", &known).unwrap();
        assert!(accumulation.contains("workers.logical_shards"));
    }
}
