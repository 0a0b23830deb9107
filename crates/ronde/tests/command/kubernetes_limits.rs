//! The obstacles of a job on Kubernetes: lost nodes, quotas, policies, missing rights, and
//! files that must not be sent.

use serde_json::Value;

use crate::jobs_on_kubernetes::{LONG, TestCluster};
use crate::support::until;

/// What `ronde` uses: the list of `docs/jobs.md`.
const RIGHTS: [&str; 13] = [
    "create jobs",
    "get jobs",
    "list jobs",
    "patch jobs",
    "delete jobs",
    "create secrets",
    "create configmaps",
    "list pods",
    "delete pods",
    "get pods/log",
    "get pods/exec",
    "create pods/exec",
    "list events",
];

/// Lets the user do these things only.
fn allow(cluster: &TestCluster, rights: &[&str]) {
    std::fs::write(cluster.path("cluster/rights"), rights.join("\n")).unwrap();
}

/// Returns all rights but one.
fn without(right: &str) -> Vec<&str> {
    RIGHTS.into_iter().filter(|each| *each != right).collect()
}

fn is_empty(cluster: &TestCluster, kind: &str) -> bool {
    cluster.state()[kind].as_array().unwrap().is_empty()
}

#[test]
fn a_run_that_ends_while_a_node_is_lost_is_finished_and_fetched() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let sets = ["--set", "train.epochs=40", "--set", "elastic.silence_s=0.5"];
    let run = [&["-n", "2", "--name", "short"], &sets[..]].concat();
    cluster.submit("", &run).expect(0, &[]);
    cluster.events("short", "step_committed", 5);
    let lost = cluster.pod("1")["name"].as_str().unwrap().to_owned();
    std::fs::write(cluster.path(&format!("cluster/lose-{lost}")), "").unwrap();
    cluster.ronde(&["wait", "short"]).expect(0, &["finished"]);
    let is_lost = |pod: &Value| pod["name"] == lost.as_str();
    assert!(cluster.pods().iter().any(is_lost), "its pod is still there");
    assert!(cluster.job_state("short").contains("finished"));
    cluster
        .ronde(&["fetch", "short", "--to", "copy"])
        .expect(0, &[]);
    assert!(cluster.path("copy/model.json").exists());
}

#[test]
fn a_job_is_cancelled_with_a_checkpoint_without_the_right_to_run_commands_or_to_delete_pods() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let no_commands = without("create pods/exec");
    let no_deletion: Vec<&str> = without("create pods/exec");
    let no_deletion: Vec<&str> = no_deletion
        .into_iter()
        .filter(|right| *right != "delete pods")
        .collect();
    for (name, rights, reason) in [
        (
            "first",
            &no_commands,
            "deleting the pod, so that its processes get SIGTERM",
        ),
        (
            "second",
            &no_deletion,
            "suspending the Job, so that Kubernetes ends its pods",
        ),
    ] {
        allow(&cluster, &RIGHTS);
        let long = [&["-n", "2", "--name", name], &LONG[..]].concat();
        cluster.submit("", &long).expect(0, &[]);
        cluster.events(name, "step_committed", 5);
        allow(&cluster, rights);
        cluster.ronde(&["cancel", name]).expect(
            0,
            &[
                "cannot run a command in pod",
                "User \"test\" cannot create resource \"pods/exec\"",
                reason,
                &format!("job {name}: cancelled"),
            ],
        );
        until("no pod is left", || cluster.pods().is_empty());
        cluster.events(name, "\"event\":\"checkpoint_saved\"", 1);
    }
}

#[test]
fn quotas_and_policies_are_shown_as_the_reason_and_pods_are_restricted() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let run = ["-n", "1", "--name", "x", "--set", "train.epochs=1"];
    let quota = "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0";
    std::fs::write(cluster.path("cluster/quota"), quota).unwrap();
    cluster.submit("", &run).expect(0, &[]);
    until("the quota is shown", || {
        cluster.job_state("x").contains(quota)
    });
    assert!(cluster.job_state("x").contains("queued (FailedCreate: "));
    std::fs::write(cluster.path("cluster/restricted"), "").unwrap();
    std::fs::remove_file(cluster.path("cluster/quota")).unwrap();
    cluster.ronde(&["wait", "x"]).expect(0, &["finished"]);
    cluster
        .ronde(&["fetch", "x", "--to", "copy"])
        .expect(0, &[]);
}

#[test]
fn a_job_needs_exactly_the_rights_of_the_documentation() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    allow(&cluster, &RIGHTS);
    let run = |name| ["-n", "1", "--name", name, "--set", "train.epochs=1"];
    cluster.submit("", &run("all")).expect(0, &[]);
    cluster.ronde(&["logs", "-f", "all"]).expect(0, &[]);
    cluster.ronde(&["wait", "all"]).expect(0, &["finished"]);
    cluster
        .ronde(&["fetch", "all", "--to", "copy"])
        .expect(0, &[]);
    cluster.ronde(&["jobs", "--remove", "all"]).expect(0, &[]);
    until("the Job is deleted", || is_empty(&cluster, "jobs"));
    // Without one of the rights to create a job, nothing is created.
    for right in &RIGHTS[..7] {
        if *right == "list jobs" {
            continue;
        }
        allow(&cluster, &without(right));
        cluster
            .submit("", &run("refused"))
            .expect(2, &["you may not do this in namespace `default`", right]);
        assert!(is_empty(&cluster, "jobs"), "{right}");
    }
    // Where the user may not ask, created objects are removed, also without the right to delete it.
    for right in &RIGHTS[5..7] {
        for further in ["", "delete jobs"] {
            let mut rights = without(right);
            rights.retain(|each| *each != further);
            rights.push("no reviews");
            allow(&cluster, &rights);
            let verb_and_kind = format!("cannot create resource \"{}\"", &right["create ".len()..]);
            cluster
                .submit("", &run("undone"))
                .expect(2, &["status 403", &verb_and_kind]);
            until("the Job is deleted", || is_empty(&cluster, "jobs"));
            cluster.ronde(&["status", "undone"]).expect(2, &["no job"]);
        }
    }
}

#[test]
fn commands_name_the_right_that_they_miss() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let long = [&["-n", "1", "--name", "long"], &LONG[..]].concat();
    cluster.submit("", &long).expect(0, &[]);
    cluster.events("long", "step_committed", 5);
    for (right, words) in [
        ("get jobs", &["wait", "long"][..]),
        ("list pods", &["logs", "long"]),
        ("get pods/log", &["logs", "long"]),
        ("get pods/exec", &["status", "long"]),
        ("create pods/exec", &["status", "long"]),
        ("patch jobs", &["cancel", "--now", "long"]),
    ] {
        allow(&cluster, &without(right));
        let (verb, kind) = right.split_once(' ').unwrap();
        let problem = format!("cannot {verb} resource \"{kind}\"");
        cluster.ronde(words).expect(2, &[&problem, "status 403"]);
    }
    allow(&cluster, &without("list jobs"));
    assert!(
        cluster
            .job_state("long")
            .contains("cannot list resource \"jobs\"")
    );
    // Without the events, a state has no reason.
    allow(&cluster, &without("list events"));
    assert!(cluster.job_state("long").contains("running"));
    // Without the right to delete pods, Kubernetes ends them.
    allow(&cluster, &without("delete pods"));
    cluster
        .ronde(&["cancel", "--now", "long"])
        .expect(0, &["cannot delete pods", "cancelled"]);
    assert!(cluster.pods().is_empty());
    allow(&cluster, &without("delete jobs"));
    cluster
        .ronde(&["jobs", "--remove", "long"])
        .expect(2, &["cannot delete resource \"jobs\""]);
}

#[test]
fn only_files_that_the_run_names_are_sent_and_no_credentials() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    cluster.dir.run(&["init", "run.toml"]).expect(0, &[]);
    cluster.dir.write("kubeconfig", "token: hunter2\n");
    cluster.dir.write("labels.txt", "a\nb\n");
    let run = ["-n", "1", "--name", "x", "--set", "train.epochs=1"];
    let dry = ["--dry-run", "-o", "json", "run.toml"];
    let sent = |more: &[&str]| {
        let documents = cluster.submit("", &[&run[..], more, &dry[..]].concat());
        let lines = documents.expect(0, &[]).stdout;
        assert!(!lines.contains("hunter2"), "{lines}");
        let mut documents = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let map = documents
            .find(|document| document["kind"] == "ConfigMap")
            .unwrap();
        map["data"].as_object().unwrap().len() - 1
    };
    assert_eq!(sent(&[]), 1, "the run file");
    assert_eq!(sent(&["--set", "job.files=[\"*.txt\"]"]), 2);
    let large = "x".repeat(1 << 20);
    cluster.dir.write("large.txt", &large);
    std::os::unix::fs::symlink("/etc/hostname", cluster.path("outside.txt")).unwrap();
    for (set, problem) in [
        (
            "job.files=[\"kubeconfig\"]",
            "it looks like a file with credentials",
        ),
        (
            "job.files=[\"outside.txt\"]",
            "it leads out of the folder of the run file",
        ),
        (
            "job.files=[\"large.txt\"]",
            "a ConfigMap has room for 1048576",
        ),
        ("checkpoint.encrypt=file:run.key", "a key is a secret"),
    ] {
        let ended = cluster.submit("", &[&run[..], &["--set", set, "run.toml"]].concat());
        ended.expect(2, &[problem]);
        assert!(
            is_empty(&cluster, "jobs") && is_empty(&cluster, "configmaps"),
            "{set}"
        );
    }
    let text = std::fs::read_to_string(cluster.path("run.toml")).unwrap();
    let secret = format!("{text}# https://me:hunter2@host/\n");
    cluster.dir.write("secret.toml", &secret);
    let ended = cluster.submit("", &[&run[..], &["secret.toml"]].concat());
    ended.expect(2, &["has an address with a password", "--env-from"]);
    let from = ["--env-from", "store", "run.toml"];
    cluster
        .submit("", &[&run[..], &from[..]].concat())
        .expect(0, &[]);
    cluster.ronde(&["wait", "x"]).expect(0, &["finished"]);
}
