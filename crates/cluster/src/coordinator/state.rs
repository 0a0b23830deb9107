//! [`State`]: what a coordinator keeps for the next one beside the record: what is wanted, and which
//! places belong to which host.

use std::collections::BTreeMap;
use std::time::Duration;

use ronde_elastic::WorkerSlot;
use ronde_store::{ObjectName, StoreExt};
use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::job::{JobFolder, store_error};
use crate::talk::SLOTS_MAX;

const STATE: &str = "state.json";
const BYTES_MAX: u64 = 1 << 20;

/// Written by the coordinator that leads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// How many workers were asked for last.
    pub(crate) workers: Option<u32>,
    /// The first place of each host that was ever here.
    hosts: BTreeMap<String, WorkerSlot>,
    /// When workers died at each place: the newest ones, in milliseconds since 1970.
    #[serde(default)]
    deaths: BTreeMap<WorkerSlot, Vec<u64>>,
}

/// Deaths that are remembered of a place; more than any limit of restarts that a place may come near to.
const DEATHS_MAX: usize = 100;

impl State {
    /// What the coordinator before kept.
    pub(crate) fn read(folder: &JobFolder) -> Result<Self, ClusterError> {
        let name = ObjectName::new(STATE).map_err(store_error)?;
        let bytes = match folder.store().get(&name, BYTES_MAX) {
            Err(error) if error.is_not_found() => return Ok(Self::default()),
            other => other.map_err(store_error)?,
        };
        serde_json::from_slice(&bytes)
            .map_err(|error| crate::job::job_error(folder.path(), format!("{STATE}: {error}")))
    }

    /// Keeps it for the next one.
    pub(super) fn write(&self, folder: &JobFolder) -> Result<(), ClusterError> {
        let name = ObjectName::new(STATE).map_err(store_error)?;
        let bytes = serde_json::to_vec(self)
            .map_err(|error| crate::job::job_error(folder.path(), error.to_string()))?;
        folder.store().put(&name, &bytes).map_err(store_error)
    }

    /// A worker has died at a place.
    pub(super) fn died(&mut self, slot: WorkerSlot, now_ms: u64) {
        let deaths = self.deaths.entry(slot).or_default();
        deaths.push(now_ms);
        let surplus = deaths.len().saturating_sub(DEATHS_MAX);
        deaths.drain(..surplus);
    }

    /// How long ago workers have died at each place.
    pub(super) fn deaths(&self, now_ms: u64) -> Vec<(WorkerSlot, Vec<Duration>)> {
        let age = |at: &u64| Duration::from_millis(now_ms.saturating_sub(*at));
        let slots = self.deaths.iter();
        slots
            .map(|(slot, deaths)| (*slot, deaths.iter().map(age).collect()))
            .collect()
    }

    /// The first place of a host, and whether it is new. `known`: the one that the host has from an
    /// earlier coordinator.
    pub(super) fn first_place(&mut self, host: &str, known: Option<WorkerSlot>) -> (WorkerSlot, bool) {
        if let Some(first) = self.hosts.get(host) {
            return (*first, false);
        }
        let taken = |first: &WorkerSlot| self.hosts.values().any(|other| other == first);
        let after = self.hosts.values().max();
        let next = after.map_or(WorkerSlot(0), |last| WorkerSlot(last.0 + u64::from(SLOTS_MAX)));
        let first = known.filter(|first| !taken(first)).unwrap_or(next);
        self.hosts.insert(host.to_owned(), first);
        (first, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_deaths_of_a_place_are_known_by_their_age() {
        let mut state = State::default();
        for at in 0..150 {
            state.died(WorkerSlot(3), 1_000 * at);
        }
        let text = serde_json::to_vec(&state).unwrap();
        let state: State = serde_json::from_slice(&text).unwrap();
        let deaths = state.deaths(150_000);
        assert_eq!(deaths.len(), 1);
        let (slot, ages) = &deaths[0];
        assert_eq!((*slot, ages.len()), (WorkerSlot(3), DEATHS_MAX));
        assert_eq!(ages.last(), Some(&Duration::from_secs(1)));
        // What an older version wrote.
        let old: State = serde_json::from_str(r#"{"workers":2,"hosts":{"a":0}}"#).unwrap();
        assert!(old.deaths(0).is_empty());
    }

    #[test]
    fn every_host_keeps_places_of_its_own() {
        let mut state = State::default();
        assert_eq!(state.first_place("a", None), (WorkerSlot(0), true));
        assert_eq!(state.first_place("b", None), (WorkerSlot(1000), true));
        assert_eq!(state.first_place("a", Some(WorkerSlot(7))), (WorkerSlot(0), false));
        // A coordinator that has lost its state learns from those who come, but gives nothing twice.
        let mut state = State::default();
        assert_eq!(
            state.first_place("b", Some(WorkerSlot(1000))),
            (WorkerSlot(1000), true)
        );
        assert_eq!(
            state.first_place("c", Some(WorkerSlot(1000))),
            (WorkerSlot(2000), true)
        );
    }
}
