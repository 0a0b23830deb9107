//! [`HostFacts`]: the report of a host about itself and its `ronde`, and whether hosts can train together.

use serde::{Deserialize, Serialize};

use crate::error::SubmitError;

/// The report of a host about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The version of `ronde` on it.
    pub version: String,
    /// The properties of its processor on which trained bits depend.
    pub cpu_features: String,
}

/// Refuses hosts that cannot train the same bits: another version, or other processor features.
pub(super) fn check(version: &str, hosts: &[(&str, HostFacts)]) -> Result<(), SubmitError> {
    let refuse = |host: &str, problem: String, help: &str| {
        Err(SubmitError::Host {
            host: host.to_owned(),
            problem,
            help: Some(help.to_owned()),
            is_temporary: false,
        })
    };
    for (host, facts) in hosts {
        if facts.version != version {
            let problem = format!(
                "it has ronde {}, and this machine has ronde {version}",
                facts.version
            );
            let help =
                "remove `program` of the target, so that this version is copied to all hosts";
            return refuse(host, problem, help);
        }
    }
    let Some((first, expected)) = hosts.first() else {
        return Ok(());
    };
    for (host, facts) in &hosts[1..] {
        if facts.cpu_features != expected.cpu_features {
            let problem = format!(
                "its processor has other features than that of `{first}`: {}",
                difference(&facts.cpu_features, &expected.cpu_features)
            );
            let help = "the trained bits depend on them: choose hosts with equal processors";
            return refuse(host, problem, help);
        }
    }
    Ok(())
}

fn difference(features: &str, expected: &str) -> String {
    let without = |all: &str, known: &str| {
        let known: Vec<&str> = known.split(' ').collect();
        let words: Vec<&str> = all
            .split(' ')
            .filter(|word| !known.contains(word))
            .collect();
        words.join(" ")
    };
    let (more, missing) = (without(features, expected), without(expected, features));
    match (more.is_empty(), missing.is_empty()) {
        (false, true) => format!("also {more}"),
        (true, false) => format!("not {missing}"),
        _ => format!("{more} instead of {missing}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: &str, features: &str) -> HostFacts {
        HostFacts {
            version: version.to_owned(),
            cpu_features: features.to_owned(),
        }
    }

    #[test]
    fn hosts_that_would_train_other_bits_are_refused_by_name() {
        let equal = [("a", facts("1", "x86 avx2")), ("b", facts("1", "x86 avx2"))];
        assert!(check("1", &equal).is_ok());
        for (b, problem) in [
            (
                facts("2", "x86 avx2"),
                "`b`: it has ronde 2, and this machine has ronde 1",
            ),
            (
                facts("1", "x86"),
                "`b`: its processor has other features than that of `a`: not avx2",
            ),
            (facts("1", "x86 avx2 avx512f"), "also avx512f"),
            (facts("1", "arm avx2"), "arm instead of x86"),
        ] {
            let error = check("1", &[("a", facts("1", "x86 avx2")), ("b", b)]).unwrap_err();
            assert!(error.to_string().contains(problem), "{error}");
        }
    }
}
