//! Tests that generated texts are those of the model, in any composition of batches.

use ronde_core::seed::SeedTree;
use ronde_core::{DataSignature, FormatHeader, Shard};
use ronde_data::{DataConfig, Dataset, DatasetExt, OpenContext};

use super::*;

const GPT: &str = "kind = 'gpt'\nlayers = 2\nwidth = 16\nheads = 2";
const LETTERS: &str = "source = 'text'\ncontext = 24";
const TRANSFORMER: &str = "kind = 'transformer'\nsource = 9\nlayers = 1\nwidth = 16\nheads = 2";
const NUMBERS: &str = "source = 'number_words'\nsamples = 8\ntest_samples = 9";

fn test_set(data: &str) -> Arc<dyn Dataset> {
    let data: DataConfig = toml::from_str(data).unwrap();
    let context = OpenContext::new(".".as_ref(), 1);
    ronde_data::open(&data, &context).unwrap().test.unwrap()
}

/// A model with initial weights.
fn model(config: &ModelConfig, data: &dyn Dataset) -> Chain {
    let description = data.description();
    let seeds = SeedTree::new(3);
    config
        .build(&description.shape, description.classes, &seeds)
        .unwrap()
}

fn manifest(config: &ModelConfig, data: &dyn Dataset) -> ModelManifest {
    let description = data.description();
    ModelManifest {
        header: FormatHeader::of(FormatHeader::MODEL),
        run: "run".to_owned(),
        model: Some(config.clone()),
        input_shape: description.shape.clone(),
        classes: description.classes,
        images: None,
        targets: None,
        signature: DataSignature::default(),
        vocabulary: None,
        steps: 0,
        plan: String::new(),
        identity: Vec::new(),
        unrepeatable: None,
        blake3: String::new(),
        evaluation: None,
        best: None,
    }
}

fn sampling(temperature: f32) -> TokenSampling {
    TokenSampling::new(temperature, NonZeroUsize::new(5), 7).unwrap()
}

/// Generates the texts of some prompts or samples, `size` at a time.
fn generate(
    (model_text, data): (&str, &str),
    prompts: Option<&str>,
    settings: GenerationSettings,
    size: usize,
) -> Vec<Prediction> {
    let config: ModelConfig = toml::from_str(model_text).unwrap();
    let data = test_set(data);
    let manifest = manifest(&config, &*data);
    let description = data.description();
    let vocabulary = description.vocabulary.clone();
    let most = TextGenerator::prompt_tokens_max(&manifest).unwrap();
    let form = (description.classes, most);
    let prompts = prompts.map(|text| {
        let file = ("prompts".as_ref(), text.as_bytes());
        Arc::new(Prompts::parse(file, vocabulary.as_deref(), form).unwrap())
    });
    let samples = prompts
        .as_ref()
        .map_or(data.clone(), |prompts| prompts.dataset().unwrap());
    let chain = model(&config, &*data);
    let mut generator =
        TextGenerator::new(chain, &manifest, (vocabulary, prompts), settings).unwrap();
    let numbers: Vec<u64> = (0..samples.len()).collect();
    let texts = numbers.chunks(size).flat_map(|numbers| {
        let batch = Batch {
            shard: Shard(0),
            sample_ids: numbers.to_vec(),
            shape: Vec::new(),
            features: samples.features(numbers).unwrap(),
            labels: Vec::new(),
            skipped: Vec::new(),
            skipped_ids: Vec::new(),
        };
        generator.score(batch, numbers).unwrap()
    });
    texts.collect()
}

fn tokens(prediction: &Prediction) -> &[u32] {
    match prediction {
        Prediction::Text { tokens, .. } => tokens,
        other => panic!("{other:?}"),
    }
}

#[test]
fn texts_do_not_depend_on_the_texts_that_are_generated_with_them() {
    let prompts = "It was\nthe best of times\nIt is\nI\nthat it was the worst";
    for (of, prompts) in [
        ((GPT, LETTERS), Some(prompts)),
        ((TRANSFORMER, NUMBERS), None),
        ((TRANSFORMER, NUMBERS), Some("two hundred\none")),
    ] {
        for temperature in [0.0, 1.0] {
            let settings = GenerationSettings {
                tokens_max: NonZeroUsize::new(11),
                sampling: sampling(temperature),
            };
            let all = generate(of, prompts, settings, 60);
            for size in [1, 2, 3] {
                assert_eq!(generate(of, prompts, settings, size), all, "{size}");
            }
            assert!(all.iter().any(|text| tokens(text).len() == 11), "{all:?}");
        }
    }
}

#[test]
fn each_token_has_the_greatest_score_of_the_whole_text() {
    let settings = GenerationSettings {
        tokens_max: None,
        sampling: TokenSampling::default(),
    };
    let text = "It was the best of ";
    let found = generate((GPT, LETTERS), Some(text), settings, 60);
    let Prediction::Text {
        prompt,
        tokens,
        text: generated,
    } = &found[0]
    else {
        panic!("{found:?}");
    };
    // The text ends with the token after the last position of the model.
    assert_eq!(
        (prompt.as_deref(), tokens.len()),
        (Some(text), 24 - text.len() + 1)
    );
    let data = test_set(LETTERS);
    let vocabulary = data.description().vocabulary.clone().unwrap();
    assert_eq!(generated.as_deref(), Some(&*vocabulary.decode(tokens)));
    let config: ModelConfig = toml::from_str(GPT).unwrap();
    let mut chain = model(&config, &*data);
    let classes = data.description().classes as usize;
    let mut all = vocabulary.encode(text).unwrap();
    for token in tokens {
        let mut row: Vec<f32> = all.iter().map(|token| *token as f32).collect();
        row.resize(24, 0.0);
        let scores = chain
            .evaluate(Activation::from_host(&[1, 24], row))
            .unwrap();
        let last = &scores.as_slice()[(all.len() - 1) * classes..][..classes];
        let expected = TokenSampling::default().choose(last, 0, 0).unwrap();
        assert_eq!(*token, expected);
        all.push(*token);
    }
}

#[test]
fn translations_begin_with_the_source_of_their_sample() {
    let settings = GenerationSettings {
        tokens_max: NonZeroUsize::new(2),
        sampling: TokenSampling::default(),
    };
    let of_samples = generate((TRANSFORMER, NUMBERS), None, settings, 60);
    let Prediction::Text { prompt, .. } = &of_samples[0] else {
        panic!("{of_samples:?}");
    };
    let source = prompt.clone().unwrap();
    assert!(
        !source.is_empty() && !source.contains(['-', '|']),
        "{source}"
    );
    let of_prompt = generate((TRANSFORMER, NUMBERS), Some(&source), settings, 60);
    assert_eq!(of_prompt[0], of_samples[0]);
}

#[test]
fn models_without_texts_and_prompts_without_a_beginning_are_refused() {
    let settings = GenerationSettings {
        tokens_max: None,
        sampling: TokenSampling::default(),
    };
    let refused = |model_text: &str, data: &str| {
        let config: ModelConfig = toml::from_str(model_text).unwrap();
        let data = test_set(data);
        let manifest = manifest(&config, &*data);
        let chain = model(&config, &*data);
        TextGenerator::new(chain, &manifest, (None, None), settings).err()
    };
    assert!(matches!(
        refused(GPT, LETTERS),
        Some(ServeError::NoText { kind: "gpt" })
    ));
    let linear = refused("kind = 'linear'", "source = 'digits'");
    assert!(matches!(
        linear,
        Some(ServeError::NoText { kind: "linear" })
    ));
    assert!(refused(TRANSFORMER, NUMBERS).is_none());
}
