//! The trained bits do not depend on the number of workers or on how gradients are sent.

use crate::support::{Ended, RONDE, TestFolder, of_kind};

/// Convolutions, batch normalisation, dropout, clipping, and a last batch of 37.
const RUN: &str = r#"
[run]
name = "bits"
seed = 7
[data]
source = "digits"
[model]
kind = "digits_cnn"
channels = 6
dropout = 0.25
[train]
global_batch_size = 50
learning_rate = 0.01
clip_norm = 1.0
[optimizer]
kind = "adamw"
[schedule]
kind = "cosine"
warmup_steps = 10
"#;

/// The values that must be equal: the model's hash, and loss and norm of each step to the last digit.
type Bits = (String, Vec<(String, String)>);

fn bits(ended: &Ended, steps: usize) -> Bits {
    let curve: Vec<(String, String)> = of_kind(&ended.events(), "step_committed")
        .map(|e| (e["loss"].to_string(), e["gradient_norm"].to_string()))
        .collect();
    assert_eq!(curve.len(), steps);
    (ended.blake3(), curve)
}

fn train(steps: usize, workers: u32, sets: &[&str], variables: &[(&str, &str)]) -> Bits {
    let dir = TestFolder::new();
    dir.write("bits.toml", RUN);
    let (steps_set, workers) = (format!("train.steps={steps}"), workers.to_string());
    let mut arguments = vec![
        "train",
        "bits.toml",
        "--json",
        "-n",
        &workers,
        "--set",
        &steps_set,
    ];
    for set in sets {
        arguments.extend(["--set", set]);
    }
    let ended = dir.start(RONDE, &arguments, variables).wait();
    bits(&ended.expect(0, &[]), steps)
}

#[test]
fn any_number_of_workers_trains_to_the_same_bits() {
    let alone = train(200, 1, &[], &[]);
    for workers in [2, 3, 5, 7, 8] {
        let together = train(200, workers, &[], &[]);
        for (step, (a, b)) in alone.1.iter().zip(&together.1).enumerate() {
            assert_eq!(a, b, "step {step} on {workers} workers");
        }
        assert_eq!(alone.0, together.0, "{workers} workers");
    }
}

#[test]
fn any_number_of_threads_trains_to_the_same_bits() {
    let sets = ["model.channels=32", "train.global_batch_size=256"];
    let alone = train(20, 1, &sets, &[]);
    for (workers, threads) in [(1, "workers.threads=2"), (2, "workers.threads=3")] {
        let divided = train(20, workers, &[sets[0], sets[1], threads], &[]);
        assert_eq!(alone, divided, "{workers} workers, {threads}");
    }
}

#[test]
#[cfg(feature = "onednn")]
fn onednn_trains_to_the_same_bits_on_any_number_of_workers() {
    use ronde_engine::{ComputeEngine, Precision, ProductMethod};

    let engine = "train.engine=onednn";
    if let Err(cause) = ComputeEngine::OneDnn.products(1, Precision::F32, ProductMethod::default())
    {
        return ronde_testing::skip(&cause.to_string());
    }
    let alone = train(20, 1, &[engine], &[]);
    assert_ne!(alone.0, train(20, 1, &[], &[]).0, "another order of sums");
    let threads = [("OMP_NUM_THREADS", "2")];
    for workers in [2, 3] {
        assert_eq!(
            alone,
            train(20, workers, &[engine], &threads),
            "{workers} workers"
        );
    }
}

#[test]
fn how_gradients_travel_does_not_change_the_bits() {
    let alone = train(60, 1, &[], &[]);
    for sets in [
        &["comm.algorithm=direct"][..],
        &["comm.algorithm=driver"],
        &["comm.algorithm=halving_doubling"],
        &["comm.algorithm=tree"],
        &["comm.transport=tcp"],
        &["comm.transport=tcp", "comm.algorithm=driver"],
        &["comm.transport=tcp", "comm.algorithm=halving_doubling"],
        &["comm.transport=shared_memory"],
        &["comm.bucket_bytes_max=1024"],
        &[
            "comm.algorithm=halving_doubling",
            "comm.bucket_bytes_max=5000",
        ],
        &[
            "check.weight_hash_parts=3",
            "check.weight_hash_full_every=1",
        ],
    ] {
        assert_eq!(alone, train(60, 4, sets, &[]), "{sets:?}");
    }
    let threads = [("RAYON_NUM_THREADS", "2"), ("OMP_NUM_THREADS", "2")];
    assert_eq!(alone, train(60, 3, &[], &threads));
}

#[test]
fn how_the_state_is_divided_does_not_change_the_bits() {
    for optimizer in ["optimizer.kind=adamw", "optimizer.kind=lamb"] {
        let alone = train(40, 1, &[optimizer], &[]);
        for (workers, sets) in [
            (2, &["parallel.zero=1"][..]),
            (2, &["parallel.zero=2", "comm.transport=tcp"]),
            (3, &["parallel.zero=2"]),
            (3, &["parallel.zero=3"]),
            (
                4,
                &[
                    "parallel.zero=3",
                    "parallel.pipeline=2",
                    "comm.transport=tcp",
                ],
            ),
            (4, &["parallel.zero=1", "parallel.copies=1"]),
            (5, &["parallel.zero=2", "comm.bucket_bytes_max=1024"]),
            (2, &["parallel.servers=1"]),
            (4, &["parallel.servers=1", "workers.balance=measured"]),
            (5, &["parallel.servers=2", "comm.transport=tcp"]),
            (3, &["parallel.servers=1", "parallel.zero=3"]),
            (2, &["parallel.pipeline=2"]),
            (3, &["parallel.pipeline=3", "parallel.schedule=gpipe"]),
            (3, &["parallel.pipeline=3", "parallel.schedule=zero_bubble"]),
            (4, &["parallel.pipeline=2", "parallel.zero=2"]),
            (5, &["parallel.pipeline=2", "comm.transport=tcp"]),
        ] {
            let sets = [&[optimizer], sets].concat();
            let divided = train(40, workers, &sets, &[]);
            assert_eq!(alone, divided, "{workers} workers, {sets:?}");
        }
    }
}

#[test]
fn workers_that_divide_layers_in_parts_do_not_change_the_bits() {
    let file = format!("{}/../../examples/gpt.toml", env!("CARGO_MANIFEST_DIR"));
    let run = |workers: &str, sets: &[&str]| {
        let folder = TestFolder::new();
        let mut words = vec!["train", &*file, "--json", "-n", workers];
        let fixed = [
            "model.tensor_parts=4",
            "model.width=32",
            "train.epochs=1",
            "train.clip_norm=0.5",
        ];
        for set in fixed.iter().chain(sets) {
            words.extend(["--set", *set]);
        }
        let ended = folder.run(&words);
        let ended = ended.expect(0, &[]);
        let evaluated = ended.events();
        let loss = of_kind(&evaluated, "evaluated").last().unwrap()["loss"].clone();
        (ended.blake3(), loss)
    };
    let alone = run("1", &[]);
    for (workers, sets) in [
        ("2", &["parallel.tensor=2"][..]),
        ("3", &["parallel.tensor=3", "comm.transport=tcp"]),
        ("4", &["parallel.tensor=2", "parallel.zero=3"]),
        ("4", &["parallel.tensor=2", "parallel.pipeline=2"]),
    ] {
        assert_eq!(run(workers, sets), alone, "{workers} workers, {sets:?}");
    }
}

#[test]
fn interleaved_stages_do_not_change_the_bits() {
    let model = ["model.kind=mlp", "model.hidden=[40, 30, 20]"];
    let pipeline = ["parallel.pipeline=2", "parallel.schedule=interleaved"];
    let alone = train(30, 1, &model, &[]);
    let divided = train(30, 2, &[model, pipeline].concat(), &[]);
    assert_eq!(alone, divided);
}

#[test]
fn clusters_and_factors_have_the_same_bits_on_any_number_of_workers() {
    for (name, metric, most) in [
        ("kmeans", "inertia", 970.0),
        ("matrix_factorisation", "loss", 0.1),
    ] {
        let file = format!("{}/../../examples/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let run = |workers: &str, zero: &str| {
            let zero = format!("parallel.zero={zero}");
            let command = ["train", &file, "--json", "-n", workers, "--set", &zero];
            let ended = TestFolder::new().run(&command).expect(0, &[]);
            let events = ended.events();
            let found = of_kind(&events, "evaluated").last().unwrap()[metric].as_f64();
            assert!(found.unwrap() < most, "{name}: {metric} {found:?}");
            (ended.blake3(), found)
        };
        let alone = run("1", "0");
        for workers in ["2", "3"] {
            assert_eq!(run(workers, "0"), alone, "{name} on {workers} workers");
        }
        assert_eq!(run("2", "3"), alone, "{name} with divided weights");
    }
}

#[test]
fn the_seed_does_change_the_bits() {
    // Else the tests above would compare nothing.
    let (hash, curve) = train(20, 2, &[], &[]);
    let (other_hash, other_curve) = train(20, 2, &["run.seed=8"], &[]);
    assert_ne!(hash, other_hash);
    assert_ne!(curve, other_curve);
}
