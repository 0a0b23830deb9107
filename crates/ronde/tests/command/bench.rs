//! `ronde bench`: real workers over each transport, the written files, and errors.

use ronde_bench::TrainingCase;
use rustix::process::Signal;
use serde_json::Value;

use crate::ssh_hosts::make_executable;
use crate::support::{RONDE, TestFolder, gone, until};

/// Arguments of a short run.
const SHORT: [&str; 6] = [
    "bench",
    "--rounds",
    "2",
    "--budget",
    "0.002",
    "--json=out.json",
];

/// Runs a short benchmark and returns its JSON.
#[track_caller]
fn measure(dir: &TestFolder, arguments: &[&str]) -> Value {
    let ended = dir.run(&[&SHORT[..], arguments].concat());
    let ended = ended.expect(0, &["wrote out.json"]);
    assert!(ended.stdout.starts_with("operation "), "{}", ended.stdout);
    let text = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Formats rows as operation, ranks, bytes, transport and algorithm.
fn row_keys(report: &Value) -> Vec<String> {
    let rows = report["rows"].as_array().unwrap();
    let words = |row: &Value| {
        for time in ["median_us", "p10_us", "min_us"] {
            assert!(row[time].as_f64().unwrap() > 0.0, "{row}");
        }
        // Two rounds of three operations at least, but the other end of a message has no time.
        assert!(row["samples"].as_u64().unwrap() >= 6, "{row}");
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        let [kind, over, algorithm] = ["operation", "over", "algorithm"].map(text);
        format!(
            "{kind} {} {} {over} {algorithm}",
            row["ranks"], row["bytes"]
        )
    };
    rows.iter().map(words).collect()
}

#[test]
fn every_operation_over_every_transport_is_right() {
    let dir = TestFolder::new();
    let transports = "--transports=auto,shared_memory,tcp,tls";
    let arguments = [
        "all",
        "-n",
        "2,3",
        "--sizes=8,3KiB",
        "--algorithms=direct",
        transports,
    ];
    let report = measure(&dir, &arguments);
    assert_eq!(report["format"], "ronde.bench");
    let rows = row_keys(&report);
    for row in [
        "all_reduce 2 8 shared_memory direct",
        "all_reduce 3 3072 tls direct",
        "exact_sum 2 3072 shared_memory direct",
        "all_to_all_unequal 3 3072 tcp direct",
        "barrier 3 0 tls dissemination",
        "send_receive 2 8 tcp message",
    ] {
        assert!(rows.iter().any(|key| key == row), "{row} in {rows:#?}");
    }
    let rows = report["rows"].as_array().unwrap();
    for kind in rows.iter().map(|row| &row["operation"]) {
        for ranks in [2, 3] {
            for over in ["shared_memory", "tcp", "tls"] {
                let one = |row: &&Value| {
                    row["operation"] == *kind && row["ranks"] == ranks && row["over"] == over
                };
                assert!(rows.iter().any(|row| one(&row)), "{kind} {ranks} {over}");
            }
        }
    }
}

#[test]
fn algorithms_types_and_operators_are_as_asked_for() {
    let dir = TestFolder::new();
    let algorithms = "--algorithms=driver,ring,tree,direct,halving_doubling,hierarchical";
    let arguments = [
        "-n4",
        "--hosts=2",
        "--transports=tcp",
        "--sizes=64KiB",
        algorithms,
    ];
    let rows = row_keys(&measure(&dir, &arguments));
    let expected = [
        "driver",
        "ring",
        "tree",
        "direct",
        "halving_doubling",
        "hierarchical",
    ]
    .map(|algorithm| format!("all_reduce 4 65536 tcp {algorithm}"));
    assert_eq!(rows, expected);
    for (dtype, op) in [
        ("bf16", "sum"),
        ("i64", "xor"),
        ("f16", "product"),
        ("f64", "mean"),
    ] {
        let typed = [
            "reduce",
            "all_reduce",
            "--sizes=1KiB",
            "--dtype",
            dtype,
            "--op",
            op,
        ];
        assert_eq!(row_keys(&measure(&dir, &typed)).len(), 4, "{dtype} {op}");
    }
}

#[test]
fn the_choice_is_measured_beside_all_algorithms() {
    let dir = TestFolder::new();
    let both = "--transports=tcp,shared_memory";
    let asked = ["exact_sum", "-n3", "--choice", both, "--sizes=8,1KiB"];
    let report = measure(&dir, &asked);
    let choices = report["choices"].as_array().unwrap();
    // Shared memory has one way; over connections a tree of three is not kept by all.
    assert_eq!(choices.len(), 2, "{choices:?}");
    for choice in choices {
        assert_eq!(choice["over"], "tcp");
        let [time, best] = ["median_us", "best_us"].map(|name| choice[name].as_f64().unwrap());
        assert!(time >= best && best > 0.0, "{choice}");
    }
    let ended = dir.run(&[&SHORT[..], &asked].concat());
    let ended = ended.expect(0, &[]);
    for words in [
        "exact_sum over tcp: ",
        " of 2 choices",
        "no alternatives: 4 of 6",
    ] {
        assert!(ended.stdout.contains(words), "{words} in {}", ended.stdout);
    }
    let mistake = ["bench", "--choice", "--algorithms=ring"];
    dir.run(&mistake).expect(2, &["cannot be used with"]);
}

#[test]
fn explaining_runs_nothing() {
    let arguments = ["bench", "--explain", "-n", "4,300"];
    TestFolder::new()
        .run(&arguments)
        .expect(2, &["--workers: invalid value 300"]);
    let arguments = ["bench", "all", "--explain", "-n", "4,5", "--sizes=1MiB"];
    let ended = TestFolder::new().run(&arguments).expect(0, &[]);
    assert_eq!(ended.stderr, "");
    for words in [
        "all_reduce, 4 ranks, sum of f32",
        "exact_sum, 5 ranks",
        "chosen over connections",
    ] {
        assert!(ended.stdout.contains(words), "{words} in {}", ended.stdout);
    }
}

#[test]
fn mistakes_are_told_before_anything_is_started() {
    for (arguments, words) in [
        (
            &["allreduce"][..],
            "OPERATION: unknown operation `allreduce`: expected all, all_reduce",
        ),
        (&["--sizes=8..1GiB"], "--sizes: `1GiB` is not a valid size"),
        (&["-n1"], "--workers: invalid value 1: expected 2"),
        (
            &["--transports=udp"],
            "--transports: invalid value `udp`: expected auto",
        ),
        (
            &["--algorithms=fast"],
            "--algorithms: invalid value `fast`: expected auto, driver",
        ),
        (&["--dtype=f8"], "--dtype: invalid value `f8`: expected f64"),
        (
            &["--op=mean", "--dtype=i32"],
            "the mean of i32 would have to be rounded",
        ),
        (
            &["--memory=disk"],
            "--memory: invalid value `disk`: expected group, any",
        ),
        (&["--budget=0"], "--budget"),
        (&["--hosts=3"], "--hosts: 3 for 2 ranks"),
        (&["--json=no/folder/x"], "no such folder: no/folder"),
        (
            &["barrier", "--against=mpi"],
            "all_reduce of f32 with the sum",
        ),
        (
            &["--against=mpi", "--python=/no/python"],
            "cannot start /no/python",
        ),
    ] {
        let ended = TestFolder::new().run(&[&["bench"], arguments].concat());
        let ended = ended.expect(2, &[words]);
        assert!(ended.stderr.contains("error: "), "{}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn a_python_of_another_mpi_than_mpirun_is_refused_before_anything_is_started() {
    let dir = TestFolder::new();
    let program = |name: &str, script: &str| {
        dir.write(name, &format!("#!/bin/sh\n{script}\n"));
        make_executable(&dir.path().join(name));
        dir.path().join(name).to_str().unwrap().to_owned()
    };
    let python = |library: &str| {
        let version = format!("case \"$2\" in *Get_library_version*) echo '{library}';; esac");
        program("python", &version)
    };
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let refused = |python: String, words: &[&str]| {
        let against = ["bench", "-n2", "--against=gloo", "--python", &python];
        dir.start(RONDE, &against, &[("PATH", &path)])
            .wait()
            .expect(2, words);
    };
    let started = "[ \"$1\" = --version ] || touch started";
    program(
        "mpirun",
        &format!("echo 'Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 1'; {started}"),
    );
    let other = "was built for another MPI than mpirun: Open MPI v4.1.4, but mpirun is of Intel MPI 2021.11";
    refused(
        python("Open MPI v4.1.4, package: x"),
        &[other, "put the mpirun of that MPI first"],
    );
    program(
        "mpirun",
        &format!("echo 'mpirun (Open MPI) 4.1.4'; {started}"),
    );
    let other = "MPICH Version: 4.0.2, but mpirun is of Open MPI 4.1.4";
    refused(python("MPICH Version: 4.0.2"), &[other]);
    assert!(!dir.path().join("started").exists());
    program("mpirun", "echo 'no license' >&2; exit 1");
    refused(
        python("MPICH Version: 4.0.2"),
        &["mpirun --version does not work: no license"],
    );
}

#[test]
fn a_signal_ends_all_workers() {
    let dir = TestFolder::new();
    let arguments = [
        "bench",
        "-n3",
        "--rounds=1000",
        "--budget=60",
        "--sizes=1MiB",
    ];
    let running = dir.start(RONDE, &arguments, &[]);
    until("three workers run", || running.workers().len() == 3);
    let workers = running.workers();
    running.signal(Signal::INT);
    running
        .wait()
        .expect(130, &["interrupted: all workers have ended"]);
    gone(workers.into_values());
}

#[test]
fn kernels_of_a_model_are_measured() {
    let dir = TestFolder::new();
    let kernels = |arguments: &[&str]| {
        let fixed = ["bench", "kernels", "--steps=1", "--json=out.json"];
        let ended = dir.run(&[&fixed[..], arguments].concat());
        let ended = ended.expect(0, &["wrote out.json"]);
        let text = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        let rows = report["rows"].as_array().unwrap().clone();
        for row in &rows {
            assert!(row["seconds"].as_f64().unwrap() > 0.0, "{row}");
            let kernel = row["kernel"].as_str().unwrap();
            assert!(ended.stdout.contains(kernel), "{kernel}: {}", ended.stdout);
        }
        let name = |row: &Value| row["kernel"].as_str().unwrap().to_owned();
        (report, rows.iter().map(name).collect::<Vec<_>>())
    };
    let (report, names) = kernels(&["--model=digits_cnn"]);
    assert_eq!(report["samples"], 64);
    let convolution = "64x16x8x8 to 16, 3x3 / 1";
    let rows = report["rows"].as_array().unwrap();
    for kernel in [
        "convolve",
        "convolve_input_gradient",
        "convolve_weight_gradient",
    ] {
        let found = rows
            .iter()
            .find(|row| row["kernel"] == kernel && row["shape"] == convolution)
            .unwrap_or_else(|| panic!("{kernel} of {convolution} in {report}"));
        assert_eq!(found["multiply_adds"], f64::from(64 * 16 * 16 * 9 * 64));
    }
    assert!(names.iter().any(|name| name == "batch_norm_gradient"));

    let (_, names) = kernels(&["--model=digits_cnn", "--forward"]);
    assert!(
        names.iter().all(|name| !name.contains("gradient")),
        "{names:?}"
    );
}

#[test]
fn kernels_of_the_examples_have_the_stated_products() {
    let dir = TestFolder::new();
    for (model, kernel) in [
        ("unet", "max_pool"),
        ("detector", "convolve"),
        ("inception_v3", "map_planes"),
        ("bert", "attend"),
        ("transformer", "attend"),
    ] {
        let model_option = format!("--model={model}");
        let fixed = ["bench", "kernels", "--forward", "--steps=1"];
        let options = [&model_option[..], "--json=out.json"];
        dir.run(&[&fixed[..], &options].concat()).expect(0, &[]);
        let text = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        let rows = report["rows"].as_array().unwrap();
        assert!(rows.iter().any(|row| row["kernel"] == kernel), "{report}");
        let products = |row: &Value| {
            let each = row["multiply_adds"].as_f64().unwrap();
            each * row["calls"].as_f64().unwrap()
        };
        let samples = report["samples"].as_f64().unwrap();
        let found = rows.iter().map(products).sum::<f64>() / samples;
        let stated = TrainingCase::of(model).unwrap().forward_multiply_adds;
        assert!((found / stated - 1.0).abs() < 1e-3, "{model}: {found}");
    }
}

#[test]
fn invalid_arguments_of_bench_kernels_are_reported() {
    for (arguments, words) in [
        (&["--model=resnet19"][..], "unknown model `resnet19`"),
        (&["none.toml"], "cannot read run file none.toml"),
        (&["--steps=0"], "--steps"),
        (
            &["--forward", "--steps=1", "--model=none"],
            "unknown model `none`",
        ),
        (&["--model=mlp", "run.toml"], "cannot be used with"),
        (&["--model=mlp", "--set=model.kind=1"], "model"),
    ] {
        let arguments = [&["bench", "kernels"], arguments].concat();
        let ended = TestFolder::new().run(&arguments).expect(2, &[words]);
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn forward_passes_are_measured_alone() {
    let dir = TestFolder::new();
    let fixed = ["bench", "train", "--forward", "--steps=3", "--rounds=1"];
    let run = |more: &[&str]| dir.run(&[&fixed[..], more].concat());
    run(&[]).expect(2, &["--forward: 2 workers", "add -n 1"]);
    run(&["-n1", "--shards=2"]).expect(2, &["cannot be used with"]);
    let ended = run(&["-n1", "--model=digits_cnn", "--json=out.json"]);
    let ended = ended.expect(0, &["wrote out.json"]);
    let head = "digits_cnn: 1 workers, 1 logical shards, 64 samples";
    assert!(ended.stdout.starts_with(head), "{}", ended.stdout);
    assert!(!ended.stdout.contains("backward"), "{}", ended.stdout);
    let text = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    let run = &report["variants"][0]["runs"][0];
    assert!(run["samples_per_s"].as_f64().unwrap() > 0.0, "{report}");
}
