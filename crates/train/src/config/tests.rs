//! Tests of valid, invalid and hostile run files and of the messages about them.

mod bad_files;
mod merge;
mod random;
#[cfg(feature = "schema")]
mod schema;

use super::*;

/// Returns the smallest valid run file, followed by `rest`.
pub(super) fn with(rest: &str) -> String {
    format!("[data]\nsource = \"digits\"\n[model]\nkind = \"linear\"\n[train]\nepochs = 3\n{rest}")
}

/// Loads a file without environment and arguments.
pub(super) fn load(text: &str) -> Result<(RunConfig, Document), ConfigError> {
    Document::load(text, "run.toml", &[], &[])
}

pub(super) fn rendered(text: &str) -> String {
    load(text).expect_err(text).render(false)
}

#[test]
fn the_default_run_file_is_valid_and_contains_the_defaults() {
    let (run, document) = load(DEFAULT_RUN_FILE).unwrap_or_else(|e| panic!("{}", e.render(false)));
    assert_eq!(document.notices(), []);
    assert_eq!(run.run.seed, RunSection::default().seed);
    assert_eq!(
        run.workers.logical_shards,
        WorkersSection::default().logical_shards
    );
    let defaults = TrainSection::default();
    assert_eq!(run.train.global_batch_size, defaults.global_batch_size);
    assert_eq!(run.train.drop_last, defaults.drop_last);
    assert_eq!(run.train.shuffle, defaults.shuffle);
    assert_eq!(run.comm, CommSection::default());
    assert_eq!(run.parallel, ParallelSection::default());
    assert_eq!(run.check, CheckSection::default());
    assert_eq!(run.elastic, ElasticSection::default());
    assert_eq!(run.events, EventsSection::default());
    assert_eq!(run.track, TrackSection::default());
    assert_eq!(run.job, JobSection::default());
    assert_eq!(run.checkpoint, CheckpointSection::default());
    assert_eq!(run.data, ronde_data::DataConfig::default());
}

#[test]
fn commented_lines_of_the_default_run_file_are_valid() {
    let all: Vec<String> = DEFAULT_RUN_FILE
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.contains(" = ") => rest.to_owned(),
            _ => line.to_owned(),
        })
        .collect();
    let (run, _) = load(&all.join("\n")).unwrap_or_else(|e| panic!("{}", e.render(false)));
    assert_eq!(run.train.clip_norm, Some(5.0));
    assert_eq!(run.train.evaluate_every_epochs, Some(1));
    let (plain, _) = load(DEFAULT_RUN_FILE).unwrap();
    assert_eq!(run.run.output, plain.run.output, "the documented default");
}

#[test]
fn a_resolved_run_round_trips() {
    for text in [DEFAULT_RUN_FILE.to_owned(), with("clip_norm = 0.1\n")] {
        let (run, _) = load(&text).unwrap();
        let (again, _) = load(&run.to_toml().unwrap()).unwrap();
        assert_eq!(run, again);
    }
    let csv = "[data]\nsource = \"csv\"\ntrain = \"a.csv\"\nshape = [2, 2]\nclasses = 3\n\
               scale = 0.1\n[model]\nkind = \"mlp\"\nhidden = [8]\n[train]\nsteps = 7\n";
    let (run, _) = load(csv).unwrap();
    let text = run.to_toml().unwrap();
    assert!(text.contains("scale = 0.1\n"), "{text}");
    assert_eq!(load(&text).unwrap().0, run);
}

#[test]
fn the_identity_contains_the_settings_that_change_the_bits() {
    let parts = |rest: &str| {
        let (run, _) = load(&with(rest)).unwrap();
        run.identity_parts().unwrap()
    };
    let base = parts("");
    let value = |path: &str| {
        base.iter()
            .find(|(p, _)| p == path)
            .map(|(_, v)| v.as_str())
    };
    assert_eq!(value("run.seed"), Some("42"));
    assert_eq!(value("workers.logical_shards"), Some("8"));
    assert_eq!(value("train.learning_rate"), Some("0.001"));
    assert_eq!(value("optimizer.kind"), Some("\"adamw\""));
    for same in [
        "[workers]\ncount = 4\n",
        "[run]\nname = \"other\"\noutput = \"/elsewhere\"\n",
        "[comm]\nalgorithm = \"driver\"\n",
        "[check]\nweight_hash_parts = 2\n",
        "[events]\nevery_steps = 10\nlimit_mib = 1\n",
        "[track]\ntensorboard = true\ncsv = true\nprometheus = \"127.0.0.1:0\"\n",
        "[checkpoint]\nevery_steps = 5\nto = \"elsewhere\"\n",
        "[job]\nfiles = [\"x\"]\nmemory = \"8Gi\"\ncpus = 2\ngpus = 1\n",
        "evaluate_every_epochs = 1\n",
    ] {
        assert_eq!(parts(same), base, "{same}");
    }
    for other in [
        "[workers]\nlogical_shards = 4\n",
        "[run]\nseed = 1\n",
        "shuffle = false\n",
        "clip_norm = 1.0\n",
        "[optimizer]\nkind = \"sgd\"\n",
        "[schedule]\nkind = \"cosine\"\n",
    ] {
        assert_ne!(parts(other), base, "{other}");
    }
}

#[test]
fn the_identity_of_the_default_run_is_unchanged() {
    let (run, _) = load(DEFAULT_RUN_FILE).unwrap();
    let parts = run.identity_parts().unwrap();
    let lines: Vec<String> = parts.iter().map(|(p, v)| format!("{p} = {v}")).collect();
    let expected = "\
data.source = \"digits\"
model.channels = 16
model.dropout = 0.25
model.kind = \"digits_cnn\"
optimizer.beta1 = 0.9
optimizer.beta2 = 0.999
optimizer.epsilon = 0.00000001
optimizer.kind = \"adamw\"
optimizer.weight_decay = 0.01
run.seed = 42
schedule.kind = \"cosine\"
schedule.warmup_steps = 20
train.clip_norm = 5.0
train.drop_last = false
train.epochs = 25
train.global_batch_size = 64
train.learning_rate = 0.02
train.shuffle = true
version = 1
workers.logical_shards = 8";
    assert_eq!(lines.join("\n"), expected);
}

#[test]
fn notices_do_not_stop_a_run_and_point_into_the_file() {
    let text = with("global_batch_size = 5\n[workers]\ncount = 3\n");
    let (_, document) = load(&text).unwrap();
    let shown = document.render_notices(false);
    for fragment in [
        "note: 3 workers share 8 logical shards unevenly: they are busy 89 % of the time",
        "note: a global batch of 5 leaves 3 of 8 logical shards empty in every step",
        "run.toml:7:21",
    ] {
        assert!(shown.contains(fragment), "{fragment} in\n{shown}");
    }
}

#[test]
fn missing_data_files_are_reported_at_their_keys() {
    let text = "[data]\nsource = \"csv\"\ntrain = \"a.csv\"\ntest = \"b.csv\"\nshape = [4]\n\
                classes = 3\n[model]\nkind = \"linear\"\n[train]\nsteps = 7\n";
    let (run, document) = load(text).unwrap();
    let base = std::path::Path::new("/base");
    let exists = |path: &std::path::Path| path.ends_with("a.csv");
    assert_eq!(check::files(&run.data, base, &|_| true), []);
    let problems = check::files(&run.data, base, &exists);
    let shown = document.refuse(problems).unwrap().render(false);
    assert!(shown.contains("no such file: /base/b.csv"), "{shown}");
    assert!(shown.contains("run.toml:4:8"), "{shown}");
    let (run, _) = load(&text.replace("a.csv", "https://me:word@host/a.csv")).unwrap();
    let [problem] = &check::files(&run.data, base, &|_| true)[..] else {
        panic!("one problem")
    };
    let message = format!("{problem:?}");
    assert!(message.contains("is an address"), "{message}");
    assert!(!message.contains("word"), "{message}");
}

#[test]
fn checkpoint_addresses_are_resolved_and_invalid_settings_reported() {
    let output = std::path::Path::new("/runs/one");
    let address = |rest: &str| {
        let (run, _) = load(&with(rest)).unwrap();
        run.checkpoint.address(output).unwrap().to_string()
    };
    assert_eq!(address(""), "/runs/one/checkpoints");
    assert_eq!(address("[checkpoint]\nto = \"s3://b/c\"\n"), "s3://b/c");
    for (wrong, fragment) in [
        ("every_minutes = -1.0", "must be 0 to"),
        ("keep = 0", "must be at least 1"),
        ("to = \"ftp://x\"", "unknown scheme ftp://"),
        ("encrypt = \"hunter2\"", "must be \"file:PATH\""),
        ("every_step = 3", "every_steps"),
    ] {
        let shown = rendered(&with(&format!("[checkpoint]\n{wrong}\n")));
        assert!(shown.contains(fragment), "{fragment} in\n{shown}");
    }
}

#[test]
fn the_learning_rate_scales_with_the_batch_size_and_is_reported() {
    let scaled = "learning_rate = 0.1\nglobal_batch_size = 1024\n\
                  learning_rate_scaling = \"square_root\"\nlearning_rate_batch_size = 256\n";
    let (run, _) = load(&with(scaled)).unwrap();
    assert_eq!(run.train.base_learning_rate(), 0.2);
    assert_eq!(
        run.train.learning_rate_rule().unwrap(),
        "learning rate: 0.1 for batches of 256, scaled (square root) to batches of 1024: 0.2"
    );
    let parts = run.identity_parts().unwrap();
    assert!(
        parts
            .iter()
            .any(|(path, _)| path == "train.learning_rate_scaling")
    );
    let (plain, _) = load(&with("")).unwrap();
    assert_eq!(plain.train.learning_rate_rule(), None);
    let parts = plain.identity_parts().unwrap();
    assert!(parts.iter().all(|(path, _)| !path.contains("scaling")));
}
