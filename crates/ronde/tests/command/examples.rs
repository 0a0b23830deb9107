//! The examples, alone and under `ronde run`.

use crate::support::{Place, RONDE, example};

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
