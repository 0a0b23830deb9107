//! [`Place`]: one bucket, container or web server, and how it is asked.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::IoThread;
use super::build::{self, Service};
use super::failure::Failure;
use crate::clock::Patience;
use crate::settings::Listener;
use crate::{Address, ObjectName, RemoteSettings, Stamp, StoreError};

/// Repetitions by the client itself of a request to read; the rest is patience.
const READ_RETRIES: usize = 1;

/// Readers that waited so long say so.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// What every operation needs.
pub(crate) struct Place {
    /// For writing: repeats a request.
    pub(super) store: Arc<dyn ObjectStore>,
    /// For reading: hardly repeats, so that wrong settings are told soon.
    pub(super) reading: Arc<dyn ObjectStore>,
    pub(super) io: Arc<IoThread>,
    pub(super) service: Service,
    pub(super) limit: Duration,
    patience: Duration,
    address: Address,
    /// Whether it has ever answered.
    has_answered: AtomicBool,
    /// Whether it was told that it does not answer.
    is_told: AtomicBool,
    tell: Option<Listener>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Place {
    pub(super) fn new(
        address: &Address,
        settings: &RemoteSettings,
        io: Arc<IoThread>,
    ) -> Result<Self, StoreError> {
        let (store, service) = build::build(address, settings, settings.retries)?;
        let (reading, _) = build::build(address, settings, settings.retries.min(READ_RETRIES))?;
        Ok(Self {
            store,
            reading,
            io,
            service,
            limit: settings.limit,
            patience: settings.patience,
            address: address.clone(),
            has_answered: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
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

    /// The key of an object.
    pub(super) fn path(&self, name: &ObjectName) -> Result<Path, StoreError> {
        let whole = match self.address.prefix() {
            Some(prefix) => Path::parse(format!("{prefix}/{name}")),
            None => Path::parse(name.as_str()),
        };
        whole.map_err(|error| self.failure("name", Some(name)).settings(error.to_string()))
    }

    /// The key that those of all objects start with.
    pub(super) fn prefix(&self) -> Result<Option<Path>, StoreError> {
        let parsed = self.address.prefix().map(|p| Path::parse(p.as_str()));
        parsed
            .transpose()
            .map_err(|error| self.failure("name", None).settings(error.to_string()))
    }

    /// Bytes of a key before the name of the object.
    pub(super) fn prefix_bytes(&self) -> usize {
        self.address.prefix().map_or(0, |p| p.as_str().len() + 1)
    }

    pub(super) fn failure(&self, operation: &'static str, name: Option<&ObjectName>) -> Failure {
        Failure {
            operation,
            location: self.location(name),
        }
    }

    /// Runs a request on the I/O thread and waits for its answer.
    pub(super) fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: Option<&ObjectName>,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let failure = self.failure(operation, name);
        match self.io.run(self.limit, request) {
            Ok(answer) => answer.map_err(|error| failure.of(error)),
            Err(problem) => Err(failure.passing(problem)),
        }
    }

    /// Attempts to read until it comes to something, as patiently as the settings say: not at all before the place has
    /// ever answered. `attempt` is told the patience, to renew it when something came.
    pub(super) fn patiently<T>(
        &self,
        attempt: &mut dyn FnMut(&mut Patience) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut patience = Patience::new(self.patience);
        loop {
            let problem = match attempt(&mut patience) {
                Err(problem @ StoreError::Passing { .. }) => problem,
                Err(problem @ StoreError::Settings { .. }) => return Err(problem),
                answer => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    self.tell_of_answer();
                    return answer;
                }
            };
            self.tell_of_silence(&problem, &patience);
            if !self.may_pass(&mut patience) {
                return Err(with_attempts(problem, &patience));
            }
        }
    }

    /// Of all who wait, one says so.
    fn tell_of_silence(&self, problem: &StoreError, patience: &Patience) {
        let has_waited = patience.waited_s() > TOLD_AFTER.as_secs_f64();
        if let Some(tell) = &self.tell
            && has_waited
            && !self.is_told.swap(true, Ordering::Relaxed)
        {
            let limit = self.patience.as_secs_f64();
            tell(&format!(
                "{problem}; it is asked again, for {limit:.0} s in all"
            ));
        }
    }

    fn tell_of_answer(&self) {
        if let Some(tell) = &self.tell
            && self.is_told.load(Ordering::Relaxed)
            && self.is_told.swap(false, Ordering::Relaxed)
        {
            tell(&format!("{} answers again", self.address));
        }
    }

    fn may_pass(&self, patience: &mut Patience) -> bool {
        let mut random = [0_u8];
        // Without random numbers all come back at once, which is no error.
        let _ = aws_lc_rs::rand::fill(&mut random);
        self.has_answered.load(Ordering::Relaxed) && patience.pause(f64::from(random[0]) / 255.0)
    }
}

/// How often and for how long it was tried is part of the message.
fn with_attempts(mut problem: StoreError, patience: &Patience) -> StoreError {
    if let StoreError::Passing { cause, .. } = &mut problem
        && patience.pauses > 0
    {
        let (times, waited_s) = (patience.pauses + 1, patience.waited_s());
        *cause = format!("{cause}; asked {times} times in {waited_s:.0} s");
    }
    problem
}

/// The stamp of an object; the same whether it was listed, looked at or read.
pub(super) fn stamp(meta: &ObjectMeta) -> Stamp {
    match &meta.e_tag {
        Some(e_tag) => {
            // Listings of Azure leave out the quotation marks.
            let plain = e_tag.trim_start_matches("W/").trim_matches('"');
            Stamp::of("etag", plain.as_bytes())
        }
        None => {
            let numbers = [meta.last_modified.timestamp() as u64, meta.size];
            Stamp::of("time", &numbers.map(u64::to_le_bytes).concat())
        }
    }
}
