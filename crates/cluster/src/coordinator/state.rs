//! [`State`]: what a coordinator keeps for the next one beside the record: what is wanted, and which
//! places belong to which host.

use std::collections::BTreeMap;

use ronde_elastic::Place;
use ronde_store::{ObjectName, StoreExt};
use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::job::{JobFolder, store_error};
use crate::talk::PLACES_MAX;

const STATE: &str = "state.json";
const BYTES_MAX: u64 = 1 << 20;

/// Written by the coordinator that leads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// How many workers were asked for last.
    pub(super) workers: Option<u32>,
    /// The first place of each host that was ever here.
    hosts: BTreeMap<String, Place>,
}

impl State {
    /// What the coordinator before kept.
    pub(super) fn read(folder: &JobFolder) -> Result<Self, ClusterError> {
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

    /// The first place of a host, and whether it is new. `known`: the one that the host has from an
    /// earlier coordinator.
    pub(super) fn first_place(&mut self, host: &str, known: Option<Place>) -> (Place, bool) {
        if let Some(first) = self.hosts.get(host) {
            return (*first, false);
        }
        let taken = |first: &Place| self.hosts.values().any(|other| other == first);
        let after = self.hosts.values().max();
        let next = after.map_or(Place(0), |last| Place(last.0 + u64::from(PLACES_MAX)));
        let first = known.filter(|first| !taken(first)).unwrap_or(next);
        self.hosts.insert(host.to_owned(), first);
        (first, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_keeps_places_of_its_own() {
        let mut state = State::default();
        assert_eq!(state.first_place("a", None), (Place(0), true));
        assert_eq!(state.first_place("b", None), (Place(1000), true));
        assert_eq!(state.first_place("a", Some(Place(7))), (Place(0), false));
        // A coordinator that has lost its state learns from those who come, but gives nothing twice.
        let mut state = State::default();
        assert_eq!(
            state.first_place("b", Some(Place(1000))),
            (Place(1000), true)
        );
        assert_eq!(
            state.first_place("c", Some(Place(1000))),
            (Place(2000), true)
        );
    }
}
