//! [`DiskRetry`]: tries operations on a user's files again after errors that may pass, as those of
//! a network file system whose server restarts.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::listing::shown;
use crate::settings::NoticeCallback;
use crate::waits::RetryLimit;

/// The seconds after which a notice reports the wait.
const NOTICE_AFTER_S: f64 = 2.0;

/// Errors that do not concern the file: the device, the server or the connection failed.
const TEMPORARY: [Errno; 21] = [
    Errno::IO,
    Errno::STALE,
    Errno::REMOTEIO,
    Errno::INTR,
    Errno::AGAIN,
    Errno::BUSY,
    Errno::TIMEDOUT,
    Errno::HOSTDOWN,
    Errno::HOSTUNREACH,
    Errno::NETDOWN,
    Errno::NETUNREACH,
    Errno::NETRESET,
    Errno::CONNABORTED,
    Errno::CONNREFUSED,
    Errno::CONNRESET,
    Errno::NOTCONN,
    Errno::SHUTDOWN,
    Errno::PIPE,
    Errno::NOLINK,
    Errno::COMM,
    Errno::PROTO,
];

/// How long operations are tried again.
#[derive(Clone, Default)]
pub(super) struct DiskRetry {
    limit: Duration,
    tell: Option<NoticeCallback>,
}

impl fmt::Debug for DiskRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskRetry({:?})", self.limit)
    }
}

impl DiskRetry {
    /// Tries for at most `limit`; `tell` gets a notice when that takes more than 2 s.
    pub(super) fn new(limit: Duration, tell: Option<NoticeCallback>) -> Self {
        Self { limit, tell }
    }

    /// Runs `attempt`, and runs it again after an error that may pass, until the limit.
    pub(super) fn run<T>(
        &self,
        path: &Path,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut error = match attempt() {
            Err(error) if is_temporary(&error) && !self.limit.is_zero() => error,
            other => return other,
        };
        let mut limit = RetryLimit::new(self.limit, Arc::default());
        let mut was_told = false;
        while limit.pause(0.0) {
            error = match attempt() {
                Err(error) if is_temporary(&error) => error,
                other => return other,
            };
            if limit.silent_s() > NOTICE_AFTER_S && !was_told {
                was_told = true;
                self.report(path, &error);
            }
        }
        let (times, seconds) = (limit.pauses, limit.silent_s());
        let text = format!("{error}; tried again {times} times in {seconds:.1} s");
        Err(io::Error::new(error.kind(), text))
    }

    fn report(&self, path: &Path, error: &io::Error) {
        if let Some(tell) = &self.tell {
            tell(&format!(
                "cannot read {}: {error}; trying again for up to {:.0} s",
                shown(path),
                self.limit.as_secs_f64()
            ));
        }
    }
}

/// Returns whether the same operation may succeed later.
pub(super) fn is_temporary(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| TEMPORARY.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Runs an operation that fails `failures` times with `errno`; returns its result and the number of attempts.
    fn check(limit: Duration, errno: Errno, failures: usize) -> (io::Result<()>, usize) {
        let mut attempts = 0;
        let outcome = DiskRetry::new(limit, None).run(Path::new("/data/a.csv"), || {
            attempts += 1;
            if attempts > failures {
                Ok(())
            } else {
                Err(errno.into())
            }
        });
        (outcome, attempts)
    }

    #[test]
    fn errors_that_may_pass_are_tried_again_and_others_are_not() {
        for errno in TEMPORARY {
            let (outcome, attempts) = check(Duration::from_secs(60), errno, 1);
            assert!(outcome.is_ok(), "{errno:?}");
            assert_eq!(attempts, 2, "{errno:?}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::LOOP, Errno::ISDIR] {
            let (outcome, attempts) = check(Duration::from_secs(60), errno, 1);
            assert_eq!(
                outcome.unwrap_err().raw_os_error(),
                Some(errno.raw_os_error())
            );
            assert_eq!(attempts, 1);
        }
        // Stores of the program's own files do not wait.
        let (outcome, attempts) = check(Duration::ZERO, Errno::IO, 1);
        assert!(outcome.is_err());
        assert_eq!(attempts, 1);
    }

    #[test]
    fn a_lasting_error_is_returned_after_the_limit_with_the_number_of_attempts() {
        let (outcome, attempts) = check(Duration::from_millis(250), Errno::IO, usize::MAX);
        let text = outcome.unwrap_err().to_string();
        assert!(attempts >= 3, "{attempts}");
        let told = format!("tried again {} times in", attempts - 1);
        assert!(
            text.contains("Input/output error") && text.contains(&told),
            "{text}"
        );
    }

    #[test]
    fn a_long_wait_is_reported_once() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let messages = Arc::clone(&told);
        let tell: NoticeCallback =
            Arc::new(move |text| messages.lock().unwrap().push(text.to_owned()));
        let retry = DiskRetry::new(Duration::from_secs(3), Some(tell));
        retry
            .run(Path::new("/data/a.csv"), || -> io::Result<()> {
                Err(Errno::STALE.into())
            })
            .unwrap_err();
        let told = told.lock().unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("cannot read /data/a.csv: Stale file handle"),
            "{told:?}"
        );
    }
}
