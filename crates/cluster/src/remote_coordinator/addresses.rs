//! [`CoordinatorAddresses`]: where the coordinators of a job may be reached.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::job::JobFolder;
use crate::peer_address::PeerAddress;

/// The addresses of a job's coordinators: those in its folder, those that the user named, and those that coordinators sent.
pub(super) struct CoordinatorAddresses {
    folder: Option<JobFolder>,
    /// The name that the user gave, with its last addresses.
    named: Mutex<Vec<(PeerAddress, Vec<SocketAddr>)>>,
    learned: Mutex<Vec<SocketAddr>>,
}

impl CoordinatorAddresses {
    pub(super) fn new(named: Vec<PeerAddress>, folder: Option<JobFolder>) -> Self {
        let named = named.into_iter().map(|name| (name, Vec::new())).collect();
        Self {
            folder,
            named: Mutex::new(named),
            learned: Mutex::default(),
        }
    }

    /// Resolves all names again, and returns the problems. A name that cannot be resolved keeps its last addresses.
    pub(super) fn resolve(&self, limit: std::time::Duration) -> Vec<String> {
        let names: Vec<PeerAddress> = lock(&self.named)
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        let resolved: Vec<_> = names.iter().map(|name| name.resolve(limit)).collect();
        let mut problems = Vec::new();
        for ((_, last), found) in lock(&self.named).iter_mut().zip(resolved) {
            match found {
                Ok(found) => *last = found,
                Err(problem) => problems.push(problem),
            }
        }
        problems
    }

    /// Adds addresses that a coordinator sent.
    pub(super) fn learn(&self, more: Vec<SocketAddr>) {
        let mut learned = lock(&self.learned);
        for address in more {
            if !learned.contains(&address) {
                learned.push(address);
            }
        }
    }

    /// Returns the addresses to try: those in the job's folder, the newest first, then the others.
    pub(super) fn candidates(&self) -> Vec<SocketAddr> {
        let listed = self
            .folder
            .as_ref()
            .and_then(|folder| folder.coordinators().ok());
        let mut all = listed.unwrap_or_default();
        for (_, found) in lock(&self.named).iter() {
            all.extend(found);
        }
        all.extend(lock(&self.learned).iter());
        let mut seen = BTreeSet::new();
        all.retain(|address| seen.insert(*address));
        all
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn named_and_learned_addresses_are_candidates_once_and_unknown_names_are_problems() {
        let limit = Duration::from_secs(60);
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let names = ["no-such-host.invalid:4711", "10.0.0.1:4711"];
        let named = names.map(|text| text.parse().unwrap()).to_vec();
        let addresses = CoordinatorAddresses::new(named, None);
        assert_eq!(addresses.candidates(), []);
        let problems = addresses.resolve(limit);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("`no-such-host.invalid`"));
        addresses.learn(vec![at("10.0.0.2:4711"), at("10.0.0.1:4711")]);
        addresses.learn(vec![at("10.0.0.2:4711")]);
        let expected = [at("10.0.0.1:4711"), at("10.0.0.2:4711")];
        assert_eq!(addresses.candidates(), expected);
    }
}
