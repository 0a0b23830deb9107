//! Sweeps: a grid side by side, one after the other and after SIGKILL, successive halving, and mistakes.

use rustix::process::Signal;
use serde_json::Value;

use crate::jobs::{ronde, session, states};
use crate::slurm_cluster::SlurmCluster;
use crate::ssh_hosts::{SshHosts, make_executable};
use crate::support::{RONDE, Running, TestFolder, send, until};

/// A grid of four short runs of the embedded example.
const GRID: &str = "version = 1\nsearch = \"grid\"\nmetric = \"accuracy\"\n[set]\n\"train.epochs\" = 1\n\
    [keys]\n\"train.learning_rate\" = [0.02, 0.002]\n\"run.seed\" = [1, 2]\n";

/// Starts `ronde sweep` with the records of jobs in the folder of the test.
fn start(dir: &TestFolder, words: &[&str]) -> Running {
    let state = dir.path().join(".state");
    let variables = [("XDG_STATE_HOME", state.to_str().unwrap())];
    dir.start(RONDE, &[&["sweep"], words].concat(), &variables)
}

/// Returns the stored state of a sweep.
fn stored(dir: &TestFolder, name: &str) -> Value {
    let path = dir.path().join(format!("sweeps/{name}/sweep.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the lines of the table of trials.
fn trials(dir: &TestFolder, name: &str) -> Vec<String> {
    let path = dir.path().join(format!("sweeps/{name}/trials.csv"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_grid_has_the_same_results_side_by_side_and_after_sigkill() {
    let dir = TestFolder::new();
    dir.write("one.toml", GRID);
    dir.write("two.toml", &format!("side_by_side = 3\n{GRID}"));
    let one = ronde(&dir, &["sweep", "one.toml"]).expect(0, &["best: trial "]);
    assert!(one.stdout.contains("train.learning_rate"), "{one:#?}");
    let lines = trials(&dir, "one");
    assert_eq!(lines.len(), 5);
    assert!(
        lines[1..].iter().all(|line| line.ends_with(",finished")),
        "{lines:?}"
    );

    let killed = start(&dir, &["two.toml"]);
    until("a run has started", || {
        dir.path()
            .join(".state/ronde/jobs/two-0001/job.json")
            .exists()
    });
    killed.signal(Signal::KILL);
    killed.wait();
    ronde(&dir, &["sweep", "two.toml"]).expect(0, &["best: trial "]);
    assert_eq!(
        trials(&dir, "two"),
        lines,
        "the order of runs has no influence"
    );
    assert_eq!(states(&dir), [""; 0], "no job is left");
    for file in ["best.toml", "trials.svg", "trials/0003/model.safetensors"] {
        assert!(dir.path().join("sweeps/two").join(file).is_file(), "{file}");
    }
    // The best run file gives the best run again.
    let best = lines[1].split(',').next().unwrap();
    let words = [
        "train",
        "--json",
        "sweeps/two/best.toml",
        "--set",
        "run.output=\"again\"",
    ];
    let again = dir.run(&words).expect(0, &[]).blake3();
    let model = dir
        .path()
        .join(format!("sweeps/two/trials/000{best}/model.json"));
    assert!(std::fs::read_to_string(model).unwrap().contains(&again));
    // A finished sweep shows its table again, and starts nothing.
    let again = ronde(&dir, &["sweep", "two.toml"]).expect(0, &["best: trial "]);
    assert_eq!(again.stdout.lines().count(), 5);
    dir.write("two.toml", &GRID.replace("0.002", "0.003"));
    ronde(&dir, &["sweep", "two.toml"]).expect(2, &["the sweep file has changed", "--to"]);
}

#[test]
fn successive_halving_gives_the_best_trials_a_larger_budget() {
    let dir = TestFolder::new();
    dir.write(
        "asha.toml",
        "version = 1\nsearch = \"halving\"\ntrials = 4\nmetric = \"loss\"\nside_by_side = 4\n\
         [set]\n\"schedule.kind\" = \"constant\"\n[keys]\n\"train.learning_rate\" = { from = 1e-4, to = 1e-2, scale = \"log\" }\n\
         [halving]\nfrom = 1\nto = 4\nfactor = 2\n",
    );
    let dry = ronde(&dir, &["sweep", "asha.toml", "--dry-run"]).expect(0, &[]);
    assert_eq!(dry.stdout.matches("waiting").count(), 4, "{dry:#?}");
    assert!(!dir.path().join("sweeps").exists());
    ronde(&dir, &["sweep", "asha.toml"]).expect(0, &["best: trial ", "train.epochs=4"]);
    let state = stored(&dir, "asha");
    let runs = |rung: usize| {
        let trials = state["trials"].as_array().unwrap();
        trials
            .iter()
            .filter(|trial| trial["runs"].as_array().unwrap().len() > rung)
            .count()
    };
    assert_eq!(runs(0), 4);
    assert!(runs(1) >= 2 && runs(2) >= 1, "{state}");
    let best = trials(&dir, "asha")[1].clone();
    assert_eq!(best.split(',').nth(2), Some("4"), "{best}");
    // A larger budget continues the run with the smaller one, to the bits of a run that begins with it.
    let results = dir
        .path()
        .join(format!("sweeps/asha/trials/000{}-2", &best[..1]));
    let events = std::fs::read_to_string(results.join("events.jsonl")).unwrap();
    assert!(
        events.contains("\"event\":\"checkpoint_loaded\""),
        "{events}"
    );
    let words = ["train", "--json", "sweeps/asha/best.toml"];
    let whole = dir.run(&[&words[..], &["--set", "run.output=\"whole\""]].concat());
    let model = std::fs::read_to_string(results.join("model.json")).unwrap();
    let hash = whole.expect(0, &[]).blake3();
    assert!(model.contains(&hash), "{hash} in {model}");
}

#[test]
fn a_sweep_on_a_host_over_ssh_continues_its_best_runs_and_leaves_nothing_there() {
    let Some(hosts) = SshHosts::new(1) else {
        return;
    };
    hosts.targets(&[("host", "ssh_config", "hosts = [\"h1:2\"]")]);
    // The first connection finds a closed port.
    let config = std::fs::read_to_string(hosts.path("ssh_config")).unwrap();
    let once = hosts.path("once").display().to_string();
    let refused = format!("Match host h1 exec \"mkdir {once}\"\n  Port 1\n{config}");
    hosts.write("ssh_config", &refused);
    hosts.write(
        "asha.toml",
        "version = 1\nsearch = \"halving\"\ntrials = 2\nmetric = \"loss\"\nside_by_side = 2\n\
         [keys]\n\"train.learning_rate\" = { from = 1e-4, to = 1e-2, scale = \"log\" }\n\
         [halving]\nfrom = 1\nto = 2\nfactor = 2\n",
    );
    let on = ["--targets", "targets.toml", "--on", "host"];
    let words = [&["sweep", "asha.toml"], &on[..]].concat();
    let shown = ["warning: trial ", "looked at again later", "best: trial "];
    hosts.ronde(&words).expect(0, &shown);
    let best = trials(&hosts.dir, "asha")[1].clone();
    let results = hosts.path(&format!("sweeps/asha/trials/000{}-1", &best[..1]));
    let events = std::fs::read_to_string(results.join("events.jsonl")).unwrap();
    assert!(
        events.contains("\"event\":\"checkpoint_loaded\""),
        "{events}"
    );
    for folder in ["jobs", "inputs", "bin"] {
        let kept = hosts.dir.list(&format!("remote/{folder}"));
        assert_eq!(kept, [""; 0], "{folder}");
    }
    assert_eq!(hosts.states(), [""; 0]);
}

#[test]
fn trials_have_their_own_checkpoints_where_the_run_file_names_a_place_for_them() {
    let dir = TestFolder::new();
    let saved = dir.path().join("saved").display().to_string();
    let place = format!("[set]\n\"checkpoint.to\" = {saved:?}\n");
    dir.write("saved.toml", &GRID.replace("[set]\n", &place));
    ronde(&dir, &["sweep", "saved.toml"]).expect(0, &["best: trial "]);
    let lines = trials(&dir, "saved");
    let finished = lines.iter().filter(|line| line.ends_with(",finished"));
    assert_eq!(finished.count(), 4, "{lines:?}");
    assert_eq!(dir.list("saved").len(), 4);
}

#[test]
fn a_run_that_fails_and_a_cancelled_sweep_can_start_again() {
    let dir = TestFolder::new();
    let failing = "version = 1\nsearch = \"grid\"\nmetric = \"loss\"\n\
        [keys]\n\"model.init\" = [\"gone.safetensors\", \"lost.safetensors\"]\n";
    dir.write("failing.toml", failing);
    for words in [
        &["sweep", "failing.toml"][..],
        &["sweep", "failing.toml", "--retry"],
    ] {
        ronde(&dir, words).expect(2, &["trial 1: failed: ", "no run of the sweep has a score"]);
    }
    let lines = trials(&dir, "failing");
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contains("failed: "))
            .count(),
        2,
        "{lines:?}"
    );
    dir.write(
        "long.toml",
        &GRID.replace("\"train.epochs\" = 1", "\"train.epochs\" = 100000"),
    );
    let running = start(&dir, &["long.toml", "--to", "sweeps/long"]);
    until("a run has started", || {
        dir.path()
            .join(".state/ronde/jobs/long-0000/results/events.jsonl")
            .exists()
    });
    running.signal(Signal::INT);
    let shown = [
        "interrupted; 1 runs continue",
        "`ronde sweep long.toml --to sweeps/long --cancel`",
    ];
    running.wait().expect(130, &shown);
    // Another sweep of the same name does not take the job.
    let foreign = "there is a job `long-0000` of another sweep";
    ronde(&dir, &["sweep", "long.toml", "--to", "other"]).expect(2, &[foreign]);
    ronde(&dir, &["sweep", "long.toml", "--to", "other", "--cancel"]).expect(0, &["0 runs ended"]);
    assert_eq!(states(&dir), ["long-0000 running"]);
    ronde(&dir, &["sweep", "long.toml", "--cancel"]).expect(0, &["1 runs ended"]);
    assert_eq!(states(&dir), [""; 0]);
}

#[test]
fn a_run_whose_results_were_copied_before_it_starts_again_is_copied_again() {
    let dir = TestFolder::new();
    let one = "version = 1\nsearch = \"grid\"\nmetric = \"accuracy\"\n[set]\n\"train.epochs\" = 40\n\
        [keys]\n\"run.seed\" = [1]\n";
    dir.write("one.toml", one);
    let running = start(&dir, &["one.toml"]);
    let job = dir.path().join(".state/ronde/jobs/one-0000");
    until("the run commits steps", || {
        let events = std::fs::read_to_string(job.join("results/events.jsonl"));
        events.is_ok_and(|text| text.matches("step_committed").count() > 5)
    });
    let process = std::fs::read(job.join("launcher/process.json")).unwrap();
    let process: Value = serde_json::from_slice(&process).unwrap();
    let launcher = u32::try_from(process["pid"].as_u64().unwrap()).unwrap();
    send(launcher, Signal::KILL);
    running
        .wait()
        .expect(2, &["trial 0: failed: lost", "`--retry` starts"]);
    assert_eq!(session(launcher), [0_u32; 0], "also its coordinator");
    assert!(
        dir.list("sweeps/one/trials/0000")
            .contains(&"events.jsonl".to_owned())
    );
    ronde(&dir, &["sweep", "one.toml", "--retry"]).expect(0, &["best: trial 0"]);
}

#[test]
fn a_sweep_on_slurm_is_an_array() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    cluster
        .dir
        .write("targets.toml", "[cluster]\nkind = \"slurm\"\n");
    cluster
        .dir
        .write("grid.toml", &format!("side_by_side = 2\n{GRID}"));
    let words = [
        "sweep",
        "grid.toml",
        "--targets",
        "targets.toml",
        "--on",
        "cluster",
    ];
    let ended = cluster
        .ronde(&words)
        .expect(0, &["sent 4 runs as an array", "best: trial "]);
    assert_eq!(ended.stdout.matches("finished").count(), 4, "{ended:#?}");
    let lines = trials(&cluster.dir, "grid");
    cluster.dir.write("here.toml", GRID);
    ronde(&cluster.dir, &["sweep", "here.toml"]).expect(0, &[]);
    assert_eq!(
        trials(&cluster.dir, "here"),
        lines,
        "the target has no influence"
    );
    // The array was one job of Slurm.
    let jobs = cluster.slurm("squeue", &["-h", "--states=all", "-r", "-o", "%F"]);
    let mut numbers: Vec<&str> = jobs.split_whitespace().collect();
    numbers.dedup();
    assert!(numbers.len() <= 1, "{jobs}");
}

#[test]
fn a_submitter_that_is_killed_after_sbatch_loses_no_job_and_sends_none_twice() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    // Sends the script, and ends the command before it reads the answer.
    let folder = cluster.path("killing");
    std::fs::create_dir(&folder).unwrap();
    let sbatch = folder.join("sbatch");
    let sending = "#!/bin/sh\n/usr/bin/sbatch \"$@\" >/dev/null\nkill -9 $PPID\n";
    std::fs::write(&sbatch, sending).unwrap();
    make_executable(&sbatch);
    let path = format!(
        "{}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
        folder.display()
    );
    let (state, config) = (cluster.path(".state"), cluster.path("slurm.conf"));
    let variables = [
        ("XDG_STATE_HOME", state.to_str().unwrap()),
        ("SLURM_CONF", config.to_str().unwrap()),
        ("PATH", path.as_str()),
    ];
    let killed = |words: &[&str]| {
        let ended = cluster.dir.start(RONDE, words, &variables).wait();
        assert_eq!(ended.code, 128 + 9, "{ended:#?}");
    };
    cluster
        .dir
        .write("targets.toml", "[cluster]\nkind = \"slurm\"\n");
    let on = ["--targets", "targets.toml", "--on", "cluster"];
    let short = ["--set", "train.epochs=1", "--name", "short", "-n", "1"];
    killed(&[&["submit"], &on[..], &short].concat());
    cluster.ronde(&["wait", "short"]).expect(0, &["finished"]);
    let long = ["--set", "train.epochs=100000", "--name", "long", "-n", "1"];
    killed(&[&["submit"], &on[..], &long].concat());
    let listed = cluster.ronde(&["jobs"]).expect(0, &[]).stdout;
    assert!(!listed.contains("lost"), "{listed}");
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);
    assert!(!cluster.slurm("squeue", &["-h"]).contains("long"));
    cluster.dir.write("grid.toml", GRID);
    let sweep = [&["sweep", "grid.toml"], &on[..]].concat();
    killed(&sweep);
    let ended = cluster.ronde(&sweep).expect(0, &["best: trial "]);
    assert_eq!(ended.stdout.matches("finished").count(), 4, "{ended:#?}");
    let jobs = cluster.slurm("squeue", &["-h", "--states=all", "-o", "%F"]);
    let mut numbers: Vec<&str> = jobs.split_whitespace().collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "{jobs}");
    // After a script that is refused, no run has started, and no name is in use.
    std::fs::write(&sbatch, "#!/bin/sh\nexit 1\n").unwrap();
    cluster.dir.write("refused.toml", GRID);
    let sweep = [&["sweep", "refused.toml"], &on[..]].concat();
    let ended = cluster.dir.start(RONDE, &sweep, &variables).wait();
    assert_ne!(ended.code, 0, "{ended:#?}");
    let trials = stored(&cluster.dir, "refused")["trials"].clone();
    let mut trials = trials.as_array().unwrap().iter();
    assert!(trials.all(|trial| trial["runs"].as_array().unwrap().is_empty()));
    let listed = cluster.ronde(&["jobs"]).expect(0, &[]).stdout;
    assert!(!listed.contains("refused"), "{listed}");
}

#[test]
fn mistakes_are_found_before_a_run_starts() {
    let dir = TestFolder::new();
    for (from, to, problem) in [
        ("run.seed", "run.sead", "trial 0: "),
        ("run.seed", "run.sead", "--> sweep.toml:8\n"),
        ("[1, 2]", "[]", "the list has no values"),
        ("\"grid\"", "\"grit\"", "unknown variant `grit`"),
        (
            "version = 1",
            "version = 1\nrun = \"gone.toml\"",
            "gone.toml",
        ),
        (
            "version = 1",
            "version = 1\nname = \"a b\"",
            "invalid name of a sweep `a b`",
        ),
    ] {
        dir.write("sweep.toml", &GRID.replace(from, to));
        ronde(&dir, &["sweep", "sweep.toml"]).expect(2, &[problem]);
    }
    ronde(&dir, &["sweep", "gone.toml"]).expect(2, &["cannot read sweep file gone.toml", "help: "]);
    dir.write("sweep.toml", GRID);
    ronde(&dir, &["sweep", "sweep.toml", "--on", "moon"]).expect(2, &["there is no target `moon`"]);
    assert!(!dir.path().join("sweeps").exists());
}
