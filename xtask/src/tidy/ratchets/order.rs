//! The order of the modules of each crate: `module_order.txt` names those below first. An import from a later one is against the order.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::ModuleGraph;

const ORDER: &str = include_str!("../module_order.txt");

/// Returns the pairs of modules at the top of a crate whose imports are against the order, and modules without a position.
pub(super) fn upward(graphs: &[ModuleGraph]) -> Vec<String> {
    let order = order();
    let mut found = Vec::new();
    for graph in graphs {
        let package = graph.package.trim_start_matches("crates/");
        let positions = order.get(package);
        let position = |module: &str| positions.and_then(|all| all.get(module));
        let pairs: BTreeSet<(&str, &str)> = graph
            .imports
            .iter()
            .filter_map(|(from, to)| Some((from.first()?.as_str(), to.first()?.as_str())))
            .filter(|(from, to)| from != to)
            .collect();
        for (from, to) in pairs {
            if position(from).is_none() || position(from) < position(to) {
                found.push(format!("crates/{package}: {from} imports from {to}"));
            }
        }
    }
    found
}

/// Returns the position of each module of each crate.
fn order() -> BTreeMap<&'static str, BTreeMap<&'static str, usize>> {
    let lines = ORDER.lines().filter(|line| !line.starts_with('#'));
    let crates = lines.filter_map(|line| line.split_once(": "));
    let positions = |names: &'static str| {
        names
            .split(' ')
            .enumerate()
            .map(|(at, name)| (name, at))
            .collect()
    };
    crates
        .map(|(package, names)| (package, positions(names)))
        .collect()
}
