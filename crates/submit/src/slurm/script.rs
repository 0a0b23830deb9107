//! The batch script of a job. It contains no secret: the token of the job is made by the launcher.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::SlurmSettings;
use crate::job_paths::JobPaths;
use crate::run_inputs::JobResources;
use crate::shell_words;

/// Seconds before the time limit at which the launcher is ordered to save a checkpoint.
const SIGNAL_S: u32 = 120;

/// Returns the script. A lost node does not end the job (`--no-kill`); the launcher gets SIGTERM before the time limit and
/// at a preemption, saves a checkpoint and queues the job again; its exit code is that of the script.
pub(super) fn text(
    settings: &SlurmSettings,
    name: &str,
    paths: &JobPaths,
    program: &Path,
    (slots, resources): (u32, JobResources),
) -> String {
    let output = paths.process(0).output().display().to_string();
    let output = format!("--output={}", shell_words::shell_word(&output));
    let mut text = head(settings, name, &[output], (slots, resources));
    let (program, folder) = (
        program.display().to_string(),
        paths.folder().display().to_string(),
    );
    let slots = slots.to_string();
    let words = [
        program.as_str(),
        "__job",
        "slurm",
        "--slots",
        &slots,
        &folder,
    ];
    text.push_str(&format!("exec {}\n", shell_words::join(words)));
    text
}

/// Returns the script of an array with a task for each folder, with at most `side_by_side` of them at the same time. Each
/// task is a job as that of [`text`], with the program in its folder.
pub(super) fn array_text(
    settings: &SlurmSettings,
    name: &str,
    folders: &[PathBuf],
    side_by_side: u32,
    (slots, resources): (u32, JobResources),
) -> String {
    let last = folders.len().saturating_sub(1);
    let options = [
        format!("--array=0-{last}%{side_by_side}"),
        "--output=/dev/null".to_owned(),
    ];
    let mut text = head(settings, name, &options, (slots, resources));
    text.push_str("case \"$SLURM_ARRAY_TASK_ID\" in\n");
    for (task, folder) in folders.iter().enumerate() {
        let folder = folder.display().to_string();
        text.push_str(&format!(
            "{task}) folder={} ;;\n",
            shell_words::shell_word(&folder)
        ));
    }
    let output = JobPaths::new("").process(0).output();
    text.push_str(&format!(
        "esac\nexec \"$folder/ronde\" __job slurm --slots {slots} \"$folder\" >>\"$folder/{}\" 2>&1\n",
        output.display()
    ));
    text
}

/// Returns the first line and the options of a script.
fn head(
    settings: &SlurmSettings,
    name: &str,
    more: &[String],
    (slots, resources): (u32, JobResources),
) -> String {
    let mut text = "#!/bin/sh\n".to_owned();
    let mut option = |option: String| {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "#SBATCH {option}");
    };
    let each = resources.cpus.or(settings.cpus_per_worker);
    let cpus = slots.saturating_mul(each.unwrap_or(1));
    option(format!("--job-name={name}"));
    option(format!("--nodes={}", settings.nodes.unwrap_or(1)));
    option("--ntasks-per-node=1".to_owned());
    option(format!("--cpus-per-task={cpus}"));
    if let Some(bytes) = resources.memory_bytes {
        // The unit of Slurm is 1,048,576 bytes.
        let bytes = bytes.saturating_mul(slots.into());
        option(format!("--mem={}M", bytes.div_ceil(1 << 20)));
    }
    if let Some(gpus) = resources.gpus.filter(|gpus| *gpus > 0) {
        option(format!("--gres=gpu:{}", slots.saturating_mul(gpus)));
    }
    more.iter().cloned().for_each(&mut option);
    option("--open-mode=append".to_owned());
    option("--no-kill".to_owned());
    option("--requeue".to_owned());
    option(format!(
        "--signal=B:TERM@{}",
        settings.signal_s.unwrap_or(SIGNAL_S)
    ));
    for (key, value) in [
        ("partition", &settings.partition),
        ("account", &settings.account),
        ("time", &settings.time),
    ] {
        if let Some(value) = value {
            option(format!("--{key}={}", shell_words::shell_word(value)));
        }
    }
    for further in &settings.options {
        option(further.replace('\n', " "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_the_settings_of_the_target() {
        let settings = SlurmSettings {
            nodes: Some(4),
            partition: Some("gpu".to_owned()),
            time: Some("2:00:00".to_owned()),
            cpus_per_worker: Some(3),
            options: vec!["--exclusive".to_owned()],
            ..SlurmSettings::default()
        };
        let script = text(
            &settings,
            "run",
            &JobPaths::new("/shared/run"),
            Path::new("/shared/run/ronde"),
            (2, JobResources::default()),
        );
        assert!(!script.contains("--mem") && !script.contains("--gres"));
        for line in [
            "#!/bin/sh",
            "#SBATCH --job-name=run",
            "#SBATCH --nodes=4",
            "#SBATCH --cpus-per-task=6",
            "#SBATCH --output=/shared/run/launcher/output.log",
            "#SBATCH --no-kill",
            "#SBATCH --requeue",
            "#SBATCH --signal=B:TERM@120",
            "#SBATCH --partition=gpu",
            "#SBATCH --time=2:00:00",
            "#SBATCH --exclusive",
            "exec /shared/run/ronde __job slurm --slots 2 /shared/run",
        ] {
            assert!(
                script.lines().any(|found| found == line),
                "{line} in\n{script}"
            );
        }
    }

    #[test]
    fn an_array_has_a_task_for_each_folder_and_a_limit() {
        let folders = ["/shared/s-0", "/shared/a b"].map(PathBuf::from);
        let script = array_text(&SlurmSettings::default(), "s-0", &folders, 3, {
            let resources = JobResources {
                memory_bytes: Some(500_000_000),
                cpus: Some(4),
                gpus: Some(1),
            };
            (2, resources)
        });
        for line in [
            "#SBATCH --array=0-1%3",
            "#SBATCH --cpus-per-task=8",
            "#SBATCH --mem=954M",
            "#SBATCH --gres=gpu:2",
            "#SBATCH --no-kill",
            "0) folder=/shared/s-0 ;;",
            "1) folder='/shared/a b' ;;",
            "exec \"$folder/ronde\" __job slurm --slots 2 \"$folder\" >>\"$folder/launcher/output.log\" 2>&1",
        ] {
            assert!(
                script.lines().any(|found| found == line),
                "{line} in\n{script}"
            );
        }
    }
}
