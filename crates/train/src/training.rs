//! [`Training`]: the step loop. A step is a transaction: compute, reduce, vote, then apply.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ronde_core::event::PhaseTimes;
use ronde_core::session::{CommittedStep, Session};
use ronde_core::weight_hash;
use ronde_core::{CollectivesExt, Epoch, Event, Generation, Rank, Recovery, Step};
use ronde_data::{Dataset, Loader, LoaderPlan, LoaderSettings, Split, Targets, Traffic};
use ronde_engine::{Chain, Loss, Precision};
use ronde_parallel::{
    DataParallel, DataParallelConfig, LossScaling, ModelState, Reduced, Strategy,
};

use self::buckets::BucketTuning;
use crate::checkpoints::{Resume, Saving, Shape};
use crate::clock::{self, Stopwatch};
use crate::cores::Cores;
use crate::evaluate::{Evaluation, evaluate};
use crate::healing::Healing;
use crate::history::History;
use crate::{Place, Plan, TrainError};

mod buckets;
mod generations;
mod saving;
mod step;

pub(crate) use step::micro_batch;

/// Most bad records that a worker tells one by one.
const SKIPPED_TOLD_MAX: usize = 100;

/// What rank 0 does with the trained model before anybody leaves.
pub type Publish<'a> = dyn FnMut(&Training, &Trained) -> Result<(), TrainError> + 'a;

/// How a generation ended in good order.
enum Ended {
    /// The run is over.
    Done(Box<Trained>),
    /// A newer generation has begun.
    On,
}

/// What a finished training came to. Equal on all ranks but for the times.
#[derive(Debug, Clone)]
pub struct Trained {
    /// The last committed step.
    pub last: Option<CommittedStep>,
    /// Result on the test set, if there is one.
    pub evaluation: Option<Evaluation>,
    /// Where this worker's time went.
    pub times: PhaseTimes,
    /// Samples used, over all epochs.
    pub samples: u64,
    /// Seconds from the first step to the end.
    pub duration_s: f64,
}

/// One rank's part of a run.
pub struct Training {
    place: Place,
    plan: Plan,
    strategy: DataParallel,
    session: Session,
    split: Split,
    times: PhaseTimes,
    /// The last committed step of this worker.
    last: Option<CommittedStep>,
    /// What was committed last, by whomever it was told.
    history: History,
    /// The gradient of a step whose vote failed.
    held: Option<(Step, Reduced)>,
    healing: Healing,
    /// Where this worker's threads run; `None`: wherever the system puts them.
    cores: Option<Cores>,
    /// Cores of the host that this worker may decode samples on.
    free_cores: usize,
    /// What was read from other machines and the cache when it was told last.
    traffic: Traffic,
    /// Whether it was said that training waits for data.
    is_waiting_told: bool,
    /// Samples that were told to be unusable: file, offset, record.
    skipped: BTreeSet<(String, u64, Option<u64>)>,
    /// Which bucket sizes were tried; `None`: there is nothing to try any more.
    tuning: Option<BucketTuning>,
    /// Checkpoints; `None`: none are saved and none are looked for.
    saving: Option<Saving>,
    shape: Shape,
    resume: Resume,
    /// Set when the run is asked to end after a step.
    stop: Arc<AtomicBool>,
}

impl Training {
    /// Sets a run up. Cost: the optimizer state is allocated here.
    #[must_use]
    pub fn new(place: Place, plan: Plan, chain: Chain, split: Split) -> Self {
        let loss = loss_of(&*split.train);
        let mut config = DataParallelConfig::new(plan.config.optimizer, loss);
        config.loss_scaling =
            (plan.config.train.precision == Precision::F16).then(LossScaling::default);
        config.weight_decay_on = plan.config.train.weight_decay_on;
        config.clip_norm = plan.config.train.clip_norm;
        let bucket_bytes = plan.config.comm.bucket_bytes_max;
        config.bucket_bytes_max =
            bucket_bytes.map_or_else(BucketTuning::first, |bytes| bytes as usize);
        let (optimizer_states, loss_scaling) =
            (config.optimizer.state_names(), config.loss_scaling);
        let chain = chain.with_precision(plan.config.train.precision);
        let chain = if plan.config.train.recompute_activations {
            chain.with_recomputation()
        } else {
            chain
        };
        let mut strategy =
            DataParallel::new(chain, place.group.clone(), plan.shards, plan.seeds, config);
        strategy.set_clock(clock::seconds);
        let mut session = Session::new(
            place.group.clone(),
            place.generation,
            plan.batches,
            plan.shards,
        );
        // Compared with the first vote: ranks that start from other weights must not train.
        session.set_digest(weight_hash::hash(strategy.state().values()));
        let shape = Shape::of(strategy.state(), optimizer_states, loss_scaling);
        Self {
            place,
            plan,
            strategy,
            session,
            split,
            times: PhaseTimes::default(),
            last: None,
            history: History::default(),
            held: None,
            healing: Healing::default(),
            cores: None,
            free_cores: 1,
            traffic: Traffic::default(),
            is_waiting_told: false,
            skipped: BTreeSet::new(),
            tuning: None,
            saving: None,
            shape,
            resume: Resume::Never,
            stop: Arc::default(),
        }
    }

    /// The same with checkpoints; `stop` asks for the end of the run after a step, on any rank.
    #[must_use]
    pub fn with_checkpoints(
        mut self,
        saving: Option<Saving>,
        resume: Resume,
        stop: Arc<AtomicBool>,
    ) -> Self {
        (self.saving, self.resume, self.stop) = (saving, resume, stop);
        self
    }

    /// The same with the computing thread, which is the calling one, on a core of its own.
    #[must_use]
    pub(crate) fn with_cores(mut self, cores: Option<Cores>) -> Self {
        self.cores = cores;
        self
    }

    /// Tells how many cores of its host this worker may use to fetch and decode samples.
    #[must_use]
    pub(crate) fn with_free_cores(mut self, cores: usize) -> Self {
        self.free_cores = cores.max(1);
        self
    }

    /// This worker's rank in the newest generation.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.place.rank
    }

    /// The plan of the run.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The state of the model.
    #[must_use]
    pub fn state(&self) -> &ModelState {
        self.strategy.state()
    }

    /// The strategy: for tests that damage a weight, and for loading a state.
    pub fn strategy_mut(&mut self) -> &mut DataParallel {
        &mut self.strategy
    }

    /// Trains to the end of the plan and evaluates. See [`Training::run_and_publish`].
    ///
    /// # Errors
    /// As there.
    pub fn run(&mut self) -> Result<Trained, TrainError> {
        self.run_and_publish(&mut |_, _| Ok(()))
    }

    /// Trains to the end of the plan, evaluates, lets rank 0 publish, and waits for that. When a peer
    /// is lost on the way and this worker has a [`crate::Seat`], it goes on in the next generation: from the
    /// last committed step, with the same bits.
    ///
    /// # Errors
    /// The first thing that goes wrong and that no other generation can mend; the group is then told,
    /// so that no rank waits for this one.
    pub fn run_and_publish(&mut self, publish: &mut Publish<'_>) -> Result<Trained, TrainError> {
        self.record_start();
        let begun = Stopwatch::start();
        // Who comes new into a running job has to catch up first.
        let mut ready = match self.place.generation {
            Generation(0) if self.resume == Resume::Never => {
                self.tune_buckets();
                Ok(())
            }
            _ => self.level_out(),
        };
        loop {
            let ended = ready.and_then(|()| self.run_generation(publish, &begun));
            let cause = match ended {
                Ok(Ended::Done(trained)) => return Ok(*trained),
                Ok(Ended::On) => "the membership changes".to_owned(),
                // The others go on without this worker.
                Err(error @ TrainError::Membership(_)) => return Err(error),
                // So did all others.
                Err(error @ TrainError::Stopped { .. }) => return Err(error),
                Err(error) => {
                    self.give_up(&error);
                    if !self.place.can_move_on() || error.recovery() != Recovery::Rejoin {
                        return Err(error);
                    }
                    error.to_string()
                }
            };
            // Other workers may be on this host now.
            self.cores = None;
            ready = self.move_on(&cause);
        }
    }

    /// Gives the step in flight up and tells the group.
    fn give_up(&mut self, error: &TrainError) {
        self.healing = Healing::default();
        self.strategy.abort();
        self.place.group.abort(&error.to_string());
    }

    /// Trains in the group as it is.
    fn run_generation(
        &mut self,
        publish: &mut Publish<'_>,
        begun: &Stopwatch,
    ) -> Result<Ended, TrainError> {
        // Whoever left the last generation had no time for this.
        if self.is_evaluation_due() {
            self.catch_up()?;
        }
        let mut evaluation = self.evaluate_if_due()?;
        let mut loader = self.load()?;
        while self.session.next_step().0 < self.plan.steps {
            self.compute_apart();
            let committed = self.step(&mut loader)?;
            if committed.requests.save || committed.requests.stop {
                self.step_aside();
            }
            let some_heal = committed.requests.heals && !self.catch_up_if_due(&committed)?;
            self.save_if_wished(&committed)?;
            if self.place.is_left_after(&committed) {
                return Ok(Ended::On);
            }
            if !some_heal && self.all_compute()? {
                self.step_aside();
                loader = self.load()?;
            }
            if committed.epoch_verdict.is_some() || committed.step.0 + 1 == self.plan.steps {
                self.tell_waiting(&loader);
                self.tell_traffic(committed.epoch);
            }
            evaluation = self.evaluate_if_due()?.or(evaluation);
        }
        self.step_aside();
        self.finish_saving()?;
        self.verify()?;
        let duration_s = begun.total_s();
        if evaluation.is_none() {
            let next = self.session.next_step().0;
            evaluation = self.evaluate(Step(next.saturating_sub(1)))?;
        }
        let trained = Trained {
            last: self.last.clone(),
            evaluation,
            times: self.times,
            samples: self.session.samples(),
            duration_s,
        };
        if self.place.rank == Rank(0) {
            publish(self, &trained)?;
        }
        self.place.group.barrier().map_err(TrainError::Farewell)?;
        Ok(if self.place.farewell() {
            Ended::Done(Box::new(trained))
        } else {
            Ended::On
        })
    }

    /// Computes on a core of its own from now on, where there is one.
    fn compute_apart(&self) {
        if let Some(cores) = &self.cores {
            cores.compute();
        }
    }

    /// Goes where threads that are started now may stay.
    fn step_aside(&self) {
        if let Some(cores) = &self.cores {
            cores.aside();
        }
    }

    /// Fetches the batches of this rank's shards, from the next step on.
    fn load(&self) -> Result<Loader, TrainError> {
        let plan = LoaderPlan {
            batches: self.plan.batches,
            shards: self.plan.shards,
            run: self.plan.shards.run(self.place.group.rank()),
            steps: self.session.next_step().0..self.plan.steps,
            stride: 1,
        };
        let train = self.split.train.clone();
        let settings = self.loader_settings(&*train);
        Ok(Loader::start(train, plan, settings)?)
    }

    /// Says what can be done about it when training waits for data; once.
    fn tell_waiting(&mut self, loader: &Loader) {
        if self.is_waiting_told {
            return;
        }
        if let Some(message) = loader.times().hint() {
            self.is_waiting_told = true;
            self.place.tracker.record(Event::Notice {
                rank: Some(self.place.rank),
                message,
            });
        }
    }

    /// Says where the samples of an epoch came from, if some are on other machines.
    fn tell_traffic(&mut self, epoch: Epoch) {
        let Some(now) = self.split.train.traffic() else {
            return;
        };
        let before = std::mem::replace(&mut self.traffic, now);
        self.place.tracker.record(Event::DataRead {
            rank: self.place.rank,
            epoch,
            remote_bytes: now.remote_bytes - before.remote_bytes,
            cached_bytes: now.cached_bytes - before.cached_bytes,
        });
    }

    fn loader_settings(&self, dataset: &dyn Dataset) -> LoaderSettings {
        self.plan.config.loader.settings(dataset, self.free_cores)
    }

    /// Evaluates when the plan says so after the last committed step.
    fn evaluate_if_due(&mut self) -> Result<Option<Evaluation>, TrainError> {
        let next = self.session.next_step().0;
        match next.checked_sub(1).map(Step) {
            Some(last) if self.is_evaluation_due() => self.evaluate(last),
            _ => Ok(None),
        }
    }

    /// Whether the plan asks for an evaluation before the next step.
    fn is_evaluation_due(&self) -> bool {
        let next = self.session.next_step().0;
        let Some(last) = next.checked_sub(1).map(Step) else {
            return false;
        };
        let batch = self.plan.batches.batch(last);
        let every = self.plan.config.train.evaluate_every_epochs;
        let is_due = batch.ends_epoch
            && every.is_some_and(|every| every > 0 && (batch.epoch.0 + 1).is_multiple_of(every));
        is_due || next == self.plan.steps
    }

    /// After a step in which some took the state over: whether what comes next needs it whole on all, who
    /// then have waited for that.
    fn catch_up_if_due(&mut self, committed: &CommittedStep) -> Result<bool, TrainError> {
        let is_due = committed.requests.save
            || committed.requests.stop
            || self.is_evaluation_due()
            || self.healing.is_overdue();
        if is_due {
            self.catch_up()?;
        }
        Ok(is_due)
    }

    fn evaluate(&mut self, step: Step) -> Result<Option<Evaluation>, TrainError> {
        let Some(test) = self.split.test.clone() else {
            return Ok(None);
        };
        let settings = self.loader_settings(&*test);
        let evaluation = evaluate(&*self.place.group, &mut self.strategy, &test, settings)?;
        self.history.note(Event::Evaluated {
            step,
            loss: evaluation.loss,
            accuracy: evaluation.accuracy,
            accuracy_top5: evaluation.accuracy_top5,
            perplexity: evaluation.perplexity,
            samples: evaluation.samples,
        });
        self.tell_history();
        Ok(Some(evaluation))
    }
}

/// What the targets of a data set ask for.
fn loss_of(dataset: &dyn Dataset) -> Loss {
    let count = dataset.classes() as usize;
    match dataset.targets() {
        Targets::Classes => Loss::CrossEntropy { classes: count },
        Targets::Values => Loss::SquaredError { outputs: count },
    }
}
