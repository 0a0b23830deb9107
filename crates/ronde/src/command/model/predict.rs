//! `ronde predict`: writes the predictions of a saved model for the samples of a data set.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use clap::Args;
use ronde_cluster::StopFlag;
use ronde_data::Dataset;
use ronde_serve::{
    ChunkPlan, ClassDetail, GenerationSettings, JoinedOutput, OutputFormat, PartFolder,
    PredictionForm, Predictor, Prompts, Scorer, Scoring, ScoringIdentity, ServeError,
    TextGenerator,
};

use crate::command::console::{info, message, print};
use crate::command::exit;
use crate::command::model::model_data::{ModelDataArguments, UsedModel};
use crate::command::signals::begin_supervision;

mod generation;
mod images;
mod supervise;
mod worker;

use generation::GenerationArguments;
use supervise::{Interruption, WorkerPool};
pub(crate) use worker::work;

/// The number of bad records that are printed.
const SKIPPED_PRINTED_MAX: usize = 10;
/// The problem of a command that has neither prompts nor a data set.
const NOTHING_TO_PREDICT: &str =
    "error: there is nothing to predict\n  help: name prompts with --prompts, or data with --data";
/// The next action when the output exists.
const EXISTS_HELP: &str = "pass --force to replace it, or name another file";

/// Arguments that the workers of `ronde predict` share.
#[derive(Args)]
pub(crate) struct ScoringArguments {
    #[command(flatten)]
    source: ModelDataArguments,
    /// File to write: .jsonl, .csv or .parquet.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Write the K most probable classes instead of the probabilities of all.
    #[arg(long, value_name = "K")]
    top: Option<NonZeroUsize>,
    /// Images to predict instead of the test data: files, folders or patterns; can be repeated.
    #[arg(long, value_name = "FILES", conflicts_with = "prompts")]
    images: Vec<String>,
    #[command(flatten)]
    generation: GenerationArguments,
}

/// Arguments of `ronde predict`.
#[derive(Args)]
pub(crate) struct PredictArguments {
    #[command(flatten)]
    scoring: ScoringArguments,
    /// Number of worker processes; the predictions do not depend on it.
    #[arg(short = 'n', long, value_name = "N", default_value = "1")]
    workers: NonZeroU32,
    /// Replace the file if it exists, and the parts that another command has left beside it.
    #[arg(long)]
    force: bool,
    /// Print one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// A model, its samples and the output, opened by the command and by each worker.
struct ScoringJob {
    source: UsedModel,
    /// The samples that are predicted: the test data, the prompts or the images.
    samples: Arc<dyn Dataset>,
    form: OutputForm,
    identity: ScoringIdentity,
}

/// What is predicted for each sample.
enum OutputForm {
    /// The outputs of the model.
    Outputs(PredictionForm),
    /// A text.
    Text(Option<Arc<Prompts>>, GenerationSettings),
}

impl ScoringArguments {
    /// Opens the model and the data. With `quiet`, no progress is printed.
    fn open(&self, quiet: bool) -> Result<ScoringJob, String> {
        let format = OutputFormat::of(&self.to).map_err(|error| format!("error: {error}"))?;
        let source = match self.images.is_empty() && !self.generation.has_prompts() {
            true => self.source.open_with_data(quiet)?,
            false => self.source.open_alone(quiet)?,
        };
        let (detail, settings) = match self.top {
            None => (ClassDetail::All, "all classes, version 2".to_owned()),
            Some(count) => (
                ClassDetail::Top(count.get()),
                format!("--top {count}, version 2"),
            ),
        };
        let failed = |error: ServeError| format!("error: {error}");
        let manifest = source.saved.manifest();
        let (form, samples, data, settings) = match self.generation.settings(&source)? {
            None => {
                let form = PredictionForm::of(manifest, source.form.targets, detail);
                let form = OutputForm::Outputs(form.map_err(failed)?);
                let samples = match &source.test {
                    Some(test) if self.images.is_empty() => Arc::clone(test),
                    _ => images::find(&self.images, &source.saved, quiet)?,
                };
                let data = samples.description().identity.clone();
                (form, samples, data, settings)
            }
            Some(_) if !self.images.is_empty() => {
                return Err(images::refused());
            }
            Some(_) if self.top.is_some() => {
                let help = "leave it out; --top-k limits the tokens that are drawn from";
                return Err(format!(
                    "error: --top has no effect on generated text\n  help: {help}"
                ));
            }
            Some((prompts, generation)) => {
                let (samples, data) = match (&prompts, &source.test) {
                    (None, Some(test)) => (Arc::clone(test), test.description().identity.clone()),
                    (None, None) => return Err(NOTHING_TO_PREDICT.to_owned()),
                    (Some(prompts), _) => {
                        let vocabulary = source.form.vocabulary.as_ref();
                        let vocabulary = vocabulary.map_or_else(String::new, |one| one.identity());
                        let data = format!("{} of {vocabulary}", prompts.identity());
                        (prompts.dataset().map_err(failed)?, data)
                    }
                };
                let settings = format!("text: {generation:?}");
                let form = OutputForm::Text(prompts, generation);
                (form, samples, data, settings)
            }
        };
        let identity = ScoringIdentity {
            model: manifest.blake3.clone(),
            data,
            samples: samples.len(),
            format,
            settings,
        };
        Ok(ScoringJob {
            source,
            samples,
            form,
            identity,
        })
    }

    /// Adds these arguments to the command line of a worker.
    fn pass_to(&self, command: &mut Command) {
        command.arg("--to").arg(&self.to);
        if let Some(top) = self.top {
            command.arg("--top").arg(top.to_string());
        }
        for images in &self.images {
            command.arg("--images").arg(images);
        }
        self.generation.pass_to(command);
        self.source.pass_to(command);
    }
}

impl ScoringJob {
    /// Loads the model, and publishes its predictions in the folder of the parts.
    fn scoring(self, parts: PartFolder) -> Result<Scoring, String> {
        let UsedModel {
            saved,
            form,
            loader,
            ..
        } = self.source;
        let chain = saved.chain().map_err(|error| format!("error: {error}"))?;
        let settings = loader.settings(&*self.samples, 1);
        let scorer: Box<dyn Scorer> = match self.form {
            OutputForm::Outputs(form) => Box::new(Predictor::new(chain, form)),
            OutputForm::Text(prompts, generation) => {
                let texts = (form.vocabulary, prompts);
                let generator = TextGenerator::new(chain, saved.manifest(), texts, generation);
                Box::new(generator.map_err(|error| format!("error: {error}"))?)
            }
        };
        let output = (parts, self.identity.format);
        Ok(Scoring::new(scorer, self.samples, output, settings))
    }
}

/// Predicts all samples, and returns the exit code.
pub(crate) fn run(arguments: &PredictArguments, stop: &StopFlag) -> i32 {
    match predict(arguments, stop) {
        Ok(joined) => report(arguments, &joined),
        Err((code, problem)) => {
            message!("{problem}");
            code
        }
    }
}

/// Predicts all samples. An error has its exit code.
fn predict(arguments: &PredictArguments, stop: &StopFlag) -> Result<JoinedOutput, (i32, String)> {
    let to = &arguments.scoring.to;
    let user_error = |problem| (exit::USER_ERROR, problem);
    // Parts beside an output may be those of a command that was interrupted after the output appeared.
    if let Err(error) = ronde_saved_model::check_target(to) {
        return Err(user_error(refused(to, &error.to_string(), "name a file")));
    }
    let exists = || user_error(refused(to, "it exists", EXISTS_HELP));
    if to.exists() && !arguments.force && !PartFolder::path_of(to).exists() {
        return Err(exists());
    }
    let job = arguments.scoring.open(arguments.json).map_err(user_error)?;
    for note in &job.source.notes {
        message!("note: {note}");
    }
    for difference in &job.source.differences {
        message!("{difference}");
    }
    if to.exists() {
        let finished = PartFolder::finish_joined(to, &job.identity);
        match finished.map_err(|error| user_error(format!("error: {error}")))? {
            Some(joined) => return Ok(joined),
            None if !arguments.force => return Err(exists()),
            None => {}
        }
    }
    if job.samples.is_empty() {
        return Err(user_error("error: the data has no samples".to_owned()));
    }
    let parts = PartFolder::claim(&PartFolder::path_of(to), &job.identity, arguments.force);
    let parts = parts.map_err(|error| {
        let help = match error {
            ServeError::File { .. } => {
                "\n  help: `--to` needs a file in a folder that exists and can be written"
            }
            _ => "",
        };
        user_error(format!("error: {error}{help}"))
    })?;
    begin_supervision();
    let (plan, missing) = (ChunkPlan::new(job.identity.samples), parts.missing());
    announce(&*job.samples, (plan, missing.len() as u64), arguments);
    let mut pool = WorkerPool::new(&arguments.scoring, (plan.chunks(), missing), arguments.json);
    pool.run(arguments.workers.get(), stop)
        .map_err(|Interruption { code, cause }| {
            let done = plan.chunks() - parts.missing().len() as u64;
            let cause = cause.map_or_else(String::new, |cause| format!("{cause}\n"));
            let text = format!(
                "{cause}{done} of {} parts of {} are finished; run the same command again to continue",
                plan.chunks(),
                to.display()
            );
            (code, text)
        })?;
    drop(pool);
    let skip_limit = job.samples.description().bad_records.skip_limit;
    parts
        .join(to, skip_limit.unwrap_or(0.0))
        .map_err(|error| match error {
            ServeError::TooManySkipped { .. } => user_error(format!("error: {error}")),
            error => (exit::GAVE_UP, format!("error: {error}")),
        })
}

/// Formats the message about an output that cannot be written.
fn refused(to: &Path, cause: &str, help: &str) -> String {
    format!(
        "error: cannot write predictions to {}: {cause}\n  help: {help}",
        to.display()
    )
}

/// Prints what is computed.
fn announce(data: &dyn Dataset, (plan, missing): (ChunkPlan, u64), arguments: &PredictArguments) {
    if arguments.json {
        return;
    }
    let finished = plan.chunks() - missing;
    let continued = if finished > 0 {
        format!("; {finished} of {} parts are finished", plan.chunks())
    } else {
        String::new()
    };
    info!(
        "predicting {} samples, workers: {}{continued}",
        data.len(),
        arguments.workers
    );
}

/// Prints the totals and the first bad records.
fn report(arguments: &PredictArguments, joined: &JoinedOutput) -> i32 {
    let to = arguments.scoring.to.display();
    let skipped = joined.skipped.len();
    for bad in joined.skipped.iter().take(SKIPPED_PRINTED_MAX) {
        message!("warning: skipped a bad record: {bad}");
    }
    if skipped > SKIPPED_PRINTED_MAX {
        message!(
            "warning: skipped {} more bad records",
            skipped - SKIPPED_PRINTED_MAX
        );
    }
    if !arguments.json {
        info!("wrote {to}: {} predictions", joined.rows);
        return exit::DONE;
    }
    let line = serde_json::json!({
        "output": to.to_string(), "samples": joined.rows, "skipped": joined.skipped,
    });
    print(line)
}
