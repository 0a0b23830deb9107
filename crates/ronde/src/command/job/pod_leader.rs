//! [`LeaderFile`]: the record of the pod that leads a job, where all of its pods read and replace it; and [`HeldLead`]: the
//! renewals of the pod that leads.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ronde::environment;
use ronde_store::{
    Address, Condition, LocalStore, ObjectName, Store, StoreError, StoreExt, Version,
};
use ronde_submit::{ENDS_AFTER, KubernetesPod, LeaderRecord, LeaderState, RENEW_EVERY};

use crate::command::console::message;
use crate::command::job::open;

/// The name of the record.
const LEADER_FILE: &str = "leader.json";
/// The largest size of the record.
const BYTES_MAX: u64 = 1 << 16;
/// Interval at which the time since the last renewal is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A record and its version, which a writer replaces.
pub(crate) type FoundRecord = (LeaderRecord, Version);

/// The record of the pod that leads a job: in the folder of the job, or at the address of its results.
#[derive(Clone)]
pub(crate) struct LeaderFile {
    store: Arc<dyn Store>,
    name: ObjectName,
}

impl LeaderFile {
    /// Opens the record of a job, which need not exist.
    pub(crate) fn open(folder: &Path, address: Option<&str>) -> Result<Self, StoreError> {
        let store: Arc<dyn Store> = match address {
            None => Arc::new(LocalStore::new(folder)),
            Some(address) => {
                let address: Address = address.parse()?;
                ronde_store::open(&address, &environment::store_settings())?
            }
        };
        Ok(Self {
            store,
            name: ObjectName::new(LEADER_FILE)?,
        })
    }

    /// Returns the present record.
    pub(crate) fn read(&self) -> Result<Option<FoundRecord>, StoreError> {
        let Some(found) = self.store.get_versioned(&self.name, BYTES_MAX)? else {
            return Ok(None);
        };
        let record = serde_json::from_slice(&found.contents?);
        let record = record.map_err(|error| StoreError::Damaged {
            location: LEADER_FILE.to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Some((record, found.version)))
    }

    /// Writes a record if the present one is still that with the version `before`, or if there is none.
    pub(crate) fn replace(
        &self,
        record: &LeaderRecord,
        before: Option<Version>,
    ) -> Result<Version, StoreError> {
        let bytes = serde_json::to_vec(record).unwrap_or_default();
        let condition = before.map_or(Condition::Absent, Condition::Unchanged);
        self.store.put_if(&self.name, &bytes, &condition)
    }

    /// Replaces a record of this pod, also if it was replaced by this pod itself in an attempt whose answer was lost.
    fn replace_own(&self, record: &LeaderRecord, before: Version) -> Result<Version, StoreError> {
        match self.replace(record, Some(before)) {
            Err(conflict) if conflict.is_conflict() => match self.read()? {
                Some((found, version)) if is_same_lead(&found, record) => {
                    self.replace(record, Some(version))
                }
                _ => Err(conflict),
            },
            replaced => replaced,
        }
    }
}

fn is_same_lead(found: &LeaderRecord, own: &LeaderRecord) -> bool {
    (found.term, &found.pod) == (own.term, &own.pod)
}

/// The lead of a job that this pod has, which is renewed until it is given up.
pub(crate) struct HeldLead {
    renewals: JoinHandle<FoundRecord>,
    watchdog: JoinHandle<()>,
    /// Dropped at the end.
    stop: [Sender<()>; 2],
    file: LeaderFile,
}

impl HeldLead {
    /// Renews a record from now on. If another pod leads, or this one could not renew it for so long that another one may lead,
    /// ends all processes of this pod; in the latter case only if `has_others`.
    pub(crate) fn start(
        file: LeaderFile,
        held: FoundRecord,
        pod: &KubernetesPod,
        has_others: impl Fn() -> bool + Send + 'static,
    ) -> Self {
        let started = ronde_clock::now();
        let renewed = Arc::new(AtomicU64::new(0));
        let (stop_renewals, renewals_stopped) = channel();
        let (stop_watchdog, watchdog_stopped) = channel::<()>();
        let folder = pod.folders.pod.clone();
        let watchdog = std::thread::spawn({
            let (renewed, folder) = (Arc::clone(&renewed), folder.clone());
            move || {
                while is_timeout(watchdog_stopped.recv_timeout(LOOK_EVERY)) {
                    let last = started + Duration::from_millis(renewed.load(Ordering::SeqCst));
                    if ronde_clock::now().duration_since(last) > ENDS_AFTER && has_others() {
                        message!(
                            "this pod could not renew its lead for {} s, after which another pod may continue the run: ending",
                            ENDS_AFTER.as_secs()
                        );
                        return end(&folder);
                    }
                }
            }
        });
        let renewing = file.clone();
        let renewals = std::thread::spawn(move || {
            let (mut record, mut version) = held;
            let mut reported = false;
            while is_timeout(renewals_stopped.recv_timeout(RENEW_EVERY)) {
                let begun = ronde_clock::now();
                let next = record.renewed();
                match renewing.replace_own(&next, version.clone()) {
                    Ok(replaced) => {
                        (record, version, reported) = (next, replaced, false);
                        renewed.store(millis(begun, started), Ordering::SeqCst);
                    }
                    Err(error) if error.is_conflict() => {
                        message!("another pod leads this job: ending");
                        end(&folder);
                        break;
                    }
                    Err(error) if !reported => {
                        message!("warning: cannot renew the lead of this pod: {error}");
                        reported = true;
                    }
                    Err(_) => {}
                }
            }
            (record, version)
        });
        Self {
            renewals,
            watchdog,
            stop: [stop_renewals, stop_watchdog],
            file,
        }
    }

    /// Gives the lead up: another pod continues the run, or the run has ended.
    pub(crate) fn give_up(self, state: LeaderState) {
        drop(self.stop);
        let held = self.renewals.join();
        // The thread has ended, or ends this process.
        let _ = self.watchdog.join();
        let Ok((record, version)) = held else { return };
        if let Err(error) = self.file.replace_own(&record.ended(state), version)
            && !error.is_conflict()
        {
            message!("warning: cannot note the end of this launcher: {error}");
        }
    }
}

fn is_timeout(received: Result<(), RecvTimeoutError>) -> bool {
    received == Err(RecvTimeoutError::Timeout)
}

fn millis(time: Instant, since: Instant) -> u64 {
    u64::try_from(time.duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

/// Ends all processes of this pod at once.
fn end(folder: &Path) {
    let mut stop = Command::new(open::this_program());
    stop.args(["__job", "stop", "--grace", "0"]).arg(folder);
    if let Err(error) = stop.stdin(Stdio::null()).spawn() {
        message!("cannot end the processes of this pod: {error}");
        std::process::abort();
    }
}
