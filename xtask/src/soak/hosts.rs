//! [`NamespacePair`]: two network namespaces, which act as hosts, and the cable between them.

use std::process::Command;

use anyhow::Result;

use crate::outside::run;

/// Two network namespaces with a cable between them, removed on drop.
pub(super) struct NamespacePair {
    names: [String; 2],
}

/// The direction in which a cable is cut, from the view of the second host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CableCut {
    /// Both directions.
    Both,
    /// Packets from the second host are dropped.
    Output,
    /// Packets to the second host are dropped.
    Input,
}

/// The name of our table of firewall rules.
const TABLE: &str = "inet soak";

impl NamespacePair {
    /// The address of the first host.
    pub(super) const ADDRESS: &'static str = "10.78.0.1";
    /// The name of the second host.
    pub(super) const OTHER: &'static str = "b";

    pub(super) fn new() -> Result<Self> {
        let number = std::process::id();
        let names = ["a", "b"].map(|host| format!("ronde-soak-{host}-{number}"));
        // Dropping this value removes the namespaces if a command fails.
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

    /// Returns the prefix of a command line that runs it on the first or the second host.
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
            // The namespace may not exist.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Runs `ip` with space-separated arguments.
fn ip(words: &str) -> Result<()> {
    run(Command::new("ip").args(words.split_whitespace())).map(drop)
}
