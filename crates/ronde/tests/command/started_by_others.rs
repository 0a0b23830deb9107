//! `ronde train` as several processes of mpirun, torchrun and srun, which nothing but their environment connects. Each part
//! is skipped with a message where the launcher is not installed.

use std::path::{Path, PathBuf};

use crate::slurm_cluster::{NODES, SlurmCluster};
use crate::ssh_hosts::{SshHosts, make_executable};
use crate::support::{Ended, RONDE, TestFolder};
use crate::test_network::address;

/// The words of a short run.
const SHORT: [&str; 4] = ["train", "--json", "--set", "train.epochs=2"];
/// mpirun refuses to run as root, which a container's only user is.
const AS_ROOT: [(&str, &str); 2] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// Returns the hash of the model of the same run under ronde's own launcher.
fn expected() -> String {
    TestFolder::new().run(&SHORT).expect(0, &[]).blake3()
}

/// Returns whether a program exists, or prints that the part is skipped.
fn exists(program: &Path) -> bool {
    let exists = program.exists();
    if !exists {
        ronde_testing::skip(&format!("there is no {}", program.display()));
    }
    exists
}

fn mpirun(dir: &TestFolder, program: &str, ranks: &str, words: &[&str]) -> Ended {
    let oversubscribe: &[&str] = match program.ends_with("openmpi") {
        true => &["--oversubscribe"],
        false => &[],
    };
    let arguments = [oversubscribe, &["-np", ranks, RONDE], words].concat();
    loop {
        let ended = dir.start(program, &arguments, &AS_ROOT).wait();
        // When all ranks end at once with an error, mpiexec of MPICH 4.0 may be ended by a broken pipe, without their output. It
        // does the same with `sh -c 'exit 2'`.
        if ended.code != 128 + rustix::process::Signal::PIPE.as_raw() {
            return ended;
        }
    }
}

#[test]
fn both_implementations_of_mpi_start_the_ranks_of_a_run() {
    let expected = expected();
    for (program, starter) in [
        ("/usr/bin/mpirun.openmpi", "mpirun of Open MPI"),
        ("/usr/bin/mpirun.mpich", "mpiexec of MPICH"),
    ] {
        if !exists(Path::new(program)) {
            continue;
        }
        let dir = TestFolder::new();
        let trained = mpirun(&dir, program, "3", &SHORT).expect(0, &[]);
        assert_eq!(trained.blake3(), expected, "{program}");
        let explained = mpirun(&dir, program, "2", &["train", "--explain-environment"]);
        let explained = explained.expect(0, &[]).stdout;
        for rank in 0..2 {
            let found = format!("rank {rank} of 2");
            assert!(explained.contains(&found), "{explained}");
        }
        assert!(
            explained.contains(&format!("started by {starter}")),
            "{explained}"
        );
        assert!(explained.contains("127.0.0.1:"), "{explained}");
        // A single process starts its own workers.
        let alone = TestFolder::new();
        let more = [&SHORT[..], &["-n", "2"]].concat();
        let trained = mpirun(&alone, program, "1", &more).expect(0, &[]);
        assert_eq!(trained.blake3(), expected, "{program} with one process");
        let words = ["train", "-n", "3"];
        let refused = mpirun(&dir, program, "2", &words);
        assert_ne!(refused.code, 0, "{refused:#?}");
        let problem = "invalid number of workers `3`: expected 2, the value of";
        assert!(refused.stderr.contains(problem), "{refused:#?}");
        measure_under(&dir, program);
    }
}

/// `ronde bench` measures the ranks that a launcher has started.
fn measure_under(dir: &TestFolder, program: &str) {
    let sizes = ["--sizes", "8,4KiB", "--rounds", "1", "--budget", "0.01"];
    let words = |more: &[&'static str]| [&["bench", "all_reduce"], &sizes[..], more].concat();
    let measured = mpirun(dir, program, "3", &words(&["--json", "rates.json"])).expect(0, &[]);
    let written = std::fs::read_to_string(dir.path().join("rates.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&written).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() >= 4, "{report:#}");
    for row in rows {
        assert_eq!(row["ranks"], 3, "{row:#}");
    }
    assert_eq!(
        measured.stdout.matches("all_reduce").count(),
        rows.len(),
        "only rank 0 prints: {measured:#?}"
    );
    let refused = mpirun(dir, program, "2", &words(&["-n", "3"]));
    assert_ne!(refused.code, 0, "{refused:#?}");
    let problem = "invalid `--workers`: expected 2, the value of";
    assert!(refused.stderr.contains(problem), "{refused:#?}");
}

#[test]
fn mpiexec_of_mpich_starts_the_ranks_of_a_run_on_several_hosts() {
    if !exists(Path::new("/usr/bin/mpirun.mpich")) {
        return;
    }
    let Some(hosts) = SshHosts::new(2) else {
        return;
    };
    let (ssh, config) = (hosts.path("ssh"), hosts.path("ssh_config"));
    let text = format!(
        "#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n",
        config.display()
    );
    hosts.write("ssh", &text);
    make_executable(&ssh);
    let (here, others) = (address(0), format!("{},{}", address(1), address(2)));
    let mpiexec = |words: &[&str]| {
        let launcher = [
            "netns",
            "exec",
            &hosts.network.names[0],
            "/usr/bin/mpirun.mpich",
            "-launcher",
            "ssh",
            "-launcher-exec",
            ssh.to_str().unwrap(),
            "-localhost",
            &here,
            "-hosts",
            &others,
            "-np",
            "3",
            RONDE,
        ];
        let secret = [("RONDE_TOKEN", "a secret of this job")];
        let words = [&launcher[..], words].concat();
        hosts.dir.start("ip", &words, &secret).wait()
    };
    let explained = mpiexec(&["train", "--explain-environment"]).expect(0, &[]);
    for words in ["MPICH or Intel MPI (PMI): rank 2 of 3", "exchanged by PMI"] {
        assert!(
            explained.stdout.contains(words),
            "{words:?} in {explained:#?}"
        );
    }
    let trained = mpiexec(&SHORT).expect(0, &[]);
    assert_eq!(trained.blake3(), expected());
}

#[test]
fn torchrun_starts_the_ranks_of_a_run() {
    let tests = std::env::current_exe().unwrap();
    let target: PathBuf = tests.ancestors().nth(3).unwrap().to_owned();
    let environment = target.join("python-environment");
    let torchrun = environment.join("bin/torchrun");
    if !exists(&torchrun) {
        return;
    }
    let dir = TestFolder::new();
    let stand_ins = environment.join("stand-ins");
    let variables = [("LD_LIBRARY_PATH", stand_ins.to_str().unwrap())];
    let torchrun = |words: &[&str]| {
        let options = [
            "--standalone",
            "--nproc-per-node",
            "3",
            "--no-python",
            RONDE,
        ];
        let arguments = [&options, words].concat();
        dir.start(&torchrun, &arguments, &variables).wait()
    };
    let trained = torchrun(&SHORT).expect(0, &[]);
    assert_eq!(trained.blake3(), expected());
    let explained = torchrun(&["train", "--explain-environment"]).expect(0, &[]);
    let found = "started by torchrun: rank 2 of 3";
    assert!(explained.stdout.contains(found), "{explained:#?}");
}

#[test]
fn srun_starts_the_ranks_of_a_run_on_several_nodes() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    let config = cluster.path("slurm.conf");
    let variables = [("SLURM_CONF", config.to_str().unwrap())];
    let nodes = NODES.to_string();
    let srun = |words: &[&str]| {
        let options = ["-N", &nodes, "-n", &nodes, RONDE];
        let arguments = [&options, words].concat();
        cluster.dir.start("srun", &arguments, &variables).wait()
    };
    let explained = srun(&["train", "--explain-environment"]).expect(0, &[]);
    for words in ["srun of Slurm: rank 2 of 3", "n1:", "SLURM_STEP_NODELIST"] {
        assert!(
            explained.stdout.contains(words),
            "{words:?} in {explained:#?}"
        );
    }
    let trained = srun(&SHORT).expect(0, &[]);
    assert_eq!(trained.blake3(), expected());
}

#[test]
fn a_rank_that_waits_reports_the_variables_that_it_was_started_with() {
    let dir = TestFolder::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let variables = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
    ];
    // The port is taken, so that the run ends at once.
    let ended = dir.start(RONDE, &["train"], &variables).wait();
    let origin =
        "started as rank 0 of 2 by a script with variables of torch (RANK, WORLD_SIZE, MASTER_ADDR";
    let ended = ended.expect(
        3,
        &[
            origin,
            "cannot listen",
            "help: start all ranks",
            "RONDE_STARTED_BY=none",
        ],
    );
    assert_eq!(ended.stderr.matches("help: ").count(), 1, "{ended:#?}");
}

#[test]
fn contradicting_variables_are_refused_and_the_user_can_decide() {
    let dir = TestFolder::new();
    let contradicting = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "2"),
    ];
    let train = |words: &[&str], more: &[(&str, &str)]| {
        dir.start(RONDE, words, &[&contradicting, more].concat())
            .wait()
    };
    for words in [&["train"][..], &["train", "--explain-environment"]] {
        train(words, &[]).expect(2, &["RANK=0", "SLURM_PROCID=1", "RONDE_STARTED_BY=slurm"]);
    }
    train(&SHORT, &[("RONDE_STARTED_BY", "none")]).expect(0, &[]);
    let explained = dir.run(&["train", "--explain-environment"]).expect(0, &[]);
    assert!(
        explained.stdout.contains("not started by another launcher"),
        "{explained:#?}"
    );
}
