//! Jobs on this machine: submitted, listed, scaled, cancelled, killed and fetched.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, RONDE, TestFolder, send, until};

/// A run that lasts until it is ended.
const LONG: &str = "train.epochs=100000";

/// Runs `ronde` with the records of jobs in the folder of the test.
pub(crate) fn ronde(dir: &TestFolder, arguments: &[&str]) -> Ended {
    let state = dir.path().join(".state");
    let settings = dir.path().join(".config");
    let variables = [
        ("XDG_STATE_HOME", state.to_str().unwrap()),
        ("XDG_CONFIG_HOME", settings.to_str().unwrap()),
    ];
    dir.start(RONDE, arguments, &variables).wait()
}

/// Returns the listed jobs.
pub(crate) fn listed(dir: &TestFolder) -> Vec<Value> {
    let jobs = ronde(dir, &["jobs", "--json"]).expect(0, &[]);
    let lines = jobs.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns the name and the state of the listed jobs.
pub(crate) fn states(dir: &TestFolder) -> Vec<String> {
    let state = |job: &Value| {
        format!(
            "{} {}",
            job["job"].as_str().unwrap(),
            job["state"]["state"].as_str().unwrap()
        )
    };
    listed(dir).iter().map(state).collect()
}

/// Returns the process of a job, which leads a session.
fn process(dir: &TestFolder, job: &str) -> u32 {
    let path = dir
        .path()
        .join(format!(".state/ronde/jobs/{job}/launcher/process.json"));
    let process: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    u32::try_from(process["pid"].as_u64().unwrap()).unwrap()
}

/// Returns the processes of a session that have not ended.
pub(crate) fn session(leader: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        fields.len() > 3 && fields[0] != "Z" && fields[3] == leader.to_string()
    })
    .collect()
}

/// Waits until the job has committed steps.
fn under_way(dir: &TestFolder, job: &str) {
    until("the job commits steps", || {
        let events = dir
            .path()
            .join(format!(".state/ronde/jobs/{job}/results/events.jsonl"));
        std::fs::read_to_string(events).is_ok_and(|text| text.matches("step_committed").count() > 5)
    });
}

#[test]
fn a_job_has_the_bits_of_a_run_and_is_listed_shown_fetched_and_removed() {
    let dir = TestFolder::new();
    let plain = dir
        .run(&["train", "--json", "-n", "1", "--set", "train.epochs=2"])
        .blake3();
    let submitted = ronde(&dir, &["submit", "-n", "2", "--set", "train.epochs=2"]).expect(0, &[]);
    assert_eq!(submitted.stdout, "digits\n");
    ronde(&dir, &["wait", "digits"]).expect(0, &["job digits: finished"]);
    assert_eq!(states(&dir), ["digits finished"]);
    let logs = ronde(&dir, &["logs", "-f", "digits"]).expect(0, &[]);
    assert!(logs.stdout.contains("digits finished"), "{logs:#?}");
    ronde(&dir, &["logs", "--rank", "7", "digits"]).expect(2, &["rank 7 has printed nothing"]);
    let status = ronde(&dir, &["status", "digits"]).expect(0, &[]);
    assert!(
        status.stdout.contains("job digits on local: finished"),
        "{status:#?}"
    );
    ronde(&dir, &["fetch", "digits", "--to", "copy"]).expect(0, &[]);
    ronde(&dir, &["fetch", "digits", "--to", "copy"]).expect(0, &[]);
    let model = std::fs::read_to_string(dir.path().join("copy/model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
    assert!(
        !dir.path().join("copy/job").exists(),
        "the token stays where it is"
    );
    assert!(dir.list("copy/logs").contains(&"launcher.log".to_owned()));
    dir.write("full", "");
    ronde(&dir, &["fetch", "digits", "--to", "."]).expect(2, &["it is not empty"]);
    ronde(&dir, &["submit", "--name", "digits"]).expect(2, &["there is a job `digits` already"]);
    ronde(&dir, &["jobs", "--remove", "digits"]).expect(0, &[]);
    assert_eq!(states(&dir), [""; 0]);
    ronde(&dir, &["logs", "digits"]).expect(2, &["there is no job `digits`"]);
}

#[test]
fn a_job_outlives_its_submitter_is_scaled_and_cancelled_with_a_checkpoint() {
    let dir = TestFolder::new();
    ronde(
        &dir,
        &["submit", "-n", "2", "--name", "long", "--set", LONG],
    )
    .expect(0, &["job long on local: running"]);
    let leader = process(&dir, "long");
    assert!(
        session(leader).contains(&leader),
        "a closed terminal does not reach it"
    );
    under_way(&dir, "long");
    // A folder of this name does not hide the job.
    std::fs::create_dir(dir.path().join("long")).unwrap();
    ronde(&dir, &["scale", "long", "1"]).expect(0, &["1 worker"]);
    let status = ronde(&dir, &["status", "long"]).expect(0, &[]).stdout;
    assert!(status.contains("job long on local: running"), "{status}");
    ronde(&dir, &["jobs", "--remove", "long"])
        .expect(2, &["cannot remove job `long`: it is running"]);
    ronde(&dir, &["cancel", "long"]).expect(0, &["job long: cancelled"]);
    assert_eq!(session(leader), [0_u32; 0], "nothing is left");
    assert_eq!(states(&dir), ["long cancelled"]);
    ronde(&dir, &["wait", "long"]).expect(143, &["cancelled"]);
    let logs = ronde(&dir, &["logs", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("checkpoint saved"), "{logs:#?}");
}

#[test]
fn a_killed_job_is_lost_and_cancelling_it_leaves_nothing() {
    let dir = TestFolder::new();
    ronde(&dir, &["submit", "-n", "2", "--name", "x", "--set", LONG]).expect(0, &[]);
    under_way(&dir, "x");
    let leader = process(&dir, "x");
    send(leader, Signal::KILL);
    until("the job is lost", || states(&dir) == ["x lost"]);
    ronde(&dir, &["wait", "x"]).expect(3, &["lost"]);
    ronde(&dir, &["logs", "x"]).expect(0, &["job x: lost (its launcher was killed)"]);
    ronde(&dir, &["scale", "x", "1"]).expect(2, &["cannot scale job `x`: it is lost"]);
    ronde(&dir, &["cancel", "x"]).expect(0, &["lost"]);
    assert_eq!(
        session(leader),
        [0_u32; 0],
        "also its coordinator has ended"
    );
}

#[test]
fn a_job_whose_folder_is_deleted_ends() {
    let dir = TestFolder::new();
    ronde(&dir, &["submit", "-n", "1", "--name", "x", "--set", LONG]).expect(0, &[]);
    under_way(&dir, "x");
    let leader = process(&dir, "x");
    std::fs::remove_dir_all(dir.path().join(".state/ronde/jobs/x")).unwrap();
    assert_eq!(states(&dir), [""; 0]);
    until("nothing is left", || session(leader).is_empty());
}

#[test]
fn a_folder_that_machines_share_has_one_job_of_a_name() {
    let dir = TestFolder::new();
    dir.write(
        "targets.toml",
        "[big]\nkind = \"local\"\nfolder = \"shared\"\n",
    );
    let on = [
        "submit",
        "--targets",
        "targets.toml",
        "--on",
        "big",
        "-n",
        "1",
    ];
    let words = [&on[..], &["--name", "x", "--set", "train.epochs=1"]].concat();
    ronde(&dir, &words).expect(0, &[]);
    ronde(&dir, &["wait", "x"]).expect(0, &[]);
    let other = dir.path().join(".other");
    let variables = [("XDG_STATE_HOME", other.to_str().unwrap())];
    dir.start(RONDE, &words, &variables)
        .wait()
        .expect(2, &["of another job `x` already"]);
    ronde(&dir, &["jobs", "--remove", "x"]).expect(0, &[]);
    assert_eq!(dir.list("shared"), [""; 0], "its results are removed");
}

#[test]
fn mistakes_start_nothing_and_leave_the_name_free() {
    let dir = TestFolder::new();
    dir.write("targets.toml", "[small]\nkind = \"local\"\nslotz = 1\n");
    dir.write("bad.toml", "[train]\nepochz = 1\n");
    dir.write(
        "nodata.toml",
        "[run]\nname = \"n\"\n[data]\ntrain = \"gone/*.csv\"\nformat = \"csv\"\n",
    );
    let cases: [(&[&str], &str); 8] = [
        (&["submit", "--on", "moon"], "there is no target `moon`"),
        (
            &["submit", "--targets", "targets.toml", "--on", "small"],
            "unknown field `slotz`",
        ),
        (
            &["submit", "--targets", "gone.toml"],
            "cannot read gone.toml",
        ),
        (&["submit", "bad.toml"], "epochz"),
        (
            &["submit", "--name", "../x"],
            "invalid name of a job `../x`",
        ),
        (
            &["submit", "--set", "run.output=out"],
            "cannot set `run.output`",
        ),
        (&["submit", "--name", "n", "nodata.toml"], ""),
        (
            &["submit", "--dry-run", "-o", "yaml"],
            "cannot print what is sent to target `local` as yaml",
        ),
    ];
    for (arguments, problem) in cases {
        let ended = ronde(&dir, arguments);
        assert_ne!(ended.code, 0, "{arguments:?}");
        assert!(ended.stderr.contains(problem), "{problem:?} in {ended:#?}");
        assert_eq!(states(&dir), [""; 0], "{arguments:?}");
    }
    let preview = ronde(&dir, &["submit", "--dry-run", "-n", "3"]).expect(0, &[]);
    assert!(
        preview.stdout.contains("train -n 3 --listen=127.0.0.1"),
        "{preview:#?}"
    );
    assert_eq!(states(&dir), [""; 0]);
}

#[test]
fn a_hundred_jobs_of_every_state_are_listed() {
    let dir = TestFolder::new();
    ronde(
        &dir,
        &[
            "submit",
            "--name",
            "first",
            "-n",
            "1",
            "--set",
            "train.epochs=1",
        ],
    )
    .expect(0, &[]);
    ronde(&dir, &["wait", "first"]).expect(0, &[]);
    let jobs = dir.path().join(".state/ronde/jobs");
    let record = std::fs::read_to_string(jobs.join("first/job.json")).unwrap();
    for number in 0..99 {
        let folder = jobs.join(format!("job-{number}"));
        std::fs::create_dir_all(&folder).unwrap();
        let text = record.replace("first", &format!("job-{number}"));
        // A record that is damaged, and one whose folder on the target was deleted, do not prevent it.
        let text = if number == 7 { "{" } else { &text };
        std::fs::write(folder.join("job.json"), text).unwrap();
    }
    ronde(&dir, &["jobs", "--remove", "job-7"]).expect(2, &["job.json", "--force"]);
    let states = states(&dir);
    assert_eq!(states.len(), 100);
    let count = |state: &str| {
        states
            .iter()
            .filter(|listed| listed.ends_with(state))
            .count()
    };
    assert_eq!(
        (count(" finished"), count(" unknown"), count(" lost")),
        (1, 1, 98)
    );
    let table = ronde(&dir, &["jobs"]).expect(0, &[]).stdout;
    assert!(
        table.starts_with("JOB ") && table.lines().count() == 101,
        "{table}"
    );
    let forced = ["jobs", "--remove", "job-7", "--force"];
    ronde(&dir, &forced).expect(0, &["may be left", "removed job job-7"]);
}

#[test]
fn a_job_follows_a_policy_and_each_decision_has_its_reason() {
    let dir = TestFolder::new();
    dir.write("targets.toml", "[big]\nkind = \"local\"\nslots = 3\n");
    let submit = [
        "submit",
        "--targets",
        "targets.toml",
        "--on",
        "big",
        "-n",
        "1",
        "--name",
        "x",
    ];
    ronde(&dir, &[&submit[..], &["--set", LONG]].concat()).expect(0, &[]);
    under_way(&dir, "x");
    let state = dir.path().join(".state");
    let variables = [("XDG_STATE_HOME", state.to_str().unwrap())];
    let soon = ["--every", "0.2", "--settle", "0.2"];
    let words = ["autoscale", "x", "--max-workers", "8"];
    let mut scaling = dir.start(RONDE, &[&words[..], &soon].concat(), &variables);
    scaling.wait_stderr("x: 3 workers: the hosts have room for 3 workers", 1);
    until("three workers train", || {
        ronde(&dir, &["status", "x"])
            .stdout
            .contains("3 of 3 workers")
    });
    scaling.signal(Signal::TERM);
    scaling.wait().expect(143, &[]);
    // A step never takes a second, so one worker is enough.
    let slow = [&words[..], &soon, &["--step-ms", "1000"]].concat();
    let mut scaling = dir.start(RONDE, &slow, &variables);
    scaling.wait_stderr("x: 1 workers: a step takes", 1);
    until("one worker trains", || {
        ronde(&dir, &["status", "x"])
            .stdout
            .contains("1 of 1 workers")
    });
    scaling.signal(Signal::TERM);
    scaling.wait();
    let spent = [&words[..], &soon, &["--budget", "0.0001"]].concat();
    dir.start(RONDE, &spent, &variables)
        .wait()
        .expect(0, &["the budget is used up", "job x: cancelled"]);
    assert_eq!(states(&dir), ["x cancelled"]);
    ronde(
        &dir,
        &["autoscale", "x", "--max-workers", "2", "--min-workers", "3"],
    )
    .expect(2, &["larger than `--max-workers`"]);
    ronde(
        &dir,
        &["autoscale", "x", "--max-workers", "2", "--step-ms=-1"],
    )
    .expect(2, &["expected a number above 0"]);
}
