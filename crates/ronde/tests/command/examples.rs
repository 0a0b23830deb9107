//! The examples, alone and under `ronde run`.

use rustix::process::Signal;

use crate::support::{RONDE, Running, TestFolder, example, gone};

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
