//! [`ClusterSummary`]: the numbers of events of a simulated cluster, counted from its facts.

use std::collections::BTreeSet;

use ronde_core::Generation;
use ronde_protocol::{JobEnding, WorkerId};

use crate::cluster::fact::Fact;
use crate::harness::SeedSummary;

/// The numbers of events of a simulation, to verify that seeds have enough of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterSummary {
    /// The number of commits of all workers.
    pub commits: u64,
    /// The number of generations that a worker entered.
    pub generations: u64,
    /// The number of worker processes.
    pub workers: u64,
    /// The number of steps that were begun in more than one generation.
    pub redone: u64,
    /// The number of workers that copied the state from other members.
    pub healed: u64,
    /// The number of messages with slices that a worker received in a new generation.
    pub moved: u64,
    /// The number of times that a worker began to restore second copies after a step.
    pub restored: u64,
    /// The number of times that a worker loaded its slices of a checkpoint.
    pub loaded: u64,
    /// The number of workers that reported the loss of a slice.
    pub lost: u64,
    /// The number of terms.
    pub terms: u64,
    /// The largest number of steps that were committed.
    pub steps: u64,
    /// The next step of the newest checkpoint that was written.
    pub written: u64,
    /// The next step of the newest checkpoint in the job's record.
    pub recorded: u64,
    /// The number of jobs that finished.
    pub finished: u64,
    /// The number of jobs that were stopped.
    pub stopped: u64,
}

impl SeedSummary for ClusterSummary {
    fn add(&mut self, other: &Self) {
        self.commits += other.commits;
        self.generations += other.generations;
        self.workers += other.workers;
        self.redone += other.redone;
        self.healed += other.healed;
        self.moved += other.moved;
        self.restored += other.restored;
        self.loaded += other.loaded;
        self.lost += other.lost;
        self.terms += other.terms;
        self.finished += other.finished;
        self.stopped += other.stopped;
        self.steps = self.steps.max(other.steps);
        self.written = self.written.max(other.written);
        self.recorded = self.recorded.max(other.recorded);
    }
}

/// Counts facts.
#[derive(Default)]
pub(super) struct FactCounter {
    pub(super) summary: ClusterSummary,
    generations: BTreeSet<Generation>,
    computed: BTreeSet<(WorkerId, u64, Generation)>,
}

impl FactCounter {
    pub(super) fn count(&mut self, fact: &Fact) {
        let summary = &mut self.summary;
        match fact {
            Fact::Committed { step, .. } => {
                summary.commits += 1;
                summary.steps = summary.steps.max(step.0 + 1);
            }
            Fact::Written { next, .. } => summary.written = summary.written.max(next.0),
            Fact::Stored(record) => {
                let next = record.checkpoint.map_or(0, |next| next.0);
                summary.recorded = summary.recorded.max(next);
            }
            Fact::WorkerBegan => summary.workers += 1,
            Fact::Entered { generation, .. } => {
                self.generations.insert(*generation);
                summary.generations = self.generations.len() as u64;
            }
            Fact::Computes {
                worker,
                generation,
                step,
            } => {
                let first = (*worker, step.0, Generation::FIRST);
                let before = self
                    .computed
                    .range(first..(*worker, step.0, *generation))
                    .next();
                summary.redone += u64::from(before.is_some());
                self.computed.insert((*worker, step.0, *generation));
            }
            Fact::Heals { .. } => summary.healed += 1,
            Fact::Moved => summary.moved += 1,
            Fact::Restores => summary.restored += 1,
            Fact::Loaded => summary.loaded += 1,
            Fact::SliceLost { .. } => summary.lost += 1,
            Fact::Leads(_, term) => summary.terms = summary.terms.max(term.0),
            Fact::Over(JobEnding::Finished) => summary.finished = 1,
            Fact::Over(_) => summary.stopped = 1,
            _ => {}
        }
    }
}
