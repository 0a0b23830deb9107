"""Checks the documents of `ronde export azureml|sagemaker|kubeflow`, and of targets of Kubernetes, with the packages of the
platforms.

    python3 check_documents.py target/release/ronde

Azure ML: its own loader and schema for command jobs. SageMaker: the published model of its interface, in botocore.
Kubeflow: the published types of TrainJob, whose unknown fields count as mistakes. Kubernetes: the published schemas of its API.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import yaml

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

IMAGE = ["--image", "registry.example.com/ronde:1", "--set", "train.epochs=3"]
AZURE = ["--compute", "cpu-cluster"]
SAGEMAKER = [
    "--role", "arn:aws:iam::123456789012:role/train", "--instance-type", "ml.c5.xlarge",
    "--input", "s3://bucket/run", "--output", "s3://bucket/results",
]
KUBEFLOW = ["--claim", "results", "--namespace", "research"]
SIZES = [["-n", "3"], ["--nodes", "2", "-n", "2", "--allow-plain"]]


def export(ronde, folder, platform, options, size):
    words = [ronde, "export", platform, "run.toml", *IMAGE, *options, *size]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def check_kubernetes(ronde, folder):
    """Checks what `ronde submit` sends to a cluster against the schemas of the API, in which unknown fields count as mistakes."""
    import kubernetes_validate

    (folder / "targets.toml").write_text(
        '[pods]\nkind = "kubernetes"\nimage = "registry.example.com/ronde:1"\nclaim = "results"\nnamespace = "research"\n'
        'slots = 2\nmemory = "8Gi"\nenv_secrets = ["store"]\nservice_account = "trainer"\n'
        'pod = { nodeSelector = { zone = "a" } }\n'
    )
    words = [ronde, "submit", "run.toml", "-n", "5", "--targets", "targets.toml", "--on", "pods", "--dry-run"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    assert [document["kind"] for document in documents] == ["Job", "Secret", "ConfigMap"], documents
    for document in documents:
        for version in ["1.33", "1.36"]:
            kubernetes_validate.validate(document, version, strict=True)
    assert documents[0]["spec"]["completions"] == 3, documents[0]
    # The check must be able to fail.
    documents[0]["spec"]["completion"] = 3
    try:
        kubernetes_validate.validate(documents[0], "1.36", strict=True)
    except kubernetes_validate.ValidationError:
        return
    raise AssertionError("an unknown field is accepted")


def check_azure(text, folder, nodes):
    from azure.ai.ml import load_job

    path = folder / "job.yml"
    path.write_text(text)
    job = load_job(path)
    result = job._validate()
    assert result.passed, result
    assert job.resources.instance_count == nodes, job
    assert "ronde train run.toml" in job.command, job.command
    if nodes > 1:
        assert job.distribution.process_count_per_instance == 1, job
    # The check must be able to fail.
    path.write_text(text.replace("instance_count", "instances"))
    try:
        assert not load_job(path)._validate().passed, "an unknown field is accepted"
    except Exception as error:
        assert "instances" in str(error), error


def check_sagemaker(text, nodes):
    import botocore.session
    from botocore.validate import ParamValidator

    session = botocore.session.get_session()
    model = session.get_service_model("sagemaker").operation_model("CreateTrainingJob")
    request = json.loads(text)
    report = ParamValidator().validate(request, model.input_shape)
    assert not report.has_errors(), report.generate_report()
    assert request["ResourceConfig"]["InstanceCount"] == nodes
    request["ResourceConfig"]["Instances"] = 1
    assert ParamValidator().validate(request, model.input_shape).has_errors()


def check_kubeflow(text, nodes):
    from kubeflow_trainer_api import models

    file, job = yaml.safe_load_all(text)
    assert file["kind"] == "ConfigMap" and "version" in file["data"]["run.toml"], file
    assert file["metadata"]["name"] == job["metadata"]["name"]
    typed = models.TrainerV1alpha1TrainJob.from_dict(job)
    assert typed.spec.trainer.num_nodes == nodes
    # Fields that the types do not know are lost on the way back.
    back = json.loads(typed.to_json())
    assert back == job, f"{json.dumps(back, indent=1)}\n{json.dumps(job, indent=1)}"


def main():
    ronde = str(Path(sys.argv[1]).resolve())
    os.environ["AZURE_ML_CLI_PRIVATE_FEATURES_ENABLED"] = "false"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([ronde, "-q", "init", "run.toml"], cwd=folder, check=True)
        for nodes, size in enumerate(SIZES, start=1):
            check_azure(export(ronde, folder, "azureml", AZURE, size), folder, nodes)
            check_sagemaker(export(ronde, folder, "sagemaker", SAGEMAKER, size), nodes)
            check_kubeflow(export(ronde, folder, "kubeflow", KUBEFLOW, size), nodes)
        check_kubernetes(ronde, folder)
    print("the platforms accept all documents")


if __name__ == "__main__":
    main()
