//! [`RunReports`]: the events, times and recordings of one worker.

use std::sync::Arc;

use ronde_core::event::PhaseTimes;
use ronde_core::spans::{SpanKind, SpanStart};
use ronde_core::{CollectiveError, Event, Group, Rank, SkippedUpdate, Step};
use ronde_parallel::UpdateReport;
use ronde_protocol::transaction::{CatchUpPlan, CommittedStep};

use crate::clock_alignment::ClockAlignment;
use crate::event_history::EventHistory;
use crate::job_group::JobGroup;
use crate::process_memory::{MemoryReports, ProcessMemory};
use crate::recording::{RecordingThread, WorkerRecorder};
use crate::step_timing::StepTiming;

/// The events, times and recordings of one worker.
#[derive(Default)]
pub(super) struct RunReports {
    /// The time of each phase so far.
    pub(super) times: PhaseTimes,
    /// The last committed step of this worker.
    last: Option<CommittedStep>,
    /// The events of the last committed steps.
    history: EventHistory,
    /// The offset of this host's clock in this generation.
    alignment: ClockAlignment,
    pub(super) recorder: Arc<WorkerRecorder>,
    /// The thread that writes recordings; `None`: this worker is not recorded.
    recording: Option<RecordingThread>,
    memory: MemoryReports,
}

/// A step to report.
pub(super) struct ReportedStep<'a> {
    pub(super) committed: &'a CommittedStep,
    pub(super) update: UpdateReport,
    pub(super) learning_rate: f64,
    pub(super) timing: StepTiming,
    /// The bytes that all groups of the rank have sent so far.
    pub(super) bytes_sent: u64,
    /// The events of the step that depend on the kind of synchronisation.
    pub(super) events: Vec<Event>,
}

impl RunReports {
    /// Adds the thread that writes recordings.
    pub(super) fn record_by(&mut self, recording: RecordingThread) {
        self.recording = Some(recording);
    }

    /// Starts a span of the computing thread.
    pub(super) fn begin_span(&self) -> SpanStart {
        self.recorder.spans.begin()
    }

    /// Ends a span, which belongs to a step.
    pub(super) fn end_span(&self, span: SpanStart, kind: SpanKind, step: Step) {
        self.recorder.spans.end(span, kind, step.0);
    }

    /// Writes what was recorded so far.
    pub(super) fn flush(&self) {
        if let Some(recording) = &self.recording {
            recording.flush();
        }
    }

    /// Measures the offset of this host's clock. All members call it together.
    ///
    /// # Errors
    /// A peer was lost.
    pub(super) fn align_clock(&mut self, group: &dyn Group) -> Result<(), CollectiveError> {
        self.alignment = ClockAlignment::measure(group)?;
        self.recorder.align(self.alignment);
        Ok(())
    }

    /// Returns a time of this host's clock in seconds on the clock of rank 0.
    pub(super) fn aligned_s(&self, host_ns: u64) -> f64 {
        self.alignment.seconds(host_ns)
    }

    /// Adds an event of a committed step.
    pub(super) fn push(&mut self, event: Event) {
        self.history.push(event);
    }

    /// Adds an event of a committed step, and reports it on rank 0.
    pub(super) fn push_and_report(&mut self, event: Event, member: &JobGroup) {
        self.push(event);
        self.report(member);
    }

    /// Reports committed steps on rank 0. A new rank 0 also reports those that the previous one may not have reported.
    pub(super) fn report(&mut self, member: &JobGroup) {
        if member.rank == Rank(0) {
            self.history.report(&*member.tracker);
        }
    }

    /// Copies the events of committed steps to members that copy the state. All members call it together.
    ///
    /// # Errors
    /// A peer was lost.
    pub(super) fn share(
        &mut self,
        group: &dyn Group,
        catch_up: &CatchUpPlan,
    ) -> Result<(), CollectiveError> {
        self.history.share(group, catch_up)
    }

    /// Returns the last committed step of this worker.
    pub(super) fn last(&self) -> Option<&CommittedStep> {
        self.last.as_ref()
    }

    /// Forgets the last committed step, because the run begins again.
    pub(super) fn forget_last(&mut self) {
        self.last = None;
    }

    /// Removes the events of committed steps, because another state was loaded.
    pub(super) fn forget_steps(&mut self) {
        self.history.clear();
    }

    /// Adds the times and the events of a committed step, and reports them.
    pub(super) fn push_step(&mut self, step: ReportedStep<'_>, member: &JobGroup) {
        let StepTiming { times, arrived_s } = step.timing;
        self.times.add(&times);
        let (rank, committed) = (member.rank, step.committed);
        self.last = Some(committed.clone());
        member.tracker.record(Event::StepTimes {
            rank,
            step: committed.step,
            times,
            arrived_s,
            bytes_sent: step.bytes_sent,
        });
        if self.memory.is_due(times.total_s())
            && let Some(memory) = ProcessMemory::read()
        {
            member.tracker.record(Event::MemoryUsed {
                rank,
                step: committed.step,
                resident_bytes: memory.resident,
                peak_bytes: memory.peak,
            });
        }
        self.push(Event::StepCommitted {
            step: committed.step,
            epoch: committed.epoch,
            generation: committed.generation,
            loss: committed.loss,
            samples: committed.samples,
            targets: committed.targets,
            skipped: committed.skipped,
            learning_rate: step.learning_rate,
            gradient_norm: step.update.gradient_norm,
            skipped_update: match committed.targets {
                0 => Some(SkippedUpdate::NoTargets),
                _ => step.update.is_skipped.then_some(SkippedUpdate::Overflow),
            },
            duration_s: times.total_s(),
        });
        step.events.into_iter().for_each(|event| self.push(event));
        if let Some(verdict) = committed.epoch_verdict {
            self.push(Event::EpochFinished {
                epoch: verdict.epoch,
                used_once: verdict.used_once,
                missing: verdict.missing,
                repeated: verdict.repeated,
            });
        }
        self.report(member);
    }
}
