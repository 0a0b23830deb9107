//! [`Trainer`]: the training of a program's own model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_core::{Rank, Step};
use ronde_data::Split;
use ronde_engine::{Chain, EngineError, LearningRate, Loss, Metric};
use ronde_protocol::MembershipPolicy;
use ronde_train::checkpoints::{self, Resume, RunCheckpoints};
use ronde_train::config::{ConfigProblem, Severity, check};
use ronde_train::export::ModelDescription;
use ronde_train::initial_names;
use ronde_train::initial_weights::InitialWeightFile;
use ronde_train::training::TrainingResult;
use ronde_train::worker::publish;
use ronde_train::{Callback, Extension, Objective, Plan, RunConfig, TrainError, Training};

use crate::error::Error;
use crate::finished_run::FinishedRun;
use crate::run_output::RunOutput;
use crate::sigterm::SigtermGuard;
use crate::trained_model::TrainedModel;
use crate::worker::Worker;

/// The training of a program's own model, and the parts of it that the program defines.
///
/// ```no_run
/// use ronde::core::Step;
/// use ronde::engine::{CrossEntropy, TopAccuracy};
/// use ronde::train::callback::EarlyStopping;
/// # fn model() -> Result<ronde::engine::Chain, ronde::engine::EngineError> { todo!() }
///
/// let mut worker = ronde::Worker::start()?;
/// let config = ronde::RunConfig::load("run.toml")?;
/// let opening = ronde::environment::opening(".".as_ref(), config.run.seed);
/// let data = ronde::data::open(&config.data, &opening)?;
/// let trained = worker
///     .trainer(&config, data)
///     .loss(CrossEntropy { classes: 10 })
///     .metric(TopAccuracy::new(10, 1))
///     .learning_rate("0.1, then 0.01", |step: Step| if step.0 < 1000 { 0.1 } else { 0.01 })
///     .callback(EarlyStopping::on_metric("accuracy", 3))
///     .run_folder()
///     .train(model)?;
/// println!("{}", trained.blake3()?);
/// # Ok::<(), ronde::Error>(())
/// ```
#[must_use = "a trainer does nothing until `Trainer::train`"]
pub struct Trainer<'a> {
    worker: &'a mut Worker,
    config: RunConfig,
    data: Split,
    loss: Option<Arc<dyn Loss>>,
    metrics: Vec<Arc<dyn Metric>>,
    learning_rate: Option<LearningRate>,
    callbacks: Vec<Box<dyn Callback>>,
    resume: Resume,
    extension: Extension,
    has_folder: bool,
    overwrites: bool,
}

impl<'a> Trainer<'a> {
    pub(crate) fn new(worker: &'a mut Worker, config: &RunConfig, data: Split) -> Self {
        Self {
            worker,
            config: config.clone(),
            data,
            loss: None,
            metrics: Vec::new(),
            learning_rate: None,
            callbacks: Vec::new(),
            resume: Resume::Never,
            extension: Extension::default(),
            has_folder: false,
            overwrites: false,
        }
    }

    /// Replaces the loss of the data set, which is [`ronde_engine::CrossEntropy`] for classes,
    /// [`ronde_engine::SquaredError`] for values and [`ronde_engine::DetectionLoss`] for boxes. The metrics of the data
    /// set are removed; add those that fit.
    pub fn loss(mut self, loss: impl Loss + 'static) -> Self {
        self.loss = Some(Arc::new(loss));
        self
    }

    /// Adds a metric to the evaluations.
    pub fn metric(mut self, metric: impl Metric + 'static) -> Self {
        self.metrics.push(Arc::new(metric));
        self
    }

    /// Replaces the learning rate and the schedule of the configuration; see [`LearningRate::new`].
    pub fn learning_rate(
        mut self,
        name: impl Into<String>,
        rate: impl Fn(Step) -> f64 + Send + Sync + 'static,
    ) -> Self {
        self.learning_rate = Some(LearningRate::new(name, rate));
        self
    }

    /// Adds a function that is called after steps and evaluations, and can request actions.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Sets whether the run resumes from a checkpoint. By default it starts with step 0.
    pub fn resume(mut self, resume: Resume) -> Self {
        self.resume = resume;
        self
    }

    /// Permits another value of a setting than that of the checkpoint from which the run resumes: a dotted key, a section, or
    /// a key of `[train]`, such as `learning_rate`. The length of a run needs no permission.
    pub fn allow_change(mut self, setting: impl Into<String>) -> Self {
        self.extension.allowed.push(setting.into());
        self
    }

    /// Writes the model and the checkpoints to the folder `run.output` [default: `runs/NAME`]. Without a supervisor, rank
    /// 0 also writes the events and shows the progress and a summary on standard error, which `ronde run` does otherwise.
    ///
    /// Without it, nothing is displayed, checkpoints are saved if `checkpoint.to` is set, and the program can write the
    /// model with [`TrainedModel::save`].
    pub fn run_folder(mut self) -> Self {
        self.has_folder = true;
        self
    }

    /// Removes the results of an earlier run from the folder of [`Trainer::run_folder`]. Otherwise training is refused if
    /// there are any, unless it resumes.
    pub fn overwrite(mut self) -> Self {
        self.overwrites = true;
        self
    }

    /// Trains the model to the end of the run, and returns it on every rank. All of the configuration is used except
    /// `workers.count` (the launcher decides), `model` and `data`, which the program passes. The engine's random
    /// numbers are seeded before `model` is called, so all ranks start with the same weights.
    ///
    /// During training, SIGTERM does not end this process at once: the run ends after the current step, with a last
    /// checkpoint if checkpoints are saved. In an elastic job only this worker leaves.
    ///
    /// Cost: with `parallel.pipeline`, `parallel.tensor` or `parallel.zero = 3`, a rank trains a part of the weights, and receives
    /// the remaining ones at the end, so it needs memory for all of them then: see [`Trainer::train_to_folder`]. `model`
    /// describes all layers on every rank; the weights of layers of [`ronde_engine::GraphBuilder`] take memory when a rank uses
    /// them, and weights that `model` loads are in memory until the first step is complete.
    ///
    /// # Errors
    /// The plan is invalid, a peer has a different plan, or training failed. After a request to end:
    /// [`TrainError::Stopped`], or [`TrainError::Membership`] in an elastic job.
    pub fn train(
        mut self,
        model: impl FnOnce() -> Result<Chain, EngineError>,
    ) -> Result<TrainedModel, Error> {
        let result = self.run(model, Training::with_whole_model);
        let trained = result.and_then(|(training, trained, description)| {
            let model = training.into_model()?;
            Ok(TrainedModel::new(model, trained, description))
        });
        self.report(&trained);
        trained
    }

    /// Trains a model that may be too large for one worker, and writes it to the folder of the run: see
    /// [`Trainer::run_folder`], which this implies. No rank receives the weights of the remaining ones, except those of one
    /// tensor at a time on rank 0, which writes the model.
    ///
    /// # Errors
    /// As [`Trainer::train`].
    pub fn train_to_folder(
        mut self,
        model: impl FnOnce() -> Result<Chain, EngineError>,
    ) -> Result<FinishedRun, Error> {
        self.has_folder = true;
        let folder = self.config.run.output_folder();
        let result = self.run(model, |training| training);
        let finished = result.map(|(training, trained, _)| FinishedRun {
            is_first: training.rank() == Rank(0),
            trained,
            folder,
        });
        self.report(&finished);
        finished
    }

    /// Reports the failure of a run to the supervisor.
    fn report<T>(&self, result: &Result<T, Error>) {
        match result {
            // A requested end is not a failure.
            Ok(_) | Err(Error::Train(TrainError::Stopped { .. } | TrainError::Membership(_))) => {}
            Err(error) => self.worker.report(error, None),
        }
    }

    /// Trains the model as `prepare` sets it, and publishes it.
    fn run(
        &mut self,
        model: impl FnOnce() -> Result<Chain, EngineError>,
        prepare: impl FnOnce(Training) -> Training,
    ) -> Result<(Training, TrainingResult, ModelDescription), Error> {
        let mut plan = self.plan()?;
        #[cfg(feature = "burn")]
        ronde_burn::seed_engine(&plan.seeds);
        let chain = model()?;
        plan.bind_own_model(&chain)?;
        plan.bind_evaluations(self.data.test.as_deref())?;
        let start = &self.config.model.start;
        let initial = InitialWeightFile::of(start, Path::new("."), None);
        initial_names::check_own(start, Path::new("."), &plan.signature)?;
        self.bind_lineage(&mut plan)?;
        let output = self.open_folder()?;
        let tracker = match &output {
            Some(output) => output.tracker(self.worker.tracker()),
            None => self.worker.tracker(),
        };
        let member = self.worker.join_with_plan(&plan, Arc::clone(&tracker))?;
        let description = ModelDescription::new(None, self.data.train.description());
        let policy = self.worker.assignment().policy;
        let sigterm = SigtermGuard::listen(self.worker.member(), policy);
        let threads = self.config.workers.threads;
        let training = Training::new(member, plan, chain, self.data.clone())?
            .with_engine(&self.config.train, threads)?
            .with_initial_weights(initial)
            .with_callbacks(std::mem::take(&mut self.callbacks))
            .with_checkpoints(self.checkpoints()?, self.resume, sigterm.stop.clone());
        let mut training = prepare(training);
        let folder = self.folder();
        let model = description.clone();
        let trained = training.run_and_publish(&mut |training, trained| match &folder {
            Some(folder) => publish(training, folder, model.clone(), trained, &*tracker),
            None => {
                tracker.record(trained.finished(training.steps()));
                Ok(())
            }
        });
        if let Some(output) = output {
            output.finish();
        }
        Ok((training, trained?, description))
    }

    /// Returns the plan of the run, without its model.
    fn plan(&mut self) -> Result<Plan, TrainError> {
        check_division(&self.config)?;
        let assignment = self.worker.assignment();
        let mut plan = Plan::resolve(&self.config, assignment.world_size, &*self.data.train)?;
        // A later generation may have too few workers for the division, and trains with another one.
        if assignment.policy != MembershipPolicy::Elastic || assignment.generation.0 <= 1 {
            plan.check_workers(assignment.world_size)?;
        }
        self.bind(&mut plan)?;
        Ok(plan)
    }

    /// Adds the parts that the program defines to the plan.
    fn bind(&mut self, plan: &mut Plan) -> Result<(), TrainError> {
        if self.loss.is_some() || !self.metrics.is_empty() {
            let own_loss = self.loss.take();
            let mut objective = match &own_loss {
                Some(loss) => Objective::new(Arc::clone(loss)),
                None => plan.objective.clone(),
            };
            self.metrics
                .drain(..)
                .for_each(|metric| objective.add(metric));
            plan.bind_objective(objective)?;
        }
        if let Some(learning_rate) = self.learning_rate.take() {
            plan.bind_learning_rate(learning_rate);
        }
        Ok(())
    }

    /// Adds the lineage of the checkpoint from which the run resumes to the plan, if there is one.
    fn bind_lineage(&self, plan: &mut Plan) -> Result<(), TrainError> {
        self.extension.check_names()?;
        if self.resume == Resume::Never {
            return Ok(());
        }
        let Some(saving) = self.checkpoints()? else {
            return Ok(());
        };
        if let Some(newest) = checkpoints::newest(saving.store())? {
            // Rank 0 compares the hash with that of the file when training begins.
            let hash = newest.identity.part("model.init");
            if self.config.model.start.init.is_some()
                && let Some(hash) = hash.and_then(|hash| hash.strip_prefix("blake3:"))
            {
                plan.bind_initial_weights(hash);
            }
            self.extension.bind(plan, &newest)?;
        }
        Ok(())
    }

    /// Returns the folder of the run, if it has one.
    fn folder(&self) -> Option<PathBuf> {
        self.has_folder.then(|| self.config.run.output_folder())
    }

    /// Checks the folder of the run before it begins. Without a supervisor, begins its output.
    fn open_folder(&self) -> Result<Option<RunOutput>, Error> {
        let Some(folder) = self.folder() else {
            return Ok(None);
        };
        let resumes = self.resume != Resume::Never;
        if !self.worker.is_first() {
            return Ok(None);
        }
        if !self.worker.is_supervised() {
            return RunOutput::open(&folder, &self.config, resumes, self.overwrites)
                .map(Some)
                .map_err(Error::Output);
        }
        // Rank 0 of a later generation continues the run.
        if self.worker.assignment().generation.0 <= 1 {
            let folder = RunOutput::check(&folder, resumes, self.overwrites);
            // The results of this run go through the supervisor.
            let folder = folder.map_err(Error::Output)?;
            folder.keep();
            folder.remove_replaced_results();
        }
        Ok(None)
    }

    /// Opens the checkpoint store: that of the configuration, or the one in the folder of the run.
    fn checkpoints(&self) -> Result<Option<RunCheckpoints>, TrainError> {
        let section = &self.config.checkpoint;
        let output = self.config.run.output_folder();
        if section.to.is_none() && !self.has_folder {
            return Ok(None);
        }
        let surroundings = crate::environment::surroundings();
        let store = checkpoints::open(section, Path::new("."), &output, &surroundings)?;
        let address = section
            .to
            .clone()
            .unwrap_or_else(|| output.join("checkpoints").display().to_string());
        let of_program = (String::new(), PathBuf::new());
        let name = self.config.run.name.clone();
        Ok(Some(RunCheckpoints::new(
            section, store, address, name, of_program,
        )))
    }
}

/// Checks that the settings of a run permit its division among workers: a program may have set some of them itself.
fn check_division(config: &RunConfig) -> Result<(), TrainError> {
    if !config.parallel.is_divided() {
        return Ok(());
    }
    let divides = |problem: &ConfigProblem| {
        let mut sections = ["parallel.", "sync.", "compression."].iter();
        problem.severity == Severity::Error && sections.any(|name| problem.path.starts_with(name))
    };
    match check::run(config).into_iter().find(divides) {
        None => Ok(()),
        Some(ConfigProblem {
            path,
            message,
            hint,
            ..
        }) => Err(TrainError::Impossible {
            problem: message,
            hint: hint.unwrap_or_else(|| format!("change {path}")),
        }),
    }
}
