//! [`DataConfig::in_model_order`]: reads data with the classes, the columns and the units of a model.

use std::fmt;

use ronde_core::{DataSignature, NameList, NameMatch};

use crate::config::DataConfig;
use crate::dataset::{DatasetDescription, Targets};
use crate::decode::{Features, Fields, Label};
use crate::names::standard_name;
use crate::records::RecordsConfig;

/// The field of an image in a folder with the name of its class.
const CLASS_NAME: &str = "class_name";

/// The names and the units that data for a model must have.
#[derive(Debug, Clone, Copy)]
pub struct ModelForm<'a> {
    /// The names and the units of the model.
    pub signature: &'a DataSignature,
    /// The mean and the divisor of each channel of its images; `None` if they need not be those of the model, or if the
    /// model was not trained on encoded images.
    pub image_scaling: Option<[&'a Option<Vec<f32>>; 2]>,
    /// Whether the classes and the target values must be those of the model. Otherwise it gets new ones.
    pub has_outputs: bool,
    /// Whether the columns must be those of the model. Otherwise it gets new ones.
    pub has_columns: bool,
    /// Whether the divisors must be those of the model.
    pub has_units: bool,
}

/// A data section that gives the numbers of a model to names, and has its units.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InModelOrder {
    /// The section; `None` if the present one does.
    pub config: Option<DataConfig>,
    /// The changes of the section, and names and units that could not be compared.
    pub notes: Vec<String>,
}

/// Data and a model have different names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureError {
    /// The names: `classes`, `columns` or `target values`.
    pub what: &'static str,
    /// The names of the model.
    pub model: Vec<String>,
    /// The names of the data.
    pub data: Vec<String>,
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, model, data } = self;
        let without = |all: &[String], known: &[String]| {
            let rest = all.iter().filter(|name| !known.contains(name));
            rest.cloned().collect::<Vec<String>>()
        };
        write!(
            f,
            "the {what} of the data are not those of the model: the model has {}, the data has {}",
            NameList(model),
            NameList(data)
        )?;
        let (missing, new) = (without(model, data), without(data, model));
        if !missing.is_empty() {
            write!(f, "; the data lacks {}", NameList(&missing))?;
        }
        if !new.is_empty() {
            write!(f, "; the model lacks {}", NameList(&new))?;
        }
        Ok(())
    }
}

impl std::error::Error for SignatureError {}

impl DataConfig {
    /// Returns this section, which describes `data`, with the classes and the columns in the order of a model and with its
    /// units.
    ///
    /// # Errors
    /// A class or a column that the model has is missing, or there is a new one.
    pub fn in_model_order(
        &self,
        data: &DatasetDescription,
        model: &ModelForm<'_>,
    ) -> Result<InModelOrder, SignatureError> {
        let mut alignment = Alignment {
            records: match self {
                Self::Records(records) => Some((**records).clone()),
                _ => None,
            },
            has_changed: false,
            notes: Vec::new(),
        };
        let (theirs, own) = (model.signature, &data.signature);
        if model.has_outputs && data.targets != Targets::Values {
            alignment.classes(theirs, own)?;
        }
        if model.has_outputs && theirs.value_names.len() > 1 {
            let names = ["target values", "data.label.field"];
            alignment.fields(names, &theirs.value_names, &own.value_names)?;
        }
        if model.has_columns {
            let names = ["columns", "data.features.field"];
            alignment.fields(names, &theirs.columns, &own.columns)?;
        }
        if model.has_units {
            alignment.units(theirs, data);
        }
        if let Some(scaling) = model.image_scaling {
            alignment.images(scaling);
        }
        let Alignment {
            records,
            has_changed,
            notes,
        } = alignment;
        let config = records.filter(|_| has_changed);
        Ok(InModelOrder {
            config: config.map(|records| Self::Records(Box::new(records))),
            notes,
        })
    }
}

/// A data section that is being changed.
struct Alignment {
    /// The section, if it is one of files of records: no other one has names.
    records: Option<RecordsConfig>,
    has_changed: bool,
    notes: Vec<String>,
}

impl Alignment {
    fn classes(
        &mut self,
        model: &DataSignature,
        data: &DataSignature,
    ) -> Result<(), SignatureError> {
        let (theirs, own) = (&model.class_names, &data.class_names);
        match (NameMatch::of(theirs, own), &mut self.records) {
            (NameMatch::Same, _) => {
                if theirs.is_empty() && model.first_class != data.first_class {
                    self.notes.push(format!(
                        "the first class of the data has the number {}, that of the model had {}",
                        data.first_class, model.first_class
                    ));
                }
            }
            (NameMatch::Unnamed, _) => self.notes.push(format!(
                "the {} no class names, so classes are matched by their numbers",
                if own.is_empty() {
                    "data has"
                } else {
                    "model has"
                }
            )),
            (NameMatch::Reordered, Some(records)) => {
                let label = records.label.get_or_insert_with(|| Label::of_classes(1));
                if label.names.is_none() {
                    label.field = Fields::One(CLASS_NAME.to_owned());
                    label.classes = None;
                }
                label.names = Some(theirs.clone());
                self.has_changed = true;
                self.notes.push(format!(
                    "the classes of the data are in another order than those of the model, whose numbers are used: {}",
                    NameList(theirs)
                ));
            }
            (NameMatch::Different | NameMatch::Reordered, _) => {
                return Err(error("classes", theirs, own));
            }
        }
        Ok(())
    }

    /// Puts the fields of the features or of the target values into the order of a model.
    fn fields(
        &mut self,
        [what, key]: [&'static str; 2],
        model: &[String],
        data: &[String],
    ) -> Result<(), SignatureError> {
        let fields = self.records.as_mut().and_then(|records| match key {
            "data.label.field" => records.label.as_mut().map(|label| &mut label.field),
            _ => match &mut records.features {
                Features::Numbers(features) => Some(&mut features.field),
                _ => None,
            },
        });
        match (NameMatch::of(model, data), fields) {
            (NameMatch::Same, _) => {}
            (NameMatch::Unnamed, _) => self.notes.push(format!(
                "the {what} of the {} have no names, so {what} are matched by their order",
                if data.is_empty() { "data" } else { "model" }
            )),
            (NameMatch::Reordered, Some(fields)) => {
                let mut given = fields.names(key).unwrap_or_default();
                let ordered = model.iter().filter_map(|name| {
                    let at = given.iter().position(|one| standard_name(one) == *name)?;
                    Some(given.swap_remove(at))
                });
                *fields = Fields::Several(ordered.collect());
                self.has_changed = true;
                self.notes.push(format!(
                    "the {what} of the data are in another order than those of the model, which is used: {}",
                    NameList(model)
                ));
            }
            (NameMatch::Different | NameMatch::Reordered, _) => {
                return Err(error(what, model, data));
            }
        }
        Ok(())
    }

    fn units(&mut self, model: &DataSignature, data: &DatasetDescription) {
        let shown = |scale: Option<f32>| scale.unwrap_or(1.0);
        let (theirs, own) = (model.value_scale, data.signature.value_scale);
        let label = self
            .records
            .as_mut()
            .and_then(|records| records.label.as_mut());
        if let (Targets::Values, true, Some(label)) = (data.targets, theirs != own, label) {
            label.scale = theirs;
            self.has_changed = true;
            self.notes.push(format!(
                "the target values are divided by {}, as those of the model, not by {}",
                shown(theirs),
                shown(own)
            ));
        }
        let (theirs, own) = (model.feature_scale, data.signature.feature_scale);
        if theirs != own {
            self.notes.push(format!(
                "the features of the data are divided by {}, those of the model were divided by {}",
                shown(own),
                shown(theirs)
            ));
        }
    }

    fn images(&mut self, [mean, std]: [&Option<Vec<f32>>; 2]) {
        let features = self.records.as_mut().map(|records| &mut records.features);
        let Some(Features::Image(images)) = features else {
            return;
        };
        if (&images.mean, &images.std) != (mean, std) {
            images.mean.clone_from(mean);
            images.std.clone_from(std);
            self.has_changed = true;
            self.notes.push(
                "the channels of the images are scaled with the mean and the divisor of the model, not those of the data"
                    .to_owned(),
            );
        }
    }
}

fn error(what: &'static str, model: &[String], data: &[String]) -> SignatureError {
    SignatureError {
        what,
        model: model.to_vec(),
        data: data.to_vec(),
    }
}

#[cfg(test)]
mod tests;
