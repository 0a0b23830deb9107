//! Command jobs of Azure ML. Its distribution for PyTorch sets the variables of torch for each process.

use serde_json::{Value, json};

use super::{PlatformRun, insert};

/// The schema that the document names.
const SCHEMA: &str = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json";
/// The folder whose files Azure ML keeps.
const OUTPUT: &str = "outputs";

/// Returns the job; its code is the folder of the document.
pub(super) fn document(run: &PlatformRun, compute: &str) -> Value {
    let mut job = json!({
        "$schema": SCHEMA,
        "type": "command",
        "display_name": run.name,
        "experiment_name": run.label(),
        "code": ".",
        "command": run.line(&run.file, OUTPUT),
        "environment": { "image": run.image },
        "compute": format!("azureml:{compute}"),
        "resources": { "instance_count": run.nodes },
    });
    if run.nodes > 1 {
        let processes = run.workers / run.nodes;
        insert(
            &mut job,
            "distribution",
            json!({ "type": "pytorch", "process_count_per_instance": processes }),
        );
        let variables = run.variables().into_iter();
        let variables = variables.map(|(name, value)| (name.to_owned(), Value::from(value)));
        insert(
            &mut job,
            "environment_variables",
            Value::Object(variables.collect()),
        );
    }
    job
}
