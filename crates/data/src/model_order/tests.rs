//! Classes and columns of a model among those of data: the same, in another order, missing and new.

use super::*;
use crate::dataset::DatasetExt;
use crate::open_context::OpenContext;
use crate::pipeline::open;

/// Returns a section of a table with the columns `a`, `b`, `y` and `class`.
fn section(features: &str, label: &str) -> DataConfig {
    let text = format!(
        "source = 'records'\ntrain = 'd.csv'\nfeatures = {{ decode = 'numbers', {features} }}\nlabel = {{ {label} }}"
    );
    toml::from_str(&text).unwrap()
}

/// Opens a section, and returns the first sample and the signature of the data.
fn opened(config: &DataConfig) -> (DatasetDescription, (Vec<f32>, Vec<u32>)) {
    let folder = tempfile::tempdir().unwrap();
    let table = "a,b,y,class\n1,2,30,dog\n3,4,50,cat\n";
    std::fs::write(folder.path().join("d.csv"), table).unwrap();
    let data = open(config, &OpenContext::new(folder.path(), 0))
        .unwrap()
        .train;
    (data.description().clone(), data.sample(0).unwrap())
}

fn whole(signature: &DataSignature) -> ModelForm<'_> {
    ModelForm {
        signature,
        image_scaling: None,
        has_outputs: true,
        has_columns: true,
        has_units: true,
    }
}

const COLUMNS: &str = "field = ['a', 'b'], shape = [2]";
const CLASSES: &str = "field = 'class', names = ['cat', 'dog']";

#[test]
fn another_order_is_mapped_to_that_of_the_model() {
    let model = opened(&section(COLUMNS, CLASSES)).0.signature;
    assert_eq!(model.columns, ["a", "b"]);
    assert_eq!(model.class_names, ["cat", "dog"]);
    let other = section(
        "field = ['b', 'a'], shape = [2]",
        "field = 'class', names = [' dog', 'cat']",
    );
    let (description, sample) = opened(&other);
    assert_eq!(sample, (vec![2.0, 1.0], vec![0]));
    let ordered = other.in_model_order(&description, &whole(&model)).unwrap();
    assert_eq!(ordered.notes.len(), 2, "{:?}", ordered.notes);
    let (mapped, sample) = opened(&ordered.config.unwrap());
    assert_eq!(sample, (vec![1.0, 2.0], vec![1]));
    assert_eq!(mapped.signature, model);
    // Names do not change the identity of the content.
    assert_eq!(mapped.identity, description.identity);
    let same = section(COLUMNS, CLASSES);
    let same = same.in_model_order(&mapped, &whole(&model)).unwrap();
    assert_eq!((same.config, same.notes.len()), (None, 0));
}

#[test]
fn missing_and_new_names_are_errors_with_both_lists() {
    let model = opened(&section(COLUMNS, CLASSES)).0.signature;
    for (features, label, words) in [
        (
            COLUMNS,
            "field = 'class', names = ['cow', 'dog', 'cat']",
            "the model has `cat`, `dog`, the data has `cow`, `dog`, `cat`; the model lacks `cow`",
        ),
        (
            "field = ['a', 'y'], shape = [2]",
            CLASSES,
            "the model has `a`, `b`, the data has `a`, `y`; the data lacks `b`; the model lacks `y`",
        ),
    ] {
        let config = section(features, label);
        let error = config.in_model_order(&opened(&config).0, &whole(&model));
        let text = error.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
    let new = section(COLUMNS, "field = 'class', names = ['cow', 'dog', 'cat']");
    let head = ModelForm {
        has_outputs: false,
        ..whole(&model)
    };
    let ordered = new.in_model_order(&opened(&new).0, &head).unwrap();
    assert_eq!(ordered.config, None);
}

#[test]
fn positions_are_not_names() {
    let numbered = section("field = '0..2', shape = [2]", "field = 'y', values = 1");
    let (description, sample) = opened(&numbered);
    assert_eq!(sample, (vec![1.0, 2.0], vec![30.0_f32.to_bits()]));
    assert_eq!(description.signature.columns, [""; 0]);
    assert_eq!(description.signature.value_names, ["y"]);
    let model = opened(&section(COLUMNS, "field = 'y', values = 1")).0;
    let ordered = numbered.in_model_order(&description, &whole(&model.signature));
    let notes = ordered.unwrap().notes;
    assert!(notes[0].contains("matched by their order"), "{notes:?}");
}

#[test]
fn values_have_the_divisor_of_the_model() {
    let scaled = "field = 'y', values = 1, scale = 10";
    let model = opened(&section(COLUMNS, scaled)).0.signature;
    assert_eq!(model.value_scale, Some(10.0));
    let plain = section(COLUMNS, "field = 'y', values = 1");
    let ordered = plain.in_model_order(&opened(&plain).0, &whole(&model));
    let (description, sample) = opened(&ordered.unwrap().config.unwrap());
    assert_eq!(description.signature.value_scale, Some(10.0));
    assert_eq!(sample.1, [3.0_f32.to_bits()]);
}

#[test]
fn values_of_several_columns_are_matched_by_name() {
    let model = opened(&section(
        "field = 'a', shape = [1]",
        "field = ['b', 'y'], values = 2",
    ));
    assert_eq!(model.0.signature.value_names, ["b", "y"]);
    let other = section("field = 'a', shape = [1]", "field = ['y', 'b'], values = 2");
    let ordered = other.in_model_order(&opened(&other).0, &whole(&model.0.signature));
    let mapped = opened(&ordered.unwrap().config.unwrap());
    assert_eq!(mapped.1, model.1);
}

#[test]
fn folders_of_classes_are_matched_by_name() {
    let data = DatasetDescription {
        signature: DataSignature {
            class_names: vec!["cat".to_owned(), "dog".to_owned()],
            ..DataSignature::default()
        },
        ..DatasetDescription::new(vec![3, 8, 8], 2, String::new())
    };
    let text =
        "source = 'records'\ntrain = 'images'\nfeatures = { decode = 'image', shape = [3, 8, 8] }";
    let folder: DataConfig = toml::from_str(text).unwrap();
    let model = DataSignature {
        class_names: vec!["dog".to_owned(), "cat".to_owned()],
        ..DataSignature::default()
    };
    let ordered = folder.in_model_order(&data, &whole(&model)).unwrap();
    let Some(DataConfig::Records(records)) = ordered.config else {
        panic!("no other section");
    };
    let label = records.label.unwrap();
    assert_eq!(label.field, Fields::One("class_name".to_owned()));
    assert_eq!(label.names, Some(model.class_names.clone()));
    let mean = Some(vec![0.5; 3]);
    let scaled = ModelForm {
        image_scaling: Some([&mean, &None]),
        ..whole(&data.signature)
    };
    let ordered = folder.in_model_order(&data, &scaled).unwrap();
    let Some(DataConfig::Records(records)) = ordered.config else {
        panic!("no other section");
    };
    assert!(matches!(records.features, Features::Image(images) if images.mean == mean));
}
