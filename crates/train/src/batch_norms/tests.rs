//! Plans in which a batch normalisation has one value per channel are refused, and no others.

use ronde_core::WorldSize;
use ronde_data::OpenContext;

use super::*;
use crate::config::RunConfig;

/// Returns the error of a plan; empty if there is none.
fn refusal(samples: u64, shape: &str, rest: &str) -> String {
    let text = format!(
        "[data]\nsource = 'synthetic_images'\nsamples = {samples}\nshape = {shape}\nclasses = 4\n{rest}"
    );
    let config: RunConfig = toml::from_str(&text).unwrap();
    let context = OpenContext::new(".".as_ref(), 1);
    let train = ronde_data::open(&config.data, &context).unwrap().train;
    let plan = Plan::resolve(&config, WorldSize::ONE, &*train).unwrap();
    let checked = check_planned_batch_norms(&plan, &*train);
    checked.map_or_else(|error| error.to_string(), |()| String::new())
}

/// Returns a run file of a model with settings of `[train]`, and more.
fn run(model: &str, train: &str, more: &str) -> String {
    format!("[model]\nkind = '{model}\n[train]\n{train}\n[workers]\nlogical_shards = 8\n{more}")
}

const SMALL: &str = "[3, 8, 8]";

#[test]
fn shards_of_one_sample_are_refused_where_a_norm_has_one_value_in_it() {
    let resnet = "resnet18'\nsmall_input = true";
    let plain = |batch: &str| run(resnet, &format!("global_batch_size = {batch}"), "");
    // An image of 8 x 8 is 1 x 1 in the last block.
    for (samples, text, words) in [
        (
            64,
            plain("8"),
            &[
                "`layer4.0.bn1`",
                "global_batch_size = 16",
                "logical_shards = 4",
            ][..],
        ),
        (
            64,
            plain("15"),
            &["`layer4.0.bn1`", "now 15 samples in 8 shards"],
        ),
        (64, plain("4"), &["`layer4.0.bn1`", "model.normalisation"]),
        // The last batch has 12 samples.
        (
            60,
            plain("16"),
            &["`layer4.0.bn1`", "train.drop_last = true"],
        ),
        (
            64,
            run("resnet18'\nsmall_input = true", "global_batch_size = 8", ""),
            &["`layer4.0.bn1`"],
        ),
        (
            64,
            run("resnet50'\nsmall_input = true", "global_batch_size = 8", ""),
            &["`layer4.0.bn2`"],
        ),
        (
            17,
            run(
                "resnet18'\nsmall_input = true\nnormalisation = 'synchronised_batch'",
                "global_batch_size = 16",
                "",
            ),
            &["a step has 1 sample"],
        ),
        (
            64,
            run(
                resnet,
                "global_batch_size = 8",
                "[sync]\nkind = 'local_sgd'\ninner_steps = 4\nreplicas = 4",
            ),
            &["`layer4.0.bn1`", "global_batch_size = 16"],
        ),
        (
            64,
            run(
                resnet,
                "global_batch_size = 8",
                "[sync]\nkind = 'parameter_server'\nround_updates = 4",
            ),
            &["`layer4.0.bn1`"],
        ),
    ] {
        let found = refusal(samples, SMALL, &text);
        for word in words {
            assert!(found.contains(word), "{text}: {found}");
        }
    }
}

#[test]
fn more_values_than_one_are_accepted() {
    let resnet = "resnet18'\nsmall_input = true";
    let plain = |batch: &str| run(resnet, &format!("global_batch_size = {batch}"), "");
    for (samples, shape, text) in [
        (64, SMALL, plain("16")),
        (64, SMALL, plain("17\ndrop_last = true")),
        (60, SMALL, plain("16\ndrop_last = true")),
        // The run ends before the last batch.
        (60, SMALL, plain("16\nsteps = 3")),
        (64, "[3, 64, 64]", plain("8")),
        (
            64,
            SMALL,
            run(
                "resnet18'\nsmall_input = true\nnormalisation = 'group'",
                "global_batch_size = 8",
                "",
            ),
        ),
        (
            64,
            SMALL,
            run(
                "resnet18'\nsmall_input = true\nnormalisation = 'synchronised_batch'",
                "global_batch_size = 8",
                "",
            ),
        ),
        (
            64,
            "[3, 32, 32]",
            run(
                "vgg16'\nsmall_input = true\nnormalisation = 'batch'",
                "global_batch_size = 8",
                "",
            ),
        ),
        (
            64,
            "[1, 8, 8]",
            run("digits_cnn'", "global_batch_size = 8", ""),
        ),
        (
            64,
            SMALL,
            run("mlp'\nhidden = [4]", "global_batch_size = 8", ""),
        ),
        (
            64,
            SMALL,
            run(
                resnet,
                "global_batch_size = 16",
                "[sync]\nkind = 'local_sgd'\ninner_steps = 4\nreplicas = 4",
            ),
        ),
    ] {
        assert_eq!(refusal(samples, shape, &text), "", "{text}");
    }
}

#[test]
fn skipped_records_may_not_leave_a_shard_of_one_sample() {
    let norms = BatchNorms {
        of_shards: Some("bn".to_owned()),
        of_batches: None,
    };
    let batch = |samples: usize| MicroBatch {
        shard: ronde_core::Shard(0),
        shape: vec![samples, 1],
        features: vec![0.0; samples],
        labels: Vec::new(),
    };
    assert!(norms.check_loaded(&[batch(0), batch(2)]).is_ok());
    let found = norms.check_loaded(&[batch(2), batch(1)]).unwrap_err();
    assert!(found.to_string().contains("`bn`"), "{found}");
    assert!(BatchNorms::default().check_loaded(&[batch(1)]).is_ok());
}
