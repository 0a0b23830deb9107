//! [`TestNetwork`]: hosts for tests, which are network namespaces on one bridge. They share the disk and the processors.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs `ip` with these arguments and returns whether it succeeded.
pub(crate) fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

/// Returns the address of a host.
pub(crate) fn address(host: usize) -> String {
    format!("10.79.0.{}", host + 1)
}

/// Network namespaces, each with an address. They are deleted with their processes when dropped.
pub(crate) struct TestNetwork {
    /// The names of the namespaces.
    pub(crate) names: Vec<String>,
    /// The namespace of the bridge.
    hub: String,
}

impl TestNetwork {
    /// Connects `count` namespaces to a bridge. Returns `None` where that is not possible.
    pub(crate) fn new(count: usize) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = format!(
            "{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let network = Self {
            names: (0..count)
                .map(|host| format!("ronde-h{host}-{number}"))
                .collect(),
            hub: format!("ronde-hub-{number}"),
        };
        network.connect().then_some(network)
    }

    fn connect(&self) -> bool {
        let hub = &self.hub;
        let made = ip(&format!("netns add {hub}"))
            && ip(&format!("-n {hub} link add bridge type bridge"))
            && ip(&format!("-n {hub} link set bridge up"));
        made && self.names.iter().enumerate().all(|(number, name)| {
            ip(&format!("netns add {name}"))
                && ip(&format!(
                    "-n {name} link add cable type veth peer name port{number} netns {hub}"
                ))
                && ip(&format!("-n {hub} link set port{number} master bridge up"))
                && ip(&format!("-n {name} link set lo up"))
                && ip(&format!(
                    "-n {name} addr add {}/24 dev cable",
                    address(number)
                ))
                && ip(&format!("-n {name} link set cable up"))
        })
    }

    /// Returns the words that start a program on a host. Its control groups remain visible, as `ip netns exec` would not
    /// have it.
    pub(crate) fn enter(&self, host: usize) -> [String; 2] {
        let namespace = format!("--net=/run/netns/{}", self.names[host]);
        ["nsenter".to_owned(), namespace]
    }

    /// Cuts the cable of a host, or repairs it with `up`.
    pub(crate) fn cable(&self, host: usize, state: &str) {
        assert!(ip(&format!("-n {} link set port{host} {state}", self.hub)));
    }

    /// Returns the processes of a host.
    pub(crate) fn processes(&self, host: usize) -> Vec<u32> {
        processes(&self.names[host])
    }
}

fn processes(namespace: &str) -> Vec<u32> {
    let listed = Command::new("ip")
        .args(["netns", "pids", namespace])
        .output();
    let listed = listed.map_or_else(|_| Vec::new(), |output| output.stdout);
    let listed = String::from_utf8_lossy(&listed).into_owned();
    listed
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

impl Drop for TestNetwork {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.hub]) {
            // Also ends connections that are shared for a while, and the rest of a failed test.
            for pid in processes(name) {
                let pid = pid.to_string();
                let _ = Command::new("kill").args(["-9", &pid]).output();
            }
            ip(&format!("netns del {name}"));
        }
    }
}
