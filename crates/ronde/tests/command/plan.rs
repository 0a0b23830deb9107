//! `ronde plan`: forecasts for this machine and for described ones.

use serde_json::Value;

use crate::support::{RONDE, TestFolder};

const RUN: &str = "[run]\nname = \"planned\"\n[data]\nsource = \"digits\"\n[model]\nkind = \"mlp\"\nhidden = [64, 64]\n\
                   [train]\nepochs = 2\n[workers]\nlogical_shards = 8\n[parallel]\nzero = 1\n";

fn folder() -> TestFolder {
    let dir = TestFolder::new();
    dir.write("run.toml", RUN);
    dir
}

#[test]
fn every_layout_of_a_described_cluster_is_compared() {
    let dir = folder();
    let arguments = [
        "plan",
        "run.toml",
        "--hosts",
        "2",
        "--cores",
        "2",
        "--memory",
        "4GiB",
        "--link",
        "1Gbit/s,100us",
        "--price",
        "1.20/h",
        "--seconds",
        "1",
        "--json",
        "--plot",
        "efficiency.svg",
        "--configurations",
        "4",
    ];
    let ended = dir.run(&arguments).expect(0, &["wrote efficiency.svg"]);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        (&found["format"], &found["version"]),
        (&"ronde plan".into(), &1.into())
    );
    let layouts = found["layouts"].as_array().unwrap();
    let has = |pipeline: u64, schedule: &str, zero: u64| {
        layouts.iter().any(|layout| {
            let choice = &layout["choice"];
            choice["pipeline"] == pipeline
                && choice["schedule"] == schedule
                && choice["zero"] == zero
        })
    };
    // The model has three layers.
    assert!(
        has(1, "1f1b", 0) && has(1, "1f1b", 3) && has(2, "zero_bubble", 3) && has(2, "gpipe", 0)
    );
    assert!(
        !has(4, "1f1b", 0) && !has(2, "interleaved", 0),
        "{layouts:?}"
    );
    for layout in layouts {
        assert!(layout["step_s"].as_f64().unwrap() > 0.0, "{layout}");
        assert!(layout["price"].as_f64().unwrap() > 0.0, "{layout}");
        assert_eq!(layout["fits"], true);
    }
    let advice = found["advice"].to_string();
    assert!(
        advice.contains("run the configurations separately: 4 runs"),
        "{advice}"
    );
    assert_eq!(found["one_worker"]["choice"]["data"], 1);
    assert!(!found["reason"].as_str().unwrap().is_empty());
    let points = found["scaling"]["points"].as_array().unwrap();
    assert_eq!(points.last().unwrap()["workers"], 4096);
    let svg = std::fs::read_to_string(dir.path().join("efficiency.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains(">4096<"), "{svg}");
}

#[test]
fn the_table_names_the_best_layout_and_how_to_start_it() {
    let dir = folder();
    let ended = dir
        .run(&["plan", "run.toml", "--seconds", "1"])
        .expect(0, &["measured on this machine"]);
    for words in [
        "workers  data  zero",
        "best: ",
        "why: ",
        "start it with: ronde train run.toml --workers",
    ] {
        assert!(ended.stdout.contains(words), "{}", ended.stdout);
    }
    assert_eq!(dir.list("."), ["run.toml"]);
}

#[test]
fn the_command_that_starts_the_best_layout_can_be_pasted() {
    let dir = TestFolder::new();
    // Settings that the best layout of one worker or of several does not have.
    let parallel = "pipeline = 3\ncuts = [\"hidden_1\", \"output\"]\nzero = 2";
    dir.write("my run.toml", &RUN.replace("zero = 1", parallel));
    let set = ["--set", "run.output=it's mine"];
    let planned = dir
        .run(
            &[
                &["plan", "my run.toml", "--seconds", "1", "--all"],
                &set[..],
            ]
            .concat(),
        )
        .expect(0, &[]);
    let command = planned.stdout.lines().find_map(|line| {
        let (_, command) = line.split_once("start it with: ")?;
        Some(command.to_owned())
    });
    let command = command.unwrap_or_else(|| panic!("{}", planned.stdout));
    assert!(
        command.starts_with("ronde train 'my run.toml' --set "),
        "{command}"
    );
    let folder = std::path::Path::new(RONDE).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let trained = dir
        .start("sh", &["-c", &command], &[("PATH", &path)])
        .wait()
        .expect(0, &["planned finished"]);
    let workers = command.split("--workers ").nth(1).unwrap();
    let workers = workers.split(' ').next().unwrap();
    let on = format!("on {workers} worker");
    assert!(trained.stderr.contains(&on), "{}", trained.stderr);
    assert!(dir.path().join("it's mine/model.json").is_file());
}

#[test]
fn layers_in_parts_are_divided_among_workers() {
    let dir = folder();
    let set = [
        "--set",
        "model.tensor_parts=4",
        "--set",
        "model.hidden=[1024, 1024]",
    ];
    let plan = |flags: &[&str]| {
        let arguments = ["plan", "run.toml", "--seconds", "1", "--cores", "8"];
        dir.run(&[&arguments[..], &set, flags].concat())
            .expect(0, &[])
    };
    let found: Value = serde_json::from_str(&plan(&["--json"]).stdout).unwrap();
    let layouts = found["layouts"].as_array().unwrap();
    let of = |data: u64, pipeline: u64, tensor: u64| {
        let is_it = |layout: &&Value| {
            let choice = &layout["choice"];
            choice["data"] == data && choice["pipeline"] == pipeline && choice["tensor"] == tensor
        };
        layouts.iter().find(is_it).unwrap()
    };
    for mesh in [of(1, 1, 4), of(4, 1, 2), of(2, 2, 2)] {
        assert!(mesh["step_s"].as_f64().unwrap() > 0.0, "{mesh}");
        assert!(mesh["sent_bytes"].as_u64().unwrap() > 0, "{mesh}");
    }
    let computing_s = |layout: &Value| layout["computing_s"].as_f64().unwrap();
    assert!(computing_s(of(1, 1, 4)) < computing_s(of(1, 1, 1)));
    assert!(layouts.iter().all(|layout| layout["choice"]["tensor"] != 3));
    let table = plan(&["--all"]).stdout;
    assert!(
        table.contains("tensor") && !table.contains("no forecast"),
        "{table}"
    );
}

#[test]
fn bad_descriptions_are_refused() {
    let dir = folder();
    let refused = |flags: &[&str], words: &[&str]| {
        dir.run(&[&["plan", "run.toml", "--seconds", "1"], flags].concat())
            .expect(2, words);
    };
    refused(&["--memory", "64"], &["invalid --memory `64`", "64GiB"]);
    refused(
        &["--link", "fast"],
        &["invalid --link `fast`", "10Gbit/s,50us"],
    );
    refused(&["--price=-1"], &["invalid --price `-1`", "1.20/h"]);
    refused(&["--hosts", "0"], &["--hosts", "0"]);
    refused(
        &["--cores", "1", "--set", "workers.threads=2"],
        &["2 threads", "1 core", "help: "],
    );
    refused(
        &["--memory", "1MiB"],
        &[
            "no layout fits: the smallest of",
            "on a host of 1.0 MiB",
            "more than there is",
            "help: ",
        ],
    );
    dir.run(&["plan", "gone.toml"])
        .expect(2, &["cannot read run file gone.toml"]);
}
