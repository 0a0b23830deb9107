//! The end of the processes of a job: after a failure, after a stop request, or by themselves.

use std::time::Duration;

use ronde_core::Rank;

use super::Supervisor;
use crate::launcher::StopSignal;
use crate::outcome::signal_name;
use crate::stop::StopLevel;

/// The course of the job on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SupervisorPhase {
    /// The job runs.
    Running,
    /// This host leaves a job that continues elsewhere: its workers leave after their step.
    Leaving,
    /// The workers were requested at this time to end by themselves, after a last checkpoint.
    Finishing { since: Duration },
    /// All processes are being ended.
    Ending,
}

impl SupervisorPhase {
    /// Returns whether the end of a process is unexpected.
    pub(super) fn is_running(self) -> bool {
        self != Self::Ending
    }
}

impl Supervisor<'_> {
    /// Carries out a user's stop request.
    pub(super) fn apply_stop_request(&mut self) {
        let level = self.stop.level();
        if level == StopLevel::Run
            || self.finishes(level)
            || level == StopLevel::Stop && self.phase != SupervisorPhase::Ending && self.leave()
        {
            return;
        }
        if self.phase != SupervisorPhase::Ending {
            let signal = self.stop.signal();
            self.stopped_by = Some(signal);
            self.end_all(
                &format!("stopped by {}", signal_name(signal)),
                StopSignal::Terminate,
                false,
            );
        }
        if level == StopLevel::KillNow && !self.endings.all_killed() {
            self.end_all("killed by a second stop request", StopSignal::Kill, false);
        }
    }

    /// Ends all ranks after a failure or a stop request.
    pub(super) fn end_all(&mut self, reason: &str, signal: StopSignal, failed: bool) {
        self.phase = SupervisorPhase::Ending;
        let now = self.now();
        for rank in self.endings.running() {
            self.roster.signalled(rank, signal);
        }
        self.control.stop(reason, failed);
        for rank in self.endings.running() {
            self.endings.sent(rank, signal, now);
            self.launcher.signal(rank, signal);
        }
    }

    /// Sends due signals to all process groups; returns true when all groups are gone.
    pub(super) fn end_groups(&mut self) -> bool {
        for rank in self.endings.running() {
            let leader_ended = self.roster.member(rank).ended.is_some();
            let now = self.now();
            if leader_ended && !self.launcher.alive(rank) {
                if let (Some(watchdog), Some(started)) =
                    (&mut self.watchdog, &self.roster.member(rank).started)
                {
                    watchdog.remove(started.pid);
                }
                self.endings.gone(rank);
                continue;
            }
            if let Some(signal) = self.endings.due(rank, leader_ended, now) {
                if signal == StopSignal::Kill && !leader_ended {
                    self.unresponsive.push(rank);
                }
                self.roster.signalled(rank, signal);
                self.endings.sent(rank, signal, now);
                self.launcher.signal(rank, signal);
            }
            if self.endings.hopeless(rank, now) {
                self.endings.gone(rank);
                let message = "one of its processes does not end after SIGKILL".to_owned();
                self.notice(Some(rank), message);
            }
        }
        let settled = |rank: Rank| {
            let member = self.roster.member(rank);
            member.ended.is_none() || self.roster.judged(rank)
        };
        let all_ended =
            self.endings.running().is_empty() && self.spec.world_size.ranks().all(settled);
        all_ended && self.is_over()
    }
}
