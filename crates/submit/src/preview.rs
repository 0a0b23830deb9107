//! [`JobPreview`]: the contents of a submission, as text, or as documents where the target receives documents.

use serde_json::Value;

use crate::error::SubmitError;
use crate::platform::yaml;

/// The form in which [`JobPreview::documents`] returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentForm {
    /// YAML, with `---` between the documents.
    Yaml,
    /// A line of JSON for each document.
    Json,
}

/// The commands, files and documents that a submission would send.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPreview {
    text: String,
    documents: Vec<Value>,
}

impl JobPreview {
    /// Describes commands or files.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self::with_documents(text, Vec::new())
    }

    /// Describes requests that have these documents.
    #[must_use]
    pub fn with_documents(text: impl Into<String>, documents: Vec<Value>) -> Self {
        Self {
            text: text.into(),
            documents,
        }
    }

    /// Returns the text for people, without the last line break.
    #[must_use]
    pub fn text(&self) -> &str {
        self.text.trim_end()
    }

    /// Returns the documents alone, for programs, without the last line break.
    ///
    /// # Errors
    /// The target `target` receives no documents.
    pub fn documents(&self, target: &str, form: DocumentForm) -> Result<String, SubmitError> {
        let (name, text) = match form {
            DocumentForm::Yaml => ("yaml", yaml::stream(&self.documents)),
            DocumentForm::Json => {
                let lines: Vec<String> = self.documents.iter().map(Value::to_string).collect();
                ("json", lines.join("\n"))
            }
        };
        if self.documents.is_empty() {
            return Err(SubmitError::invalid(
                format!(
                    "cannot print what is sent to target `{target}` as {name}: it receives commands and scripts, not documents"
                ),
                format!(
                    "remove `-o {name}`; targets of the kinds `kubernetes` and `ray` receive documents"
                ),
            ));
        }
        Ok(text.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_have_a_form_for_programs_and_commands_have_none() {
        let preview =
            JobPreview::with_documents("two\n", vec![json!({ "a": 1 }), json!({ "b": 2 })]);
        assert_eq!(preview.text(), "two");
        for (form, expected) in [
            (DocumentForm::Yaml, "a: 1\n---\nb: 2"),
            (DocumentForm::Json, "{\"a\":1}\n{\"b\":2}"),
        ] {
            assert_eq!(preview.documents("pods", form).unwrap(), expected);
        }
        let refused = JobPreview::new("#!/bin/sh").documents("cluster", DocumentForm::Yaml);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("target `cluster` as yaml"), "{refused}");
    }
}
