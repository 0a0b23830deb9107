//! Every sample of an epoch is used once, for any batch size and any number of workers.

use crate::support::{TestFolder, of_kind};

#[test]
fn every_sample_is_used_exactly_once() {
    const SAMPLES: u64 = 101;
    let cases = [
        // Batch size, drop_last, workers, samples of an epoch.
        (5, false, 3, SAMPLES),
        (5, true, 8, 100),
        (1, false, 2, SAMPLES),
        (64, false, 1, SAMPLES),
        (64, true, 4, 64),
        (100, false, 7, SAMPLES),
        (101, true, 5, SAMPLES),
        (1000, false, 2, SAMPLES),
    ];
    for (batch, drop_last, workers, used) in cases {
        let dir = TestFolder::new();
        let sets = [
            "data.source=synthetic_images".to_owned(),
            format!("data.samples={SAMPLES}"),
            "data.shape=[1,4,4]".to_owned(),
            "data.classes=3".to_owned(),
            "model.kind=linear".to_owned(),
            "train.epochs=3".to_owned(),
            format!("train.global_batch_size={batch}"),
            format!("train.drop_last={drop_last}"),
            format!("workers.count={workers}"),
        ];
        let arguments = ["train", "--json"].into_iter();
        let arguments: Vec<&str> = arguments
            .chain(sets.iter().flat_map(|set| ["--set", set]))
            .collect();
        let case = format!("batch {batch}, drop_last {drop_last}, {workers} workers");
        let events = dir.run(&arguments).expect(0, &[]).events();
        let verdicts: Vec<String> = of_kind(&events, "epoch_finished")
            .map(|e| format!("{} {} {}", e["used_once"], e["missing"], e["repeated"]))
            .collect();
        assert_eq!(verdicts, vec![format!("{used} 0 0"); 3], "{case}");
        let finished = of_kind(&events, "run_finished").next().expect("an end");
        assert_eq!(finished["samples"], 3 * used, "{case}");
    }
}
