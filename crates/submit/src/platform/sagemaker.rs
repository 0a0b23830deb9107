//! Training jobs of SageMaker. Its containers know the members from a file, and SageMaker encrypts the messages to each
//! other.

use serde_json::{Value, json};

use super::{Platform, PlatformRun};

/// The folder of the channel with the run file.
const INPUT: &str = "/opt/ml/input/data/run";
/// The folder whose files SageMaker keeps.
const OUTPUT: &str = "/opt/ml/model";
/// The size of the volume of an instance in GB.
const VOLUME_GB: u32 = 30;

/// Returns the request that creates the job.
pub(super) fn document(run: &PlatformRun, platform: &Platform) -> Value {
    let Platform::SageMaker {
        role,
        instance,
        input,
        output,
        limit_s,
    } = platform
    else {
        return Value::Null;
    };
    let variables = run.variables().into_iter();
    let variables = variables.map(|(name, value)| (name.to_owned(), Value::from(value)));
    let words = run.words(&format!("{INPUT}/{}", run.file), OUTPUT);
    json!({
        "TrainingJobName": run.label(),
        "AlgorithmSpecification": {
            "TrainingImage": run.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": words[..1],
            "ContainerArguments": words[1..],
        },
        "RoleArn": role,
        "InputDataConfig": [{
            "ChannelName": "run",
            "DataSource": { "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": input,
                "S3DataDistributionType": "FullyReplicated",
            } },
        }],
        "OutputDataConfig": { "S3OutputPath": output },
        "ResourceConfig": {
            "InstanceType": instance,
            "InstanceCount": run.nodes,
            "VolumeSizeInGB": VOLUME_GB,
        },
        "StoppingCondition": { "MaxRuntimeInSeconds": limit_s },
        "EnableInterContainerTrafficEncryption": run.nodes > 1,
        "Environment": Value::Object(variables.collect()),
    })
}
