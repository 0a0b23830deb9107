//! Jobs on Slurm. Skipped with a message where Slurm is not installed or cannot be started.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::slurm_cluster::{NODES, SlurmCluster};
use crate::support::{send, until};

/// A run that lasts until it is ended.
const LONG: [&str; 4] = [
    "--set",
    "train.epochs=100000",
    "--set",
    "elastic.silence_s=0.5",
];

/// Returns whether a process of this program exists.
fn runs(program: &Path) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut programs =
        entries.filter_map(|entry| std::fs::read_link(entry.path().join("exe")).ok());
    programs.any(|path| path == program)
}

#[test]
fn a_job_on_slurm_has_the_bits_of_a_run_and_loses_a_node() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    let sets = ["--set", "train.epochs=2"];
    let plain = cluster
        .dir
        .run(&[&["train", "--json"], &sets[..]].concat())
        .blake3();
    let short = [&["-n", "3", "--name", "short"], &sets[..]].concat();
    cluster
        .submit("nodes = 3", &short)
        .expect(0, &["job short on cluster"]);
    cluster.ronde(&["wait", "short"]).expect(0, &["finished"]);
    cluster
        .ronde(&["fetch", "short", "--to", "copy"])
        .expect(0, &[]);
    let model = std::fs::read_to_string(cluster.path("copy/model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
    let script = std::fs::read_to_string(cluster.path(".state/ronde/jobs/short/job.sh")).unwrap();
    assert!(!script.contains("token"), "{script}");

    let long = [&["-n", "3", "--name", "long"], &LONG[..]].concat();
    cluster.submit("nodes = 3", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    let status = cluster.ronde(&["status", "long"]).expect(0, &[]);
    assert!(status.stdout.contains("3 of 3 workers"), "{status:#?}");
    cluster.slurm(
        "scontrol",
        &["update", "nodename=n3", "state=down", "reason=test"],
    );
    cluster.events("long", "\"event\":\"recovered\"", 1);
    assert_eq!(
        cluster.state("long"),
        "running",
        "the job continues in its allocation"
    );
    cluster
        .ronde(&["cancel", "long"])
        .expect(0, &["job long: cancelled"]);
    assert!(!cluster.slurm("squeue", &["-h"]).contains("long"));
    let program = program_of(&cluster);
    until("nothing is left on any node", || !runs(&program));
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("checkpoint saved"), "{logs:#?}");
}

#[test]
fn a_preempted_job_is_queued_again_and_resumes_from_its_checkpoint() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    let long = [&["-n", "2", "--name", "long"], &LONG[..]].concat();
    cluster
        .submit("nodes = 1", &long)
        .expect(0, &["job long on cluster"]);
    cluster.events("long", "step_committed", 5);
    // As at the time limit: a signal to the batch script.
    let preempt = |receivers: &str| {
        let number = cluster.number("long");
        cluster.slurm("scancel", &[receivers, "--signal=TERM", &number]);
        until("the job is queued again", || {
            cluster.state("long") == "queued"
        });
    };
    preempt("--batch");
    cluster.start_again("long");
    cluster.events("long", "\"event\":\"checkpoint_loaded\"", 1);
    cluster.events("long", "step_committed", 5);
    assert_eq!(cluster.state("long"), "running");
    // As at a preemption: a signal to all processes of the job. The launcher decides.
    preempt("--full");
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    let shown = &logs.stdout;
    assert_eq!(shown.matches("; checkpoint saved; ").count(), 2, "{shown}");
    for words in ["starting another one", "departure"] {
        assert!(!shown.contains(words), "{words} in {shown}");
    }
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);
    assert_eq!(cluster.state("long"), "cancelled");
    for (settings, arguments, problem) in [
        ("nodes = 2\nslots = 1", ["-n", "3"], "2 nodes have 2 slots"),
        ("partition = \"none\"", ["-n", "1"], "invalid partition"),
    ] {
        let before = cluster.dir.list(".state/ronde/jobs");
        let ended = cluster.submit(settings, &arguments);
        assert_eq!(ended.code, 2, "{ended:#?}");
        assert!(ended.stderr.contains(problem), "{problem:?} in {ended:#?}");
        assert_eq!(cluster.dir.list(".state/ronde/jobs"), before);
    }
    waits_for_a_partition(&cluster);
    let failing = [
        "-n",
        "1",
        "--name",
        "failing",
        "--set",
        "model.init=gone.safetensors",
    ];
    cluster.submit("", &failing).expect(0, &[]);
    cluster
        .ronde(&["wait", "failing"])
        .expect(2, &["failed (exit code 2)"]);
}

/// Checks that a job whose partition is down waits with a reason, and runs when the partition is up.
fn waits_for_a_partition(cluster: &SlurmCluster) {
    let set = |state: &str| {
        cluster.slurm("scontrol", &["update", "partitionname=main", state]);
    };
    set("state=down");
    let run = ["-n", "1", "--name", "late", "--set", "train.epochs=1"];
    cluster.submit("", &run).expect(0, &[]);
    until("the reason is shown", || {
        let jobs = cluster.ronde(&["jobs"]).expect(0, &[]);
        jobs.stdout.contains("PartitionDown: the partition is down")
    });
    let logs = cluster.ronde(&["logs", "late"]);
    logs.expect(0, &["job late: queued (PartitionDown: "]);
    let mut waiting = cluster.start_ronde(&["wait", "late"]);
    waiting.wait_stderr("job late: queued (PartitionDown: ", 1);
    set("state=up");
    waiting.wait().expect(0, &["job late: finished"]);
}

#[test]
fn a_launcher_on_a_node_that_slurm_has_lost_ends_before_another_one_trains() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    let long = [&["-n", "2", "--name", "long"], &LONG[..]].concat();
    cluster.submit("nodes = 1", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    let number = cluster.number("long");
    let node = cluster.slurm("squeue", &["-h", "-o", "%B", "-j", &number]);
    let node: usize = node.trim().trim_start_matches('n').parse().unwrap();
    let path = cluster.path(".state/ronde/jobs/long/launcher/process.json");
    let first: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let first = u32::try_from(first["pid"].as_u64().unwrap()).unwrap();
    // The daemon of the node cannot end the task, which continues to train.
    let daemon = cluster.daemon_of(node);
    send(daemon, Signal::STOP);
    let name = format!("nodename=n{node}");
    cluster.slurm("scontrol", &["update", &name, "state=down", "reason=test"]);
    until("the job is queued again", || {
        cluster.state("long") == "queued"
    });
    let is_alive = || Path::new(&format!("/proc/{first}")).exists();
    assert!(is_alive(), "its task still runs");
    cluster.start_again("long");
    cluster.events("long", "\"event\":\"checkpoint_loaded\"", 1);
    cluster.events("long", "step_committed", 5);
    assert!(!is_alive(), "the first has ended");
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    for words in [
        "still runs on a node that Slurm has lost",
        "saving a checkpoint",
    ] {
        assert!(logs.stdout.contains(words), "{words:?} in {logs:#?}");
    }
    send(daemon, Signal::CONT);
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);
}

/// Trains on three nodes, cuts the cable of one that does not lead, and waits until its task has ended itself. Returns the
/// node.
fn cut_off_node(cluster: &SlurmCluster) -> usize {
    let lost = ["--set", "elastic.contact_s=4"];
    let long = [&["-n", "3", "--name", "long"], &LONG[..], &lost].concat();
    cluster.submit("nodes = 3", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    let program = program_of(cluster);
    let leader = cluster.slurm("squeue", &["-h", "-o", "%B"]);
    let node = if leader.trim() == "n3" { 2 } else { 3 };
    assert!(!cluster.processes(node, &program).is_empty());
    cluster.cable(node, "down");
    cluster.events("long", "\"event\":\"recovered\"", 1);
    until("the task on the node ends itself", || {
        cluster.processes(node, &program).is_empty()
    });
    node
}

/// Returns the program of the job `long`.
fn program_of(cluster: &SlurmCluster) -> PathBuf {
    cluster.path(".state/ronde/jobs/long/ronde")
}

/// Waits for further steps, and expects that the job runs with two of three workers.
fn continues_with_two(cluster: &SlurmCluster) {
    let path = cluster.path(".state/ronde/jobs/long/results/events.jsonl");
    let events = std::fs::read_to_string(path).unwrap();
    let before = events.matches("step_committed").count();
    cluster.events("long", "step_committed", before + 5);
    assert_eq!(cluster.state("long"), "running");
    let status = cluster.ronde(&["status", "long"]).expect(0, &[]);
    assert!(status.stdout.contains("2 of 3 workers"), "{status:#?}");
}

#[test]
fn a_node_that_is_cut_off_ends_its_task_and_the_job_continues_without_it() {
    let Some(cluster) = SlurmCluster::with_network() else {
        return;
    };
    let node = cut_off_node(&cluster);
    continues_with_two(&cluster);
    let missed = format!("running: node n{node} has not responded for");
    until("the node is named", || {
        let jobs = cluster.ronde(&["jobs"]).expect(0, &[]);
        jobs.stdout.contains(&missed)
    });
    cluster.ronde(&["cancel", "long"]).expect(0, &["cancelled"]);
    assert_eq!(cluster.state("long"), "cancelled");
    cluster.cable(node, "up");
    let program = program_of(&cluster);
    until("nothing is left on any node", || !runs(&program));
}

#[test]
fn the_loss_of_an_agent_ends_no_other_one_and_its_node_gets_another() {
    let Some(cluster) = SlurmCluster::with_network() else {
        return;
    };
    let sets = ["--set", "elastic.silence_s=0.5"];
    let long = [&["-n", "3", "--name", "long"], &LONG[..], &sets].concat();
    cluster.submit("nodes = 3", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    let program = program_of(&cluster);
    let first = cluster.first_node();
    let others: Vec<usize> = (1..=NODES).filter(|node| *node != first).collect();
    let busy = |node: &usize| !cluster.processes(*node, &program).is_empty();
    let mut others = others.into_iter().filter(busy);
    let (lost, kept) = (others.next().unwrap(), others.next().unwrap());
    let before = cluster.processes(kept, &program);
    for pid in cluster.processes(lost, &program) {
        // Its workers end with the agent.
        let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
    }
    cluster.events("long", "\"event\":\"recovered\"", 1);
    until("the node has an agent again", || {
        let status = cluster.ronde(&["status", "long"]);
        status.stdout.contains("3 of 3 workers")
    });
    assert_eq!(cluster.processes(kept, &program), before);
    cluster.ronde(&["cancel", "long"]).expect(0, &["cancelled"]);
    until("nothing is left on any node", || !runs(&program));
}

#[test]
#[ignore = "Slurm notices the loss and the return of a node after a minute; `cargo xtask soak` runs it"]
fn a_node_that_slurm_has_lost_and_found_again_does_not_disturb_the_job() {
    let Some(cluster) = SlurmCluster::with_network() else {
        return;
    };
    let node = cut_off_node(&cluster);
    let name = format!("n{node}");
    let is_down = || {
        let state = cluster.slurm("sinfo", &["-h", "-o", "%T", "-n", &name]);
        state.starts_with("down")
    };
    until("Slurm has lost the node", is_down);
    continues_with_two(&cluster);
    cluster.cable(node, "up");
    until("Slurm has the node again", || !is_down());
    continues_with_two(&cluster);
    let program = program_of(&cluster);
    assert_eq!(cluster.processes(node, &program), [0_u32; 0]);
    cluster.ronde(&["cancel", "long"]).expect(0, &["cancelled"]);
    until("nothing is left on any node", || !runs(&program));
}

#[test]
fn a_job_whose_first_node_is_set_down_is_queued_again() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    let set_down = |job: &str| {
        cluster.events(job, "step_committed", 5);
        let name = format!("nodename=n{}", cluster.first_node());
        // Slurm kills the launcher on it, and ends the job.
        cluster.slurm("scontrol", &["update", &name, "state=down", "reason=test"]);
        name
    };
    let long = [&["-n", "2", "--name", "long"], &LONG[..]].concat();
    cluster.submit("nodes = 2", &long).expect(0, &[]);
    let node = set_down("long");
    until("the job is queued again", || {
        cluster.state("long") == "queued"
    });
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("queues the job again"), "{logs:#?}");
    // Its daemon answers, so that Slurm uses the node again, where the daemon would refuse a second copy of the job.
    cluster.slurm("scontrol", &["update", &node, "state=drain", "reason=test"]);
    cluster.start_again("long");
    // From the start: without a checkpoint.
    until("the run starts again", || {
        let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
        logs.stdout.matches("the coordinator listens").count() == 2
    });
    cluster.events("long", "step_committed", 5);
    let described = cluster.slurm("scontrol", &["show", "job", &cluster.number("long")]);
    assert!(described.contains("Restarts=1"), "{described}");
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);

    let once = [&["-n", "2", "--name", "once"], &LONG[..]].concat();
    let settings = "nodes = 2\noptions = [\"--no-requeue\"]";
    cluster.submit(settings, &once).expect(0, &[]);
    set_down("once");
    let ended = cluster.ronde(&["wait", "once"]);
    let problem = "is lost, and Slurm does not queue the job again";
    assert_eq!(ended.code, 3, "{ended:#?}");
    let jobs = cluster.ronde(&["jobs"]).expect(0, &[]);
    assert!(jobs.stdout.contains(problem), "{jobs:#?}");
    until("the allocation has ended", || {
        !cluster.slurm("squeue", &["-h"]).contains("once")
    });
}

#[test]
#[ignore = "a node without power is noticed after half a minute; `cargo xtask soak` runs it"]
fn a_job_whose_first_node_loses_its_power_has_the_bits_of_an_undisturbed_run() {
    let Some(mut cluster) = SlurmCluster::with_network() else {
        return;
    };
    let sets = [
        "--set",
        "train.epochs=40",
        "--set",
        "checkpoint.every_steps=50",
        "--set",
        "elastic.silence_s=0.5",
    ];
    let plain = cluster
        .dir
        .run(&[&["train", "--json"], &sets[..]].concat())
        .blake3();
    let run = [&["-n", "3", "--name", "long"], &sets[..]].concat();
    cluster.submit("nodes = 3", &run).expect(0, &[]);
    cluster.events("long", "\"event\":\"checkpoint_saved\"", 1);
    let node = cluster.first_node();
    cluster.power_off(node);
    until("the job is queued again", || {
        cluster.state("long") == "queued"
    });
    cluster.power_on(node);
    until("Slurm has the node again", || {
        let nodes = cluster.slurm("sinfo", &["-h", "-N", "-o", "%T"]);
        nodes.matches("idle").count() == NODES && !nodes.contains("idle*")
    });
    cluster.start_again("long");
    cluster.ronde(&["wait", "long"]).expect(0, &["finished"]);
    cluster.events("long", "\"event\":\"checkpoint_loaded\"", 1);
    cluster
        .ronde(&["fetch", "long", "--to", "copy"])
        .expect(0, &[]);
    let model = std::fs::read_to_string(cluster.path("copy/model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
}

#[test]
fn a_job_without_a_launcher_is_named_and_can_be_cancelled() {
    let Some(cluster) = SlurmCluster::with_network() else {
        return;
    };
    let long = [&["-n", "1", "--name", "long"], &LONG[..]].concat();
    cluster.submit("nodes = 1", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    cluster.power_off(cluster.first_node());
    until("the launcher is missed", || {
        let jobs = cluster.ronde(&["jobs"]).expect(0, &[]);
        jobs.stdout.contains("has not responded for")
    });
    let ended = cluster.ronde(&["cancel", "long"]).expect(0, &["cancelled"]);
    let words = "does not respond: ending the allocation";
    assert!(ended.stderr.contains(words), "{ended:#?}");
    assert_eq!(cluster.state("long"), "cancelled");
}

#[test]
#[ignore = "the shortest time limit of Slurm is a minute; `cargo xtask soak` runs it"]
fn a_job_at_its_time_limit_is_queued_again_and_resumes_from_its_checkpoint() {
    let Some(cluster) = SlurmCluster::new() else {
        return;
    };
    let long = [&["-n", "2", "--name", "long"], &LONG[..]].concat();
    // Slurm looks at time limits every 30 s or so.
    cluster
        .submit("nodes = 2\ntime = \"1\"\nsignal_s = 20", &long)
        .expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    until("the job is queued again", || {
        cluster.state("long") == "queued"
    });
    let logs = cluster.ronde(&["logs", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("checkpoint saved"), "{logs:#?}");
    cluster.start_again("long");
    cluster.events("long", "\"event\":\"checkpoint_loaded\"", 1);
    cluster.events("long", "step_committed", 5);
    let described = cluster.slurm("scontrol", &["show", "job", &cluster.number("long")]);
    assert!(described.contains("Restarts=1"), "{described}");
    assert!(described.contains("TimeLimit=00:01:00"), "{described}");
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cancelled"]);
    let program = program_of(&cluster);
    until("nothing is left on any node", || !runs(&program));
}
