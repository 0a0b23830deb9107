//! [`ClassLabels`]: the names of the classes of a model, or their numbers in the data.

use std::sync::Arc;

use ronde_saved_model::ModelManifest;

/// The names of the classes of a model, or their numbers in the data. A clone shares them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassLabels {
    /// A text for each class, in the order of the model.
    texts: Arc<[String]>,
    /// Whether the texts are names.
    are_names: bool,
    /// The number of the first class in the data.
    first: i64,
}

impl ClassLabels {
    /// Returns the labels of classes with names.
    #[must_use]
    pub fn names(names: Vec<String>) -> Self {
        Self {
            texts: names.into(),
            are_names: true,
            first: 0,
        }
    }

    /// Returns the labels of classes without names, whose first one has this number in the data.
    #[must_use]
    pub fn numbers(classes: usize, first: i64) -> Self {
        let numbers = (first..).take(classes).map(|class| class.to_string());
        Self {
            texts: numbers.collect(),
            are_names: false,
            first,
        }
    }

    /// Returns the labels of the classes of a model.
    #[must_use]
    pub fn of(manifest: &ModelManifest) -> Self {
        let (classes, signature) = (manifest.classes as usize, &manifest.signature);
        match signature.class_names.len() == classes {
            true => Self::names(signature.class_names.clone()),
            false => Self::numbers(classes, signature.first_class),
        }
    }

    /// Returns the number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.texts.len()
    }

    /// Returns the number of a class in the data.
    #[must_use]
    pub fn number(&self, class: usize) -> i64 {
        self.first.saturating_add(class as i64)
    }

    /// Returns the name of a class; `None` if it has none.
    #[must_use]
    pub fn name(&self, class: usize) -> Option<String> {
        let name = self.texts.get(class).filter(|_| self.are_names);
        name.cloned()
    }

    /// Returns a text for each class: its name, or its number in the data.
    #[must_use]
    pub fn texts(&self) -> &[String] {
        &self.texts
    }
}
