//! `ronde run`: starts any program as several ranks.

use rustix::process::Signal;

use crate::support::{RONDE, TestFolder};

fn shell(ranks: &str, script: &str) -> crate::support::Ended {
    TestFolder::new().run(&["run", "-n", ranks, "--", "sh", "-c", script])
}

#[test]
fn ranks_get_rendezvous_variables_and_lines_get_their_rank() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE; \
                  echo $MASTER_ADDR >&2; test $MASTER_PORT -gt 0";
    let ended = shell("3", script).expect(0, &[]);
    let mut lines: Vec<&str> = ended.stdout.lines().collect();
    lines.sort_unstable();
    let expected = ["[rank 0] 0/3 0/3", "[rank 1] 1/3 1/3", "[rank 2] 2/3 2/3"];
    assert_eq!(lines, expected);
    let mut lines: Vec<&str> = ended.stderr.lines().collect();
    lines.sort_unstable();
    let expected = [0, 1, 2].map(|rank| format!("[rank {rank}] 127.0.0.1"));
    assert_eq!(lines, expected);
}

#[test]
fn processes_have_the_roles_of_the_command() {
    let dir = TestFolder::new();
    let run = |words: &[&str]| {
        let script = ["--", "sh", "-c", "echo $RANK of $WORLD_SIZE: $RONDE_ROLE"];
        dir.run(&[&["run"], words, &script].concat())
    };
    let ended = run(&["--role", "server=2", "--role", "worker=1"]).expect(0, &[]);
    let mut lines: Vec<&str> = ended.stdout.lines().collect();
    lines.sort_unstable();
    let roles = ["server", "server", "worker"];
    let expected = [0, 1, 2].map(|rank| format!("[rank {rank}] {rank} of 3: {}", roles[rank]));
    assert_eq!(lines, expected);
    for (words, problem) in [
        (&["--role", "server"][..], "such as server=2"),
        (&["--role", "server=0"], "such as server=2"),
        (
            &["--role", "a=1", "--role", "a=2"],
            "role `a` is given twice",
        ),
        (&["--role", "a=1", "-n", "2"], "--workers is 2"),
        (&["--role", "a=4000", "--role", "b=4000"], "limit 4096"),
        (&["--role", "a=1", "--listen"], "cannot be used with"),
    ] {
        run(words).expect(2, &[problem]);
    }
}

#[test]
fn the_first_failure_is_reported_and_ends_all() {
    let script = "test $RANK = 1 || exec sleep 600; echo no more paper >&2; exit 7";
    let ended = shell("3", script).expect(
        7,
        &[
            "error: rank 1 ended with exit code 7",
            "where: rank 1 on ",
            "| no more paper",
        ],
    );
    assert!(!ended.stderr.contains("also failed"), "{}", ended.stderr);
    let killed = "error: rank 0 was killed by signal 9 (SIGKILL)";
    shell("2", "test $RANK = 0 || exec sleep 600; kill -9 $$").expect(137, &[killed, "help: "]);
}

#[test]
fn a_rank_that_ignores_sigterm_is_named() {
    let script = "trap '' TERM; if test $RANK = 0; then while :; do sleep 0.1; done; fi; \
                  sleep 0.2; exit 3";
    shell("2", script).expect(
        3,
        &[
            "error: rank 1 ended with exit code 3",
            "look first at rank 0",
        ],
    );
}

#[test]
fn a_missing_program_is_a_user_error() {
    let dir = TestFolder::new();
    for (program, hint) in [
        ("no-such-program", "installed and in PATH"),
        ("./file", "chmod +x"),
    ] {
        dir.write("file", "#!/bin/sh\n");
        let arguments = ["run", "-n", "2", "--", program];
        dir.run(&arguments)
            .expect(2, &["cannot be started", program, hint]);
    }
    dir.run(&["run", "-n", "0", "--", "true"])
        .expect(2, &["--workers"]);
    dir.run(&["run"]).expect(2, &["PROGRAM"]);
}

#[test]
fn an_elastic_job_needs_a_program_that_joins() {
    let arguments = [
        "run",
        "--elastic",
        "--max-restarts",
        "1",
        "-n",
        "2",
        "--",
        "true",
    ];
    TestFolder::new().run(&arguments).expect(
        3,
        &[
            "abandoned after 1 restart: the last worker exited with code 0 without joining the job",
            "help: `--elastic` needs a program that joins the job with `Worker::join`",
        ],
    );
}

#[test]
fn a_request_to_end_does_not_mention_checkpoints_of_programs_that_may_have_none() {
    let dir = TestFolder::new();
    let arguments = ["run", "--", "sh", "-c", "echo begun; exec sleep 600"];
    let mut running = dir.start(RONDE, &arguments, &[]);
    running.wait_stdout("begun", 1);
    running.signal(Signal::TERM);
    let ended = running.wait();
    let ended = ended.expect(143, &["received SIGTERM: the processes have 30 s to end"]);
    assert!(!ended.stderr.contains("checkpoint"), "{}", ended.stderr);
}
