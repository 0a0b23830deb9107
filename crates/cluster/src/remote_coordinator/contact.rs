//! [`CoordinatorContact`]: an agent's contact with the coordinators of its job. Pure: time is an argument.

use std::time::Duration;

/// A coordinator that sends nothing for this long does not answer. It sends four messages in a second.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Time within which a coordinator that died is restarted at its address.
const RESTART_MAX: Duration = Duration::from_secs(3);
/// The time before the first report of a wait for a coordinator.
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// The time between two reports with different causes.
const CHANGE_AFTER: Duration = Duration::from_secs(20);
/// The time between two reports with the same cause.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

/// The contact with the coordinators.
#[derive(Debug, Default)]
pub(super) struct CoordinatorContact {
    /// When the last message was received, or a connection was established.
    heard: Duration,
    /// Whether the last coordinator became silent while it was connected: the network is cut, or its host has stopped.
    was_cut: bool,
    /// Since when all attempts have found that no process listens.
    absent_since: Option<Duration>,
    /// When an end of this host's part of the job was requested.
    stop_requested: Option<Duration>,
    problem: String,
    /// The last report of the wait, and its cause.
    reported: Option<(Duration, String)>,
}

impl CoordinatorContact {
    /// Notes a message or a new connection.
    pub(super) fn heard(&mut self, now: Duration) {
        self.heard = now;
        (self.absent_since, self.reported) = (None, None);
    }

    /// Notes a message of the coordinator, after which an interruption is over.
    pub(super) fn answered(&mut self, now: Duration) {
        self.heard(now);
        self.was_cut = false;
    }

    /// Notes that a connected coordinator has been silent for too long.
    pub(super) fn cut(&mut self) {
        self.was_cut = true;
    }

    /// Notes a failed attempt to connect; `is_absent` if no process listens at the address.
    pub(super) fn failed(&mut self, now: Duration, problem: String, is_absent: bool) {
        self.problem = problem;
        self.absent_since = match is_absent {
            true => self.absent_since.or(Some(now)),
            false => None,
        };
    }

    /// Notes a request to end this host's part of the job.
    pub(super) fn stop_requested(&mut self, now: Duration) {
        self.stop_requested.get_or_insert(now);
    }

    /// Returns the time since the last sign of a coordinator.
    pub(super) fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.heard)
    }

    /// Returns whether the job is over for this host: it was cut off, and has reached the hosts of the coordinators again,
    /// where none runs and none was restarted in time.
    pub(super) fn has_job_ended(&self, now: Duration) -> bool {
        let is_absent = |since: Duration| now > since + RESTART_MAX;
        self.was_cut && self.absent_since.is_some_and(is_absent)
    }

    /// Returns whether this host must end without a coordinator, because the request to end was not answered. While the
    /// workers train and a coordinator is being restarted, there is time `restart` for that: their departure in good order
    /// keeps their state.
    pub(super) fn ends_alone(&self, now: Duration, trains: bool, restart: Duration) -> bool {
        let Some(requested) = self.stop_requested else {
            return false;
        };
        let patience = match trains && !self.was_cut && self.absent_since.is_some() {
            true => restart,
            false => ANSWER_MAX,
        };
        now >= requested + patience && self.silence(now) >= patience.min(ANSWER_MAX)
    }

    /// Returns a message about a wait for a coordinator that ends after a silence of `limit`, if one is due.
    pub(super) fn notice(&mut self, now: Duration, limit: Duration) -> Option<String> {
        let silence = self.silence(now);
        let is_recent = self.reported.as_ref().is_some_and(|(at, problem)| {
            now < *at + CHANGE_AFTER || *problem == self.problem && now < *at + REPEAT_AFTER
        });
        if silence < REPORT_AFTER || self.problem.is_empty() || is_recent {
            return None;
        }
        self.reported = Some((now, self.problem.clone()));
        Some(format!(
            "waiting for a coordinator, for at most {:.0} s more: {}",
            limit.saturating_sub(silence).as_secs_f64(),
            self.problem
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_job_has_ended_if_no_coordinator_runs_after_an_interruption() {
        let refused = |contact: &mut CoordinatorContact, at: u64| {
            contact.failed(ms(at), "connection refused".to_owned(), true);
            contact.has_job_ended(ms(at))
        };
        let mut contact = CoordinatorContact::default();
        contact.answered(ms(1_000));
        // A coordinator that died is replaced at some time.
        assert!(!refused(&mut contact, 2_000) && !refused(&mut contact, 60_000));
        contact.answered(ms(61_000));
        contact.cut();
        contact.failed(ms(70_000), "no route to host".to_owned(), false);
        assert!(!contact.has_job_ended(ms(90_000)));
        assert!(!refused(&mut contact, 90_000) && !refused(&mut contact, 93_000));
        // An address that is out of reach may be the one of a coordinator.
        contact.failed(ms(93_001), "no route to host".to_owned(), false);
        assert!(!refused(&mut contact, 93_002) && !refused(&mut contact, 96_002));
        assert!(refused(&mut contact, 96_003));
        contact.answered(ms(96_100));
        assert!(!refused(&mut contact, 100_000) && !refused(&mut contact, 110_000));
    }

    #[test]
    fn a_host_without_contact_ends_alone_soon_but_waits_for_a_restart_while_it_trains() {
        let restart = ms(7_000);
        let ends = |contact: &CoordinatorContact, at: u64, trains: bool| {
            contact.ends_alone(ms(at), trains, restart)
        };
        let mut contact = CoordinatorContact::default();
        contact.answered(ms(1_000));
        assert!(!ends(&contact, 90_000, false), "nothing was requested");
        contact.stop_requested(ms(2_000));
        contact.answered(ms(2_250));
        assert!(!ends(&contact, 2_500, false), "the coordinator answers");
        assert!(ends(&contact, 2_750, false) && ends(&contact, 2_750, true));
        contact.failed(ms(2_750), "connection refused".to_owned(), true);
        assert!(ends(&contact, 2_750, false));
        assert!(!ends(&contact, 8_999, true) && ends(&contact, 9_000, true));
        contact.cut();
        assert!(ends(&contact, 2_750, true));
    }

    #[test]
    fn a_wait_is_reported_with_its_end_and_its_causes() {
        let mut contact = CoordinatorContact::default();
        contact.answered(ms(1_000));
        let limit = ms(750_000);
        contact.failed(ms(2_000), "refused".to_owned(), true);
        assert_eq!(contact.notice(ms(2_999), limit), None);
        let notice = contact.notice(ms(3_000), limit).unwrap();
        let expected = "waiting for a coordinator, for at most 748 s more: refused";
        assert_eq!(notice, expected);
        contact.failed(ms(4_000), "no route".to_owned(), false);
        assert_eq!(contact.notice(ms(22_999), limit), None);
        assert!(
            contact
                .notice(ms(23_000), limit)
                .unwrap()
                .ends_with("no route")
        );
        assert_eq!(contact.notice(ms(82_999), limit), None);
        assert!(contact.notice(ms(83_000), limit).is_some());
    }
}
