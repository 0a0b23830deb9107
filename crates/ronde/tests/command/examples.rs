//! The examples, alone and under `ronde run`.

use rustix::process::Signal;

use crate::support::{RONDE, Running, TestFolder, example, gone, send};

#[test]
fn a_model_of_own_layers_has_the_same_bits_alone_and_on_three_ranks() {
    same_bits_alone_and_together("own_model");
}

#[cfg(feature = "burn")]
#[test]
fn a_burn_module_has_the_same_bits_alone_and_on_three_ranks() {
    same_bits_alone_and_together("own_burn_model");
}

fn same_bits_alone_and_together(program: &str) {
    let dir = TestFolder::new();
    let program = example(program);
    let alone = dir.start(&program, &[], &[]).wait().expect(0, &[]);
    let hash = |line: &str| line.split_once("blake3 ").map(|(_, hash)| hash.to_owned());
    let hashes: Vec<String> = alone.stdout.lines().filter_map(hash).collect();
    assert_eq!(hashes.len(), 1, "{}", alone.stdout);
    assert_eq!(hashes[0].len(), 64);
    let program = program.to_str().unwrap();
    let together = dir.run(&["run", "-n", "3", "--", program]).expect(0, &[]);
    let others: Vec<String> = together.stdout.lines().filter_map(hash).collect();
    assert_eq!(hashes, others);
    assert!(
        together.stdout.starts_with("[rank 0] "),
        "{}",
        together.stdout
    );
}

#[test]
fn collectives_alone_and_on_four_ranks() {
    let dir = TestFolder::new();
    let program = example("collectives");
    let alone = dir.start(&program, &[], &[]).wait().expect(0, &[]);
    let (_, pi) = alone.stdout.split_once("1 ranks: ").expect("a result");
    let program = program.to_str().unwrap();
    let arguments = ["run", "-n", "4", "--", program];
    let together = dir.start(RONDE, &arguments, &[]).wait().expect(0, &[]);
    assert_eq!(together.stdout, format!("[rank 0] 4 ranks: {pi}"));
}

/// Returns the hash of the weights and the losses that an example of remote calls prints.
#[cfg(feature = "full")]
fn weights_and_losses(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| {
        let at = line.find("weights ").or_else(|| line.find("step "))?;
        Some(line[at..].to_owned())
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

#[cfg(feature = "full")]
#[test]
fn parameter_servers_and_a_pipeline_by_remote_calls_have_the_bits_of_one_worker() {
    let dir = TestFolder::new();
    let [server, pipeline] = ["rpc_parameter_server", "rpc_pipeline"].map(example);
    let alone = dir.start(&server, &[], &[]).wait().expect(0, &[]);
    let alone = weights_and_losses(&alone.stdout);
    assert_eq!(alone.len(), 3, "{alone:?}");
    let loss = |line: &str| {
        line.rsplit(' ')
            .next()
            .and_then(|text| text.parse::<f64>().ok())
    };
    let (first, last) = (loss(&alone[0]).unwrap(), loss(&alone[1]).unwrap());
    assert!(last < 0.7 * first, "{alone:?}");
    for (program, ranks) in [
        (&server, &["--role", "server=1", "--role", "worker=1"][..]),
        (&server, &["--role=server=2", "--role=worker=3", "-n", "5"]),
        (&pipeline, &["-n", "3"]),
    ] {
        let program = program.to_str().unwrap();
        let command = [&["run"], ranks, &["--", program]].concat();
        let together = dir.start(RONDE, &command, &[]).wait().expect(0, &[]);
        assert_eq!(weights_and_losses(&together.stdout), alone, "{command:?}");
    }
    let program = server.to_str().unwrap();
    let without = dir.start(RONDE, &["run", "-n", "2", "--", program], &[]);
    without.wait().expect(1, &["start servers, then workers"]);
}

/// Enough epochs that a busy machine does not finish before the signal.
const EPOCHS: &str = "40";

/// Interrupts a job of three ranks after its first step.
fn interrupt(dir: &TestFolder, extra: &[&str]) {
    let program = example("own_model");
    let program = program.to_str().unwrap();
    let arguments = [
        &["run", "-n", "3"][..],
        extra,
        &["--", program, "kept", EPOCHS],
    ]
    .concat();
    let mut running: Running = dir.start(RONDE, &arguments, &[]);
    // Before the first step there is no state to save.
    running.wait_stderr("step ", 1);
    let workers = running.workers();
    running.signal(Signal::TERM);
    running
        .wait()
        .expect(143, &["interrupted: all ranks have ended"]);
    gone(workers.into_values());
}

#[test]
fn an_interrupted_custom_program_saves_a_checkpoint_and_resumes_from_it() {
    let program = example("own_model");
    let hash = |text: &str| {
        let found = text.lines().find_map(|line| line.split_once("blake3 "));
        found.expect("a hash").1.to_owned()
    };
    let alone = TestFolder::new().start(&program, &["kept", EPOCHS], &[]);
    let alone = alone.wait().expect(0, &[]);
    for extra in [&[][..], &["--elastic"]] {
        let dir = TestFolder::new();
        interrupt(&dir, extra);
        let listed = dir.run(&["checkpoint", "ls", "kept"]).expect(0, &[]);
        assert!(listed.stdout.contains("complete"), "{}", listed.stdout);
        let ended = dir.start(&program, &["kept", EPOCHS], &[]);
        let ended = ended.wait().expect(0, &[]);
        assert_eq!(hash(&ended.stdout), hash(&alone.stdout));
    }
}

/// Returns the lines of all events of a kind in an event file.
fn events_of(folder: &std::path::Path, kind: &str) -> usize {
    let events = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
    let name = format!("\"event\":\"{kind}\"");
    events.lines().filter(|line| line.contains(&name)).count()
}

#[test]
fn a_program_alone_has_a_run_folder_progress_and_a_summary() {
    let dir = TestFolder::new();
    let program = example("own_training");
    let ended = dir.start(&program, &["run"], &[]).wait();
    let ended = ended.expect(0, &["accuracy ", "logit_size ", "evaluation at step 101"]);
    let folder = dir.path().join("run");
    for name in ["model.safetensors", "model.json", "events.jsonl"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    assert_eq!(events_of(&folder, "run_finished"), 1);
    assert!(events_of(&folder, "evaluated") > 1);
    let model = std::fs::read_to_string(folder.join("model.json")).unwrap();
    assert!(model.contains("cross_entropy + 0.01 logits^2"), "{model}");
    // The callback has ended the run before the planned 690 steps.
    assert!(events_of(&folder, "step_committed") < 690);
    let hash = ended
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("blake3 "));
    assert!(model.contains(hash.expect("a hash")));
}

#[test]
fn a_program_with_its_own_parts_has_the_same_bits_when_a_worker_is_killed() {
    let hash = |text: &str| {
        let line = text.lines().find_map(|line| line.split_once("blake3 "));
        line.expect("a hash").1.to_owned()
    };
    let program = example("own_training");
    let dir = TestFolder::new();
    let alone = dir.start(&program, &["run"], &[]).wait().expect(0, &[]);
    let alone = hash(&alone.stdout);
    let program = program.to_str().unwrap();
    for killed in [0, 1] {
        let dir = TestFolder::new();
        let arguments = ["run", "-n", "3", "--elastic", "--", program, "run"];
        let mut running = dir.start(RONDE, &arguments, &[]);
        running.wait_stderr("step ", 1);
        send(running.workers()[&killed], Signal::KILL);
        let ended = running.wait().expect(0, &["killed (SIGKILL)"]);
        assert_eq!(hash(&ended.stdout), alone);
        assert!(dir.path().join("run/model.safetensors").is_file());
    }
}
