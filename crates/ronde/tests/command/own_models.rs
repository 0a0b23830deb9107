//! Programs that train their own model, whose layers or weights several workers divide.

use rustix::process::Signal;

use crate::support::{Ended, RONDE, Running, TestFolder, example, gone, send};

const RUN: &str = "\
[data]\nsource = 'digits'\n[model]\nkind = 'digits_cnn'\n[train]\nepochs = 1\nglobal_batch_size = 64\n";

/// Writes a run file with a `[parallel]` section, and returns its name.
fn run_file(dir: &TestFolder, parallel: &str) -> &'static str {
    dir.write("run.toml", &format!("{RUN}[parallel]\n{parallel}\n"));
    "run.toml"
}

fn hashes(ended: &Ended) -> Vec<String> {
    let lines = ended.stdout.lines();
    let found = lines.filter_map(|line| line.split_once("blake3 "));
    found.map(|(_, hash)| hash.to_owned()).collect()
}

/// Starts the example on a number of ranks, with options of `ronde run`.
fn start(dir: &TestFolder, ranks: &str, options: &[&str], arguments: &[&str]) -> Running {
    let program = example("own_model");
    let program = [program.to_str().unwrap()];
    let of_ranks = ["run", "-n", ranks];
    let all = [&of_ranks, options, &["--"], &program, arguments].concat();
    dir.start(RONDE, &all, &[])
}

fn alone(epochs: &str) -> Vec<String> {
    let dir = TestFolder::new();
    let file = run_file(&dir, "");
    let ended = dir.start(example("own_model"), &["kept", epochs, file], &[]);
    let hashes = hashes(&ended.wait().expect(0, &[]));
    assert_eq!(hashes.len(), 1);
    hashes
}

#[test]
fn layouts_do_not_change_the_bits_of_a_model_of_own_layers() {
    let expected = alone("2");
    for (ranks, parallel) in [
        ("2", "pipeline = 2"),
        ("2", "pipeline = 2\nschedule = 'zero_bubble'"),
        ("3", "zero = 3"),
        ("4", "pipeline = 2\nzero = 1"),
        ("4", "pipeline = 2\nzero = 3\ncuts = ['perceptron']"),
    ] {
        let dir = TestFolder::new();
        let file = run_file(&dir, parallel);
        let ended = start(&dir, ranks, &[], &["kept", "2", file]).wait();
        assert_eq!(hashes(&ended.expect(0, &[])), expected, "{parallel}");
    }
}

/// Enough epochs that a busy machine does not finish before the signal.
const EPOCHS: &str = "40";

#[test]
fn a_pipeline_of_own_layers_has_the_same_bits_when_a_worker_is_killed() {
    let expected = alone(EPOCHS);
    for killed in [0, 1] {
        let dir = TestFolder::new();
        let file = run_file(&dir, "pipeline = 2\ncopies = 2");
        let mut running = start(&dir, "3", &["--elastic"], &["kept", EPOCHS, file]);
        running.wait_stderr("step ", 1);
        send(running.workers()[&killed], Signal::KILL);
        let ended = running.wait().expect(0, &["killed (SIGKILL)"]);
        assert_eq!(hashes(&ended), expected);
    }
}

#[test]
fn a_run_of_own_layers_resumes_in_another_layout() {
    let expected = alone(EPOCHS);
    for (first, then) in [
        (("2", "pipeline = 2"), ("3", "zero = 3")),
        (("3", "zero = 3"), ("2", "pipeline = 2")),
    ] {
        let dir = TestFolder::new();
        let file = run_file(&dir, first.1);
        let mut running = start(&dir, first.0, &[], &["kept", EPOCHS, file]);
        running.wait_stderr("step ", 1);
        let workers = running.workers();
        running.signal(Signal::TERM);
        let stopped = "interrupted: all ranks have ended";
        running.wait().expect(143, &[stopped]);
        gone(workers.into_values());
        let listed = dir.run(&["checkpoint", "ls", "kept"]).expect(0, &[]);
        assert!(listed.stdout.contains("complete"), "{}", listed.stdout);
        let file = run_file(&dir, then.1);
        let ended = start(&dir, then.0, &[], &["kept", EPOCHS, file]).wait();
        assert_eq!(hashes(&ended.expect(0, &[])), expected, "{first:?}");
    }
}

#[test]
fn own_layers_in_parts_are_divided_and_written_to_the_folder() {
    let run = |ranks: &str, workers: &[&str]| {
        let dir = TestFolder::new();
        let program = example("own_divided_model");
        let command = ["run", "-n", ranks, "--", program.to_str().unwrap(), "out"];
        let ended = dir.run(&[&command, workers].concat()).expect(0, &[]);
        assert!(dir.path().join("out/model.safetensors").is_file());
        hashes(&ended)
    };
    let expected = run("1", &[]);
    assert_eq!(expected.len(), 1);
    for (ranks, workers) in [("2", ["1", "2"]), ("4", ["2", "2"]), ("3", ["3", "1"])] {
        assert_eq!(run(ranks, &workers), expected, "{workers:?}");
    }
}

#[test]
fn a_division_that_a_model_or_the_workers_do_not_allow_is_refused() {
    let dir = TestFolder::new();
    let refused = |ranks: &str, parallel: &str, words: &[&str]| {
        let file = run_file(&dir, parallel);
        let ended = start(&dir, ranks, &[], &["kept", "1", file]).wait();
        assert_ne!(ended.code, 0);
        let code = ended.code;
        ended.expect(code, words);
    };
    let few = "a pipeline of 2 workers cannot start with 1";
    refused("1", "pipeline = 2", &[few]);
    refused(
        "2",
        "tensor = 2",
        &["they are not in parts", "`GraphBuilder::each_part`"],
    );
    refused("3", "pipeline = 3", &["cannot divide 2 layers"]);
}

#[test]
fn settings_of_a_program_that_do_not_fit_its_division_are_refused() {
    let mut config = ronde::RunConfig::example();
    config.parallel.zero = 3;
    config.parallel.stages_per_worker = Some(2);
    let opening = ronde::environment::opening(".".as_ref(), config.run.seed);
    let data = ronde::data::open(&config.data, &opening).unwrap();
    let mut worker = ronde::Worker::start().unwrap();
    let trainer = worker.trainer(&config, data);
    let trained = trainer.train(|| ronde::engine::Chain::new(Vec::new()));
    let message = trained.map(drop).unwrap_err().explain();
    let expected = "`parallel.stages_per_worker` has an effect with";
    assert!(message.contains(expected), "{message}");
    assert!(message.contains("help: set that schedule"), "{message}");
}

#[cfg(feature = "burn")]
#[test]
fn workers_do_not_divide_burn_layers() {
    for (parallel, words) in [
        (
            "pipeline = 2",
            "parallel.pipeline = 2 cannot train this model: layer `hidden` of burn",
        ),
        (
            "tensor = 2",
            "parallel.tensor = 2 cannot train this model: layer `hidden` of burn",
        ),
        ("zero = 3", "keeps its weights between its passes"),
    ] {
        let dir = TestFolder::new();
        let file = run_file(&dir, parallel);
        let program = example("own_burn_model");
        let command = ["run", "-n", "2", "--", program.to_str().unwrap()];
        let ended = dir.run(&[&command[..], &["kept", "1", file]].concat());
        assert_ne!(ended.code, 0);
        let code = ended.code;
        ended.expect(code, &[words, "parallel.zero"]);
        assert!(dir.list("kept").is_empty());
    }
}
