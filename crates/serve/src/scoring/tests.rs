//! Tests that chunks have the bits of the model, in any composition of batches.

use ronde_core::seed::SeedTree;
use ronde_data::{DataConfig, DatasetExt, OpenContext};
use ronde_engine::{Activation, Chain, ModelConfig};

use super::*;
use crate::class_labels::ClassLabels;
use crate::part_folder::ScoringIdentity;
use crate::prediction_form::{ClassDetail, PredictionForm};

fn model(text: &str, dataset: &dyn Dataset) -> Chain {
    let config: ModelConfig = toml::from_str(text).unwrap();
    let description = dataset.description();
    let seeds = SeedTree::new(3);
    config
        .build(&description.shape, description.classes, &seeds)
        .unwrap()
}

fn test_set(data: &str) -> Arc<dyn Dataset> {
    let data: DataConfig = toml::from_str(data).unwrap();
    let context = OpenContext::new(".".as_ref(), 1);
    ronde_data::open(&data, &context).unwrap().test.unwrap()
}

const MODELS: [(&str, &str); 7] = [
    ("kind = 'digits_cnn'", "source = 'digits'"),
    ("kind = 'mlp'\nhidden = [33]", "source = 'digits'"),
    ("kind = 'linear'", "source = 'digits'"),
    ("kind = 'kmeans'\nclusters = 5", "source = 'digits'"),
    (
        "kind = 'resnet18'\nsmall_input = true",
        "source = 'synthetic_images'\nsamples = 2\ntest_samples = 9\nshape = [3, 16, 16]\nclasses = 4",
    ),
    (
        "kind = 'detector'",
        "source = 'synthetic_objects'\nsamples = 2\ntest_samples = 9\nside = 32",
    ),
    (
        "kind = 'bert'\nlayers = 1\nwidth = 16\nheads = 2",
        "source = 'synthetic_text'\nsamples = 2\ntest_samples = 9\ncontext = 12\ntokens = 20",
    ),
];

#[test]
fn the_bits_of_a_prediction_do_not_depend_on_the_other_samples() {
    for (text, data) in MODELS {
        let dataset = test_set(data);
        let mut chain = model(text, &*dataset);
        let numbers: Vec<u64> = (0..dataset.len().min(67)).collect();
        let features = dataset.features(&numbers).unwrap();
        let each = features.len() / numbers.len();
        let mut outputs = |from: usize, to: usize| {
            let shape =
                std::iter::once(to - from).chain(dataset.description().shape.iter().copied());
            let shape: Vec<usize> = shape.collect();
            let input = Activation::from_host(&shape, features[from * each..to * each].to_vec());
            let output = chain.evaluate(input).unwrap();
            output
                .as_slice()
                .iter()
                .map(|value| value.to_bits())
                .collect::<Vec<u32>>()
        };
        let all = outputs(0, numbers.len());
        for size in [1, 2, 7] {
            let starts = (0..numbers.len()).step_by(size);
            let parts = starts.map(|start| outputs(start, (start + size).min(numbers.len())));
            let parts: Vec<u32> = parts.collect::<Vec<_>>().concat();
            assert!(parts == all, "{text}, batches of {size}");
        }
    }
}

#[test]
fn chunks_are_the_predictions_of_their_samples() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = test_set("source = 'digits'");
    let form = PredictionForm::Classes {
        labels: ClassLabels::numbers(10, 0),
        detail: ClassDetail::All,
    };
    let identity = ScoringIdentity {
        model: String::new(),
        data: String::new(),
        samples: dataset.len(),
        format: OutputFormat::JsonLines,
        settings: String::new(),
    };
    let parts = PartFolder::claim(folder.path(), &identity, false).unwrap();
    let predictor = || Predictor::new(model("kind = 'linear'", &*dataset), form.clone());
    let worker = PartFolder::open(folder.path(), &identity).unwrap();
    let output = (worker, OutputFormat::JsonLines);
    let settings = LoaderSettings::default();
    let mut scoring = Scoring::new(Box::new(predictor()), dataset.clone(), output, settings);
    for chunk in [3, 0, 5, 1, 2, 4] {
        scoring.begin(chunk).unwrap();
    }
    while scoring.finish().unwrap().is_some() {}
    let to = folder.path().with_extension("jsonl");
    assert_eq!(parts.join(&to, 0.0).unwrap().rows, 360);
    let text = std::fs::read_to_string(&to).unwrap();
    std::fs::remove_file(&to).unwrap();
    assert_eq!(text.lines().count(), 360);
    let mut predictor = predictor();
    for (number, line) in text.lines().enumerate() {
        let (features, _) = dataset.sample(number as u64).unwrap();
        let prediction = predictor
            .predict(&[1, 1, 8, 8], features)
            .unwrap()
            .remove(0);
        let row = PredictedSample {
            sample: number as u64,
            origin: None,
            prediction,
        };
        assert_eq!(line, serde_json::to_string(&row).unwrap());
    }
}
