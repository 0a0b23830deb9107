//! Takes back the note that a job was cancelled.

use crate::error::SubmitError;
use crate::process_folder::remove_if_exists;
use crate::registry::JobRegistry;

/// The note that [`JobRegistry::mark_cancelled`] writes.
const CANCELLED_FILE: &str = "cancelled.json";

impl JobRegistry {
    /// Removes the note that a job was cancelled: its target has not ended it.
    ///
    /// # Errors
    /// The note cannot be removed.
    pub fn unmark_cancelled(&self, name: &str) -> Result<(), SubmitError> {
        remove_if_exists(&self.folder(name).join(CANCELLED_FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_was_not_ended_is_not_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let registry = JobRegistry::new(dir.path());
        std::fs::create_dir(registry.folder("x")).unwrap();
        registry.unmark_cancelled("x").unwrap();
        registry.mark_cancelled("x").unwrap();
        assert!(registry.is_cancelled("x"));
        registry.unmark_cancelled("x").unwrap();
        assert!(!registry.is_cancelled("x"));
    }
}
