//! [`LongWait`]: reports a wait for another process that takes longer than two seconds, with its cause and its end.

use std::time::{Duration, Instant};

/// The time before the first report, and between two reports with different causes.
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// The time between two reports with the same cause.
const REPEAT_AFTER: Duration = Duration::from_secs(30);

/// How long a process waits for other processes, and what it does with messages about a wait that takes longer than two
/// seconds.
pub struct WaitSettings<'a> {
    /// The longest wait.
    pub timeout: Duration,
    /// Receives each message.
    pub notify: &'a mut dyn FnMut(String),
}

/// A wait that other processes end.
pub(crate) struct LongWait<'a> {
    /// The expected value.
    what: String,
    deadline: Instant,
    notify: &'a mut dyn FnMut(String),
    next: Instant,
    /// The last report and its cause.
    reported: Option<(Instant, String)>,
}

impl<'a> LongWait<'a> {
    pub(crate) fn begin(
        what: String,
        deadline: Instant,
        notify: &'a mut dyn FnMut(String),
    ) -> Self {
        Self {
            what,
            deadline,
            notify,
            next: ronde_clock::now() + REPORT_AFTER,
            reported: None,
        }
    }

    /// Notes that the wait continues for this reason, and reports it if it is time.
    pub(crate) fn continues(&mut self, cause: &str) {
        self.continues_at(ronde_clock::now(), cause);
    }

    fn continues_at(&mut self, now: Instant, cause: &str) {
        let is_known = self
            .reported
            .as_ref()
            .is_some_and(|(at, last)| last == cause && now < *at + REPEAT_AFTER);
        if now < self.next || is_known {
            return;
        }
        let left = self.deadline.saturating_duration_since(now).as_secs_f64();
        (self.notify)(format!(
            "waiting for {}, for at most {left:.0} s more: {cause}",
            self.what
        ));
        self.next = now + REPORT_AFTER;
        self.reported = Some((now, cause.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_is_reported_with_each_new_cause_and_now_and_then() {
        let (mut said, begun) = (Vec::new(), ronde_clock::now());
        let mut notify = |text: String| said.push(text);
        let mut wait = LongWait::begin(
            "rank 0".to_owned(),
            begun + Duration::from_secs(100),
            &mut notify,
        );
        let start = wait.next - REPORT_AFTER;
        wait.deadline = start + Duration::from_secs(100);
        for (at, cause) in [
            (0, "unknown"),
            (1, "unknown"),
            (2, "unknown"),
            (3, "refused"),
            (4, "refused"),
            (20, "refused"),
            (34, "refused"),
            (200, "refused"),
        ] {
            wait.continues_at(start + Duration::from_secs(at), cause);
        }
        assert_eq!(
            said,
            [
                "waiting for rank 0, for at most 98 s more: unknown",
                "waiting for rank 0, for at most 96 s more: refused",
                "waiting for rank 0, for at most 66 s more: refused",
                "waiting for rank 0, for at most 0 s more: refused",
            ]
        );
    }
}
