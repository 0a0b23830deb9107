//! [`PlanIdentity`]: all settings that the bits of a model depend on, by name, so that errors can name a difference.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

/// The name of the newtype that [`outside_identity`] writes.
pub const OUTSIDE_IDENTITY: &str = "$ronde::OutsideIdentity";

/// Serializes a setting on which the trained bits do not depend, so that it does not become part of a plan's identity.
/// Settings use it as `#[serde(serialize_with = "ronde_core::outside_identity")]`. Formats write the value alone.
///
/// # Errors
/// Those of the value.
pub fn outside_identity<T: Serialize, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_newtype_struct(OUTSIDE_IDENTITY, value)
}

/// The named parts of a plan and their hash. Two workers may train together only if these are equal.
///
/// The world size, addresses and timeouts are not part of it, because the result does not depend on them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PlanIdentity {
    parts: BTreeMap<String, String>,
    /// Names of parts for messages, known only to the process that set them.
    #[serde(skip)]
    labels: BTreeMap<String, String>,
}

impl PartialEq for PlanIdentity {
    /// Compares the parts, because labels are only for messages.
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Eq for PlanIdentity {}

impl PlanIdentity {
    /// Sets a part: `("engine", "burn-flex 0.22.1")`, `("optimizer.learning_rate", "0.1")`.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.parts.insert(name.into(), value.into());
    }

    /// Sets a part that messages call `label` instead of its name. The label is not part of the plan.
    pub fn set_labelled(
        &mut self,
        name: impl Into<String>,
        label: impl Into<String>,
        value: impl Into<String>,
    ) {
        let name = name.into();
        self.labels.insert(name.clone(), label.into());
        self.set(name, value);
    }

    /// Removes all parts whose names start with `prefix`.
    pub fn remove_under(&mut self, prefix: &str) {
        self.retain(|name| !name.starts_with(prefix));
    }

    /// Keeps the parts whose names satisfy a condition.
    pub fn retain(&mut self, mut keeps: impl FnMut(&str) -> bool) {
        self.parts.retain(|name, _| keeps(name));
    }

    /// Returns the value of a part, if there is one.
    #[must_use]
    pub fn part(&self, name: &str) -> Option<&str> {
        self.parts.get(name).map(String::as_str)
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
    /// equal. At most five parts are spelled out. A part is left out if parts below it (`NAME.x`) differ.
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

    /// Returns the names of the parts that differ, sorted.
    #[must_use]
    pub fn differing(&self, other: &Self) -> Vec<String> {
        let names: std::collections::BTreeSet<&String> =
            self.parts.keys().chain(other.parts.keys()).collect();
        let differs = |name: &&String| self.parts.get(*name) != other.parts.get(*name);
        names.into_iter().filter(differs).cloned().collect()
    }

    fn compare(
        &self,
        theirs: &Self,
        sentence: impl Fn(&str, &str, &str) -> String,
    ) -> Option<String> {
        const SPELLED: usize = 5;
        let names = self.differing(theirs);
        let has_parts = |name: &str| {
            let mut below = names.iter().filter_map(|other| other.strip_prefix(name));
            below.any(|rest| rest.starts_with('.'))
        };
        let differing: Vec<String> = names
            .iter()
            .filter(|name| !has_parts(name))
            .map(|name| {
                let name = name.as_str();
                let value = |plan: &Self| plan.parts.get(name).cloned();
                let show = |plan: &Self| value(plan).unwrap_or_else(|| "nothing".to_owned());
                let label = self.labels.get(name).or(theirs.labels.get(name));
                sentence(
                    label.map_or(name, String::as_str),
                    &show(self),
                    &show(theirs),
                )
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

    #[test]
    fn a_difference_names_the_label_of_a_part_and_leaves_out_its_parent() {
        let plan = |whole: &str, first: &str| {
            let mut plan = PlanIdentity::default();
            plan.set("data.identity", whole);
            plan.set("data.identity.file-00", first);
            plan
        };
        let mut mine = plan("a", "b");
        let earlier = plan("c", "d");
        let unlabelled = mine.clone();
        mine.set_labelled("data.identity.file-00", "data file x.npy", "b");
        assert_eq!((mine.hash(), &mine), (unlabelled.hash(), &unlabelled));
        assert_eq!(
            mine.changes_since(&earlier).unwrap(),
            "data file x.npy changed from d to b"
        );
        assert_eq!(
            mine.difference(&plan("c", "b")).unwrap(),
            "data.identity is a here and c there"
        );
    }
}
