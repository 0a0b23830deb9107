//! Errors of the command line: clap's message, with help for run-file keys that were passed as flags.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use ronde_train::config::{DEFAULT_RUN_FILE, Document};

use super::console::message;
use super::exit;

/// Common short names of run-file keys in other tools.
const ALIASES: [(&str, &str); 6] = [
    ("lr", "train.learning_rate"),
    ("batch_size", "train.global_batch_size"),
    ("output", "run.output"),
    ("output_dir", "run.output"),
    ("name", "run.name"),
    ("seed", "run.seed"),
];

/// Keys that are not in the embedded example.
const FURTHER_KEYS: [&str; 3] = ["train.steps", "checkpoint.to", "checkpoint.encrypt"];

/// Prints a usage error, or the help or version that was requested. Returns the exit code.
pub(crate) fn report(error: &clap::Error) -> i32 {
    if !error.use_stderr() {
        // The reader may have closed the pipe, such as `head`.
        let _ = error.print();
        return exit::DONE;
    }
    match run_file_key(error) {
        Some((flag, key)) => message!(
            "error: unexpected argument `{flag}`\n  \
             help: `{key}` is a key of the run file: use `--set {key}=VALUE`"
        ),
        None => message!("{}", error.render().to_string().trim_end()),
    }
    exit::USER_ERROR
}

/// Returns the unknown flag and the run-file key of the same name, if there is one.
fn run_file_key(error: &clap::Error) -> Option<(String, String)> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = flag.trim_start_matches('-').split('=').next()?;
    let key = key_of(&name.replace('-', "_"))?;
    Some((flag.clone(), key))
}

/// Returns the dotted key of the run file whose last part is `name`.
fn key_of(name: &str) -> Option<String> {
    if let Some((_, key)) = ALIASES.iter().find(|(alias, _)| *alias == name) {
        return Some((*key).to_owned());
    }
    let (_, example) = Document::load(DEFAULT_RUN_FILE, "example", &[], &[]).ok()?;
    let keys: Vec<String> = example.origins().map(|(key, _)| key.to_owned()).collect();
    let further = FURTHER_KEYS.iter().map(|key| (*key).to_owned());
    let mut matching = keys.into_iter().chain(further).filter(|key| {
        let last = key.rsplit('.').next();
        last == Some(name) || key == name
    });
    // `train` has the keys that users look for; otherwise the first section is as good as another.
    let first = matching.next()?;
    let in_train = std::iter::once(first.clone())
        .chain(matching)
        .find(|key| key.starts_with("train."));
    in_train.or(Some(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_run_file_are_found_by_their_last_part() {
        for (name, key) in [
            ("epochs", Some("train.epochs")),
            ("lr", Some("train.learning_rate")),
            ("batch_size", Some("train.global_batch_size")),
            ("learning_rate", Some("train.learning_rate")),
            ("every_steps", Some("checkpoint.every_steps")),
            ("steps", Some("train.steps")),
            ("no_such_key", None),
        ] {
            assert_eq!(key_of(name).as_deref(), key, "{name}");
        }
    }
}
