//! The documents of jobs. That a server accepts them is checked with its published schemas, in tests/python.

use super::*;
use crate::run_inputs::{JobResources, RunInputs};
use crate::target::JobProgram;

pub(in crate::kubernetes) fn request(workers: u32) -> SubmitRequest {
    SubmitRequest {
        run_file: None,
        workers,
        workers_max: 8,
        sets: vec!["train.epochs=3".to_owned()],
        inputs: RunInputs::default(),
        resources: JobResources::default(),
        env_from: Vec::new(),
        directory: PathBuf::from("/here"),
        is_elastic: true,
        saves_in_output: true,
        output: None,
        continues: None,
        program: JobProgram {
            path: PathBuf::from("ronde"),
            version: "0.1.0".to_owned(),
        },
    }
}

fn settings() -> KubernetesSettings {
    KubernetesSettings {
        image: "registry.example.com/ronde:1".to_owned(),
        slots: Some(2),
        claim: Some("results".to_owned()),
        ..KubernetesSettings::default()
    }
}

#[test]
fn a_job_has_a_pod_for_each_group_of_slots_and_no_secret_outside_of_its_secret() {
    let settings = settings();
    let manifest =
        JobManifest::new(&settings, ("My_run", 7), Some("research"), &request(5)).unwrap();
    let job = manifest.job();
    assert_eq!(job["metadata"]["name"], "my-run");
    assert_eq!(job["spec"]["completions"], 3);
    assert_eq!(job["spec"]["parallelism"], 3);
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["resources"]["requests"]["cpu"], "2");
    let credentials = PodCredentials::new("my-run").unwrap();
    let owner = json!({ "uid": "u" });
    let parts = manifest.parts(&credentials, &owner);
    let token = credentials.files()[2].1.to_owned();
    let with_token: Vec<&str> = parts
        .iter()
        .filter(|(_, part)| part.to_string().contains(&token))
        .map(|(kind, _)| *kind)
        .collect();
    assert_eq!(with_token, ["secrets"]);
    assert!(!job.to_string().contains(&token));
    assert!(!manifest.preview().text().contains(&token));
    assert!(
        parts
            .iter()
            .all(|(_, part)| part["metadata"]["ownerReferences"][0]["uid"] == "u")
    );
    let command = parts[1].1["data"][COMMAND_FILE]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(command.contains("--listen={address}:4711"), "{command}");
    assert!(command.contains("train.epochs=3"), "{command}");
}

#[test]
fn fields_of_the_pod_are_merged_and_runs_that_do_not_fit_are_refused() {
    let mut settings = settings();
    settings.pod =
        Some(json!({ "nodeSelector": { "zone": "a" }, "securityContext": { "fsGroup": 7 } }));
    settings.env_secrets = vec!["store".to_owned()];
    let manifest = JobManifest::new(&settings, ("run", 7), None, &request(2)).unwrap();
    let pod = &manifest.job()["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"]["zone"], "a");
    assert_eq!(
        pod["securityContext"],
        json!({
            "runAsNonRoot": true, "runAsUser": 65_532, "runAsGroup": 65_532, "fsGroup": 7,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": { "type": "RuntimeDefault" },
        })
    );
    assert_eq!(
        pod["containers"][0]["envFrom"][0]["secretRef"]["name"],
        "store"
    );
    let fixed = SubmitRequest {
        is_elastic: false,
        ..request(4)
    };
    let refused = JobManifest::new(&settings, ("run", 7), None, &fixed)
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("cannot use 2 pods"), "{refused}");
    settings.claim = None;
    let refused = JobManifest::new(&settings, ("run", 7), None, &request(1))
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("set `run.output`"), "{refused}");
    let sent = SubmitRequest {
        output: Some("s3://bucket/x".to_owned()),
        ..request(1)
    };
    let manifest = JobManifest::new(&settings, ("run", 7), None, &sent).unwrap();
    let pod = &manifest.job()["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    assert_eq!(
        volumes.last().unwrap(),
        &json!({ "name": "results", "emptyDir": {} })
    );
    assert!(
        pod["containers"][0]["command"]
            .to_string()
            .contains("s3://bucket/x")
    );
}

#[test]
fn all_pods_look_for_notices() {
    let settings = KubernetesSettings {
        drain_on: vec!["/run/notice".to_owned()],
        ..settings()
    };
    let manifest = JobManifest::new(&settings, ("x", 7), None, &request(4)).unwrap();
    let word = "--drain-on=/run/notice";
    assert!(manifest.command.arguments.iter().any(|found| found == word));
    let job = manifest.job();
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    let command = container["command"].as_array().unwrap();
    assert!(command.iter().any(|found| found == word));
}

#[test]
fn what_a_run_needs_becomes_requests_of_its_pods_for_all_of_their_slots() {
    let settings = KubernetesSettings {
        cpu: Some("500m".to_owned()),
        memory: Some("1Gi".to_owned()),
        env_secrets: vec!["store".to_owned()],
        ..settings()
    };
    let resources = |resources: JobResources| {
        let request = SubmitRequest {
            resources,
            env_from: vec!["more".to_owned()],
            ..request(4)
        };
        let manifest = JobManifest::new(&settings, ("x", 7), None, &request).unwrap();
        let mut container = manifest.job()["spec"]["template"]["spec"]["containers"][0].take();
        assert_eq!(container["envFrom"][1]["secretRef"]["name"], "more");
        let resources = container["resources"].take();
        assert_eq!(resources["requests"], resources["limits"]);
        resources["requests"].clone()
    };
    let of_target = json!({ "cpu": "500m", "memory": "1Gi" });
    assert_eq!(resources(JobResources::default()), of_target);
    let of_run = resources(JobResources {
        memory_bytes: Some(3 << 30),
        cpus: Some(2),
        gpus: Some(1),
    });
    assert_eq!(
        of_run,
        json!({ "cpu": "4", "memory": "6442450944", "nvidia.com/gpu": "2" }),
        "of two workers"
    );
}
