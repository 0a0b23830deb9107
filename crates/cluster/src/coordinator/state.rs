//! [`CoordinatorState`]: the data that a coordinator saves for its successor in addition to the
//! record: the target number of workers, and the slots of each host.

use std::collections::BTreeMap;
use std::time::Duration;

use ronde_protocol::WorkerSlot;
use ronde_store::{ObjectName, StoreExt};
use serde::{Deserialize, Serialize};

use crate::error::{ClusterError, store_error};
use crate::job::JobFolder;
use crate::messages::SLOTS_MAX;

const STATE: &str = "state.json";
const BYTES_MAX: u64 = 1 << 20;

/// The saved data, written by the leading coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CoordinatorState {
    /// The last requested number of workers.
    pub(crate) workers: Option<u32>,
    /// The first slot of each host that has ever joined.
    hosts: BTreeMap<String, WorkerSlot>,
    /// The latest failures of workers in each slot, in milliseconds since 1970.
    #[serde(default)]
    deaths: BTreeMap<WorkerSlot, Vec<u64>>,
}

/// Number of failures kept per slot, which is above any sensible limit of restarts.
const DEATHS_MAX: usize = 100;

impl CoordinatorState {
    /// Reads the data that the previous coordinator saved.
    pub(crate) fn read(folder: &JobFolder) -> Result<Self, ClusterError> {
        let name = ObjectName::new(STATE).map_err(store_error)?;
        let bytes = match folder.store().get(&name, BYTES_MAX) {
            Err(error) if error.is_not_found() => return Ok(Self::default()),
            other => other.map_err(store_error)?,
        };
        serde_json::from_slice(&bytes)
            .map_err(|error| crate::job::job_error(folder.path(), format!("{STATE}: {error}")))
    }

    /// Saves the data for the next coordinator.
    pub(super) fn write(&self, folder: &JobFolder) -> Result<(), ClusterError> {
        let name = ObjectName::new(STATE).map_err(store_error)?;
        let bytes = serde_json::to_vec(self)
            .map_err(|error| crate::job::job_error(folder.path(), error.to_string()))?;
        folder.store().put(&name, &bytes).map_err(store_error)
    }

    /// Records a failure of a worker in a slot.
    pub(super) fn died(&mut self, slot: WorkerSlot, now_ms: u64) {
        let deaths = self.deaths.entry(slot).or_default();
        deaths.push(now_ms);
        let surplus = deaths.len().saturating_sub(DEATHS_MAX);
        deaths.drain(..surplus);
    }

    /// Returns the age of each failure in each slot. A failure in the future was stored before the clock was set back, so its age
    /// is unknown and it does not count.
    pub(super) fn deaths(&self, now_ms: u64) -> Vec<(WorkerSlot, Vec<Duration>)> {
        let age = |at: &u64| now_ms.checked_sub(*at).map(Duration::from_millis);
        let slots = self.deaths.iter();
        slots
            .map(|(slot, deaths)| (*slot, deaths.iter().filter_map(age).collect()))
            .collect()
    }

    /// Returns the first slot of a host, and whether it is new. `known` is the slot that the host
    /// got from an earlier coordinator.
    pub(super) fn first_slot(
        &mut self,
        host: &str,
        known: Option<WorkerSlot>,
    ) -> (WorkerSlot, bool) {
        if let Some(first) = self.hosts.get(host) {
            return (*first, false);
        }
        let taken = |first: &WorkerSlot| self.hosts.values().any(|other| other == first);
        let after = self.hosts.values().max();
        let next = after.map_or(WorkerSlot(0), |last| {
            WorkerSlot(last.0 + u64::from(SLOTS_MAX))
        });
        let first = known.filter(|first| !taken(first)).unwrap_or(next);
        self.hosts.insert(host.to_owned(), first);
        (first, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_failures_in_a_slot_are_known_by_their_age() {
        let mut state = CoordinatorState::default();
        for at in 0..150 {
            state.died(WorkerSlot(3), 1_000 * at);
        }
        let text = serde_json::to_vec(&state).unwrap();
        let state: CoordinatorState = serde_json::from_slice(&text).unwrap();
        let deaths = state.deaths(150_000);
        assert_eq!(deaths.len(), 1);
        let (slot, ages) = &deaths[0];
        assert_eq!((*slot, ages.len()), (WorkerSlot(3), DEATHS_MAX));
        assert_eq!(ages.last(), Some(&Duration::from_secs(1)));
        let set_back = state.deaths(148_500);
        assert_eq!(
            set_back[0].1.len(),
            DEATHS_MAX - 1,
            "the newest is in the future"
        );
        // Written by an older version.
        let old: CoordinatorState =
            serde_json::from_str(r#"{"workers":2,"hosts":{"a":0}}"#).unwrap();
        assert!(old.deaths(0).is_empty());
    }

    #[test]
    fn every_host_has_its_own_slots() {
        let mut state = CoordinatorState::default();
        assert_eq!(state.first_slot("a", None), (WorkerSlot(0), true));
        assert_eq!(state.first_slot("b", None), (WorkerSlot(1000), true));
        assert_eq!(
            state.first_slot("a", Some(WorkerSlot(7))),
            (WorkerSlot(0), false)
        );
        // A coordinator without saved state learns slots from connecting hosts, but assigns none
        // twice.
        let mut state = CoordinatorState::default();
        assert_eq!(
            state.first_slot("b", Some(WorkerSlot(1000))),
            (WorkerSlot(1000), true)
        );
        assert_eq!(
            state.first_slot("c", Some(WorkerSlot(1000))),
            (WorkerSlot(2000), true)
        );
    }
}
