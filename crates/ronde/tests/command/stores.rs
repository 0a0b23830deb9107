//! Checkpoints and a job's record in S3 and Azure Blob Storage: runs resume with the same bits, coordinators are
//! replaced, and invalid settings are reported at once.
//!
//! `crates/store/tests/servers.py` starts the servers and writes the variables that name them, which `cargo xtask
//! test` sets; without these variables the tests print that they are skipped.

use rustix::process::Signal;

use crate::jobs_on_kubernetes::TestCluster;
use crate::open_jobs::{coordinators, the_coordinator, whole};
use crate::support::{Ended, RONDE, Running, TestFolder, gone, of_kind, send, until};

/// Azurite's account and key, which are public.
const AZURE_ACCOUNT: &str = "devstoreaccount1";
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A bucket or container, and the variables for its service.
struct Remote {
    scheme: &'static str,
    variables: Vec<(&'static str, String)>,
}

impl Remote {
    fn variable(name: &str) -> Option<String> {
        let value = std::env::var_os(name).and_then(|value| value.into_string().ok());
        if value.is_none() {
            ronde_testing::skip(&format!("{name} is not set"));
        }
        value
    }

    fn s3(endpoint: String) -> Option<Self> {
        let key = Self::variable("RONDE_TEST_S3_KEY")?;
        let (user, secret) = key.split_once(':').unwrap();
        let variables = vec![
            ("AWS_ACCESS_KEY_ID", user.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
            ("AWS_ENDPOINT", endpoint),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ];
        Some(Self {
            scheme: "s3",
            variables,
        })
    }

    fn azure(endpoint: &str) -> Self {
        let variables = vec![
            ("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY.to_owned()),
            (
                "AZURE_STORAGE_ENDPOINT",
                format!("{endpoint}/{AZURE_ACCOUNT}"),
            ),
            ("AZURE_ALLOW_HTTP", "true".to_owned()),
        ];
        Self {
            scheme: "az",
            variables,
        }
    }

    /// Returns the available services.
    fn all() -> Vec<Self> {
        let s3 = Self::variable("RONDE_TEST_S3").and_then(Self::s3);
        let azure = Self::variable("RONDE_TEST_AZURE").map(|endpoint| Self::azure(&endpoint));
        s3.into_iter().chain(azure).collect()
    }

    /// Returns an unused prefix.
    fn fresh(&self, dir: &TestFolder) -> String {
        let unique = dir.path().file_name().unwrap().to_string_lossy();
        let unique = unique.trim_start_matches('.');
        format!("{}://ronde-test/{unique}/command", self.scheme)
    }

    /// Opens the store at an address.
    #[cfg(feature = "full")]
    fn store(&self, address: &str) -> std::sync::Arc<dyn ronde_store::Store> {
        let variables = self.variables.iter();
        let settings = ronde_store::RemoteSettings {
            ambient: variables
                .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
                .collect(),
            ..ronde_store::RemoteSettings::default()
        };
        ronde_store::open(&address.parse().unwrap(), &settings).unwrap()
    }

    fn start(&self, dir: &TestFolder, arguments: &[&str]) -> Running {
        let variables = self.variables.iter();
        let variables: Vec<_> = variables.map(|(name, value)| (*name, &**value)).collect();
        dir.start(RONDE, arguments, &variables)
    }

    /// Returns the same service with another value of a variable.
    fn with(&self, name: &str, value: &str) -> Self {
        let change = |(known, old): &(&'static str, String)| match *known == name {
            true => (*known, value.to_owned()),
            false => (*known, old.clone()),
        };
        Self {
            scheme: self.scheme,
            variables: self.variables.iter().map(change).collect(),
        }
    }
}

const SETS: [&str; 6] = [
    "--set",
    "train.epochs=10",
    "--set",
    "model.channels=4",
    "--set",
    "run.output=out",
];

#[track_caller]
fn resumed_from(ended: &Ended) -> u64 {
    let events = ended.events();
    let loaded = of_kind(&events, "checkpoint_loaded").next();
    loaded.unwrap_or_else(|| panic!("nothing was loaded: {ended:#?}"))["step"]
        .as_u64()
        .unwrap()
}

#[test]
fn a_run_resumes_from_a_checkpoint_in_an_object_store_on_another_host() {
    let dir = TestFolder::new();
    let mut undisturbed = None;
    for remote in Remote::all() {
        let alone = ["train", "--json", "-n", "1"];
        let alone = || {
            dir.run(&[&alone[..], &SETS].concat())
                .expect(0, &[])
                .blake3()
        };
        let expected = undisturbed.get_or_insert_with(alone).clone();
        let first = TestFolder::new();
        let to = remote.fresh(&first);
        let set = format!("checkpoint.to={to}");
        let arguments = ["train", "--json", "-n", "2", "--set", &set];
        let every = ["--set", "checkpoint.every_steps=20"];
        let mut running = remote.start(&first, &[&arguments[..], &SETS, &every].concat());
        running.wait_stdout("\"event\":\"checkpoint_saved\"", 2);
        let processes = running.workers();
        running.signal(Signal::KILL);
        running.wait();
        gone(processes.into_values());
        // The second host has no files of the first one.
        let second = TestFolder::new();
        let arguments = ["train", "--json", "-n", "3", "--resume", &to];
        let out = ["--set", "run.output=out"];
        let ended = remote
            .start(&second, &[&arguments[..], &out].concat())
            .wait();
        let ended = ended.expect(0, &[]);
        assert!(resumed_from(&ended) >= 40);
        assert_eq!(ended.blake3(), expected);
        let listed = remote.start(&second, &["checkpoint", "ls", &to]).wait();
        let listed = listed.expect(0, &[]);
        assert!(listed.stdout.contains("complete"), "{}", listed.stdout);
        remote
            .start(&second, &["checkpoint", "verify", &to])
            .wait()
            .expect(0, &[]);
    }
}

#[test]
fn a_job_with_its_record_in_an_object_store_survives_its_coordinator() {
    for remote in Remote::all() {
        let dir = TestFolder::new();
        let record = remote.fresh(&dir);
        let mut arguments = vec!["train", "--json", "--listen", "--here", "3", "-n", "2"];
        arguments.extend(["--record", &record]);
        let sets = crate::open_jobs::SETS;
        let sets = sets.into_iter().chain(["train.epochs=60"]);
        arguments.extend(sets.flat_map(|set| ["--set", set]));
        let mut running = remote.start(&dir, &arguments);
        let before = running.after_steps(20);
        send(the_coordinator(&dir), Signal::KILL);
        send(before[&1], Signal::KILL);
        running.wait_stdout("\"healed\":1", 1);
        assert_eq!(running.workers()[&0], before[&0], "the same process");
        let shown = remote.start(&dir, &["status", "out", "--json"]).wait();
        let shown = shown.expect(0, &[]).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert!(shown["term"].as_u64() >= Some(2), "{shown}");
        whole(&dir, running.wait(), 60);
        assert!(coordinators(&dir).is_empty());
    }
}

#[test]
fn invalid_settings_of_a_store_end_the_command_at_once_with_help() {
    for remote in Remote::all() {
        let dir = TestFolder::new();
        let refused = |remote: &Remote, to: &str, words: &str| {
            let set = format!("checkpoint.to={to}");
            let arguments = [&["train", "--set", &set][..], &SETS].concat();
            remote.start(&dir, &arguments).wait().expect(2, &[words]);
            // The record of a job gives the same error.
            let arguments = ["train", "--listen", "--record", to];
            let ended = remote.start(&dir, &[&arguments[..], &SETS].concat()).wait();
            ended.expect(2, &[words]);
        };
        let missing = format!("{}://not-made/x", remote.scheme);
        let good = remote.fresh(&dir);
        if remote.scheme == "s3" {
            refused(&remote, &missing, "no such bucket");
            let wrong = remote.with("AWS_SECRET_ACCESS_KEY", "somebody-elses");
            refused(&wrong, &good, "the secret key is wrong");
        } else {
            refused(&remote, &missing, "no such container");
            let wrong = remote.with("AZURE_STORAGE_ACCOUNT_KEY", "bm90IHRoZSBrZXk=");
            refused(&wrong, &good, "key is wrong");
        }
    }
    if let Some(endpoint) = Remote::variable("RONDE_TEST_UNTRUSTED") {
        let set = ["--set", "checkpoint.to=az://ronde-test/x"];
        Remote::azure(&endpoint)
            .start(&TestFolder::new(), &[&["train"][..], &set, &SETS].concat())
            .wait()
            .expect(2, &["certificate is not trusted"]);
    }
}

/// Samples in a bucket are fetched only once per host, and the model has the same bits as with local files.
#[cfg(feature = "full")]
#[test]
fn samples_in_a_bucket_are_fetched_once_and_give_the_bits_of_local_files() {
    for remote in Remote::all() {
        let dir = TestFolder::new();
        let rows = |from: u32| -> String {
            (from..from + 60)
                .map(|row| format!("{},{},{}\n", row % 7, (row * 5) % 11, row % 2))
                .collect()
        };
        std::fs::create_dir(dir.path().join("rows")).unwrap();
        let address = remote.fresh(&dir);
        let store = remote.store(&address);
        for (name, from) in [("a.csv", 0), ("b.csv", 60), ("c.csv", 120)] {
            dir.write(&format!("rows/{name}"), &rows(from));
            let name = ronde_store::ObjectName::new(name).unwrap();
            ronde_store::StoreExt::put(&*store, &name, rows(from).as_bytes()).unwrap();
        }
        dir.write(
            "run.toml",
            "version = 1\n[data]\nsource = \"records\"\ntrain = \"rows/*.csv\"\ncache_folder = \"pages\"\n\
             features = { decode = \"numbers\", field = \"0..2\", shape = [2] }\n\
             label = { field = \"2\", classes = 2 }\n\
             [model]\nkind = \"mlp\"\nhidden = [4]\n[train]\nepochs = 2\nglobal_batch_size = 32\n",
        );
        let local = dir.run(&["train", "run.toml", "--json"]).expect(0, &[]);
        let train = format!("data.train={address}/*.csv");
        let arguments = [
            "train",
            "run.toml",
            "--json",
            "--overwrite",
            "--workers",
            "2",
            "--set",
            &train,
        ];
        for run in 0..2 {
            let ended = remote.start(&dir, &arguments).wait().expect(0, &[]);
            assert_eq!(ended.blake3(), local.blake3());
            let read = ended.data_read();
            assert_eq!(read.len(), 4, "two workers, two epochs");
            for event in read {
                let is_first = run == 0 && event["epoch"] == 0;
                assert!(is_first || event["remote_bytes"] == 0, "{event}");
            }
        }
    }
}

/// The logs, the events, the checkpoints and the model of a run are in a bucket while the run is under way, and are read from
/// there on another machine.
#[test]
fn results_are_sent_while_a_run_is_under_way_and_read_on_another_machine() {
    let dir = TestFolder::new();
    let sets = &SETS[..4];
    let arguments = [&["train", "--json", "-n", "1"], sets].concat();
    let mut undisturbed = None;
    for remote in Remote::all() {
        let expected =
            undisturbed.get_or_insert_with(|| dir.run(&arguments).expect(0, &[]).blake3());
        let first = TestFolder::new();
        let to = remote.fresh(&first);
        let output = format!("run.output={to}");
        let arguments = ["train", "--json", "-n", "2", "--set", &output];
        let every = ["--set", "checkpoint.every_steps=20"];
        let mut running = remote.start(&first, &[&arguments[..], sets, &every].concat());
        running.wait_stdout("\"event\":\"checkpoint_saved\"", 2);
        let second = TestFolder::new();
        until("events are in the bucket", || {
            let shown = remote.start(&second, &["logs", &to]).wait();
            shown.code == 0 && shown.stdout.contains("2 workers")
        });
        let processes = running.workers();
        running.signal(Signal::KILL);
        running.wait();
        gone(processes.into_values());
        // Another machine continues, and its results replace those of the first one.
        let ended = remote
            .start(&second, &["train", "--json", "-n", "3", "--resume", &to])
            .wait()
            .expect(0, &[]);
        assert!(resumed_from(&ended) >= 40);
        assert_eq!(ended.blake3(), *expected);
        let third = TestFolder::new();
        let fetched = remote.start(&third, &["fetch", &to, "--to", "copy"]).wait();
        fetched.expect(0, &["results of job"]);
        let model = std::fs::read_to_string(third.path().join("copy/model.json")).unwrap();
        assert!(model.contains(expected.as_str()), "{model}");
        let events = std::fs::read_to_string(third.path().join("copy/events.jsonl")).unwrap();
        assert!(events.contains("attempt_started") && events.contains("run_finished"));
        assert!(!third.list("copy/checkpoints").is_empty());
        let shown = remote
            .start(&third, &["logs", "-f", &to])
            .wait()
            .expect(0, &[]);
        assert!(shown.stdout.contains("digits finished"), "{shown:#?}");
        remote
            .start(&third, &["logs", "--rank", "9", &to])
            .wait()
            .expect(2, &["rank 9 has printed nothing"]);
        remote
            .start(&third, &[&["train", "--set", &output], sets].concat())
            .wait()
            .expect(2, &["has the results of a finished run"]);
        submitted(&remote, &third, &to, expected);
    }
}

/// Checks a submitted job whose results are sent.
fn submitted(remote: &Remote, dir: &TestFolder, to: &str, expected: &str) {
    let state = dir.path().join(".state");
    let mut remote = remote.with("", "");
    let state = state.display().to_string();
    remote.variables.push(("XDG_STATE_HOME", state));
    let output = format!("run.output={to}/job");
    let submit = ["submit", "-n", "2", "--name", "sent", "--set", &output];
    let run = |words: &[&str]| remote.start(dir, words).wait().expect(0, &[]);
    run(&[&submit[..], &SETS[..4]].concat());
    run(&["wait", "sent"]);
    run(&["fetch", "sent", "--to", "of-job"]);
    let model = std::fs::read_to_string(dir.path().join("of-job/model.json")).unwrap();
    assert!(model.contains(expected), "{model}");
}

/// A job whose pods share no volume: the results of all pods are in the bucket, and a pod that replaces the first one resumes
/// from there.
#[test]
fn a_job_on_kubernetes_without_a_volume_keeps_its_results_in_a_bucket() {
    let sets = [
        "--set",
        "train.epochs=120",
        "--set",
        "checkpoint.every_steps=100",
    ];
    let mut undisturbed = None;
    for remote in Remote::all() {
        let variables = remote.variables.iter();
        let variables: Vec<_> = variables.map(|(name, value)| (*name, &**value)).collect();
        let Some(cluster) = TestCluster::with_store(&variables) else {
            return;
        };
        let alone = [&["train", "--json", "-n", "1"], &sets[..]].concat();
        let expected =
            undisturbed.get_or_insert_with(|| cluster.dir.run(&alone).expect(0, &[]).blake3());
        cluster.dir.write(
            "targets.toml",
            "[pods]\nkind = \"kubernetes\"\nimage = \"registry.example.com/ronde:1\"\nenv_secrets = [\"store\"]\n",
        );
        let to = remote.fresh(&cluster.dir);
        let output = format!("run.output={to}");
        let submit = [
            "submit",
            "--targets",
            "targets.toml",
            "--on",
            "pods",
            "-n",
            "2",
            "--name",
            "x",
        ];
        cluster
            .ronde(&[&submit[..], &sets, &["--set", &output]].concat())
            .expect(0, &[]);
        until("a checkpoint is in the bucket", || {
            let listed = |address: &str| {
                let words = ["checkpoint", "ls", address];
                let listed = remote.start(&cluster.dir, &words).wait();
                listed.stdout.contains("complete")
            };
            // The address of the run, and that of its checkpoints.
            listed(&to) && listed(&format!("{to}/checkpoints"))
        });
        let first = cluster.pod("0");
        let name = first["name"].as_str().unwrap();
        std::fs::write(cluster.dir.path().join(format!("cluster/evict-{name}")), "").unwrap();
        until("another pod leads", || {
            cluster
                .pods()
                .iter()
                .any(|pod| pod["index"] == "0" && pod["name"] != first["name"])
        });
        cluster.ronde(&["wait", "x"]).expect(0, &["finished"]);
        let fetched = remote
            .start(&cluster.dir, &["fetch", &to, "--to", "copy"])
            .wait();
        fetched.expect(0, &[]);
        let model = std::fs::read_to_string(cluster.dir.path().join("copy/model.json")).unwrap();
        assert!(model.contains(expected.as_str()), "{model}");
        let events = std::fs::read_to_string(cluster.dir.path().join("copy/events.jsonl")).unwrap();
        assert!(events.contains("checkpoint_loaded"));
    }
}
