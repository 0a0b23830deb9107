//! [`HostDiscovery`]: decides which hosts join a job and which leave it, from the output of a script. Pure.

use std::collections::BTreeMap;

use crate::error::SubmitError;
use crate::hosts::HostSlots;

/// Seconds before a host that could not join is tried again; twice as long after each further failure.
const RETRY_S: f64 = 30.0;
/// The longest such time in seconds.
const RETRY_MAX_S: f64 = 900.0;

/// A change of the hosts of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostChange {
    /// A host has appeared.
    Join(HostSlots),
    /// A host has disappeared.
    Leave(String),
}

/// The failures of a host to join.
#[derive(Debug, Clone, Copy)]
struct FailedHost {
    times: i32,
    until_s: f64,
}

/// The hosts that a script has named, and those that could not join.
#[derive(Debug, Default)]
pub struct HostDiscovery {
    failed: BTreeMap<String, FailedHost>,
}

impl HostDiscovery {
    /// Parses the output of a script as `horovodrun --host-discovery-script` expects it: a line `HOST` or `HOST:SLOTS` for each
    /// host; a host without a number has `slots`.
    ///
    /// # Errors
    /// A line is not valid, a host is named twice, or there is none.
    pub fn parse(text: &str, slots: u32) -> Result<Vec<HostSlots>, SubmitError> {
        let mut hosts: Vec<HostSlots> = Vec::new();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        for line in lines {
            let mut host = HostSlots::parse(line)?;
            let has_slots = line.ends_with(&format!(":{}", host.slots));
            if !has_slots {
                host.slots = slots;
            }
            if hosts.iter().any(|known| known.host == host.host) {
                return Err(SubmitError::invalid(
                    format!("the script names host `{}` twice", host.host),
                    "print each host once, with the number of its slots: `HOST:SLOTS`",
                ));
            }
            hosts.push(host);
        }
        if hosts.is_empty() {
            // The first host is always one of them, so a script that prints nothing has failed.
            return Err(SubmitError::invalid(
                "the script names no host",
                "print a line `HOST:SLOTS` for each host, also for the first one of the job",
            ));
        }
        Ok(hosts)
    }

    /// Returns what to change, at a time in seconds. `first` is the host of the launcher, which neither joins nor leaves, and
    /// `connected` are the names of the hosts whose agents are connected.
    #[must_use]
    pub fn changes(
        &self,
        named: &[HostSlots],
        first: &str,
        connected: &[String],
        now_s: f64,
    ) -> Vec<HostChange> {
        let is_due = |host: &&HostSlots| {
            let failed = self.failed.get(&host.host);
            failed.is_none_or(|failed| now_s >= failed.until_s)
        };
        let joining = named.iter().filter(|host| host.host != first);
        let joining = joining.filter(|host| !connected.contains(&host.host));
        let joining = joining.filter(is_due).cloned().map(HostChange::Join);
        let is_named = |name: &String| named.iter().any(|host| host.host == *name);
        let leaving = connected
            .iter()
            .filter(|name| *name != first && !is_named(name));
        joining
            .chain(leaving.cloned().map(HostChange::Leave))
            .collect()
    }

    /// Notes that a host could not join. Returns the seconds until it is tried again.
    pub fn failed(&mut self, host: &str, now_s: f64) -> f64 {
        let failed = self.failed.entry(host.to_owned()).or_insert(FailedHost {
            times: 0,
            until_s: 0.0,
        });
        let wait_s = (RETRY_S * 2_f64.powi(failed.times)).min(RETRY_MAX_S);
        failed.times = (failed.times + 1).min(16);
        failed.until_s = now_s + wait_s;
        wait_s
    }

    /// Notes that a host has joined.
    pub fn joined(&mut self, host: &str) {
        self.failed.remove(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Vec<HostSlots> {
        HostDiscovery::parse(text, 4).unwrap()
    }

    #[test]
    fn lines_name_hosts_with_their_slots() {
        let hosts = named("gpu1:2\n\n me@gpu2 \n[fe80::1]:3\n");
        let slots: Vec<(&str, u32)> = hosts
            .iter()
            .map(|host| (host.host.as_str(), host.slots))
            .collect();
        assert_eq!(slots, [("gpu1", 2), ("me@gpu2", 4), ("fe80::1", 3)]);
        for text in ["", "\n", "a:0", "a b", "a:1\na:2", "-oProxyCommand=x"] {
            assert!(HostDiscovery::parse(text, 1).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts_that_appear_join_and_those_that_disappear_leave() {
        let mut discovery = HostDiscovery::default();
        let connected = ["a", "b", "c"].map(str::to_owned);
        let changes = discovery.changes(&named("a:1\nc:1\nd:2\n"), "a", &connected, 0.0);
        let expected = [
            HostChange::Join(HostSlots::parse("d:2").unwrap()),
            HostChange::Leave("b".to_owned()),
        ];
        assert_eq!(changes, expected);
        // The host of the launcher stays, whether it is named or not.
        assert_eq!(discovery.changes(&[], "a", &["a".to_owned()], 0.0), []);
        assert_eq!(discovery.changes(&named("a:1"), "a", &[], 0.0), []);
        assert_eq!(discovery.failed("d", 0.0), 30.0);
        assert_eq!(discovery.changes(&named("d:2"), "a", &[], 29.0), []);
        assert_eq!(discovery.changes(&named("d:2"), "a", &[], 30.0).len(), 1);
        assert_eq!(discovery.failed("d", 30.0), 60.0);
        discovery.joined("d");
        assert_eq!(discovery.failed("d", 100.0), 30.0);
    }
}
