//! [`OutputFormat`]: writes predictions as JSON lines, CSV or Parquet.

use std::path::Path;

use ronde_core::csv_field::csv_field;
use serde::{Deserialize, Serialize};

use crate::columns::{self, Column, TableValues};
use crate::error::ServeError;
use crate::predicted_sample::PredictedSample;

/// The format of a file of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// One JSON object per line.
    JsonLines,
    /// Comma-separated values with a header. Lists have a column for each element where all samples have equally many, and
    /// are separated by spaces otherwise.
    Csv,
    /// Parquet, in row groups of a chunk.
    Parquet,
}

impl OutputFormat {
    /// Returns the format of a file name's extension.
    ///
    /// # Errors
    /// When the extension is another one, or this build does not write the format.
    pub fn of(path: &Path) -> Result<Self, ServeError> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let refuse = |problem: &str| {
            Err(ServeError::OutputFile {
                path: path.to_owned(),
                problem: problem.to_owned(),
            })
        };
        match extension.unwrap_or_default() {
            "jsonl" | "ndjson" => Ok(Self::JsonLines),
            "csv" => Ok(Self::Csv),
            "parquet" if cfg!(feature = "full") => Ok(Self::Parquet),
            "parquet" => refuse(
                "this build does not write Parquet\n  help: build ronde with `--features full`, or write .csv or .jsonl",
            ),
            _ => refuse("expected a name that ends with .parquet, .csv or .jsonl"),
        }
    }

    /// Returns the contents of a file with some samples. Without samples, they are empty.
    ///
    /// # Errors
    /// When a row cannot be written in the format.
    pub fn encode(self, rows: &[PredictedSample]) -> Result<Vec<u8>, ServeError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        match self {
            Self::JsonLines => {
                let mut text = Vec::new();
                for row in rows {
                    serde_json::to_writer(&mut text, row).map_err(|error| ServeError::Encode {
                        cause: error.into(),
                    })?;
                    text.push(b'\n');
                }
                Ok(text)
            }
            Self::Csv => Ok(csv(&columns::of(rows))),
            Self::Parquet => crate::table_file::encode(&columns::of(rows)),
        }
    }
}

/// Returns columns as lines of comma-separated values, after a header.
fn csv(columns: &[Column]) -> Vec<u8> {
    let cells: Vec<Vec<String>> = columns.iter().flat_map(cells).collect();
    let rows = cells.first().map_or(0, Vec::len);
    let mut text = String::new();
    for row in 0..rows {
        for (at, column) in cells.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            text.push_str(&column[row]);
        }
        text.push('\n');
    }
    text.into_bytes()
}

/// Returns the cells of a column with its header, as one column or as one for each element of its lists.
fn cells(column: &Column) -> Vec<Vec<String>> {
    let one = |cells: Vec<String>| {
        let header = std::iter::once(column.name.to_owned());
        vec![header.chain(cells).collect()]
    };
    match &column.values {
        TableValues::Integers(values) => one(values.iter().map(ToString::to_string).collect()),
        TableValues::Floats(values) => one(values.iter().map(|value| shown(*value)).collect()),
        TableValues::Texts(values) => one(values.iter().map(|text| csv_field(text)).collect()),
        TableValues::IntegerLists(lists) => list_cells(
            column,
            lists
                .iter()
                .map(|list| list.iter().map(ToString::to_string).collect()),
        ),
        TableValues::FloatLists(lists) => list_cells(
            column,
            lists
                .iter()
                .map(|list| list.iter().map(|value| shown(*value)).collect()),
        ),
        TableValues::LongLists(lists) => list_cells(
            column,
            lists
                .iter()
                .map(|list| list.iter().map(ToString::to_string).collect()),
        ),
        TableValues::TextLists(lists) => list_cells(
            column,
            lists
                .iter()
                .map(|list| list.iter().map(|text| csv_field(text)).collect()),
        ),
    }
}

fn list_cells(column: &Column, lists: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    let Some(width) = column.width else {
        let header = std::iter::once(column.plural.to_owned());
        return vec![header.chain(lists.map(|list| list.join(" "))).collect()];
    };
    let mut columns: Vec<Vec<String>> = match width {
        1 => vec![vec![column.name.to_owned()]],
        _ => (0..width)
            .map(|index| vec![heading(column, index)])
            .collect(),
    };
    for list in lists {
        for (column, cell) in columns.iter_mut().zip(list) {
            column.push(cell);
        }
    }
    columns
}

/// Returns the heading of an element of the lists of a column.
fn heading(column: &Column, index: usize) -> String {
    let labels = column.labels.as_ref();
    match labels.and_then(|labels| labels.texts().get(index)) {
        Some(label) => csv_field(&format!("{}_{label}", column.name)),
        None => format!("{}_{index}", column.name),
    }
}

/// Returns the shortest text from which the same bits are read.
fn shown(value: f32) -> String {
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class_labels::ClassLabels;
    use crate::prediction::Prediction;
    use crate::prediction::{ClassProbability, FoundBox};
    use ronde_data::SampleOrigin;

    fn text(format: OutputFormat, predictions: Vec<Prediction>) -> String {
        let rows = predictions.into_iter().zip(5..);
        let rows: Vec<PredictedSample> = rows
            .map(|(prediction, sample)| PredictedSample {
                sample,
                origin: None,
                prediction,
            })
            .collect();
        String::from_utf8(format.encode(&rows).unwrap()).unwrap()
    }

    fn class(top: Option<Vec<ClassProbability>>) -> Prediction {
        Prediction::Class {
            class: 1,
            class_name: None,
            labels: ClassLabels::numbers(2, 0),
            probability: 0.75,
            probabilities: top.is_none().then(|| vec![0.25, 0.75]),
            top,
        }
    }

    #[test]
    fn csv_has_a_column_for_each_probability() {
        let all = text(OutputFormat::Csv, vec![class(None), class(None)]);
        let expected = "sample,class,probability,probability_0,probability_1\n5,1,0.75,0.25,0.75\n6,1,0.75,0.25,0.75\n";
        assert_eq!(all, expected);
        let best = ClassProbability {
            class: 1,
            class_name: None,
            probability: 0.75,
        };
        let best = [best.clone(), best];
        let top = text(OutputFormat::Csv, vec![class(Some(best.to_vec()))]);
        assert_eq!(
            top,
            "sample,class,probability,top_class_0,top_class_1,top_probability_0,top_probability_1\n5,1,0.75,1,1,0.75,0.75\n"
        );
    }

    #[test]
    fn csv_has_the_names_of_classes() {
        let labels = ClassLabels::names(vec!["cat".to_owned(), "a,b".to_owned()]);
        let named = |top: Option<Vec<ClassProbability>>| Prediction::Class {
            class: 1,
            class_name: labels.name(1),
            probability: 0.75,
            probabilities: top.is_none().then(|| vec![0.25, 0.75]),
            top,
            labels: labels.clone(),
        };
        let all = text(OutputFormat::Csv, vec![named(None)]);
        assert_eq!(
            all,
            "sample,class,class_name,probability,probability_cat,\"probability_a,b\"\n5,1,\"a,b\",0.75,0.25,0.75\n"
        );
        let best = ClassProbability {
            class: 1,
            class_name: labels.name(1),
            probability: 0.75,
        };
        let top = text(OutputFormat::Csv, vec![named(Some(vec![best]))]);
        assert_eq!(
            top,
            "sample,class,class_name,probability,top_class,top_class_name,top_probability\n5,1,\"a,b\",0.75,1,\"a,b\",0.75\n"
        );
    }

    #[test]
    fn texts_are_quoted_and_lists_of_any_length_are_one_cell() {
        let generated = Prediction::Text {
            prompt: Some("a".to_owned()),
            tokens: vec![1, 2],
            text: Some("say \"b\",\nc".to_owned()),
        };
        let csv = text(OutputFormat::Csv, vec![generated.clone()]);
        assert_eq!(
            csv,
            "sample,prompt,text,tokens\n5,a,\"say \"\"b\"\",\nc\",1 2\n"
        );
        let json = text(OutputFormat::JsonLines, vec![generated]);
        assert_eq!(
            json,
            "{\"sample\":5,\"prompt\":\"a\",\"tokens\":[1,2],\"text\":\"say \\\"b\\\",\\nc\"}\n"
        );
        let found = FoundBox {
            class: 2,
            probability: 0.5,
            top: 0.0,
            left: 0.25,
            bottom: 1.0,
            right: 1e-9,
        };
        let boxes = vec![
            Prediction::Boxes {
                boxes: vec![found; 2],
            },
            Prediction::Boxes { boxes: vec![] },
        ];
        let csv = text(OutputFormat::Csv, boxes);
        let expected = "sample,box_classes,box_probabilities,top,left,bottom,right\n\
            5,2 2,0.5 0.5,0.0 0.0,0.25 0.25,1.0 1.0,1e-9 1e-9\n6,,,,,,\n";
        assert_eq!(csv, expected);
    }

    #[test]
    fn values_and_clusters_have_columns() {
        let values = vec![
            Prediction::Values {
                values: vec![f32::NAN],
            },
            Prediction::Values { values: vec![0.1] },
        ];
        assert_eq!(
            text(OutputFormat::Csv, values),
            "sample,value\n5,NaN\n6,0.1\n"
        );
        let cluster = vec![Prediction::Cluster {
            cluster: 3,
            distance: 0.5,
        }];
        assert_eq!(
            text(OutputFormat::Csv, cluster),
            "sample,cluster,distance\n5,3,0.5\n"
        );
        assert_eq!(OutputFormat::Csv.encode(&[]).unwrap(), b"");
    }

    #[test]
    fn samples_of_files_have_file_and_record() {
        let row = PredictedSample {
            sample: 3,
            origin: Some(SampleOrigin {
                file: "a,b.csv".to_owned(),
                record: 1,
            }),
            prediction: Prediction::Values { values: vec![0.5] },
        };
        let text = |format: OutputFormat| {
            String::from_utf8(format.encode(std::slice::from_ref(&row)).unwrap()).unwrap()
        };
        assert_eq!(
            text(OutputFormat::Csv),
            "sample,file,record,value\n3,\"a,b.csv\",1,0.5\n"
        );
        let json = "{\"sample\":3,\"file\":\"a,b.csv\",\"record\":1,\"values\":[0.5]}\n";
        assert_eq!(text(OutputFormat::JsonLines), json);
    }

    #[test]
    fn other_extensions_are_refused() {
        for name in ["out", "out.txt", "out.CSV", ".csv"] {
            assert!(OutputFormat::of(Path::new(name)).is_err(), "{name}");
        }
        assert_eq!(
            OutputFormat::of(Path::new("a/b.ndjson")).unwrap(),
            OutputFormat::JsonLines
        );
    }
}
