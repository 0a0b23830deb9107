//! [`RunSaving`]: the checkpoints of a run on one worker, and the requests to save one or to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ronde_core::{Event, Rank, Step};

use crate::checkpoints::{RankPosition, ReplicaLayout, Resume, RunCheckpoints};
use crate::job_group::JobGroup;
use crate::plan::Plan;

/// The checkpoints of a run on one worker.
pub(super) struct RunSaving {
    /// `None`: none are saved or loaded.
    checkpoints: Option<RunCheckpoints>,
    /// The vectors of the state in a checkpoint.
    layout: ReplicaLayout,
    resume: Resume,
    /// Set when the run is to stop after a step.
    stop: Arc<AtomicBool>,
    /// Whether a notice that callbacks cannot save checkpoints was recorded.
    is_missing_folder_reported: bool,
}

impl RunSaving {
    /// Saves no checkpoints.
    pub(super) fn without_checkpoints(layout: ReplicaLayout) -> Self {
        Self {
            checkpoints: None,
            layout,
            resume: Resume::Never,
            stop: Arc::default(),
            is_missing_folder_reported: false,
        }
    }

    /// Adds checkpoints, and the flag that stops the run.
    pub(super) fn with(
        self,
        checkpoints: Option<RunCheckpoints>,
        resume: Resume,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self {
            checkpoints,
            resume,
            stop,
            ..self
        }
    }

    /// Returns the checkpoints, if any are saved or loaded.
    pub(super) fn checkpoints(&self) -> Option<&RunCheckpoints> {
        self.checkpoints.as_ref()
    }

    /// Returns the same, mutable.
    pub(super) fn checkpoints_mut(&mut self) -> Option<&mut RunCheckpoints> {
        self.checkpoints.as_mut()
    }

    /// Returns the checkpoints and the position of a rank before step `next`.
    pub(super) fn at<'a>(
        &'a mut self,
        member: &'a JobGroup,
        plan: &'a Plan,
        next: Step,
    ) -> Option<(&'a mut RunCheckpoints, RankPosition<'a>)> {
        let now = RankPosition {
            rank: member.rank,
            generation: member.generation,
            next,
            identity: &plan.identity,
            signature: &plan.signature,
            layout: &self.layout,
            tracker: &*member.tracker,
        };
        self.checkpoints.as_mut().map(|saving| (saving, now))
    }

    /// Returns the vectors of the state in a checkpoint.
    pub(super) fn layout(&self) -> &ReplicaLayout {
        &self.layout
    }

    /// Returns whether the run starts from a checkpoint.
    pub(super) fn resume(&self) -> Resume {
        self.resume
    }

    /// Returns whether this worker is to stop.
    pub(super) fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Makes a checkpoint due, or records once that its folder is missing.
    pub(super) fn request(&mut self, member: &JobGroup) {
        if let Some(saving) = &mut self.checkpoints {
            saving.request();
        } else if member.rank == Rank(0)
            && !std::mem::replace(&mut self.is_missing_folder_reported, true)
        {
            member.tracker.record(Event::Notice {
                rank: Some(member.rank),
                message:
                    "cannot save the checkpoint that a callback requests: checkpoint.to is not set"
                        .to_owned(),
            });
        }
    }
}
