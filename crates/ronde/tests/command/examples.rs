//! The examples, alone and under `ronde run`.

use rustix::process::Signal;

use crate::support::{Place, RONDE, Running, example, gone};

#[test]
fn a_model_of_ones_own_has_the_same_bits_alone_and_on_three_ranks() {
    let place = Place::new();
    let program = example("own_model");
    let alone = place.start(&program, &[], &[]).wait().expect(0, &[]);
    let hash = |line: &str| line.split_once("blake3 ").map(|(_, hash)| hash.to_owned());
    let hashes: Vec<String> = alone.stdout.lines().filter_map(hash).collect();
    assert_eq!(hashes.len(), 1, "{}", alone.stdout);
    assert_eq!(hashes[0].len(), 64);
    let program = program.to_str().unwrap();
    let together = place.run(&["run", "-n", "3", "--", program]).expect(0, &[]);
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
    let place = Place::new();
    let program = example("collectives");
    let alone = place.start(&program, &[], &[]).wait().expect(0, &[]);
    let (_, pi) = alone.stdout.split_once("1 ranks: ").expect("a result");
    let program = program.to_str().unwrap();
    let arguments = ["run", "-n", "4", "--", program];
    let together = place.start(RONDE, &arguments, &[]).wait().expect(0, &[]);
    assert_eq!(together.stdout, format!("[rank 0] 4 ranks: {pi}"));
}

/// So many that a busy machine is not done with them before it is asked to end.
const EPOCHS: &str = "40";

/// Asks for the end of a job of three ranks as soon as they have trained a step.
fn asked_to_end(place: &Place, extra: &[&str]) {
    let program = example("own_model");
    let program = program.to_str().unwrap();
    let arguments = [
        &["run", "-n", "3"][..],
        extra,
        &["--", program, "kept", EPOCHS],
    ]
    .concat();
    let mut running: Running = place.start(RONDE, &arguments, &[]);
    // Before the first step there is nothing to save.
    running.tells("step ", 1);
    let workers = running.workers();
    running.signal(Signal::TERM);
    running
        .wait()
        .expect(143, &["stopped: all ranks have ended"]);
    gone(workers.into_values());
}

#[test]
fn a_program_of_ones_own_that_is_asked_to_end_saves_a_last_checkpoint_and_goes_on_from_it() {
    let program = example("own_model");
    let hash = |text: &str| {
        let found = text.lines().find_map(|line| line.split_once("blake3 "));
        found.expect("a hash").1.to_owned()
    };
    let alone = Place::new().start(&program, &["kept", EPOCHS], &[]);
    let alone = alone.wait().expect(0, &[]);
    for extra in [&[][..], &["--elastic"]] {
        let place = Place::new();
        asked_to_end(&place, extra);
        let listed = place.run(&["checkpoint", "ls", "kept"]).expect(0, &[]);
        assert!(listed.stdout.contains("counts"), "{}", listed.stdout);
        let ended = place.start(&program, &["kept", EPOCHS], &[]);
        let ended = ended.wait().expect(0, &[]);
        assert_eq!(hash(&ended.stdout), hash(&alone.stdout));
    }
}
