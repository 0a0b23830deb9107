//! Jobs over SSH: hosts are network namespaces, each with its own SSH server. Skipped with a message where there is no
//! `sshd` or namespaces cannot be created.

use std::process::Command;

use serde_json::Value;

use crate::jobs::session;
use crate::ssh_hosts::{SshHosts, make_executable};
use crate::support::{RONDE, Running, until};
use crate::test_network::{address, ip};

/// A run that lasts until it is ended.
const LONG: [&str; 4] = [
    "--set",
    "train.epochs=100000",
    "--set",
    "elastic.silence_s=0.5",
];

#[test]
fn a_job_on_two_hosts_has_the_bits_of_a_run_and_is_fetched() {
    let Some(hosts) = SshHosts::new(2) else {
        return;
    };
    hosts.targets(&[("gpus", "ssh_config", "hosts = [\"h1:2\", \"h2:2\"]")]);
    std::fs::create_dir(hosts.path("input")).unwrap();
    hosts.dir.run(&["init", "input/run.toml"]).expect(0, &[]);
    hosts.write("input/kubeconfig", "a secret");
    let run = hosts.path("input/run.toml");
    let run = run.to_str().unwrap();
    let plain = hosts
        .dir
        .run(&["train", run, "--json", "-n", "1", "--set", "train.epochs=2"])
        .blake3();
    hosts
        .submit(&[
            "--on",
            "gpus",
            "-n",
            "3",
            "--name",
            "short",
            "--set",
            "train.epochs=2",
            run,
        ])
        .expect(0, &["job short on gpus"]);
    hosts.ronde(&["wait", "short"]).expect(0, &["finished"]);
    hosts
        .ronde(&["fetch", "short", "--to", "copy"])
        .expect(0, &[]);
    let model = std::fs::read_to_string(hosts.path("copy/model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
    assert!(hosts.path("copy/logs/launcher.log").exists() && !hosts.path("copy/job").exists());
    let sent = hosts.dir.list("remote/inputs");
    assert_eq!(sent.len(), 1);
    let sent = hosts.dir.list(&format!("remote/inputs/{}", sent[0]));
    assert_eq!(sent, ["run.toml"], "what the run does not name stays here");
    let named = ["--on", "gpus", "--set", "job.files=[\"kubeconfig\"]", run];
    hosts.submit(&named).expect(
        2,
        &["input/kubeconfig: it looks like a file with credentials"],
    );
}

#[test]
#[ignore = "connecting is tried for half a minute; `cargo xtask soak` runs it"]
fn of_two_hosts_that_cannot_reach_each_other_one_is_excluded() {
    let Some(hosts) = SshHosts::new(3) else {
        return;
    };
    let second = &hosts.network.names[2];
    let third = address(3);
    assert!(ip(&format!("-n {second} route add blackhole {third}/32")));
    hosts.targets(&[(
        "gpus",
        "ssh_config",
        "hosts = [\"h1:1\", \"h2:1\", \"h3:1\"]",
    )]);
    let words = ["--on", "gpus", "-n", "3", "--name", "cut"];
    let sets = ["--set", "train.epochs=2"];
    let submitted = hosts.submit(&[&words[..], &sets[..]].concat());
    submitted.expect(0, &["job cut on gpus"]);
    hosts.ronde(&["wait", "cut"]).expect(0, &["finished"]);
    let path = hosts.path("remote/jobs/cut/results/events.jsonl");
    let events = std::fs::read_to_string(path).unwrap();
    for part in ["cannot connect to worker", "is excluded for a while"] {
        assert!(events.contains(part), "{events}");
    }
    let plain = ["train", "--json", "-n", "1", "--set", "train.epochs=2"];
    let plain = hosts.dir.run(&plain).blake3();
    hosts
        .ronde(&["fetch", "cut", "--to", "copy"])
        .expect(0, &[]);
    let model = std::fs::read_to_string(hosts.path("copy/model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
}

#[test]
fn results_of_hosts_without_a_common_disk_are_fetched() {
    let Some(hosts) = SshHosts::new(2) else {
        return;
    };
    for folder in ["remote", "disk2"] {
        std::fs::create_dir(hosts.path(folder)).unwrap();
    }
    // In the mount namespace of the second host.
    let mounted = Command::new("nsenter")
        .args(["-m", "-t", &hosts.servers[1].id().to_string()])
        .args(["mount", "--bind"])
        .args([hosts.path("disk2"), hosts.path("remote")])
        .status();
    assert!(mounted.unwrap().success());
    hosts.targets(&[("gpus", "ssh_config", "hosts = [\"h1:1\", \"h2:1\"]")]);
    let to = format!("checkpoint.to={:?}", hosts.path("checkpoints"));
    let short = ["--on", "gpus", "-n", "2", "--name", "short"];
    let sets = ["--set", "train.epochs=1", "--set", &to];
    hosts
        .submit(&[&short[..], &sets[..]].concat())
        .expect(0, &["job short on gpus"]);
    hosts.ronde(&["wait", "short"]).expect(0, &["finished"]);
    assert!(!hosts.dir.list("disk2/jobs/short").is_empty());
    hosts
        .ronde(&["fetch", "short", "--to", "copy"])
        .expect(0, &[]);
    assert!(hosts.path("copy/model.json").exists());
}

#[test]
fn a_host_behind_a_jump_host_is_reached_by_the_ssh_configuration() {
    let Some(hosts) = SshHosts::new(2) else {
        return;
    };
    // The submitting machine has no way to the second host.
    let (submitting, behind) = (&hosts.network.names[0], address(2));
    assert!(ip(&format!(
        "-n {submitting} route add unreachable {behind}"
    )));
    hosts.configure("direct", "user_key", "known_hosts");
    let direct = std::fs::read_to_string(hosts.path("direct")).unwrap();
    hosts.write("jumping", &format!("Host h2\n  ProxyJump h1\n{direct}"));
    let two = "hosts = [\"h1:2\", \"h2:2\"]";
    hosts.targets(&[("cut", "direct", two), ("gpus", "jumping", two)]);
    let words = ["--name", "jumped", "--set", "train.epochs=2", "-n", "3"];
    hosts
        .submit(&[&["--on", "cut"], &words[..]].concat())
        .expect(3, &["h2"]);
    hosts
        .submit(&[&["--on", "gpus"], &words[..]].concat())
        .expect(0, &["job jumped on gpus"]);
    hosts.ronde(&["wait", "jumped"]).expect(0, &["finished"]);
    let logs = hosts.ronde(&["logs", "jumped"]).expect(0, &[]);
    assert!(logs.stdout.contains("h2"), "{logs:#?}");
    let plain = ["train", "--json", "-n", "1", "--set", "train.epochs=2"];
    let plain = hosts.dir.run(&plain).blake3();
    hosts
        .ronde(&["fetch", "jumped", "--to", "copy"])
        .expect(0, &[]);
    let model = std::fs::read_to_string(hosts.path("copy/model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
    let long = [&["--on", "gpus", "-n", "3", "--name", "long"], &LONG[..]].concat();
    hosts.submit(&long).expect(0, &[]);
    hosts.events("long", "step_committed", 5);
    let agent = hosts.leader("long", "agent-1");
    hosts
        .ronde(&["cancel", "long"])
        .expect(0, &["job long: cancelled"]);
    assert_eq!(session(agent), [0_u32; 0], "nothing is left");
}

#[test]
fn a_job_on_two_hosts_is_shown_scaled_and_cancelled() {
    let Some(hosts) = SshHosts::new(2) else {
        return;
    };
    hosts.targets(&[("gpus", "ssh_config", "hosts = [\"h1:2\", \"h2:2\"]")]);
    let short = ["--on", "gpus", "--name", "short", "--set", "train.epochs=1"];
    hosts.submit(&short).expect(0, &[]);
    hosts.ronde(&["wait", "short"]).expect(0, &[]);
    let long = [&["--on", "gpus", "-n", "3", "--name", "long"], &LONG[..]].concat();
    hosts
        .submit(&long)
        .expect(0, &["job long on gpus: submitted"]);
    assert_eq!(
        hosts.dir.list("remote/bin").len(),
        1,
        "the program is copied once"
    );
    hosts.events("long", "step_committed", 5);
    let status = hosts.ronde(&["status", "long"]).expect(0, &[]);
    assert!(status.stdout.contains("3 of 3 workers"), "{status:#?}");
    hosts
        .ronde(&["scale", "long", "4"])
        .expect(0, &["4 workers"]);
    hosts.events("long", "\"world_size\":4", 1);
    hosts
        .ronde_of(
            "other",
            &[
                "submit",
                "--targets",
                "targets.toml",
                "--on",
                "gpus",
                "--name",
                "long",
            ],
        )
        .expect(2, &["`h1` has the folder of a job `long` already"]);
    let leaders = [
        hosts.leader("long", "launcher"),
        hosts.leader("long", "agent-1"),
    ];
    hosts
        .ronde(&["cancel", "long"])
        .expect(0, &["job long: cancelled"]);
    for leader in leaders {
        assert_eq!(session(leader), [0_u32; 0], "nothing is left");
    }
    assert_eq!(hosts.states(), ["finished", "cancelled"]);
    let logs = hosts.ronde(&["logs", "-f", "long"]).expect(0, &[]);
    assert!(logs.stdout.contains("checkpoint saved"), "{logs:#?}");
}

/// Starts `ronde train` on the submitting machine, whose `ssh` reads the configuration of the test.
fn train(hosts: &SshHosts, arguments: &[&str]) -> Running {
    let bin = hosts.path("bin");
    let config = hosts.path("ssh_config");
    if std::fs::create_dir(&bin).is_ok() {
        let text = format!(
            "#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n",
            config.display()
        );
        hosts.write("bin/ssh", &text);
        make_executable(&bin.join("ssh"));
    }
    let path = format!(
        "{}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
        bin.display()
    );
    let state = hosts.path(".state");
    let words = ["netns", "exec", &hosts.network.names[0], RONDE, "train"];
    let variables = [
        ("PATH", path.as_str()),
        ("XDG_STATE_HOME", state.to_str().unwrap()),
    ];
    hosts
        .dir
        .start("ip", &[&words, arguments].concat(), &variables)
}

#[test]
fn a_run_with_hosts_is_shown_and_its_results_are_copied() {
    let Some(hosts) = SshHosts::new(2) else {
        return;
    };
    let sets = ["--set", "train.epochs=2"];
    let plain = [&["train", "--json", "--set", "run.name=plain"], &sets[..]].concat();
    let plain = hosts.dir.run(&plain).blake3();
    let on_hosts = [&["-H", "h1:2,h2:1", "-n", "3"], &sets[..]].concat();
    let preview = train(&hosts, &[&on_hosts[..], &["--dry-run"]].concat())
        .wait()
        .expect(0, &[]);
    assert!(
        preview.stdout.contains("ssh h2 ronde join ADDRESS"),
        "{preview:#?}"
    );
    let drained = [&on_hosts[..], &["--dry-run", "--drain-on", "/run/notice"]].concat();
    let preview = train(&hosts, &drained).wait().expect(0, &[]);
    // Of the launcher and of the agent.
    assert_eq!(
        preview.stdout.matches("--drain-on=/run/notice").count(),
        2,
        "{preview:#?}"
    );
    let shown = [
        "on 3 workers",
        "digits finished",
        "results of job digits in runs/digits",
    ];
    train(&hosts, &on_hosts).wait().expect(0, &shown);
    let model = std::fs::read_to_string(hosts.path("runs/digits/model.json")).unwrap();
    assert!(model.contains(&plain), "{model}");
}

#[test]
fn an_interrupted_run_with_hosts_saves_a_checkpoint_and_leaves_nothing() {
    let Some(hosts) = SshHosts::new(1) else {
        return;
    };
    let long = ["-H", "h1", "-n", "1", "--set", "run.name=long"];
    let mut long = train(&hosts, &[&long, &LONG[..]].concat());
    long.wait_stderr("step ", 2);
    let process = hosts.path("home/.local/share/ronde/jobs/long/launcher/process.json");
    let process: Value = serde_json::from_slice(&std::fs::read(process).unwrap()).unwrap();
    let leader = u32::try_from(process["pid"].as_u64().unwrap()).unwrap();
    long.signal(rustix::process::Signal::INT);
    long.wait()
        .expect(143, &["results of job long in runs/long"]);
    assert_eq!(session(leader), [0_u32; 0]);
    assert!(hosts.path("runs/long/checkpoints").exists());
}

#[test]
fn a_run_with_hosts_ends_after_a_checkpoint_at_a_notice() {
    let Some(hosts) = SshHosts::new(1) else {
        return;
    };
    let notice = hosts.path("home/notice").display().to_string();
    let drained = |notice: &str| {
        let long = ["-H", "h1", "-n", "1", "--set", "run.name=long"];
        let words = [&long[..], &LONG[..], &["--drain-on", notice]].concat();
        train(&hosts, &words)
    };
    drained("notice").wait().expect(
        2,
        &["invalid `drain_on` `notice`: expected an absolute path"],
    );
    let mut long = drained(&notice);
    long.wait_stderr("step ", 2);
    std::fs::write(&notice, "").unwrap();
    long.wait().expect(
        143,
        &["preemption notice", "results of job long in runs/long"],
    );
    assert!(hosts.path("runs/long/checkpoints").exists());
}

#[test]
fn a_host_that_is_cut_off_ends_itself_and_the_job_continues() {
    let Some(hosts) = SshHosts::new(2) else {
        return;
    };
    hosts.targets(&[("gpus", "ssh_config", "hosts = [\"h1:1\", \"h2:1\"]")]);
    let lost = ["--set", "elastic.contact_s=4"];
    let long = [
        &["--on", "gpus", "-n", "2", "--name", "cut"],
        &LONG[..],
        &lost,
    ]
    .concat();
    hosts.submit(&long).expect(0, &[]);
    hosts.events("cut", "step_committed", 5);
    let agent = hosts.leader("cut", "agent-1");
    hosts.network.cable(2, "down");
    hosts.events("cut", "\"event\":\"recovered\"", 1);
    until("the host that is cut off ends its processes", || {
        session(agent).is_empty()
    });
    assert_eq!(hosts.states(), ["running"]);
    let launcher = hosts.leader("cut", "launcher");
    let cancelled = hosts.ronde(&["cancel", "cut"]);
    assert_ne!(cancelled.code, 0, "{cancelled:#?}");
    assert!(
        cancelled.stderr.contains("cannot use host `h2`"),
        "{cancelled:#?}"
    );
    assert_eq!(session(launcher), [0_u32; 0]);
    assert_eq!(hosts.states(), ["cancelled"]);
}

/// Submits to each target, and expects a message and no job.
fn refused(hosts: &SshHosts, cases: &[(&str, &str)]) {
    for (target, problem) in cases {
        let workers = if *target == "slots" { "3" } else { "1" };
        let ended = hosts.submit(&["--on", target, "-n", workers]);
        assert_ne!(ended.code, 0, "{target}");
        assert!(ended.stderr.contains(problem), "{problem:?} in {ended:#?}");
        assert_eq!(hosts.states(), [""; 0], "{target}");
    }
    assert_eq!(
        hosts.dir.list("remote/jobs"),
        [""; 0],
        "the folders of jobs are removed"
    );
}

#[test]
fn problems_of_connections_are_explained_before_anything_trains() {
    let Some(hosts) = SshHosts::new(1) else {
        return;
    };
    hosts.configure("wrong_key", "host_key", "known_hosts");
    hosts.configure("no_shell", "other_key", "known_hosts");
    hosts.configure("unknown_host", "user_key", "nothing_known");
    hosts.targets(&[
        ("key", "wrong_key", "hosts = [\"h1\"]"),
        ("shell", "no_shell", "hosts = [\"h1\"]"),
        ("unknown", "unknown_host", "hosts = [\"h1\"]"),
        ("name", "ssh_config", "hosts = [\"h9.invalid\"]"),
        ("slots", "ssh_config", "hosts = [\"h1:2\"]"),
    ]);
    let no_shell =
        "its login shell does not run commands; it printed `This account is not available.`";
    refused(
        &hosts,
        &[
            ("key", "Permission denied"),
            ("key", "ssh-copy-id h1"),
            ("shell", no_shell),
            ("unknown", "accept it once with `ssh h1`"),
            ("name", "cannot use host `h9.invalid`"),
            ("slots", "cannot start 3 workers: the hosts have 2 slots"),
        ],
    );
}

/// Writes a `ronde` that reports other facts on the second host, and returns the lines of its target.
fn other_program(hosts: &SshHosts, name: &str, fact: &str, value: &str) -> String {
    let path = hosts.path(name);
    let change = format!("s/\"{fact}\":\"[^\"]*\"/\"{fact}\":\"{value}\"/");
    let text = format!(
        "#!/bin/sh\ncase \"$2 $SSH_CONNECTION\" in *facts*{}*) {RONDE} \"$@\" | sed '{change}'; exit;; esac\nexec {RONDE} \"$@\"\n",
        address(2)
    );
    hosts.write(name, &text);
    make_executable(&path);
    format!("hosts = [\"h1\", \"h2\"]\nprogram = {path:?}")
}

#[test]
fn hosts_that_cannot_train_together_are_refused_by_name() {
    let Some(hosts) = SshHosts::new(2) else {
        return;
    };
    let small = hosts.path("small");
    std::fs::create_dir(&small).unwrap();
    // In the mount namespace of the first host.
    let mounted = Command::new("nsenter")
        .args(["-m", "-t", &hosts.servers[0].id().to_string()])
        .args(["mount", "-t", "tmpfs", "-o", "size=4m", "ronde-test"])
        .arg(&small)
        .status();
    assert!(mounted.unwrap().success());
    let version = other_program(&hosts, "old_ronde", "version", "0.0.9");
    let features = other_program(&hosts, "other_cpu", "cpu_features", "x86-64 sse2");
    let full = format!("hosts = [\"h1\"]\nfolder = {small:?}");
    hosts.write("broken_ronde", "#!/bin/sh\nkill -SEGV $$\n");
    let broken = hosts.path("broken_ronde");
    make_executable(&broken);
    let broken = format!("hosts = [\"h1\"]\nprogram = {broken:?}");
    hosts.targets(&[
        ("disk", "ssh_config", &full),
        (
            "folder",
            "ssh_config",
            "hosts = [\"h1\"]\nfolder = \"/proc/ronde\"",
        ),
        ("version", "ssh_config", &version),
        ("features", "ssh_config", &features),
        (
            "program",
            "ssh_config",
            "hosts = [\"h1\"]\nprogram = \"/bin/false\"",
        ),
        ("broken", "ssh_config", &broken),
        ("one", "ssh_config", "hosts = [\"h1\"]"),
    ]);
    refused(
        &hosts,
        &[
            ("disk", "the disk is full"),
            ("folder", "cannot use host `h1`"),
            ("version", "cannot use host `h2`: it has ronde 0.0.9"),
            (
                "features",
                "cannot use host `h2`: its processor has other features than that of `h1`",
            ),
            ("program", "it cannot run /bin/false"),
            ("broken", "broken_ronde: Segmentation fault"),
        ],
    );
    let gone = [
        "--on",
        "one",
        "-n",
        "1",
        "--set",
        "model.init=gone.safetensors",
    ];
    hosts.submit(&gone).expect(2, &["gone.safetensors"]);
    refused(&hosts, &[]);
}

#[test]
fn hosts_that_a_script_names_join_a_job_and_leave_it() {
    let Some(hosts) = SshHosts::new(3) else {
        return;
    };
    let target = format!("hosts = [\"h1:1\"]\naddress = {:?}", address(1));
    hosts.targets(&[("gpus", "ssh_config", &target)]);
    let long = [&["--on", "gpus", "-n", "1", "--name", "long"], &LONG[..]].concat();
    hosts.submit(&long).expect(0, &[]);
    hosts.events("long", "step_committed", 5);
    let list = hosts.path("list");
    hosts.write("list", "h1:1\nh2:1\n");
    hosts.write(
        "hosts.sh",
        &format!("#!/bin/sh\nexec cat {}\n", list.display()),
    );
    let script = hosts.path("hosts.sh");
    make_executable(&script);
    let state = hosts.path(".state");
    let words = [
        "netns",
        "exec",
        &hosts.network.names[0],
        RONDE,
        "autoscale",
        "long",
    ];
    let more = ["--max-workers", "4", "--every", "0.5", "--settle", "0.5"];
    let script = ["--host-discovery-script", script.to_str().unwrap()];
    let mut scaling = hosts.dir.start(
        "ip",
        &[&words[..], &more[..], &script[..]].concat(),
        &[("XDG_STATE_HOME", state.to_str().unwrap())],
    );
    scaling.wait_stderr("host h2 joins with 1 slots", 1);
    let trains_on = |host: &str| {
        let status = hosts.ronde(&["status", "long"]);
        status.stdout.contains("2 of 2 workers") && status.stdout.contains(host)
    };
    until("two workers train", || trains_on("h2"));
    // A script that fails, or names a host that does not answer, changes nothing.
    hosts.write("list", "h1:1\nh2:1\nnobody:1\n");
    scaling.wait_stderr("host nobody cannot join, tried again in 30 s", 1);
    hosts.write("list", "h1:1\nh3:1\n");
    scaling.wait_stderr("host h2 leaves", 1);
    scaling.wait_stderr("host h3 joins with 1 slots", 1);
    until("the other host trains", || trains_on("h3"));
    let left = hosts.leader("long", "agent-1");
    until("the agent that left has ended", || session(left).is_empty());
    hosts.ronde(&["cancel", "long"]).expect(0, &["cancelled"]);
    scaling.wait().expect(0, &["job long: cancelled"]);
    assert_eq!(session(hosts.leader("long", "agent-2")), [0_u32; 0]);
}
