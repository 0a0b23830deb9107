//! [`Objective`]: the loss that a run minimises, and the metrics of its evaluations.
//!
//! Losses and metrics are sums over samples, added in the order of shards and batches, so they do not depend on the number of
//! workers. The plan's identity has the names of a program's loss and learning rate, because they change the trained bits.

use std::sync::Arc;

use ronde_data::{Dataset, Targets};
use ronde_engine::{
    ConfusionCounts, CrossEntropy, DetectedImages, DetectionLoss, Inertia, IntersectionOverUnion,
    Loss, MacroF1, MeanAbsoluteError, MeanAveragePrecision, Metric, ModelConfig, NearestDistance,
    Perplexity, TopAccuracy, ValueLoss,
};

use crate::config::MetricName;
use crate::error::TrainError;
use crate::mask_targets::MaskTargets;
use crate::units_of_data::InUnitsOfData;

/// Names that the fields of an `evaluated` event use.
const RESERVED: [&str; 6] = ["confusion_matrix", "event", "loss", "samples", "step", "t"];

/// The loss that a run minimises, and the metrics of its evaluations.
#[derive(Clone)]
pub struct Objective {
    /// The loss.
    pub loss: Arc<dyn Loss>,
    /// The metrics, in the order in which they are computed.
    pub metrics: Vec<Arc<dyn Metric>>,
    /// The counts of the confusion matrix, if it is measured.
    pub confusion: Option<ConfusionCounts>,
}

impl std::fmt::Debug for Objective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let metrics: Vec<&str> = self.metrics.iter().map(|metric| metric.name()).collect();
        write!(f, "{} with metrics {metrics:?}", self.loss.name())
    }
}

impl Objective {
    /// Returns the usual objective for a model and the targets of a data set: distances and inertia for clusters,
    /// cross-entropy and accuracy for classes, the given loss or squared error for values, with the overlap of masks
    /// for a loss of masks, the detection loss and the mean average precision for boxes; and further metrics.
    ///
    /// # Errors
    /// When a loss of values is given for clusters, classes or boxes, or a metric does not fit the targets.
    pub fn of(
        model: &ModelConfig,
        dataset: &dyn Dataset,
        loss: Option<ValueLoss>,
        metrics: &[MetricName],
    ) -> Result<Self, TrainError> {
        let mut objective = Self::usual(model, dataset, loss)?;
        for metric in metrics {
            objective.add_named(*metric, model, dataset)?;
        }
        Ok(objective)
    }

    /// Adds a metric of the run file, unless it is one of the usual ones.
    fn add_named(
        &mut self,
        metric: MetricName,
        model: &ModelConfig,
        dataset: &dyn Dataset,
    ) -> Result<(), TrainError> {
        let description = dataset.description();
        let classes = description.classes as usize;
        let are_classes = model.uses_targets() && description.targets == Targets::Classes;
        let are_values = model.uses_targets() && description.targets == Targets::Values;
        let name = String::from(metric);
        let metric: Arc<dyn Metric> = match metric {
            MetricName::F1 if are_classes => Arc::new(MacroF1 { classes }),
            MetricName::ConfusionMatrix if are_classes => {
                self.confusion = ConfusionCounts::new(classes);
                let most = ConfusionCounts::CLASSES_MAX;
                return self.confusion.map(drop).ok_or_else(|| TrainError::Impossible {
                    problem: format!(
                        "cannot measure `{name}` of {classes} classes: at most {most} are counted"
                    ),
                    hint: "remove it from train.metrics".to_owned(),
                });
            }
            MetricName::AccuracyTop(top) if are_classes && (top as usize) < classes => {
                Arc::new(TopAccuracy::new(classes, top))
            }
            MetricName::MeanAbsoluteError if are_values => {
                let scale = description.signature.value_scale;
                InUnitsOfData::of(Arc::new(MeanAbsoluteError), scale)
            }
            _ => {
                let targets = match description.targets {
                    _ if !model.uses_targets() => "no targets".to_owned(),
                    Targets::Classes => format!("{classes} classes"),
                    Targets::Values => "values".to_owned(),
                    _ => "boxes".to_owned(),
                };
                return Err(TrainError::Impossible {
                    problem: format!("cannot measure `{name}`: the model is trained on {targets}"),
                    hint: "remove it from train.metrics".to_owned(),
                });
            }
        };
        if !self.metrics.iter().any(|one| one.name() == name) {
            self.add(metric);
        }
        Ok(())
    }

    fn usual(
        model: &ModelConfig,
        dataset: &dyn Dataset,
        loss: Option<ValueLoss>,
    ) -> Result<Self, TrainError> {
        let description = dataset.description();
        if !model.uses_targets() {
            if let Some(loss) = loss {
                return Err(refused(
                    loss,
                    &format!("the model `{}` does not use targets", model.kind()),
                    "remove train.loss; the loss of clusters is the distance from the nearest centre",
                ));
            }
            let mut objective = Self::new(Arc::new(NearestDistance));
            objective.add(Arc::new(Inertia));
            return Ok(objective);
        }
        if description.targets == Targets::Values {
            let loss = loss.unwrap_or(ValueLoss::SquaredError);
            if !loss.is_of_masks() {
                return Ok(Self::new(loss.loss()));
            }
            let mut objective = Self::new(Arc::new(MaskTargets(loss.loss())));
            objective.add(Arc::new(IntersectionOverUnion));
            return Ok(objective);
        }
        if let Some(loss) = loss {
            let (targets, hint) = match description.targets {
                Targets::Boxes => (
                    "the targets of this data set are boxes",
                    "remove train.loss; the loss of boxes is the detection loss",
                ),
                _ => (
                    "the targets of this data set are class numbers",
                    "remove train.loss; the loss of classes is cross-entropy",
                ),
            };
            return Err(refused(loss, targets, hint));
        }
        if description.targets == Targets::Boxes {
            return Self::of_boxes(&description.shape, description.classes);
        }
        let classes = description.classes as usize;
        let mut objective = Self::new(Arc::new(CrossEntropy { classes }));
        objective.add(Arc::new(TopAccuracy::new(classes, 1)));
        if classes > 5 {
            objective.add(Arc::new(TopAccuracy::new(classes, 5)));
        }
        if description.targets_per_sample > 1 {
            objective.add(Arc::new(Perplexity));
        }
        Ok(objective)
    }

    /// Returns the objective for boxes in images.
    fn of_boxes(shape: &[usize], classes: u32) -> Result<Self, TrainError> {
        let [_, height, width] = *shape else {
            return Err(TrainError::Impossible {
                problem: format!(
                    "cannot find boxes in samples of shape {shape:?}: expected [channels, height, width]"
                ),
                hint: "use a data set of images".to_owned(),
            });
        };
        let images = DetectedImages {
            size: [height, width],
            classes: classes as usize,
        };
        let mut objective = Self::new(Arc::new(DetectionLoss { images }));
        objective.add(Arc::new(MeanAveragePrecision { images }));
        Ok(objective)
    }

    /// Creates an objective without metrics.
    #[must_use]
    pub fn new(loss: Arc<dyn Loss>) -> Self {
        Self {
            loss,
            metrics: Vec::new(),
            confusion: None,
        }
    }

    /// Adds a metric.
    pub fn add(&mut self, metric: Arc<dyn Metric>) {
        self.metrics.push(metric);
    }

    /// Checks the names of the metrics.
    ///
    /// # Errors
    /// When a name is repeated, is used by a field of the event, or has other characters than lower-case letters,
    /// digits and underscores.
    pub fn check(&self) -> Result<(), TrainError> {
        let names: Vec<&str> = self.metrics.iter().map(|metric| metric.name()).collect();
        for (index, name) in names.iter().enumerate() {
            let is_word = !name.is_empty()
                && name
                    .chars()
                    .all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'));
            let problem = if !is_word {
                "expected lower-case letters, digits and underscores"
            } else if RESERVED.contains(name) {
                "evaluations have a field of this name"
            } else if names[..index].contains(name) {
                "another metric has this name"
            } else {
                continue;
            };
            return Err(TrainError::Impossible {
                problem: format!("invalid name `{name}` of a metric: {problem}"),
                hint: "return another text from `Metric::name`".to_owned(),
            });
        }
        Ok(())
    }
}

/// Returns the error of a loss of values that cannot be used.
fn refused(loss: ValueLoss, cause: &str, hint: &str) -> TrainError {
    let name = loss.loss().name();
    TrainError::Impossible {
        problem: format!("cannot use train.loss = `{name}`: {cause}"),
        hint: hint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ronde_engine::SquaredError;

    use super::*;

    #[test]
    fn boxes_have_the_detection_loss_and_no_other() {
        let data = "source = 'synthetic_objects'\nsamples = 2\nside = 16";
        let data: ronde_data::DataConfig = toml::from_str(data).unwrap();
        let context = ronde_data::OpenContext::new(".".as_ref(), 1);
        let train = ronde_data::open(&data, &context).unwrap().train;
        let model: ModelConfig = toml::from_str("kind = 'detector'").unwrap();
        let objective = Objective::of(&model, &*train, None, &[]).unwrap();
        assert_eq!(
            format!("{objective:?}"),
            "detection with metrics [\"map50\"]"
        );
        let refused = Objective::of(&model, &*train, Some(ValueLoss::Dice), &[]).unwrap_err();
        let message = refused.to_string();
        assert!(
            message.contains("targets of this data set are boxes"),
            "{message}"
        );
    }

    #[test]
    fn clusters_have_their_distances_whatever_the_targets_are() {
        let context = ronde_data::OpenContext::new(".".as_ref(), 1);
        let digits = ronde_data::DataConfig::default();
        let train = ronde_data::open(&digits, &context).unwrap().train;
        let model = ModelConfig::KMeans { clusters: 3 };
        let objective = Objective::of(&model, &*train, None, &[]).unwrap();
        let text = format!("{objective:?}");
        assert_eq!(text, "nearest_distance with metrics [\"inertia\"]");
        let refused = Objective::of(&model, &*train, Some(ValueLoss::Dice), &[]).unwrap_err();
        let message = refused.to_string();
        assert!(
            message.contains("the model `kmeans` does not use targets"),
            "{message}"
        );
    }

    #[test]
    fn metrics_of_the_run_file_must_fit_the_targets() {
        let context = ronde_data::OpenContext::new(".".as_ref(), 1);
        let digits = ronde_data::DataConfig::default();
        let train = ronde_data::open(&digits, &context).unwrap().train;
        let named = |names: &[&str]| {
            let metrics: Vec<MetricName> = names
                .iter()
                .map(|name| MetricName::try_from((*name).to_owned()).unwrap())
                .collect();
            let found = Objective::of(&ModelConfig::Linear {}, &*train, None, &metrics);
            found.map(|found| format!("{found:?}"))
        };
        assert_eq!(
            named(&["f1", "accuracy_top3", "accuracy_top5"]).unwrap(),
            "cross_entropy with metrics [\"accuracy\", \"accuracy_top5\", \"f1\", \"accuracy_top3\"]"
        );
        for (name, targets) in [
            ("mean_absolute_error", "10 classes"),
            ("accuracy_top10", "10 classes"),
        ] {
            let error = named(&[name]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(targets), "{error}");
        }
        for name in ["accuracy_top1", "recall", "accuracy_top"] {
            assert!(MetricName::try_from(name.to_owned()).is_err(), "{name}");
        }
    }

    #[test]
    fn metrics_need_distinct_words_as_names() {
        let check = |tops: &[u32]| {
            let mut objective = Objective::new(Arc::new(SquaredError));
            for &top in tops {
                objective.add(Arc::new(TopAccuracy::new(10, top)));
            }
            objective.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(&[1, 3, 5]), Ok(()));
        assert!(check(&[3, 1, 3]).unwrap_err().contains("`accuracy_top3`"));
        struct Named(&'static str);
        impl Metric for Named {
            fn name(&self) -> &str {
                self.0
            }
            fn add(
                &self,
                _: &ronde_engine::Predictions<'_>,
                _: f64,
                _: &mut [f64],
            ) -> Result<(), ronde_engine::EngineError> {
                Ok(())
            }
        }
        for name in ["", "Top 1", "loss", "t"] {
            let mut objective = Objective::new(Arc::new(SquaredError));
            objective.add(Arc::new(Named(name)));
            assert!(objective.check().is_err(), "{name}");
        }
    }
}
