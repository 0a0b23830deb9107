//! Names and units of the data belong to the model: classes and columns in another order, new ones, and divided targets.

use std::path::Path;

use serde_json::Value;

use crate::support::TestFolder;

/// Returns a run file of a table with two features and a class.
fn classes(columns: &str, names: &str) -> String {
    format!(
        "[run]\nname = \"named\"\n[data]\nsource = \"records\"\ntrain = \"d.csv\"\ntest = \"d.csv\"\n\
         features = {{ decode = \"numbers\", field = {columns}, shape = [2] }}\nlabel = {{ field = \"class\", names = {names} }}\n\
         [model]\nkind = \"linear\"\n[train]\nepochs = 60\nglobal_batch_size = 4\nlearning_rate = 0.1\n\
         metrics = [\"confusion_matrix\"]\n"
    )
}

const TABLE: &str = "x,y,class\n1,0,a\n0,1,b\n1,0.1,a\n0.1,1,b\n1,0,a\n";
const MODEL: &str = "runs/named/model.json";

/// Trains the model of classes `a` and `b` on the columns `x` and `y`.
fn trained() -> TestFolder {
    let dir = TestFolder::new();
    dir.write("d.csv", TABLE);
    dir.write("run.toml", &classes(r#"["x", "y"]"#, r#"["a", "b"]"#));
    dir.run(&["train", "run.toml"]).expect(0, &[]);
    dir
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn another_order_of_classes_and_columns_is_mapped() {
    let dir = trained();
    let signature = &json(&dir.path().join(MODEL))["signature"];
    assert_eq!(signature["class_names"], serde_json::json!(["a", "b"]));
    assert_eq!(signature["columns"], serde_json::json!(["x", "y"]));
    dir.write("other.toml", &classes(r#"["y", "x"]"#, r#"["b", " a"]"#));
    let other = ["evaluate", "runs/named", "--data", "other.toml", "--json"];
    let ended = dir
        .run(&other)
        .expect(0, &["the classes of the data", "the columns of the data"]);
    let found: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    assert_eq!(found["accuracy"], 1.0, "{found}");
    assert_eq!(found["classes"], serde_json::json!(["a", "b"]));
    assert_eq!(
        found["confusion_matrix"],
        serde_json::json!([[3, 0], [0, 2]])
    );
    let own = dir
        .run(&["evaluate", "runs/named", "--json"])
        .expect(0, &[]);
    assert_eq!(own.stdout, ended.stdout);
    assert!(!own.stderr.contains("note:"), "{}", own.stderr);
    let predict = [
        "predict",
        "runs/named",
        "--data",
        "other.toml",
        "--to",
        "out.csv",
    ];
    dir.run(&predict).expect(0, &[]);
    let rows = std::fs::read_to_string(dir.path().join("out.csv")).unwrap();
    let mut lines = rows.lines();
    let heading = "sample,file,record,class,class_name,probability,probability_a,probability_b";
    assert_eq!(lines.next(), Some(heading));
    let names: Vec<&str> = lines.map(|line| line.split(',').nth(4).unwrap()).collect();
    assert_eq!(names, ["a", "b", "a", "b", "a"]);
    let text = dir.run(&["evaluate", "runs/named"]).expect(0, &[]);
    assert!(
        text.stdout.contains("\n     a  b\n  a  3  0\n  b  0  2"),
        "{}",
        text.stdout
    );
}

#[test]
fn missing_and_new_names_are_errors_with_both_lists() {
    let dir = trained();
    for (columns, names, words) in [
        (
            r#"["x", "y"]"#,
            r#"["a", "b", "c"]"#,
            ["`a`, `b`", "`a`, `b`, `c`"],
        ),
        (r#"["x", "x2"]"#, r#"["a", "b"]"#, ["`x`, `y`", "`x`, `x2`"]),
    ] {
        dir.write("d.csv", "x,x2,y,class\n1,2,0,a\n0,3,1,b\n");
        dir.write("other.toml", &classes(columns, names));
        for command in ["evaluate", "predict"] {
            let mut arguments = vec![command, "runs/named", "--data", "other.toml"];
            if command == "predict" {
                arguments.extend(["--to", "out.csv"]);
            }
            dir.run(&arguments).expect(2, &words);
        }
    }
    let twice = classes(r#"["x", "y"]"#, r#"["a", "a "]"#);
    dir.write("twice.toml", &twice);
    dir.run(&["check", "twice.toml"])
        .expect(2, &["`a` is listed twice"]);
}

#[test]
fn a_run_that_starts_from_another_one_has_its_order() {
    let dir = trained();
    let start = |columns: &str, names: &str, new: &str| {
        let text = classes(columns, names).replace("\"named\"", "\"tuned\"");
        let model = format!("[model]\ninit = \"runs/named\"\n{new}");
        dir.write("tuned.toml", &text.replace("[model]\n", &model));
        let arguments = [
            "train",
            "tuned.toml",
            "--overwrite",
            "--set",
            "train.epochs=1",
        ];
        dir.run(&[&arguments[..], &["--set", "train.learning_rate=1e-6"]].concat())
    };
    let signature = || json(&dir.path().join("runs/tuned/model.json"))["signature"].clone();
    start(r#"["y", "x"]"#, r#"["b", "a"]"#, "").expect(0, &["another order"]);
    assert_eq!(signature(), json(&dir.path().join(MODEL))["signature"]);
    let ended = dir
        .run(&["evaluate", "runs/tuned", "--json"])
        .expect(0, &[]);
    let found: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    assert_eq!(found["accuracy"], 1.0, "{found}");
    let new = r#"["x", "y"]"#;
    let words = [
        "the model has `a`, `b`, the data has `b`, `c`, `a`",
        "model.init_new = [",
    ];
    start(new, r#"["b", "c", "a"]"#, "").expect(2, &words);
    let head = "init_new = [\"*\"]\n";
    start(new, r#"["b", "c", "a"]"#, head).expect(0, &["the classes are not those of model.init"]);
    assert_eq!(
        signature()["class_names"],
        serde_json::json!(["b", "c", "a"])
    );
}

#[test]
fn divided_targets_are_in_the_units_of_the_data_everywhere_but_in_the_loss() {
    let dir = TestFolder::new();
    let row = |number: i32| {
        let (a, b) = (f64::from(number % 5), f64::from(number % 3));
        format!("{a},{b},{}\n", 100.0 * a - 200.0 * b + 50.0)
    };
    let rows: String = (0..30).map(row).collect();
    dir.write("reg.csv", &format!("a,b,y\n{rows}"));
    let run = |scale: &str| {
        format!(
            "[run]\nname = \"reg\"\n[data]\nsource = \"records\"\ntrain = \"reg.csv\"\ntest = \"reg.csv\"\n\
             features = {{ decode = \"numbers\", field = [\"a\", \"b\"], shape = [2] }}\n\
             label = {{ field = \"y\", values = 1{scale} }}\n[model]\nkind = \"linear\"\n[train]\nepochs = 3\n\
             global_batch_size = 15\nlearning_rate = 0.01\nmetrics = [\"mean_absolute_error\"]\n"
        )
    };
    dir.write("run.toml", &run(", scale = 100"));
    let ended = dir
        .run(&["train", "run.toml", "--json", "-n", "2"])
        .expect(0, &[]);
    let events = ended.events();
    let evaluated = events.iter().rfind(|event| event["event"] == "evaluated");
    let trained = evaluated.unwrap()["mean_absolute_error"].as_f64().unwrap();
    dir.run(&["predict", "runs/reg", "--to", "out.csv"])
        .expect(0, &[]);
    let predicted = std::fs::read_to_string(dir.path().join("out.csv")).unwrap();
    let last = |line: &str| line.rsplit(',').next().unwrap().parse::<f64>().unwrap();
    let errors: Vec<f64> = predicted
        .lines()
        .skip(1)
        .zip(rows.lines())
        .map(|(found, expected)| (last(found) - last(expected)).abs())
        .collect();
    // Computed from the file of predictions, in the units of the data.
    let expected = errors.iter().sum::<f64>() / 30.0;
    assert!(
        (trained - expected).abs() < 1e-3 * expected,
        "{trained} {expected}"
    );
    assert!(expected > 10.0, "{expected}");
    dir.write("plain.toml", &run(""));
    for data in [&[][..], &["--data", "plain.toml"]] {
        let ended = dir.run(&[&["evaluate", "runs/reg", "--json"], data].concat());
        let ended = ended.expect(0, &[]);
        let found: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
        assert_eq!(found["mean_absolute_error"].as_f64(), Some(trained));
        assert_eq!(ended.stderr.contains("divided by 100"), !data.is_empty());
    }
    let exported = dir
        .run(&["export", "runs/reg", "--format", "torch"])
        .expect(0, &[]);
    assert!(
        exported.stdout.contains("multiply the outputs by 100"),
        "{}",
        exported.stdout
    );
}

#[test]
fn tokens_of_another_text_are_refused() {
    let dir = TestFolder::new();
    for (name, text) in [("one", "abcabcabdabc"), ("two", "abxabxabyabx")] {
        dir.write(&format!("{name}.txt"), &text.repeat(60));
        let run = format!(
            "[run]\nname = \"{name}\"\n[data]\nsource = \"text\"\nfile = \"{name}.txt\"\ncontext = 8\n[model]\nkind = \"gpt\"\n\
             width = 8\nheads = 2\nlayers = 1\nSTART\n[train]\nsteps = 2\nglobal_batch_size = 8\nlearning_rate = 0.01\n"
        );
        let start = match name {
            "one" => "",
            _ => "init = \"runs/one\"",
        };
        dir.write(&format!("{name}.toml"), &run.replace("START", start));
    }
    dir.run(&["train", "one.toml"]).expect(0, &[]);
    let lists = ["`a`, `b`, `c`, `d`", "`a`, `b`, `x`, `y`"];
    let evaluate = ["evaluate", "runs/one", "--data", "two.toml"];
    dir.run(&evaluate).expect(2, &lists);
    dir.run(&["train", "two.toml"]).expect(2, &lists);
}
