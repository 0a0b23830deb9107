//! [`PredictionForm`]: how the outputs of a model are read as predictions.

use ronde_data::Targets;
use ronde_engine::{DetectedImages, ModelConfig};
use ronde_saved_model::ModelManifest;

use crate::class_labels::ClassLabels;
use crate::error::ServeError;
use crate::prediction::{ClassProbability, FoundBox, Prediction};

/// The probabilities that are returned besides that of the predicted class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClassDetail {
    /// The probabilities of all classes.
    #[default]
    All,
    /// This number of the most probable classes, with their probabilities.
    Top(usize),
}

/// How the outputs of a model are read as predictions.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum PredictionForm {
    /// One logit for each class; several groups of them are the positions of a text.
    Classes {
        /// The names or numbers of the classes.
        labels: ClassLabels,
        /// The probabilities of a sample with one position.
        detail: ClassDetail,
    },
    /// Values, or the logits of masks.
    Values {
        /// The factor of outputs to be in the units of the data.
        scale: Option<f32>,
    },
    /// The squared distances from the centres of clusters.
    Clusters,
    /// The boxes of objects in images.
    Boxes(DetectedImages),
}

impl PredictionForm {
    /// Returns the form of the outputs of a model that was trained with `targets`.
    ///
    /// # Errors
    /// When the model finds boxes in samples that are not images.
    pub fn of(
        manifest: &ModelManifest,
        targets: Targets,
        detail: ClassDetail,
    ) -> Result<Self, ServeError> {
        let uses_targets = manifest
            .model
            .as_ref()
            .is_none_or(ModelConfig::uses_targets);
        Ok(match targets {
            _ if !uses_targets => Self::Clusters,
            Targets::Classes => Self::Classes {
                labels: ClassLabels::of(manifest),
                detail,
            },
            Targets::Values => Self::Values {
                scale: manifest.output_scale(),
            },
            Targets::Boxes => {
                let [_, height, width] = *manifest.input_shape else {
                    return Err(ServeError::OutputCount {
                        found: 0,
                        expected: format!(
                            "boxes in images of shape [channels, height, width], not {:?}",
                            manifest.input_shape
                        ),
                    });
                };
                Self::Boxes(DetectedImages {
                    size: [height, width],
                    classes: manifest.classes as usize,
                })
            }
        })
    }

    /// Reads the outputs of one sample. Cost: one exponential per logit.
    ///
    /// # Errors
    /// When there are too many or too few outputs.
    pub fn read(&self, outputs: &[f32]) -> Result<Prediction, ServeError> {
        match self {
            Self::Classes { labels, detail } => read_classes(outputs, labels, *detail),
            Self::Values { scale } => {
                let scale = scale.unwrap_or(1.0);
                Ok(Prediction::Values {
                    values: outputs.iter().map(|value| value * scale).collect(),
                })
            }
            Self::Clusters => {
                let nearest = first_best(outputs, |a, b| a < b);
                let nearest = nearest.ok_or_else(|| ServeError::OutputCount {
                    found: 0,
                    expected: "one for each cluster".to_owned(),
                })?;
                Ok(Prediction::Cluster {
                    cluster: nearest as u32,
                    distance: outputs[nearest],
                })
            }
            Self::Boxes(images) => {
                let found = images.detections(outputs)?;
                let boxes = found.into_iter().map(|found| {
                    let [top, left, bottom, right] = found.sides.map(|side| side as f32);
                    FoundBox {
                        class: found.class as u32,
                        probability: (1.0 / (1.0 + libm::exp(-found.logit))) as f32,
                        top,
                        left,
                        bottom,
                        right,
                    }
                });
                Ok(Prediction::Boxes {
                    boxes: boxes.collect(),
                })
            }
        }
    }
}

/// Reads one logit for each class, once or for each position.
fn read_classes(
    outputs: &[f32],
    labels: &ClassLabels,
    detail: ClassDetail,
) -> Result<Prediction, ServeError> {
    let classes = labels.classes();
    if classes == 0 || outputs.is_empty() || !outputs.len().is_multiple_of(classes) {
        return Err(ServeError::OutputCount {
            found: outputs.len(),
            expected: format!("one for each of {classes} classes"),
        });
    }
    if outputs.len() > classes {
        let positions = outputs.chunks_exact(classes).map(|logits| {
            let class = most_probable(logits);
            (class as u32, softmax(logits)[class])
        });
        let (classes, probabilities) = positions.unzip();
        return Ok(Prediction::Positions {
            classes,
            probabilities,
        });
    }
    let probabilities = softmax(outputs);
    let class = most_probable(outputs);
    let top = match detail {
        ClassDetail::All => None,
        ClassDetail::Top(count) => {
            let mut order: Vec<usize> = (0..classes).collect();
            // The sort is stable, so the first of equal classes is named first.
            order.sort_by(|&a, &b| outputs[b].total_cmp(&outputs[a]));
            order.truncate(count);
            let named = order.into_iter().map(|class| ClassProbability {
                class: labels.number(class),
                class_name: labels.name(class),
                probability: probabilities[class],
            });
            Some(named.collect())
        }
    };
    Ok(Prediction::Class {
        class: labels.number(class),
        class_name: labels.name(class),
        probability: probabilities[class],
        probabilities: (detail == ClassDetail::All).then_some(probabilities),
        top,
        labels: labels.clone(),
    })
}

/// Returns the index of the greatest logit, the first of equal ones.
pub(crate) fn most_probable(logits: &[f32]) -> usize {
    first_best(logits, |a, b| a > b).unwrap_or(0)
}

/// Returns the index of the first value that no other one is better than; `None` for no values.
fn first_best(values: &[f32], better: impl Fn(f32, f32) -> bool) -> Option<usize> {
    (0..values.len()).reduce(|best, index| {
        if better(values[index], values[best]) {
            index
        } else {
            best
        }
    })
}

/// Returns the probabilities of logits, computed in f64 in their order.
fn softmax(logits: &[f32]) -> Vec<f32> {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| libm::exp(f64::from(logit) - f64::from(greatest));
    let weights: Vec<f64> = logits.iter().map(|&logit| weight(logit)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| (weight / sum) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(detail: ClassDetail) -> PredictionForm {
        let labels = ClassLabels::numbers(3, 0);
        PredictionForm::Classes { labels, detail }
    }

    fn json(form: PredictionForm, outputs: &[f32]) -> String {
        serde_json::to_string(&form.read(outputs).unwrap()).unwrap()
    }

    #[test]
    fn outputs_are_read_by_their_form() {
        let two = [0.0, std::f32::consts::LN_2, 0.0];
        let all = r#"{"class":1,"probability":0.5,"probabilities":[0.25,0.5,0.25]}"#;
        let top = r#"{"class":1,"probability":0.5,"top":[{"class":1,"probability":0.5},{"class":0,"probability":0.25}]}"#;
        assert_eq!(json(classes(ClassDetail::All), &two), all);
        assert_eq!(json(classes(ClassDetail::Top(2)), &two), top);
        let positions = [two, [9.0, 0.0, 0.0]].concat();
        let text = json(classes(ClassDetail::All), &positions);
        assert!(
            text.starts_with(r#"{"classes":[1,0],"probabilities":[0.5,0.999"#),
            "{text}"
        );
        let cluster = json(PredictionForm::Clusters, &[2.5, 0.5, 0.5]);
        assert_eq!(cluster, r#"{"cluster":1,"distance":0.5}"#);
        let values = |scale| json(PredictionForm::Values { scale }, &[0.1, f32::NAN]);
        assert_eq!(values(None), r#"{"values":[0.1,null]}"#);
        assert_eq!(values(Some(100.0)), r#"{"values":[10.0,null]}"#);
    }

    #[test]
    fn classes_have_their_names_or_their_numbers_in_the_data() {
        let logits = [0.0, std::f32::consts::LN_2, 0.0];
        let read = |labels: ClassLabels| {
            let detail = ClassDetail::Top(1);
            json(PredictionForm::Classes { labels, detail }, &logits)
        };
        let names = ["cat", "dog", "cow"].map(str::to_owned).to_vec();
        let named = r#"{"class":1,"class_name":"dog","probability":0.5,"top":[{"class":1,"class_name":"dog","probability":0.5}]}"#;
        assert_eq!(read(ClassLabels::names(names)), named);
        let numbered = r#"{"class":0,"probability":0.5,"top":[{"class":0,"probability":0.5}]}"#;
        assert_eq!(read(ClassLabels::numbers(3, -1)), numbered);
    }

    #[test]
    fn outputs_of_another_number_are_refused() {
        for outputs in [&[][..], &[0.0; 4]] {
            assert!(classes(ClassDetail::All).read(outputs).is_err());
        }
        assert!(PredictionForm::Clusters.read(&[]).is_err());
        let images = DetectedImages {
            size: [8, 8],
            classes: 2,
        };
        assert!(PredictionForm::Boxes(images).read(&[0.0; 5]).is_err());
    }

    #[test]
    fn logits_that_are_not_numbers_give_no_panic() {
        let prediction = classes(ClassDetail::Top(9)).read(&[f32::NAN; 3]).unwrap();
        assert!(matches!(prediction, Prediction::Class { class: 0, .. }));
    }
}
