//! [`Column`]: predictions as columns of a table.

use ronde_data::SampleOrigin;

use crate::class_labels::ClassLabels;
use crate::predicted_sample::PredictedSample;
use crate::prediction::{FoundBox, Prediction};

/// A column of a table of predictions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Column {
    /// The name of a value, or of an element of a list.
    pub(crate) name: &'static str,
    /// The name of a list.
    pub(crate) plural: &'static str,
    pub(crate) values: TableValues,
    /// The length of each list, if all samples of the data set have lists of this length.
    pub(crate) width: Option<usize>,
    /// The name of each element of such a list; absent: its number.
    pub(crate) labels: Option<ClassLabels>,
}

/// The values of a column, one for each sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TableValues {
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<String>),
    IntegerLists(Vec<Vec<u32>>),
    FloatLists(Vec<Vec<f32>>),
    LongLists(Vec<Vec<i64>>),
    TextLists(Vec<Vec<String>>),
}

/// Returns the columns of some samples, which are predictions of one model. Their names do not depend on the samples.
pub(crate) fn of(rows: &[PredictedSample]) -> Vec<Column> {
    let mut table = Table {
        rows,
        columns: Vec::new(),
    };
    let samples = rows.iter().map(|row| row.sample as i64).collect();
    table.push("sample", TableValues::Integers(samples));
    let origins: Option<Vec<&SampleOrigin>> = rows.iter().map(|row| row.origin.as_ref()).collect();
    if let Some(origins) = origins.filter(|origins| !origins.is_empty()) {
        let files = origins.iter().map(|origin| origin.file.clone());
        table.push("file", TableValues::Texts(files.collect()));
        let records = origins.iter().map(|origin| origin.record as i64);
        table.push("record", TableValues::Integers(records.collect()));
    }
    match rows.first().map(|row| &row.prediction) {
        None => {}
        Some(Prediction::Class { .. }) => table.add_classes(),
        Some(Prediction::Positions { .. }) => table.add_positions(),
        Some(Prediction::Values { values }) => {
            let lists = table.each(|prediction| match prediction {
                Prediction::Values { values } => Some(values.clone()),
                _ => None,
            });
            table.push_lists(
                ("value", "values"),
                TableValues::FloatLists(lists),
                Some(values.len()),
            );
        }
        Some(Prediction::Cluster { .. }) => table.add_clusters(),
        Some(Prediction::Boxes { .. }) => table.add_boxes(),
        Some(Prediction::Text { prompt, text, .. }) => {
            table.add_texts((prompt.is_some(), text.is_some()));
        }
    }
    table.columns
}

/// The columns of some samples.
struct Table<'a> {
    rows: &'a [PredictedSample],
    columns: Vec<Column>,
}

impl Table<'_> {
    /// Returns a value of each prediction; the default for a prediction of another kind, which does not occur.
    fn each<T: Default>(&self, value: impl Fn(&Prediction) -> Option<T>) -> Vec<T> {
        let rows = self.rows.iter();
        rows.map(|row| value(&row.prediction).unwrap_or_default())
            .collect()
    }

    fn push(&mut self, name: &'static str, values: TableValues) {
        self.push_lists((name, name), values, None);
    }

    fn push_lists(
        &mut self,
        (name, plural): (&'static str, &'static str),
        values: TableValues,
        width: Option<usize>,
    ) {
        self.columns.push(Column {
            name,
            plural,
            values,
            width,
            labels: None,
        });
    }

    fn add_classes(&mut self) {
        let part = |prediction: &Prediction| match prediction {
            Prediction::Class {
                class, probability, ..
            } => Some((*class, *probability)),
            _ => None,
        };
        let (classes, probabilities): (Vec<i64>, Vec<f32>) = self.each(part).into_iter().unzip();
        self.push("class", TableValues::Integers(classes));
        let (labels, has_names) = match self.rows.first().map(|row| &row.prediction) {
            Some(Prediction::Class {
                labels, class_name, ..
            }) => (Some(labels.clone()), class_name.is_some()),
            _ => (None, false),
        };
        if has_names {
            let names = self.each(|prediction| match prediction {
                Prediction::Class { class_name, .. } => class_name.clone(),
                _ => None,
            });
            self.push("class_name", TableValues::Texts(names));
        }
        self.push("probability", TableValues::Floats(probabilities));
        let all = self.each(|prediction| match prediction {
            Prediction::Class { probabilities, .. } => probabilities.clone(),
            _ => None,
        });
        if let Some(width) = all.first().map(Vec::len).filter(|&width| width > 0) {
            self.push_lists(
                ("probability", "probabilities"),
                TableValues::FloatLists(all),
                Some(width),
            );
            if let Some(column) = self.columns.last_mut() {
                column.labels = labels;
            }
        }
        self.add_top(has_names);
    }

    /// Adds the most probable classes, if they were requested.
    fn add_top(&mut self, has_names: bool) {
        let top = self.each(|prediction| match prediction {
            Prediction::Class { top, .. } => top.clone(),
            _ => None,
        });
        if let Some(width) = top.first().map(Vec::len).filter(|&width| width > 0) {
            let lists = top
                .iter()
                .map(|top| top.iter().map(|best| best.class).collect());
            let lists = TableValues::LongLists(lists.collect());
            self.push_lists(("top_class", "top_classes"), lists, Some(width));
            if has_names {
                let names = top.iter().map(|top| {
                    let names = top.iter().map(|best| best.class_name.clone());
                    names.map(Option::unwrap_or_default).collect()
                });
                let names = TableValues::TextLists(names.collect());
                self.push_lists(("top_class_name", "top_class_names"), names, Some(width));
            }
            let lists = top
                .iter()
                .map(|top| top.iter().map(|best| best.probability).collect());
            let lists = TableValues::FloatLists(lists.collect());
            self.push_lists(("top_probability", "top_probabilities"), lists, Some(width));
        }
    }

    fn add_positions(&mut self) {
        let part = |prediction: &Prediction| match prediction {
            Prediction::Positions {
                classes,
                probabilities,
            } => Some((classes.clone(), probabilities.clone())),
            _ => None,
        };
        let (classes, probabilities): (Vec<_>, Vec<_>) = self.each(part).into_iter().unzip();
        self.push("classes", TableValues::IntegerLists(classes));
        self.push("probabilities", TableValues::FloatLists(probabilities));
    }

    fn add_clusters(&mut self) {
        let part = |prediction: &Prediction| match prediction {
            Prediction::Cluster { cluster, distance } => Some((i64::from(*cluster), *distance)),
            _ => None,
        };
        let (clusters, distances): (Vec<_>, Vec<_>) = self.each(part).into_iter().unzip();
        self.push("cluster", TableValues::Integers(clusters));
        self.push("distance", TableValues::Floats(distances));
    }

    fn add_boxes(&mut self) {
        let boxes = self.each(|prediction| match prediction {
            Prediction::Boxes { boxes } => Some(boxes.clone()),
            _ => None,
        });
        let classes = boxes
            .iter()
            .map(|boxes| boxes.iter().map(|found| found.class).collect());
        let classes = TableValues::IntegerLists(classes.collect());
        self.push("box_classes", classes);
        type PartOfBox = fn(&FoundBox) -> f32;
        let parts: [(&'static str, PartOfBox); 5] = [
            ("box_probabilities", |found| found.probability),
            ("top", |found| found.top),
            ("left", |found| found.left),
            ("bottom", |found| found.bottom),
            ("right", |found| found.right),
        ];
        for (name, part) in parts {
            let lists = boxes.iter().map(|boxes| boxes.iter().map(part).collect());
            let lists = TableValues::FloatLists(lists.collect());
            self.push(name, lists);
        }
    }

    fn add_texts(&mut self, (has_prompt, has_text): (bool, bool)) {
        if has_prompt {
            let prompts = self.each(|prediction| match prediction {
                Prediction::Text { prompt, .. } => prompt.clone(),
                _ => None,
            });
            self.push("prompt", TableValues::Texts(prompts));
        }
        if has_text {
            let texts = self.each(|prediction| match prediction {
                Prediction::Text { text, .. } => text.clone(),
                _ => None,
            });
            self.push("text", TableValues::Texts(texts));
        }
        let tokens = self.each(|prediction| match prediction {
            Prediction::Text { tokens, .. } => Some(tokens.clone()),
            _ => None,
        });
        self.push("tokens", TableValues::IntegerLists(tokens));
    }
}
