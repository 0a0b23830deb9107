//! Runs that choose their model by its evaluations: an interrupted run chooses the same one.

use super::*;

/// Early stopping, a rate that falls on a plateau, the best model and an average of the weights. The high rate makes some
/// evaluations worse than earlier ones.
fn choosing(workers: usize) -> RunSettings {
    RunSettings::new(workers)
        .with("train.steps=60")
        .with("train.learning_rate=0.05")
        .with("train.evaluate_every_epochs=1")
        .with("train.keep_best=loss")
        .with("train.average_decay=0.6")
        .with("train.early_stopping.patience=3")
        .with("train.reduce_on_plateau.patience=1")
        .with("train.reduce_on_plateau.metric=accuracy")
}

/// Returns the step and the loss of each evaluation, without repetitions.
fn evaluations(events: &[Event]) -> Vec<(u64, u64)> {
    let evaluated = events.iter().filter_map(|event| match event {
        Event::Evaluated { step, loss, .. } => Some((step.0, loss.to_bits())),
        _ => None,
    });
    let mut evaluated: Vec<(u64, u64)> = evaluated.collect();
    evaluated.dedup();
    evaluated
}

fn rates(events: &[Event]) -> Vec<f64> {
    let rates = events.iter().filter_map(|event| match event {
        Event::StepCommitted { learning_rate, .. } => Some(*learning_rate),
        _ => None,
    });
    rates.collect()
}

#[test]
fn an_interrupted_run_chooses_the_same_model_on_any_number_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    let whole = train_in(&local(folder.path()), &choosing(1));
    let (bits, steps) = (whole.bits(), whole.committed().len() as u64);
    let evaluated = evaluations(&whole.events);
    assert!(steps < 60, "{steps} steps");
    assert!(rates(&whole.events).last().unwrap() < &0.05);
    let losses = evaluated.iter().map(|(_, loss)| f64::from_bits(*loss));
    let best = losses.fold(f64::INFINITY, f64::min);
    let last = f64::from_bits(evaluated.last().unwrap().1);
    assert!(best < last, "the best model is not that of the last step");
    for workers in [2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let end = train_in(&local(folder.path()), &choosing(workers));
        assert_eq!(end.bits(), bits, "{workers}");
        assert_eq!(evaluations(&end.events), evaluated, "{workers}");
    }
    // In the middle of an epoch, before and after its last step, and shortly before the end.
    for (stop, saving, resuming) in [
        (5, 2, 1),
        (6, 1, 3),
        (7, 3, 2),
        (8, 2, 2),
        (steps - 3, 1, 2),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let store = local(folder.path());
        let begin = train_in(&store, &choosing(saving).stopping(stop));
        let end = train_in(&store, &choosing(resuming).resuming());
        assert_eq!(end.bits(), bits, "stopped after {stop}");
        let all = [begin.events, end.events].concat();
        assert_eq!(evaluations(&all), evaluated, "stopped after {stop}");
        assert_eq!(rates(&all), rates(&whole.events), "stopped after {stop}");
    }
}

#[test]
fn a_test_set_and_a_measured_metric_are_required() {
    for (set, cause) in [
        ("data.test_samples=0", "there is no test set"),
        ("train.keep_best=f1", "the metric `f1` is not measured"),
    ] {
        let config = config(&["train.evaluate_every_epochs=1", "train.keep_best=loss", set]);
        let context = OpenContext::new(".".as_ref(), config.run.seed);
        let split = ronde_data::open(&config.data, &context).unwrap();
        let mut plan = Plan::resolve(&config, WorldSize::ONE, &*split.train).unwrap();
        let error = plan.bind_evaluations(split.test.as_deref()).unwrap_err();
        assert!(error.to_string().contains(cause), "{error}");
    }
}
