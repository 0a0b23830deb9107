//! The answer to a worker's report, which contains everything that the worker may have missed.

use ronde_core::Generation;

use super::{CoordinatorCommand, CoordinatorMachine, GenerationChange};
use crate::assignment::GenerationPurpose;
use crate::journal::JobPhase;
use crate::membership::rank_of;
use crate::membership::{GenerationAssignment, SwitchTiming};
use crate::message::{ToWorker, WorkerPhase, WorkerReport};
use crate::reason::Reason;
use crate::time::Time;

impl CoordinatorMachine {
    pub(super) fn take_report(
        &mut self,
        now: Time,
        report: WorkerReport,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        if !self.lease.leads(now) {
            return;
        }
        if report.term > self.record().term {
            let event = self.lease.deposed();
            self.lease_event(now, event, out);
            return;
        }
        if !self.workers.reported(report.clone(), now) {
            return;
        }
        let to = report.member.worker;
        let term = self.record().term;
        let ack = ToWorker::Ack {
            term,
            echo: report.sent,
        };
        let more = self.answer(now, &report);
        out.extend(
            [Some(ack), more]
                .into_iter()
                .flatten()
                .map(|message| CoordinatorCommand::Send { to, message }),
        );
    }

    fn answer(&self, now: Time, report: &WorkerReport) -> Option<ToWorker> {
        let record = self.record();
        let term = record.term;
        if matches!(record.phase, JobPhase::Stopped | JobPhase::Finished) {
            return Some(ToWorker::End {
                term,
                reason: self.final_reason(),
            });
        }
        if self.dismissed.contains(&report.member.worker) {
            return Some(ToWorker::End {
                term,
                reason: Reason::Drained,
            });
        }
        let newest = self.newest.as_ref()?;
        let generation = newest.generation;
        if report.generation >= Some(generation) || record.generation != Some(generation) {
            return None;
        }
        let has_place = rank_of(&newest.members, report.member.worker).is_some();
        let leaves = report.generation == newest.previous
            && rank_of(&newest.previous_members, report.member.worker).is_some();
        // A stopping job has a generation without members, which all members enter.
        let stops = record.phase == JobPhase::Stopping;
        if has_place || leaves || stops {
            return Some(ToWorker::Assign(self.assignment(newest, report.generation)));
        }
        let may_go = report.draining && self.is_established(now);
        (report.phase != WorkerPhase::Idle || may_go)
            .then_some(ToWorker::Fence { term, generation })
    }

    /// Returns the activity of a generation's members.
    fn purpose(&self, change: &GenerationChange) -> GenerationPurpose {
        match self.record().phase == JobPhase::Stopping && !change.members.is_empty() {
            true => GenerationPurpose::Save,
            false => GenerationPurpose::Train,
        }
    }

    /// Returns a generation as it is announced to a worker in generation `was`.
    pub(super) fn assignment(
        &self,
        change: &GenerationChange,
        was: Option<Generation>,
    ) -> GenerationAssignment {
        let record = self.record();
        let is_next = was == change.previous && was != Some(change.generation);
        GenerationAssignment {
            term: record.term,
            generation: change.generation,
            members: change.members.clone(),
            start: record.start,
            purpose: self.purpose(change),
            awaited: change.awaited,
            when: if is_next {
                change.when
            } else {
                SwitchTiming::Now
            },
            reason: change.reason.clone(),
        }
    }
}
