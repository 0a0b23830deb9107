//! [`DataForm`]: the meaning of the outputs and the tokens of a model.

use std::sync::Arc;

use ronde_core::TokenTexts;
use ronde_data::{DatasetDescription, Targets, Vocabulary};
use ronde_saved_model::{SavedModel, TargetKind};

use crate::error::ServeError;

/// The meaning of the outputs and the tokens of a model, from its files or from its data.
#[derive(Debug, Clone)]
pub struct DataForm {
    /// The kind of the targets.
    pub targets: Targets,
    /// The text of the tokens, if they have one.
    pub vocabulary: Option<Arc<Vocabulary>>,
}

impl DataForm {
    /// Reads what was saved with a model; `None` for a model of an earlier release, which needs its data. Cost: a tokenizer is
    /// read.
    ///
    /// # Errors
    /// The tokenizer cannot be read, or the vocabulary is damaged.
    pub fn of(saved: &SavedModel) -> Result<Option<Self>, ServeError> {
        let manifest = saved.manifest();
        let targets = match manifest.targets {
            None => return Ok(None),
            Some(TargetKind::Classes) => Targets::Classes,
            Some(TargetKind::Values) => Targets::Values,
            Some(TargetKind::Boxes) => Targets::Boxes,
        };
        let vocabulary = match manifest.vocabulary.clone() {
            None => None,
            Some(texts @ TokenTexts::Tokenizer { .. }) => {
                Some(Vocabulary::new(texts, Some(&saved.tokenizer()?))?)
            }
            Some(texts) => Some(Vocabulary::new(texts, None)?),
        };
        Ok(Some(Self {
            targets,
            vocabulary: vocabulary.map(Arc::new),
        }))
    }

    /// Returns the form of a data set.
    #[must_use]
    pub fn of_data(data: &DatasetDescription) -> Self {
        Self {
            targets: data.targets,
            vocabulary: data.vocabulary.clone(),
        }
    }
}
