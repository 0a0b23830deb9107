//! [`ParameterGroup`]: parameters, selected by name, that are updated with settings of their own.

use serde::{Deserialize, Serialize};

use super::OptimizerConfig;

/// Parameters, selected by name, that are updated with settings of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// The pattern of the names; `*` matches any text, also with dots.
    pub tensors: String,
    /// The factor of the learning rate.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = 1.0)))]
    pub learning_rate_factor: f64,
    /// The weight decay, also of parameters that are not decayed otherwise; absent: that of the optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Whether the parameters keep their values. Their gradients are computed but do not count in the norm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = false)))]
    pub frozen: bool,
}

fn one() -> f64 {
    1.0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde requires"
)]
fn is_one(factor: &f64) -> bool {
    *factor == 1.0
}

impl ParameterGroup {
    /// Creates a group with the settings of the optimizer.
    ///
    /// ```
    /// use ronde_engine::ParameterGroup;
    ///
    /// let frozen = ParameterGroup { frozen: true, ..ParameterGroup::new("encoder.*") };
    /// assert!(frozen.contains("encoder.0.weight") && !frozen.contains("decoder.0.weight"));
    /// ```
    #[must_use]
    pub fn new(tensors: impl Into<String>) -> Self {
        Self {
            tensors: tensors.into(),
            learning_rate_factor: 1.0,
            weight_decay: None,
            frozen: false,
        }
    }

    /// Returns whether a parameter of this name belongs to the group.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        matches_pattern(&self.tensors, name)
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// The first invalid number, by name.
    pub fn check(&self) -> Result<(), String> {
        let numbers = [
            ("learning_rate_factor", Some(self.learning_rate_factor)),
            ("weight_decay", self.weight_decay),
        ];
        for (name, value) in numbers {
            if let Some(value) = value.filter(|value| !value.is_finite() || *value < 0.0) {
                return Err(format!("{name} = {value}; expected at least 0"));
            }
        }
        Ok(())
    }
}

/// Returns whether a name matches a pattern in which `*` stands for any text.
#[must_use]
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        // The leftmost occurrence leaves the most text for the remaining parts.
        let Some(at) = name.find(part) else {
            return false;
        };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

/// The update of one parameter: the rule and settings of the group that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterRule {
    /// The update rule.
    pub rule: OptimizerConfig,
    /// The factor of the learning rate.
    pub learning_rate_factor: f64,
    /// Whether the parameter keeps its value.
    pub is_frozen: bool,
}

impl ParameterRule {
    /// Returns the update of a parameter: that of the first group that contains it, otherwise `rule` without weight
    /// decay if it `is_decayed` not.
    #[must_use]
    pub fn of(
        name: &str,
        rule: OptimizerConfig,
        is_decayed: bool,
        groups: &[ParameterGroup],
    ) -> Self {
        let group = groups.iter().find(|group| group.contains(name));
        let usual = if is_decayed {
            rule
        } else {
            rule.without_decay()
        };
        let decay = group.and_then(|group| group.weight_decay);
        Self {
            rule: decay.map_or(usual, |decay| rule.with_decay(decay)),
            learning_rate_factor: group.map_or(1.0, |group| group.learning_rate_factor),
            is_frozen: group.is_some_and(|group| group.frozen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, name, expected) in [
            ("a.weight", "a.weight", true),
            ("a.weight", "a.weights", false),
            ("a.*", "a.b.weight", true),
            ("*.bias", "a.b.bias", true),
            ("*.bias", "a.bias.x", false),
            ("*norm*scale", "b.norm1.scale", true),
            ("a*a", "a", false),
            ("*a*a*", "xaya", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_first_group_that_matches_counts() {
        let sgd: OptimizerConfig =
            serde_json::from_str(r#"{"kind": "sgd", "weight_decay": 0.5}"#).unwrap();
        let groups = [
            ParameterGroup {
                frozen: true,
                ..ParameterGroup::new("a.*")
            },
            ParameterGroup {
                weight_decay: Some(0.25),
                learning_rate_factor: 0.1,
                ..ParameterGroup::new("*")
            },
        ];
        let of = |name: &str| ParameterRule::of(name, sgd, false, &groups);
        assert!(of("a.bias").is_frozen);
        assert_eq!(of("a.bias").rule, sgd.without_decay());
        assert_eq!(of("b.bias").rule, sgd.with_decay(0.25));
        assert_eq!(of("b.bias").learning_rate_factor, 0.1);
        let plain = ParameterRule::of("b.bias", sgd, true, &[]);
        assert_eq!((plain.rule, plain.learning_rate_factor), (sgd, 1.0));
    }

    #[test]
    fn decay_replaces_that_of_every_rule() {
        for kind in ["sgd", "adam", "adamw", "lars", "lamb"] {
            let rule: OptimizerConfig =
                serde_json::from_value(serde_json::json!({"kind": kind})).unwrap();
            let changed = serde_json::to_value(rule.with_decay(0.125)).unwrap();
            assert_eq!(changed["weight_decay"], 0.125);
            assert_eq!(changed["kind"], kind);
        }
    }

    #[test]
    fn invalid_numbers_are_refused_by_name() {
        let mut group = ParameterGroup::new("*");
        assert_eq!(group.check(), Ok(()));
        group.weight_decay = Some(-1.0);
        assert!(group.check().unwrap_err().contains("weight_decay = -1"));
        group.learning_rate_factor = f64::NAN;
        assert!(group.check().unwrap_err().contains("learning_rate_factor"));
    }
}
