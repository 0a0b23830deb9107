//! [`PlanIdentity`]: all settings that the bits of a model depend on, by name, so that errors can name a difference.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The named parts of a plan and their hash. Two workers may train together only if these are equal.
///
/// The world size, addresses and timeouts are not part of it, because the result does not depend on them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlanIdentity {
    parts: BTreeMap<String, String>,
}

impl PlanIdentity {
    /// Sets a part: `("engine", "burn-flex 0.22.1")`, `("optimizer.learning_rate", "0.1")`.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.parts.insert(name.into(), value.into());
    }

    /// Removes all parts whose names start with `prefix`.
    pub fn remove_under(&mut self, prefix: &str) {
        self.parts.retain(|name, _| !name.starts_with(prefix));
    }

    /// Returns the parts, sorted by name.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the blake3 hash of all parts.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for (name, value) in &self.parts {
            for text in [name, value] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// Returns the hash as 64 hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.hash()).to_hex().to_string()
    }

    /// Lists the parts that differ as `NAME is A here and B there`, or returns `None` when the plans are
    /// equal. At most five parts are spelled out.
    #[must_use]
    pub fn difference(&self, theirs: &Self) -> Option<String> {
        self.compare(theirs, |name, mine, theirs| {
            format!("{name} is {mine} here and {theirs} there")
        })
    }

    /// Lists the parts that have changed since `earlier` as `NAME changed from A to B`, as
    /// [`PlanIdentity::difference`] does.
    #[must_use]
    pub fn changes_since(&self, earlier: &Self) -> Option<String> {
        self.compare(earlier, |name, new, old| {
            format!("{name} changed from {old} to {new}")
        })
    }

    fn compare(
        &self,
        theirs: &Self,
        sentence: impl Fn(&str, &str, &str) -> String,
    ) -> Option<String> {
        const SPELLED: usize = 5;
        let names: std::collections::BTreeSet<&String> =
            self.parts.keys().chain(theirs.parts.keys()).collect();
        let differing: Vec<String> = names
            .into_iter()
            .filter(|name| self.parts.get(*name) != theirs.parts.get(*name))
            .map(|name| {
                let value = |plan: &Self| plan.parts.get(name).cloned();
                let show = |plan: &Self| value(plan).unwrap_or_else(|| "nothing".to_owned());
                sentence(name, &show(self), &show(theirs))
            })
            .collect();
        match differing.len() {
            0 => None,
            n if n > SPELLED => Some(format!(
                "{}; and {} more",
                differing[..SPELLED].join("; "),
                n - SPELLED
            )),
            _ => Some(differing.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_reported_by_name_and_changes_the_hash() {
        let mut mine = PlanIdentity::default();
        mine.set("run.seed", "42");
        mine.set("engine", "burn-flex 0.22.1");
        let mut theirs = mine.clone();
        assert_eq!(mine.difference(&theirs), None);
        assert_eq!(mine.hash(), theirs.hash());
        theirs.set("run.seed", "43");
        theirs.set("cpu", "avx2");
        let difference = mine.difference(&theirs).unwrap();
        assert_eq!(
            difference,
            "cpu is nothing here and avx2 there; run.seed is 42 here and 43 there"
        );
        assert_eq!(
            theirs.changes_since(&mine).unwrap(),
            "cpu changed from nothing to avx2; run.seed changed from 42 to 43"
        );
        assert_ne!(mine.hash(), theirs.hash());
    }

    #[test]
    fn parts_cannot_be_shifted_into_each_other() {
        let mut one = PlanIdentity::default();
        one.set("ab", "c");
        let mut other = PlanIdentity::default();
        other.set("a", "bc");
        assert_ne!(one.hash(), other.hash());
    }
}
