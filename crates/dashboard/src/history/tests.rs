//! Tests of the history of a run.

use ronde_core::{Epoch, Generation, Step};

use super::*;

fn committed(step: u64, loss: f64) -> Event {
    Event::StepCommitted {
        step: Step(step),
        epoch: Epoch(0),
        generation: Generation(1),
        loss,
        samples: 64,
        targets: 64,
        skipped: 0,
        learning_rate: 0.1,
        gradient_norm: 1.0,
        skipped_update: None,
        duration_s: 0.5,
    }
}

fn loaded(step: u64) -> Event {
    Event::CheckpointLoaded {
        step: Step(step),
        world_size: 2,
        bytes: 10,
        duration_s: 0.1,
        address: Some("runs/x".to_owned()),
        skipped: Vec::new(),
    }
}

#[test]
fn steps_after_a_checkpoint_replace_those_that_were_lost() {
    let mut history = RunHistory::default();
    (0..10).for_each(|step| history.apply(step as f64, &committed(step, 1.0)));
    history.apply(10.0, &loaded(6));
    (6..8).for_each(|step| history.apply(20.0, &committed(step, 2.0)));
    let means: Vec<f64> = history
        .steps
        .from_step(0)
        .map(|(_, at)| at.loss.mean())
        .collect();
    assert_eq!(means, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
    assert_eq!(history.steps.from_step(0).next().unwrap().1.rate.max, 128.0);
    assert_eq!(history.checkpoints[0].outcome, "loaded");
    assert_eq!(history.times, Some((0.0, 20.0)));
}

#[test]
fn memory_stays_bounded_whatever_the_events_are() {
    let mut history = RunHistory::default();
    for n in 0..20_000_u32 {
        let notice = Event::Notice {
            rank: Some(Rank(n)),
            message: "é".repeat(20_000),
        };
        if n < 5_000 {
            history.apply(0.0, &notice);
        }
        let times = Event::StepTimes {
            rank: Rank(n),
            step: Step(u64::from(n) << 20),
            times: Default::default(),
            arrived_s: None,
            bytes_sent: 0,
        };
        history.apply(0.0, &times);
        let evaluated = Event::Evaluated {
            step: Step(u64::from(n)),
            loss: 1.0,
            samples: 1,
            metrics: BTreeMap::new(),
        };
        history.apply(0.0, &evaluated);
    }
    assert_eq!(history.messages.len(), RECORDS_MAX);
    assert!(history.messages[0].text.len() <= TEXT_BYTES_MAX);
    assert_eq!(history.ranks.len(), RANKS_MAX);
    assert!(history.evaluations.len() <= EVALUATIONS_MAX);
    assert_eq!(
        history.evaluations[0].step, 0,
        "the first evaluation remains"
    );
}

#[test]
fn changes_of_the_membership_keep_their_reasons() {
    let mut history = RunHistory::default();
    let changed = Event::MembershipChanged {
        generation: Generation(2),
        world_size: 3,
        reason: "worker 1 was killed".to_owned(),
    };
    let failed = Event::WorkerFailed {
        rank: Rank(1),
        message: "first line\nsecond line".to_owned(),
        last_step: None,
        secondary: false,
        user_error: false,
    };
    history.apply(1.0, &failed);
    history.apply(2.0, &changed);
    let texts: Vec<&str> = history.members.iter().map(|record| &*record.text).collect();
    assert_eq!(
        texts,
        ["worker 1 failed: first line", "worker 1 was killed"]
    );
    assert_eq!(history.members[1].world_size, Some(3));
    assert_eq!(history.messages[0].text, "first line\nsecond line");
}
