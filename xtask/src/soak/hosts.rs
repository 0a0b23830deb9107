//! [`NamespacePair`]: two hosts, which are network namespaces here, and the cable between them.

use std::process::Command;

use anyhow::Result;

use crate::outside::run;

/// Two namespaces with a cable between them; gone when dropped.
pub(super) struct NamespacePair {
    names: [String; 2],
}

/// In which way a cable is cut, as the second host sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CableCut {
    /// Nothing passes.
    Both,
    /// What the second host sends is dropped.
    Output,
    /// What is sent to the second host is dropped.
    Input,
}

/// A table of rules of our own.
const TABLE: &str = "inet soak";

impl NamespacePair {
    /// Where the first one is reached.
    pub(super) const ADDRESS: &'static str = "10.78.0.1";
    /// What the second one is called.
    pub(super) const OTHER: &'static str = "b";

    pub(super) fn new() -> Result<Self> {
        let number = std::process::id();
        let names = ["a", "b"].map(|host| format!("ronde-soak-{host}-{number}"));
        // Dropped when any of it fails.
        let hosts = Self { names };
        let [a, b] = &hosts.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!(
            "-n {a} link add cable type veth peer name cable netns {b}"
        ))?;
        for (host, address) in [(a, Self::ADDRESS), (b, "10.78.0.2")] {
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("-n {host} addr add {address}/24 dev cable"))?;
            ip(&format!("-n {host} link set cable up"))?;
        }
        Ok(hosts)
    }

    /// What to put before a command line, so that it runs on the first or the second host.
    pub(super) fn prefix(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.names[host]]
    }

    pub(super) fn cut(&self, how: CableCut) -> Result<()> {
        let (hook, side) = match how {
            CableCut::Both => return self.cable("down"),
            CableCut::Output => ("output", "oifname"),
            CableCut::Input => ("input", "iifname"),
        };
        self.nft(&format!("add table {TABLE}"))?;
        self.nft(&format!(
            "add chain {TABLE} cable {{ type filter hook {hook} priority 0 ; }}"
        ))?;
        self.nft(&format!("add rule {TABLE} cable {side} \"cable\" drop"))
    }

    pub(super) fn heal(&self, how: CableCut) -> Result<()> {
        match how {
            CableCut::Both => self.cable("up"),
            _ => self.nft(&format!("delete table {TABLE}")),
        }
    }

    fn cable(&self, state: &str) -> Result<()> {
        ip(&format!("-n {} link set cable {state}", self.names[1]))
    }

    fn nft(&self, rule: &str) -> Result<()> {
        let prefix = ["netns", "exec", &self.names[1], "nft", rule];
        run(Command::new("ip").args(prefix)).map(drop)
    }
}

impl Drop for NamespacePair {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was never made.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Runs `ip` with these words.
fn ip(words: &str) -> Result<()> {
    run(Command::new("ip").args(words.split_whitespace())).map(drop)
}
