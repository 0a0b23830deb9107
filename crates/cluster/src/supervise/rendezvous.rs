//! The limits of the rendezvous of a job with fixed members: all ranks must report in time.
//!
//! The coordinator forms the only generation as soon as all workers have reported, however long that takes. The
//! supervisor also sees the processes, so it reports the ranks that are missing.

use std::time::Duration;

use ronde_core::Rank;
use ronde_protocol::MembershipPolicy;

use super::Supervisor;
use crate::outcome::{FailureCause, ProcessExit, ranks};

/// The time before the first message about the ranks that are missing.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
/// The time between two messages.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// The progress of the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RendezvousState {
    /// No worker has connected.
    Expected,
    /// Workers wait for each other since then.
    Waiting { since: Duration },
    /// It is over, successfully or not.
    Over,
}

impl RendezvousState {
    /// Notes that a worker has connected.
    pub(super) fn connected(&mut self, now: Duration) {
        if *self == Self::Expected {
            *self = Self::Waiting { since: now };
        }
    }
}

impl Supervisor<'_> {
    /// Fails the job if a rank has not reported in time, or has ended before it reported.
    pub(super) fn check_rendezvous(&mut self, now: Duration) {
        let is_elastic = self.policy == MembershipPolicy::Elastic;
        if is_elastic || !self.phase.is_running() || self.roster.has_failed() {
            return;
        }
        let since = match self.rendezvous {
            RendezvousState::Over => return,
            _ if self.spec.rendezvous_required => Duration::ZERO,
            RendezvousState::Expected => return,
            RendezvousState::Waiting { since } => since,
        };
        let all = self.spec.world_size.ranks();
        let unreported: Vec<Rank> = all
            .filter(|rank| !self.roster.member(*rank).has_reported)
            .collect();
        if unreported.is_empty() {
            self.rendezvous = RendezvousState::Over;
            return;
        }
        let has_left = |rank: &Rank| {
            let ended = self.roster.member(*rank).ended;
            matches!(ended, Some((_, ProcessExit::Code(0))))
        };
        let mut missing: Vec<Rank> = unreported.iter().copied().filter(has_left).collect();
        let end = since + self.spec.settings.rendezvous;
        if missing.is_empty() && now >= end {
            missing = unreported;
        } else if missing.is_empty() && now >= self.rendezvous_notice.max(since + NOTICE_AFTER) {
            self.rendezvous_notice = now + NOTICE_EVERY;
            self.notice(
                None,
                format!(
                    "waiting for the first report of {}, for at most {:.0} s more",
                    ranks(&unreported),
                    (end - now).as_secs_f64()
                ),
            );
        }
        if let Some(&first) = missing.first() {
            self.rendezvous = RendezvousState::Over;
            self.fail(first, FailureCause::RendezvousTimeout { missing });
        }
    }
}
