//! What documents have, and which runs are refused. That platforms accept them is checked with their Python packages, in
//! tests/python.

use super::*;

pub(super) fn run(nodes: u32, workers: u32) -> PlatformRun {
    PlatformRun {
        name: "My run".to_owned(),
        file: "run.toml".to_owned(),
        text: "version = 1\n".to_owned(),
        image: "registry.example.com/ronde:1".to_owned(),
        nodes,
        workers,
        sets: vec!["train.epochs=3".to_owned()],
        allow_plain: true,
    }
}

fn platforms() -> [Platform; 3] {
    [
        Platform::AzureMl {
            compute: "cpu".to_owned(),
        },
        Platform::SageMaker {
            role: "arn:aws:iam::123456789012:role/train".to_owned(),
            instance: "ml.c5.xlarge".to_owned(),
            input: "s3://bucket/run".to_owned(),
            output: "s3://bucket/results".to_owned(),
            limit_s: 3_600,
        },
        Platform::Kubeflow {
            namespace: Some("research".to_owned()),
            runtime: "torch-distributed".to_owned(),
            claim: "results".to_owned(),
        },
    ]
}

#[test]
fn documents_have_the_command_the_image_and_the_number_of_hosts() {
    let words: [&[&str]; 3] = [
        &[
            "command: \"ronde train run.toml --set train.epochs=3 --set 'run.output=\\\"outputs\\\"'\"",
            "image: \"registry.example.com/ronde:1\"",
            "instance_count: 2",
            "process_count_per_instance: 2",
            "RONDE_ALLOW_PLAIN: \"1\"",
            "compute: \"azureml:cpu\"",
        ],
        &[
            "\"TrainingJobName\": \"my-run\"",
            "\"/opt/ml/input/data/run/run.toml\"",
            "\"InstanceCount\": 2",
            "\"EnableInterContainerTrafficEncryption\": true",
        ],
        &[
            "kind: \"ConfigMap\"",
            "run.toml: \"version = 1\\n\"",
            "numNodes: 2",
            "namespace: \"research\"",
            "- \"run.output=\\\"/results/my-run\\\"\"",
            "claimName: \"results\"",
        ],
    ];
    for (platform, words) in platforms().iter().zip(words) {
        let workers = match platform {
            Platform::AzureMl { .. } => 4,
            _ => 2,
        };
        let text = platform.documents(&run(2, workers)).unwrap();
        for word in words {
            assert!(text.contains(word), "{word:?} in\n{text}");
        }
        assert!(!text.contains("\"-n\"") && !text.contains(" -n "), "{text}");
        let text = platform.documents(&run(1, 3)).unwrap();
        assert!(
            text.contains("-n"),
            "one host starts its own workers: {text}"
        );
        assert!(!text.contains("RONDE_ALLOW_PLAIN"), "{text}");
    }
}

#[test]
fn runs_that_do_not_fit_a_platform_are_refused() {
    let [azure, sagemaker, kubeflow] = platforms();
    let private = |nodes, workers| PlatformRun {
        allow_plain: false,
        ..run(nodes, workers)
    };
    for (platform, run, problem) in [
        (&azure, run(2, 3), "cannot divide 3 workers among 2 hosts"),
        (&azure, run(0, 3), "among 0 hosts"),
        (
            &sagemaker,
            run(2, 4),
            "SageMaker starts one process on each of the 2 hosts",
        ),
        (&kubeflow, run(2, 4), "Kubeflow starts one process"),
        (&kubeflow, private(2, 2), "connect without encryption"),
        (&azure, private(2, 2), "`--allow-plain`"),
    ] {
        let error = platform.documents(&run).unwrap_err().to_string();
        assert!(error.contains(problem), "{problem:?} in {error}");
    }
    // SageMaker encrypts.
    assert!(sagemaker.documents(&private(2, 2)).is_ok());
    assert!(kubeflow.documents(&private(1, 8)).is_ok());
}

#[test]
fn labels_begin_with_a_letter() {
    for (name, label) in [
        ("3d-unet", "r-3d-unet"),
        ("-7_b.", "r-7-b"),
        ("My run", "my-run"),
        ("---", "ronde"),
    ] {
        assert_eq!(kubernetes_label(name), label);
    }
    assert_eq!(kubernetes_label(&"7".repeat(99)).len(), 52);
}
