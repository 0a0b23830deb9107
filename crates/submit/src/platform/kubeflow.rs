//! TrainJobs of Kubeflow, with the run file in a ConfigMap. The runtime for torch sets the variables of torchrun.

use serde_json::{Value, json};

use super::{PlatformRun, insert};

/// The folder of the run file in the container.
const INPUT: &str = "/run/ronde";
/// The folder of the volume for the results.
const OUTPUT: &str = "/results";
/// The name of the replicated job, and of its container, in the runtimes of Kubeflow.
const NODE: &str = "node";
/// The owner of the change of the runtime.
const MANAGER: &str = "ronde.dev/export";

/// Returns the ConfigMap and the TrainJob.
pub(super) fn documents(
    run: &PlatformRun,
    namespace: Option<&str>,
    runtime: &str,
    claim: &str,
) -> [Value; 2] {
    let label = run.label();
    let mut metadata = json!({ "name": label });
    if let Some(namespace) = namespace {
        insert(&mut metadata, "namespace", namespace);
    }
    let file = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata.clone(),
        "data": { run.file.clone(): run.text },
    });
    let variables = run.variables().into_iter();
    let variables: Vec<Value> = variables
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect();
    let results = format!("{OUTPUT}/{label}");
    let pod = json!({
        "volumes": [
            { "name": "run", "configMap": { "name": label } },
            { "name": "results", "persistentVolumeClaim": { "claimName": claim } },
        ],
        "containers": [{
            "name": NODE,
            "volumeMounts": [
                { "name": "run", "mountPath": INPUT, "readOnly": true },
                { "name": "results", "mountPath": OUTPUT },
            ],
        }],
    });
    let template = json!({ "spec": { "replicatedJobs": [{
        "name": NODE,
        "template": { "spec": { "template": { "spec": pod } } },
    }] } });
    let job = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {
            "runtimeRef": { "name": runtime },
            "trainer": {
                "image": run.image,
                "command": run.words(&format!("{INPUT}/{}", run.file), &results),
                "numNodes": run.nodes,
                "numProcPerNode": 1,
                "env": variables,
            },
            "runtimePatches": [{
                "manager": MANAGER,
                "trainingRuntimeSpec": { "template": template },
            }],
        },
    });
    [file, job]
}
