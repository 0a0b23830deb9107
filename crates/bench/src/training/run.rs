//! [`measure`]: rounds in which each variant runs once, in separate processes.

use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Serialize;

use super::TrainingSettings;
use super::events::RunTimes;
use super::memory::PeakMemory;
use crate::error::BenchError;
use crate::kernels::KernelReport;

/// The PyTorch script.
const SCRIPT: &str = include_str!("../../../../benchmarks/pytorch_ddp.py");
/// The number of initial steps that PyTorch does not count.
const WARM_UP: u64 = 2;
/// The interval between polls of a run.
const LOOK: Duration = Duration::from_millis(20);

/// A variant that is measured in each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// The workers together.
    Together,
    /// One run with a single worker for each worker, at the same time and with that worker's
    /// shards: the upper bound for the workers together.
    Apart,
    /// One worker alone, with its shards.
    Alone,
    /// PyTorch, data parallel over Gloo where there is more than one worker.
    Pytorch,
    /// PyTorch with the model compiled by `torch.compile`.
    PytorchCompiled,
}

impl Variant {
    /// Returns the name in a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Together => "ronde",
            Self::Apart => "ronde, independent",
            Self::Alone => "ronde, one worker",
            Self::Pytorch => "pytorch",
            Self::PytorchCompiled => "pytorch, compiled",
        }
    }
}

/// The programs to run, and a folder for their files.
pub struct Programs<'a> {
    /// This command.
    pub ronde: OsString,
    /// A Python with torch.
    pub python: OsString,
    /// A folder for temporary files.
    pub folder: &'a Path,
    /// The peak of a worker of this command with almost no model: see [`bytes_without_model`].
    pub bytes_without_model: u64,
    /// Returns whether to continue; called while a run lasts.
    pub go_on: &'a dyn Fn() -> bool,
}

/// Runs a variant once.
///
/// # Errors
/// A program is missing, fails or reports nothing.
pub fn measure(
    settings: &TrainingSettings,
    variant: Variant,
    programs: &Programs<'_>,
) -> Result<RunTimes, BenchError> {
    let is_pytorch = matches!(variant, Variant::Pytorch | Variant::PytorchCompiled);
    if settings.forward_only && !is_pytorch {
        return forward(settings, programs);
    }
    let share = settings.shards.div_ceil(settings.workers);
    match variant {
        Variant::Together => {
            let job = (settings.workers, settings.shards);
            Ok(together(&[job], settings, programs)?.remove(0))
        }
        Variant::Alone => Ok(together(&[(1, share)], settings, programs)?.remove(0)),
        Variant::Apart => {
            let jobs = vec![(1, share); settings.workers as usize];
            let runs = together(&jobs, settings, programs)?;
            let mut sum = RunTimes::default();
            for run in &runs {
                sum.step_s = sum.step_s.max(run.step_s);
                sum.samples_per_s += run.samples_per_s;
                sum.phases.add(&run.phases);
                sum.peak_bytes = sum.peak_bytes.max(run.peak_bytes);
            }
            Ok(sum)
        }
        Variant::Pytorch => pytorch(settings, programs, &[]),
        Variant::PytorchCompiled => pytorch(settings, programs, &["--compile"]),
    }
}

/// A run with a model of a few weights.
const NO_MODEL: &str = "\
version = 1
[workers]
count = 1
[data]
source = \"synthetic_images\"
samples = 64
shape = [1, 2, 2]
classes = 2
[model]
kind = \"linear\"
[train]
steps = 3
global_batch_size = 1
";

/// Returns the peak resident bytes of a worker with almost no model: what [`RunTimes::peak_bytes`] leaves out.
///
/// # Errors
/// As [`measure`].
pub fn bytes_without_model(programs: &Programs<'_>) -> Result<u64, BenchError> {
    let file = programs.folder.join("no-model.toml");
    crate::report::write(&file, NO_MODEL)?;
    let output = programs.folder.join("no-model");
    let (_, bytes) = train(&file, &output, &[], programs)?.output(programs.go_on)?;
    Ok(bytes)
}

/// Starts a run in the background.
fn train(
    file: &Path,
    output: &Path,
    sets: &[String],
    programs: &Programs<'_>,
) -> Result<ChildProgram, BenchError> {
    let mut command = Command::new(&programs.ronde);
    command.arg("train").arg(file);
    command.args(["--json", "--overwrite", "--set"]);
    command.arg(format!("run.output={}", output.display()));
    for set in sets {
        command.args(["--set", set]);
    }
    ChildProgram::start(command, "ronde train")
}

/// Runs `jobs` jobs with the given workers and shards at the same time.
fn together(
    jobs: &[(u32, u32)],
    settings: &TrainingSettings,
    programs: &Programs<'_>,
) -> Result<Vec<RunTimes>, BenchError> {
    let mut running = Vec::new();
    for (place, &(workers, shards)) in jobs.iter().enumerate() {
        let file = programs.folder.join(format!("run-{place}.toml"));
        let case = &settings.case;
        let text = case.run_file(workers, shards, settings.steps, settings.bucket_bytes);
        crate::report::write(&file, &text)?;
        let output = programs.folder.join(format!("output-{place}"));
        running.push(train(&file, &output, &own_settings(settings), programs)?);
    }
    running
        .into_iter()
        .map(|run| {
            let (said, peak_bytes) = run.output(programs.go_on)?;
            let times = RunTimes::read(said.as_slice())?;
            Ok(RunTimes {
                peak_bytes: peak_bytes.saturating_sub(programs.bytes_without_model),
                ..times
            })
        })
        .collect()
}

/// Measures forward passes of this command.
fn forward(settings: &TrainingSettings, programs: &Programs<'_>) -> Result<RunTimes, BenchError> {
    let file = programs.folder.join("kernels.json");
    let mut command = Command::new(&programs.ronde);
    command.args(["bench", "kernels", "--forward", "--model"]);
    command.arg(settings.case.model);
    for set in own_settings(settings) {
        command.args(["--set", &set]);
    }
    command.args(["--steps", &counted_steps(settings), "--json"]);
    command.arg(&file);
    ChildProgram::start(command, "ronde bench kernels")?.output(programs.go_on)?;
    let text = std::fs::read_to_string(&file).map_err(|source| BenchError::File {
        path: file.display().to_string(),
        source,
    })?;
    let report: KernelReport = serde_json::from_str(&text)
        .map_err(|error| BenchError::channel("read the times of kernels", error))?;
    let step_s = report.median_step_seconds();
    Ok(RunTimes {
        step_s,
        samples_per_s: report.samples as f64 / step_s,
        ..RunTimes::default()
    })
}

/// Returns the settings of runs of this command besides those of the model.
fn own_settings(settings: &TrainingSettings) -> Vec<String> {
    let precision = format!("train.precision=\"{}\"", settings.precision);
    [&[precision], &settings.sets[..]].concat()
}

/// Returns the number of steps that are measured, as an argument.
fn counted_steps(settings: &TrainingSettings) -> String {
    settings.steps.saturating_sub(WARM_UP).max(1).to_string()
}

/// The output of the script.
#[derive(serde::Deserialize)]
struct ScriptOutput {
    step_ms: f64,
    samples_per_s: f64,
    model_mib: u64,
}

fn pytorch(
    settings: &TrainingSettings,
    programs: &Programs<'_>,
    flags: &[&str],
) -> Result<RunTimes, BenchError> {
    let script = programs.folder.join("pytorch_ddp.py");
    crate::report::write(&script, SCRIPT)?;
    let mut command = Command::new(&programs.python);
    if settings.workers > 1 {
        let processes = settings.workers.to_string();
        command.args([
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            &processes,
        ]);
    }
    command.arg(&script).arg(settings.case.model);
    let steps = counted_steps(settings);
    command.args(["--steps", &steps, "--warm-up", &WARM_UP.to_string()]);
    command.args(flags);
    command.args(["--precision", settings.precision]);
    if settings.forward_only {
        command.arg("--forward");
    }
    command.env("OMP_NUM_THREADS", "1");
    let (said, _) = ChildProgram::start(command, "pytorch")?.output(programs.go_on)?;
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().rev().find(|line| line.starts_with('{'));
    let found = line.and_then(|line| serde_json::from_str::<ScriptOutput>(line).ok());
    let found = found.ok_or_else(|| BenchError::Competitor {
        problem: format!("pytorch_ddp.py reported nothing: {}", said.trim()),
        hint: "check that `python3 benchmarks/pytorch_ddp.py mlp` runs".to_owned(),
    })?;
    Ok(RunTimes {
        step_s: found.step_ms / 1e3,
        samples_per_s: found.samples_per_s,
        peak_bytes: found.model_mib << 20,
        ..RunTimes::default()
    })
}

/// A running program, killed when it is dropped.
struct ChildProgram {
    child: Child,
    name: &'static str,
    out: Option<std::thread::JoinHandle<Vec<u8>>>,
    errors: Option<std::thread::JoinHandle<Vec<u8>>>,
}

impl ChildProgram {
    fn start(mut command: Command, name: &'static str) -> Result<Self, BenchError> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| BenchError::Competitor {
            problem: format!("cannot start {name}: {error}"),
            hint: "set another Python with --python PATH".to_owned(),
        })?;
        let out = child.stdout.take().map(collect);
        let errors = child.stderr.take().map(collect);
        Ok(Self {
            child,
            name,
            out,
            errors,
        })
    }

    /// Waits for a successful end; returns the output, and the peak bytes of the largest of its
    /// processes.
    fn output(mut self, go_on: &dyn Fn() -> bool) -> Result<(Vec<u8>, u64), BenchError> {
        let mut memory = PeakMemory::of(self.child.id());
        let failed = |name: &str, problem: &str| BenchError::Competitor {
            problem: format!("{name} failed: {problem}"),
            hint: "the end of its output is above".to_owned(),
        };
        let status = loop {
            if !go_on() {
                return Err(failed(self.name, "interrupted"));
            }
            memory.look();
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => ronde_clock::pause(LOOK),
                Err(error) => return Err(failed(self.name, &error.to_string())),
            }
        };
        let read = |pipe: Option<std::thread::JoinHandle<Vec<u8>>>| {
            pipe.and_then(|pipe| pipe.join().ok()).unwrap_or_default()
        };
        let (out, errors) = (read(self.out.take()), read(self.errors.take()));
        if status.success() {
            return Ok((out, memory.bytes()));
        }
        let said = String::from_utf8_lossy(&errors);
        let lines: Vec<&str> = said.lines().collect();
        let end = lines[lines.len().saturating_sub(30)..].join("\n  | ");
        Err(failed(self.name, &format!("{status}\n  | {end}")))
    }
}

impl Drop for ChildProgram {
    fn drop(&mut self) {
        // A program that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut reader = BufReader::new(&mut pipe);
        // Output before an error is shown.
        let _ = reader.read_to_end(&mut all);
        all
    })
}
