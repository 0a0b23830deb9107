//! The detector on made-up reports.

use ronde_core::Generation;

use super::*;

/// Seconds of an even step: half forward, half backward.
const STEP_S: f64 = 0.1;

/// A made-up job. `late` returns the extra seconds of a rank in a phase of a step.
struct MadeUpJob<F> {
    detector: StragglerDetector,
    released_s: f64,
    before: Vec<PhaseTimes>,
    late: F,
}

impl<F: Fn(u64, u32) -> (StepPhase, f64)> MadeUpJob<F> {
    fn new(ranks: u32, late: F) -> Self {
        let mut detector = StragglerDetector::default();
        detector.take(&changed(ranks));
        Self {
            detector,
            released_s: 100.0,
            before: vec![PhaseTimes::default(); ranks as usize],
            late,
        }
    }

    /// Runs a step; returns the events of the detector.
    fn step(&mut self, step: u64, is_dropped: impl Fn(u32) -> bool) -> Vec<Event> {
        let ranks = self.before.len() as u32;
        let mut arrivals = Vec::new();
        for rank in 0..ranks {
            let (phase, extra_s) = (self.late)(step, rank);
            let mut times = PhaseTimes {
                forward_s: STEP_S / 2.0,
                backward_s: STEP_S / 2.0,
                ..PhaseTimes::default()
            };
            match phase {
                StepPhase::Data => times.wait_data_s += extra_s,
                StepPhase::Forward => times.forward_s += extra_s,
                StepPhase::Backward => times.backward_s += extra_s,
                _ => {}
            }
            times.compute_s = times.forward_s + times.backward_s;
            arrivals.push((self.released_s + STEP_S + extra_s, times));
        }
        let released = arrivals.iter().map(|(arrived, _)| *arrived);
        self.released_s = released.fold(0.0, f64::max);
        let mut events = Vec::new();
        for (rank, (arrived_s, mut times)) in arrivals.into_iter().enumerate() {
            times.communicate_s = self.released_s - arrived_s;
            self.before[rank] = times;
            let event = Event::StepTimes {
                rank: Rank(rank as u32),
                step: Step(step),
                times,
                arrived_s: Some(arrived_s),
                bytes_sent: 0,
            };
            if !is_dropped(rank as u32) {
                events.extend(self.detector.take(&event));
            }
        }
        events
    }

    fn steps(&mut self, steps: std::ops::Range<u64>) -> Vec<Event> {
        steps.flat_map(|step| self.step(step, |_| false)).collect()
    }
}

fn changed(world_size: u32) -> Event {
    Event::MembershipChanged {
        generation: Generation(1),
        world_size,
        reason: String::new(),
    }
}

fn named(event: &Event) -> (u32, u64, StepPhase) {
    match event {
        Event::StragglerDetected {
            rank, step, phase, ..
        } => (rank.0, step.0, *phase),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_late_rank_is_named_with_its_phase_once_and_recovers_once() {
    use StepPhase::{Backward, Data, Forward, Optimizer, Other};
    for ranks in [2, 3, 8] {
        for phase in [Data, Forward, Backward, Other] {
            let mut job = MadeUpJob::new(ranks, |step, rank| {
                let is_late = rank == 1 && (50..200).contains(&step);
                (phase, if is_late { 0.05 } else { 0.0 })
            });
            assert_eq!(job.steps(0..50), []);
            let events = job.steps(50..200);
            let [detected] = &events[..] else {
                panic!("{ranks} ranks, {phase:?}: {events:?}");
            };
            let (rank, since, found) = named(detected);
            assert_eq!((rank, found), (1, phase));
            assert!((35..=65).contains(&since), "since {since}");
            let Event::StragglerDetected { delay_s, share, .. } = detected else {
                panic!("{detected:?}");
            };
            assert!((0.03..=0.0501).contains(delay_s) && (0.2..0.35).contains(share));
            let events = job.steps(200..300);
            let expected = Rank(1);
            assert!(
                matches!(&events[..], [Event::StragglerRecovered { rank, .. }] if *rank == expected),
                "{events:?}"
            );
        }
    }
    assert_eq!(PHASES[0], Optimizer);
}

#[test]
fn a_rank_that_is_stopped_from_time_to_time_is_named() {
    // Late in one step of ten, but by a second.
    let mut job = MadeUpJob::new(3, |step, rank| {
        let is_stopped = rank == 2 && step % 10 == 3;
        (StepPhase::Backward, if is_stopped { 1.0 } else { 0.0 })
    });
    let events = job.steps(0..100);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(named(&events[0]).0, 2);
}

#[test]
fn noise_names_no_rank() {
    for ranks in [2_u32, 3, 16] {
        for amplitude_s in [0.001, 0.02, 0.3] {
            let mut job = MadeUpJob::new(ranks, |step, rank| {
                let bits = ronde_core::philox::philox([1, 2], [step as u32, rank, 7, 9])[0];
                let uniform = f64::from(bits) / f64::from(u32::MAX);
                (StepPhase::Forward, amplitude_s * uniform)
            });
            assert_eq!(job.steps(0..20_000), [], "{ranks} ranks, {amplitude_s} s");
        }
    }
}

#[test]
fn dropped_reports_and_deferred_steps_change_nothing() {
    let late = |_, rank| (StepPhase::Data, if rank == 0 { 0.2 } else { 0.0 });
    let mut job = MadeUpJob::new(3, late);
    let dropped = |step| move |rank| rank == 1 && step % 7 == 0;
    let events: Vec<Event> = (0..100)
        .flat_map(|step| job.step(step, dropped(step)))
        .collect();
    assert_eq!(events.iter().map(|e| named(e).0).collect::<Vec<_>>(), [0]);
    // A rank that never reports: nothing is decided, and the memory is bounded.
    let mut job = MadeUpJob::new(3, late);
    for step in 0..1_000 {
        assert_eq!(job.step(step, |rank| rank == 2), []);
    }
    assert!(job.detector.open.len() <= OPEN_STEPS_MAX);
}

#[test]
fn a_new_membership_begins_without_a_straggler() {
    let late = |_, rank| (StepPhase::Forward, if rank == 1 { 0.1 } else { 0.0 });
    let mut job = MadeUpJob::new(2, late);
    assert_eq!(job.steps(0..60).len(), 1);
    assert_eq!(job.detector.take(&changed(2)), None);
    let events = job.steps(60..120);
    assert!(named(&events[0]).1 >= 60, "{events:?}");
}

#[test]
fn hostile_reports_are_ignored() {
    let mut detector = StragglerDetector::default();
    detector.take(&changed(2));
    for arrived_s in [
        None,
        Some(f64::NAN),
        Some(f64::INFINITY),
        Some(-1e300),
        Some(1e300),
    ] {
        for (rank, step) in [(0, 0), (1, 0), (9, 0), (0, u64::MAX), (1, u64::MAX)] {
            let event = Event::StepTimes {
                rank: Rank(rank),
                step: Step(step),
                times: PhaseTimes {
                    compute_s: f64::NAN,
                    ..PhaseTimes::default()
                },
                arrived_s,
                bytes_sent: 0,
            };
            assert_eq!(detector.take(&event), None);
        }
    }
}
