//! The rights of a user in a namespace, checked before anything is created.

use super::api::{ApiFailure, ClusterApi};
use crate::error::SubmitError;

/// The rights without which a job cannot be created, or not be removed again: a verb and a kind.
const NEEDED: [(&str, &str); 6] = [
    ("create", "jobs"),
    ("get", "jobs"),
    ("patch", "jobs"),
    ("delete", "jobs"),
    ("create", "secrets"),
    ("create", "configmaps"),
];

/// Refuses to submit without the rights that it needs. A server that does not let its users ask is not asked further: what it
/// refuses later is undone.
///
/// # Errors
/// Rights are missing, or the server cannot be reached.
pub(super) fn check(api: &ClusterApi) -> Result<(), SubmitError> {
    let mut missing = Vec::new();
    for (verb, kind) in NEEDED {
        match api.may(verb, kind) {
            Ok(true) => {}
            Ok(false) => missing.push(format!("{verb} {kind}")),
            Err(ApiFailure::Status { .. }) => return Ok(()),
            Err(failure) => return Err(api.failed(failure)),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(api.refused(
        format!(
            "you may not do this in namespace `{}`, which a job needs: {}",
            api.namespace(),
            missing.join(", ")
        ),
        "ask an administrator for a Role with these rights; the documentation of Kubernetes jobs lists all that ronde uses",
    ))
}
