//! [`ServedModel`]: a saved model with what requests need to know about it.

use std::sync::Arc;

use ronde_data::Vocabulary;
use ronde_data::decode::ImageDecoder;
use ronde_saved_model::{ModelManifest, SavedModel};

use crate::error::ServeError;
use crate::image_features;
use crate::prediction_form::PredictionForm;
use crate::predictor::Predictor;
use crate::text_task::TextTask;

/// The largest number of pixels of an image of a request, so that a small file does not take much memory.
const PIXELS_MAX: u64 = 1 << 25;

/// A saved model, the form of its outputs and the text of its tokens.
pub struct ServedModel {
    saved: SavedModel,
    form: PredictionForm,
    vocabulary: Option<Arc<Vocabulary>>,
    images: Option<Arc<ImageDecoder>>,
}

impl ServedModel {
    /// Combines a model, the form of its outputs and the text of its tokens, if they have one.
    ///
    /// # Errors
    /// When the manifest describes a conversion of images that is not possible.
    pub fn new(
        saved: SavedModel,
        form: PredictionForm,
        vocabulary: Option<Arc<Vocabulary>>,
    ) -> Result<Self, ServeError> {
        let images = image_features(saved.manifest());
        let images = images.as_ref().map(ImageDecoder::new).transpose()?;
        Ok(Self {
            saved,
            form,
            vocabulary,
            images: images.map(|images| Arc::new(images.with_pixels_max(PIXELS_MAX))),
        })
    }

    /// Returns the manifest.
    #[must_use]
    pub fn manifest(&self) -> &ModelManifest {
        self.saved.manifest()
    }

    /// Checks that requests which fit this model fit another one.
    ///
    /// # Errors
    /// [`ServeError::OtherModel`].
    pub(super) fn check_replacement(&self, other: &Self) -> Result<(), ServeError> {
        let (present, new) = (self.manifest(), other.manifest());
        let of = |manifest: &ModelManifest| {
            let has_images = manifest.images.is_some();
            (manifest.input_shape.clone(), manifest.classes, has_images)
        };
        let names = |manifest: &ModelManifest| {
            let labels = manifest.signature.class_labels(manifest.classes as usize);
            (manifest.signature.columns.clone(), labels)
        };
        if of(present) == of(new) && names(present) != names(new) {
            return Err(ServeError::OtherNames);
        }
        if of(present) != of(new) || self.text_task() != other.text_task() {
            return Err(ServeError::OtherModel {
                shape: new.input_shape.clone(),
                classes: new.classes,
                expected_shape: present.input_shape.clone(),
                expected_classes: present.classes,
            });
        }
        Ok(())
    }

    /// Builds a model that computes predictions. All of them share the values of the weights.
    pub(super) fn predictor(&self) -> Result<Predictor, ServeError> {
        Ok(Predictor::new(self.chain()?, self.form.clone()))
    }

    /// Builds the layers, which share the values of the weights.
    pub(super) fn chain(&self) -> Result<ronde_engine::Chain, ServeError> {
        Ok(self.saved.chain()?)
    }

    /// Returns the conversion of encoded images; `None` if the model was not trained on them.
    pub(super) fn images(&self) -> Option<&Arc<ImageDecoder>> {
        self.images.as_ref()
    }

    pub(super) fn vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_deref()
    }

    /// Returns the kind of the texts that the model generates; `None` if it generates none.
    pub(super) fn text_task(&self) -> Option<TextTask> {
        TextTask::of(self.manifest(), self.vocabulary())
    }
}
