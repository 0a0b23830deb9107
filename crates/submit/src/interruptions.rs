//! [`Interruptions`]: output that is followed continues after failures that pass.

use ronde_core::Recovery;

use crate::error::SubmitError;

/// The failures while output is followed. The first one after an answer is reported.
pub(crate) struct Interruptions {
    report: fn(&SubmitError),
    is_reported: bool,
}

impl Interruptions {
    /// Reports with `report`.
    pub(crate) fn new(report: fn(&SubmitError)) -> Self {
        Self {
            report,
            is_reported: false,
        }
    }

    /// Returns an answer; `None` after a failure that may pass.
    ///
    /// # Errors
    /// The failure does not pass.
    pub(crate) fn pass<T>(
        &mut self,
        answer: Result<T, SubmitError>,
    ) -> Result<Option<T>, SubmitError> {
        match answer {
            Ok(answer) => {
                self.is_reported = false;
                Ok(Some(answer))
            }
            Err(error) if error.recovery() == Recovery::Retry => {
                if !std::mem::replace(&mut self.is_reported, true) {
                    (self.report)(&error);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static REPORTED: AtomicU32 = AtomicU32::new(0);

    fn failure(is_temporary: bool) -> Result<(), SubmitError> {
        Err(SubmitError::Host {
            host: "h".to_owned(),
            problem: "status 503".to_owned(),
            help: None,
            is_temporary,
        })
    }

    #[test]
    fn failures_that_may_pass_are_reported_once_until_the_next_answer() {
        let mut interruptions = Interruptions::new(|_| {
            REPORTED.fetch_add(1, Ordering::Relaxed);
        });
        for (answer, reported) in [
            (failure(true), 1),
            (failure(true), 1),
            (Ok(()), 1),
            (failure(true), 2),
        ] {
            let is_answer = answer.is_ok();
            let passed = interruptions.pass(answer).unwrap();
            assert_eq!(passed.is_some(), is_answer);
            assert_eq!(REPORTED.load(Ordering::Relaxed), reported);
        }
        assert!(interruptions.pass(failure(false)).is_err());
        assert_eq!(REPORTED.load(Ordering::Relaxed), 2);
    }
}
