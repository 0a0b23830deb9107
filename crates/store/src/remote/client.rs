//! [`RemoteClient`]: requests to one bucket, container or web server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::IoThread;
use super::build::{self, Limits, Service};
use super::failure::{FailedOperation, temporary_if_unknown_host};
use super::io_thread::{PendingResponse, ProgressLimit};
use crate::address::Address;
use crate::error::StoreError;
use crate::name::ObjectName;
use crate::settings::NoticeCallback;
use crate::settings::RemoteSettings;
use crate::stamp::Stamp;
use crate::waits::RetryLimit;

/// The number of times the client itself repeats a read request that fails within
/// [`READ_RETRY_WITHIN`]; [`RetryLimit`] controls further retries.
const READ_RETRIES: usize = 1;
const READ_RETRY_WITHIN: Duration = Duration::from_secs(1);

/// The bounds of the time after which a request that receives nothing is cancelled. Within them it
/// is the retry limit, so that a service that hangs is not waited for longer.
const SILENCE_MIN: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The time after which a waiting reader reports that the service does not answer.
const NOTICE_AFTER: Duration = Duration::from_secs(2);

/// The clients and settings that every operation needs.
pub(crate) struct RemoteClient {
    /// For writing: repeats failed requests.
    pub(super) store: Arc<dyn ObjectStore>,
    /// For reading: repeats hardly, so that wrong settings are reported soon.
    pub(super) reading: Arc<dyn ObjectStore>,
    pub(super) io: Arc<IoThread>,
    pub(super) service: Service,
    /// The longest time of a request without progress, including its repetitions.
    limit: Duration,
    /// The number of frames that requests to write have sent, and of responses to them.
    written: Arc<AtomicU64>,
    retry_limit: Duration,
    address: Address,
    /// Whether the service has ever answered.
    has_answered: AtomicBool,
    /// Whether it was reported that the service does not answer.
    has_notified: AtomicBool,
    tell: Option<NoticeCallback>,
}

impl fmt::Debug for RemoteClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteClient")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl RemoteClient {
    pub(super) fn new(
        address: &Address,
        settings: &RemoteSettings,
        io: Arc<IoThread>,
    ) -> Result<Self, StoreError> {
        let silence = settings.retry_limit.clamp(SILENCE_MIN, SILENCE_MAX);
        let written = Arc::<AtomicU64>::default();
        let writing = Limits {
            retries: settings.retries,
            retry_within: settings.limit.min(settings.retry_limit),
            silence,
            written: Some(Arc::clone(&written)),
        };
        let reading = Limits {
            retries: settings.retries.min(READ_RETRIES),
            retry_within: READ_RETRY_WITHIN,
            silence,
            written: None,
        };
        let (store, service) = build::build(address, settings, writing)?;
        let (reading, _) = build::build(address, settings, reading)?;
        Ok(Self {
            store,
            reading,
            io,
            service,
            limit: settings.limit,
            written,
            retry_limit: settings.retry_limit,
            address: address.clone(),
            has_answered: AtomicBool::new(false),
            has_notified: AtomicBool::new(false),
            tell: settings.tell.clone(),
        })
    }

    pub(super) fn location(&self, name: Option<&ObjectName>) -> String {
        let Some(name) = name else {
            return self.address.to_string();
        };
        match self.address.join(name) {
            Ok(whole) => whole.to_string(),
            Err(_) => format!("{}/{name}", self.address),
        }
    }

    /// Returns the key of an object.
    pub(super) fn path(&self, name: &ObjectName) -> Result<Path, StoreError> {
        let whole = match self.address.prefix() {
            Some(prefix) => Path::parse(format!("{prefix}/{name}")),
            None => Path::parse(name.as_str()),
        };
        whole.map_err(|error| self.failure("use", Some(name)).settings(error.to_string()))
    }

    /// Returns the common prefix of the keys of all objects.
    pub(super) fn prefix(&self) -> Result<Option<Path>, StoreError> {
        let parsed = self.address.prefix().map(|p| Path::parse(p.as_str()));
        parsed
            .transpose()
            .map_err(|error| self.failure("use", None).settings(error.to_string()))
    }

    /// Returns the number of bytes of a key before the name of the object.
    pub(super) fn prefix_bytes(&self) -> usize {
        self.address.prefix().map_or(0, |p| p.as_str().len() + 1)
    }

    pub(super) fn failure(
        &self,
        operation: &'static str,
        name: Option<&ObjectName>,
    ) -> FailedOperation {
        FailedOperation {
            operation,
            location: self.location(name),
        }
    }

    /// Runs a request on the I/O thread and waits for its response.
    pub(super) fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: Option<&ObjectName>,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.wait(operation, name, self.start(request))
    }

    /// Starts a request to write.
    pub(super) fn start<T: Send + 'static>(
        &self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> PendingResponse<T> {
        self.io.spawn(&self.write_limit(), request)
    }

    /// Waits for the response to a request to write, and reports when the service makes no progress for
    /// [`NOTICE_AFTER`].
    pub(super) fn wait<T>(
        &self,
        operation: &'static str,
        name: Option<&ObjectName>,
        pending: PendingResponse<object_store::Result<T>>,
    ) -> Result<T, StoreError> {
        let failure = self.failure(operation, name);
        let mut silence = RetryLimit::new(self.retry_limit, Arc::clone(&self.written));
        let answer = pending.wait_observed(&mut || {
            let silent_s = silence.silent_s();
            let problem = failure.unavailable(format!("nothing sent for {silent_s:.0} s"));
            self.report_silence(&problem, silent_s);
        });
        let answer = answer.map_err(|problem| failure.unavailable(problem))?;
        let answer = answer.map_err(|error| failure.of(error));
        if !matches!(answer, Err(StoreError::Unavailable { .. })) {
            self.tell_of_answer();
        }
        answer
    }

    /// Cancels a multipart upload without reporting anything.
    pub(super) fn abandon(&self, request: impl Future<Output = ()> + Send + 'static) {
        let _ = self.io.run(&self.write_limit(), request);
    }

    fn write_limit(&self) -> ProgressLimit {
        ProgressLimit::new(self.limit, Arc::clone(&self.written))
    }

    /// Runs a request to read as [`RemoteClient::run`] does, and reports when the service is silent
    /// for [`NOTICE_AFTER`]. The request increments the counter of `retries` for everything that it
    /// receives.
    pub(super) fn run_read<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: Option<&ObjectName>,
        retries: &mut RetryLimit,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let failure = self.failure(operation, name);
        let received = retries.received();
        let mut observe = || {
            let silent_s = retries.silent_s();
            let problem = failure.unavailable(format!("nothing received for {silent_s:.0} s"));
            self.report_silence(&problem, silent_s);
        };
        let limit = ProgressLimit::new(self.limit, received);
        match self.io.run_observed(&limit, request, &mut observe) {
            Ok(answer) => answer.map_err(|error| failure.of(error)),
            Err(problem) => Err(failure.unavailable(problem)),
        }
    }

    /// Repeats `attempt` until it succeeds, within the retry limit of the settings, but not before
    /// the service has answered once. `attempt` gets the limit, which restarts whenever something
    /// is received.
    pub(super) fn with_retries<T>(
        &self,
        attempt: &mut dyn FnMut(&mut RetryLimit) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut retries = RetryLimit::new(self.retry_limit, Arc::default());
        loop {
            let answer = attempt(&mut retries).map_err(|problem| {
                match self.has_answered.load(Ordering::Relaxed) {
                    true => temporary_if_unknown_host(problem),
                    false => problem,
                }
            });
            let problem = match answer {
                Err(problem @ StoreError::Unavailable { .. }) => problem,
                Err(problem @ StoreError::Settings { .. }) => return Err(problem),
                answer => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    self.tell_of_answer();
                    return answer;
                }
            };
            self.report_silence(&problem, retries.silent_s());
            if !self.may_retry(&mut retries) {
                return Err(with_attempts(problem, &mut retries));
            }
        }
    }

    /// Only one of the waiting readers reports this.
    fn report_silence(&self, problem: &StoreError, silent_s: f64) {
        let has_waited = silent_s >= NOTICE_AFTER.as_secs_f64();
        if let Some(tell) = &self.tell
            && has_waited
            && !self.has_notified.swap(true, Ordering::Relaxed)
        {
            let limit = self.retry_limit.as_secs_f64();
            tell(&format!("{problem}; retrying for up to {limit:.0} s"));
        }
    }

    fn tell_of_answer(&self) {
        if let Some(tell) = &self.tell
            && self.has_notified.load(Ordering::Relaxed)
            && self.has_notified.swap(false, Ordering::Relaxed)
        {
            tell(&format!("{} responds again", self.address));
        }
    }

    fn may_retry(&self, retries: &mut RetryLimit) -> bool {
        let mut random = [0_u8];
        // Without random numbers all readers retry at once, which is harmless.
        let _ = aws_lc_rs::rand::fill(&mut random);
        self.has_answered.load(Ordering::Relaxed) && retries.pause(f64::from(random[0]) / 255.0)
    }
}

/// Adds the number and duration of the attempts to the message.
fn with_attempts(mut problem: StoreError, retries: &mut RetryLimit) -> StoreError {
    if let StoreError::Unavailable { cause, .. } = &mut problem
        && retries.pauses > 0
    {
        let (times, silent_s) = (retries.pauses + 1, retries.silent_s());
        *cause = format!("{cause}; tried {times} times in {silent_s:.0} s");
    }
    problem
}

/// Returns the stamp of an object, which is the same in a listing, for a HEAD request and for a
/// read.
pub(super) fn stamp(meta: &ObjectMeta) -> Stamp {
    match &meta.e_tag {
        Some(e_tag) => {
            // Listings of Azure omit the quotation marks.
            let plain = e_tag.trim_start_matches("W/").trim_matches('"');
            Stamp::of("etag", plain.as_bytes())
        }
        None => {
            let numbers = [meta.last_modified.timestamp() as u64, meta.size];
            Stamp::of("time", &numbers.map(u64::to_le_bytes).concat())
        }
    }
}
