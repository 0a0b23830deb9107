//! Tests of precedence, origins and invalid arguments.

use super::{DEFAULT_RUN_FILE, Document, Override, RunConfig, ValueOrigin, with};
use crate::config::ConfigError;

fn load(
    text: &str,
    environment: &[(&str, &str)],
    overrides: &[Override],
) -> Result<(RunConfig, Document), ConfigError> {
    let environment: Vec<(String, String)> = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Document::load(text, "run.toml", &environment, overrides)
}

fn set(text: &str) -> Override {
    Override::Set(text.to_owned())
}

fn flag(name: &str, path: &str, value: &str) -> Override {
    Override::Flag {
        name: name.to_owned(),
        path: path.to_owned(),
        value: value.to_owned(),
    }
}

#[test]
fn later_sources_win_and_every_origin_is_remembered() {
    let text = with("[workers]\nlogical_shards = 16\n");
    let environment = [
        ("RONDE_SET_WORKERS__LOGICAL_SHARDS", "20"),
        ("PATH", "/bin"),
    ];
    let one = set("workers.logical_shards=30");
    let two = set("workers.logical_shards = 40");
    let last = flag("--shards", "workers.logical_shards", "50");
    let path = "workers.logical_shards";
    let shards = |environment: &[(&str, &str)], overrides: &[Override]| {
        let (run, document) = load(&text, environment, overrides).unwrap();
        (run.workers.logical_shards, document.origin(path))
    };
    let (value, origin) = shards(&[], &[]);
    let ValueOrigin::File { span } = origin else {
        panic!("{origin}")
    };
    assert_eq!((value, &text[span]), (16, "16"));
    let (value, origin) = shards(&environment, &[]);
    assert_eq!(
        (value, origin.to_string()),
        (20, format!("environment {}", environment[0].0))
    );
    let (value, origin) = shards(&environment, &[one.clone(), two.clone()]);
    let expected = "--set workers.logical_shards = 40".to_owned();
    assert_eq!((value, origin.to_string()), (40, expected));
    let (value, origin) = shards(&environment, &[last, one, two]);
    assert_eq!(
        (value, origin.to_string()),
        (50, "flag --shards".to_owned())
    );
    let (_, document) = load(&text, &[], &[]).unwrap();
    assert_eq!(document.origin("comm.timeout_s"), ValueOrigin::Default);
    let given: Vec<&str> = document.origins().map(|(path, _)| path).collect();
    assert_eq!(given, ["data.source", "model.kind", "train.epochs", path]);
}

#[test]
fn values_are_toml_or_else_strings() {
    let overrides = [
        set("run.name=2026"),
        set("run.output=some folder/x"),
        set("train.learning_rate=1"),
        set("comm.algorithm=driver"),
        set("data = {source = \"synthetic_images\", samples = 9, shape = [1, 4, 4], classes = 2}"),
    ];
    let (run, document) = load(&with(""), &[], &overrides).unwrap();
    assert_eq!(run.run.name, "2026");
    assert_eq!(run.run.output.unwrap().to_str(), Some("some folder/x"));
    assert_eq!(run.train.learning_rate, 1.0);
    assert_eq!(
        document.origin("data.shape").to_string(),
        format!("--set {}", text_of(&overrides[4]))
    );
    let error = load(&with(""), &[], &[set("train.shuffle=maybe")]).unwrap_err();
    let shown = error.render(false);
    assert!(
        shown.contains("must be true or false, found string \"maybe\""),
        "{shown}"
    );
}

fn text_of(given: &Override) -> &str {
    match given {
        Override::Set(text) => text,
        Override::Flag { value, .. } => value,
    }
}

#[test]
fn a_later_source_removes_inconsistent_values_of_earlier_ones() {
    let steps = [("RONDE_SET_TRAIN__STEPS", "7")];
    let (run, document) = load(DEFAULT_RUN_FILE, &steps, &[]).unwrap();
    assert_eq!((run.train.epochs, run.train.steps), (None, Some(7)));
    assert_eq!(document.origin("train.epochs"), ValueOrigin::Default);
    let (run, _) = load(DEFAULT_RUN_FILE, &steps, &[set("train.epochs=2")]).unwrap();
    assert_eq!((run.train.epochs, run.train.steps), (Some(2), None));
    let both = [set("train.epochs=2"), set("train.steps=3")];
    let error = load(DEFAULT_RUN_FILE, &[], &both)
        .unwrap_err()
        .render(false);
    assert!(error.contains("both `train.epochs` = 2 and"), "{error}");

    let text = with("[optimizer]\nkind = \"adamw\"\nbeta1 = 0.5\nweight_decay = 0.25\n");
    let (run, _) = load(&text, &[], &[set("optimizer.kind=adamw")]).unwrap();
    assert!(
        run.to_toml().unwrap().contains("beta1 = 0.5"),
        "the same kind keeps its keys"
    );
    let sgd = [set("optimizer.momentum=0.5"), set("optimizer.kind=sgd")];
    let (run, _) = load(&text, &[], &sgd).unwrap();
    let text = run.to_toml().unwrap();
    assert!(
        text.contains("momentum = 0.5") && text.contains("weight_decay = 0.0"),
        "{text}"
    );
}

/// Environment variables, arguments, and fragments of the expected message.
type InvalidArguments<'a> = (&'a [(&'a str, &'a str)], &'a [Override], &'a [&'a str]);

fn check(cases: &[InvalidArguments<'_>]) {
    for (environment, overrides, fragments) in cases {
        let error = load(&with(""), environment, overrides).unwrap_err();
        let shown = error.render(false);
        for fragment in *fragments {
            assert!(
                shown.contains(fragment),
                "{fragment:?} for {overrides:?}:\n{shown}"
            );
        }
    }
}

#[test]
fn another_codec_keeps_the_senders_and_drops_what_belongs_to_the_first() {
    let text = with(
        "[compression]\ncodec = \"top_k\"\nsenders = 3\nratio = 0.5\n[workers]\nlogical_shards = 3\n",
    );
    let (run, document) = load(&text, &[], &[set("compression.codec=bf16")]).unwrap();
    assert_eq!(run.compression.senders(), Some(3));
    assert!(matches!(
        document.origin("compression.senders"),
        ValueOrigin::File { .. }
    ));
    assert!(!run.to_toml().unwrap().contains("ratio"));
}

#[test]
fn invalid_values_point_at_the_argument() {
    let flag = |value| [flag("--workers", "workers.count", value)];
    check(&[
        (
            &[],
            &[set("train.epochs=three")],
            &["--> --set:1:14", "found string \"three\""],
        ),
        (
            &[("RONDE_SET_TRAIN__EPOCHS", "0")],
            &[],
            &[
                "`train.epochs` must be at least 1",
                "--> environment:1:25",
                "RONDE_SET_TRAIN__EPOCHS=0",
            ],
        ),
        (
            &[],
            &flag("99"),
            &["8 logical shards are fewer than 99 workers", "--workers 99"],
        ),
        (
            &[],
            &flag("many"),
            &[
                "--> flag:1:11",
                "--workers many",
                "`workers.count` must be a whole number",
            ],
        ),
    ]);
}

#[test]
fn invalid_paths_point_at_the_argument() {
    check(&[
        (
            &[],
            &[set("train.epoch=3")],
            &[
                "unknown key `epoch` in [train]",
                "--> --set:1:1",
                "train.epoch=3",
                "did you mean `epochs`?",
            ],
        ),
        (
            &[],
            &[set("train.epochs")],
            &["expected `key=value`", "--> --set:1:1"],
        ),
        (
            &[],
            &[set("=3")],
            &["`` is not a valid path such as train.epochs"],
        ),
        (&[], &[set("a..b=3")], &["`a..b` is not a valid path"]),
        (
            &[("RONDE_SET_", "3")],
            &[],
            &["`` is not a valid path", "--> environment:1:1"],
        ),
        (
            &[],
            &[set("train.epochs.x=3")],
            &["passes through a key that is not a section"],
        ),
        (
            &[],
            &[set("trian.epochs=3")],
            &["unknown section [trian]", "trian.epochs=3"],
        ),
    ]);
}
