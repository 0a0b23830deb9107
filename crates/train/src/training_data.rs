//! [`TrainingData`]: the samples of a run on one worker, and its reports of them.

use std::collections::BTreeSet;

use ronde_core::step_layout::StepLayout;
use ronde_core::{Epoch, Event, GroupRank, Step};
use ronde_data::{Batch, Dataset, Loader, LoaderPlan, LoaderSettings, Split, Traffic};
use ronde_parallel::MicroBatch;

use crate::batch_norms::BatchNorms;
use crate::config::{LoaderSection, RoundSamples};
use crate::error::TrainError;
use crate::job_group::JobGroup;
use crate::micro_batch::micro_batch;
use crate::plan::Plan;
use crate::recording::WorkerRecorder;

/// The largest number of bad records that a worker reports one by one.
const SKIPPED_REPORTED_MAX: usize = 100;

/// The data sets, and the reports about them.
pub(crate) struct TrainingData {
    pub(crate) split: Split,
    batch_norms: BatchNorms,
    section: LoaderSection,
    /// The number of cores on which this worker may decode samples.
    pub(crate) free_cores: usize,
    /// The data traffic at the last report.
    traffic: Traffic,
    /// Whether a notice that training waits for data was recorded.
    is_waiting_reported: bool,
    /// The bad records that were reported: file, offset, record.
    skipped: BTreeSet<(String, u64, Option<u64>)>,
}

impl TrainingData {
    pub(crate) fn new(split: Split, batch_norms: BatchNorms, section: &LoaderSection) -> Self {
        Self {
            split,
            batch_norms,
            section: section.clone(),
            free_cores: 1,
            traffic: Traffic::default(),
            is_waiting_reported: false,
            skipped: BTreeSet::new(),
        }
    }

    /// Returns the settings of a loader.
    pub(crate) fn settings(&self, dataset: &dyn Dataset) -> LoaderSettings {
        self.section.settings(dataset, self.free_cores)
    }

    /// Starts the loader of a rank's shards, from step `next` on.
    pub(crate) fn load(
        &self,
        plan: &Plan,
        (layout, rank): (&StepLayout, GroupRank),
        next: Step,
        recorder: &WorkerRecorder,
    ) -> Result<Loader, TrainError> {
        let loaded = LoaderPlan {
            batches: plan.batches,
            shards: layout.shards().clone(),
            run: match plan.samples {
                RoundSamples::OfShards => layout.loads(rank),
                RoundSamples::OnDemand => 0..0,
                RoundSamples::AllOnEach => 0..1,
            },
            steps: next.0..plan.steps,
            stride: 1,
        };
        let train = self.split.train.clone();
        let settings = self.settings(&*train);
        let spans = (recorder.background.clone(), 0);
        Ok(match plan.rounds {
            Some(rounds) => Loader::start_rounds(train, loaded, rounds, settings, spans)?,
            None => Loader::start_recorded(train, loaded, settings, spans)?,
        })
    }

    /// Returns the numbers of samples and the micro-batches of loaded batches, and reports their bad records.
    ///
    /// # Errors
    /// Too few samples are left.
    pub(crate) fn micro_batches(
        &mut self,
        batches: impl IntoIterator<Item = Batch>,
        member: &JobGroup,
    ) -> Result<(Vec<Vec<u64>>, Vec<MicroBatch>), TrainError> {
        let batches = batches.into_iter();
        let (sample_ids, micro_batches): (Vec<_>, Vec<_>) = batches
            .inspect(|batch| self.report_skipped(batch, member))
            .map(micro_batch)
            .unzip();
        self.batch_norms.check_loaded(&micro_batches)?;
        Ok((sample_ids, micro_batches))
    }

    /// Reports bad records, each once, because they occur again in every epoch.
    fn report_skipped(&mut self, batch: &Batch, member: &JobGroup) {
        for bad in &batch.skipped {
            let position = (bad.file.clone(), bad.offset, bad.record);
            let is_full = self.skipped.len() >= SKIPPED_REPORTED_MAX;
            if is_full || !self.skipped.insert(position) {
                continue;
            }
            let rest = if self.skipped.len() == SKIPPED_REPORTED_MAX {
                "; further bad records are not listed"
            } else {
                ""
            };
            member.tracker.record(Event::Notice {
                rank: Some(member.rank),
                message: format!("skipped: {bad}{rest}"),
            });
        }
    }

    /// Records a notice with a hint if training waits for data; at most once.
    pub(crate) fn report_waiting(&mut self, loader: &Loader, member: &JobGroup) {
        if self.is_waiting_reported {
            return;
        }
        if let Some(message) = loader.times().hint() {
            self.is_waiting_reported = true;
            member.tracker.record(Event::Notice {
                rank: Some(member.rank),
                message,
            });
        }
    }

    /// Records the source of the samples of an epoch, if some are remote.
    pub(crate) fn report_traffic(&mut self, epoch: Epoch, member: &JobGroup) {
        let Some(now) = self.split.train.traffic() else {
            return;
        };
        let before = std::mem::replace(&mut self.traffic, now);
        member.tracker.record(Event::DataRead {
            rank: member.rank,
            epoch,
            remote_bytes: now.remote_bytes - before.remote_bytes,
            cached_bytes: now.cached_bytes - before.cached_bytes,
        });
    }

    /// Returns an error if more samples were skipped up to a step than the data set allows. All ranks get the same result, because it
    /// depends only on committed steps.
    pub(crate) fn check_skipped(
        &self,
        plan: &Plan,
        (step, samples): (Step, u64),
    ) -> Result<(), TrainError> {
        let policy = self.split.train.description().bad_records;
        let Some(limit) = policy.skip_limit else {
            return Ok(());
        };
        let planned = plan.planned_samples(step);
        let skipped = planned.saturating_sub(samples);
        // At least an epoch, so that a bad record in the first steps does not end the run.
        let of = planned.max(plan.batches.samples_per_epoch());
        if skipped as f64 <= limit * of as f64 {
            return Ok(());
        }
        Err(TrainError::TooManySkipped {
            step,
            skipped,
            of,
            limit,
        })
    }

    /// Returns the number of bad records that were skipped when the data was opened, and of samples skipped up to step `last`.
    pub(crate) fn skipped_records(&self, plan: &Plan, last: Option<Step>, samples: u64) -> u64 {
        let skipped = last.map_or(0, |last| plan.planned_samples(last).saturating_sub(samples));
        self.split.train.description().bad_records.skipped + skipped
    }
}
