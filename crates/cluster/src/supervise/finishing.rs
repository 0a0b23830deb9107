//! Lets the workers of a job end by themselves, after a last checkpoint.

use ronde_core::Event;
use ronde_protocol::MembershipPolicy;

use super::{Supervisor, SupervisorPhase};
use crate::launcher::StopSignal;
use crate::outcome::signal_name;
use crate::stop::StopLevel;

/// Signals that request an end in good order: SIGHUP, SIGINT (Ctrl-C) and SIGTERM.
const GRACEFUL: [i32; 3] = [1, 2, TERMINATED];
/// SIGTERM.
const TERMINATED: i32 = 15;

impl Supervisor<'_> {
    /// Returns whether the workers are ending by themselves; requests that on the first call. False
    /// if they should not, or their time limit has passed.
    pub(super) fn finishes(&mut self, level: StopLevel) -> bool {
        let signal = self.stop.signal();
        let Some(limit) = self.spec.finish_limit else {
            return false;
        };
        let can_finish = self.coordination.ends_the_job()
            && self.phase != SupervisorPhase::Ending
            && level == StopLevel::Stop
            && GRACEFUL.contains(&signal);
        if !can_finish {
            return false;
        }
        let now = self.now();
        let since = match self.phase {
            SupervisorPhase::Finishing { since } => since,
            _ if self.has_nothing_to_save() => return false,
            _ => {
                self.phase = SupervisorPhase::Finishing { since: now };
                self.stopped_by = Some(signal);
                let signal = signal_name(signal);
                let limit = limit.as_secs_f64();
                // What a program without a task does at its end is unknown.
                let may = match self.spec.task.is_empty() {
                    true => format!("the processes have {limit} s to end by themselves"),
                    false => format!(
                        "the workers have {limit} s to finish their step and save a checkpoint"
                    ),
                };
                self.notice(
                    None,
                    format!("received {signal}: {may}; after a second, Ctrl-C ends them at once"),
                );
                self.request_finish();
                now
            }
        };
        now < since + limit
    }

    /// Returns whether the workers prepare to train. Programs without a task do not report whether they do.
    fn has_nothing_to_save(&self) -> bool {
        !self.spec.task.is_empty() && !self.has_trained
    }

    /// Notes from an event of a worker that the run has started, or that its workers have stopped it by themselves. The
    /// coordinator of an elastic job reports the latter. Programs without a task may stop their training for other reasons.
    pub(super) fn note_course(&mut self, event: &Event) {
        let is_fixed = self.policy == MembershipPolicy::Fixed;
        match event {
            Event::RunStarted { .. } | Event::StepCommitted { .. } => self.has_trained = true,
            Event::RunStopped { .. } if is_fixed && !self.spec.task.is_empty() => {
                self.note_stopped();
            }
            _ => {}
        }
    }

    /// Notes that a job has ended before its time although this process has received no signal: its workers have.
    pub(super) fn note_stopped(&mut self) {
        if self.coordination.ends_the_job() {
            self.stopped_by.get_or_insert(TERMINATED);
        }
    }

    fn request_finish(&mut self) {
        let (now, by) = (self.now(), signal_name(self.stop.signal()));
        if self.policy == MembershipPolicy::Elastic {
            let actions = self.coordination.stop(now, by);
            return self.act(actions);
        }
        for rank in self.endings.running() {
            self.roster.signalled(rank, StopSignal::Terminate);
            self.launcher.signal(rank, StopSignal::Terminate);
        }
    }
}
