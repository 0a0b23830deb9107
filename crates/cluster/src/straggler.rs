//! [`StragglerDetector`]: finds the rank that the others wait for, from the reports of all ranks. Pure.
//!
//! Every rank reports when it arrived at the last gradient reduction of a step, on a clock that all ranks share
//! ([`Event::StepTimes`]). The delay of a step is the time of the last arrival minus the median arrival of the remaining
//! ranks. Delays are added per rank over windows of at least [`WINDOW_STEPS`] steps and [`WINDOW_S`] seconds, so that a
//! rank that is rarely but very late counts as much as one that is always a little late.
//!
//! A rank is a straggler after [`WINDOWS_LATE`] consecutive windows in which its delays are at least [`SHARE_LATE`] of the
//! time and [`DOMINANCE_LATE`] times those of every other rank. It has recovered after [`WINDOWS_EVEN`] consecutive windows
//! below [`SHARE_EVEN`] or [`DOMINANCE_EVEN`]. Noise spreads over the ranks and therefore names none.
//!
//! Cost: a few sums and selections over the ranks per step, and the reports of at most [`OPEN_STEPS_MAX`] steps.
//!
//! The detector is a fold over events, so a coordinator that takes over has the same opinion after it has read the journal.

use std::collections::BTreeMap;

use ronde_core::event::{PhaseTimes, StepPhase};
use ronde_core::{Event, Rank, Step};

/// Steps without the reports of some ranks: later ones replace the oldest.
const OPEN_STEPS_MAX: usize = 64;
/// The smallest number of steps of a window.
const WINDOW_STEPS: u64 = 16;
/// The shortest duration of a window in seconds.
const WINDOW_S: f64 = 1.0;
/// The number of consecutive windows after which a late rank is a straggler.
const WINDOWS_LATE: u32 = 3;
/// The number of consecutive windows after which a straggler has recovered.
const WINDOWS_EVEN: u32 = 2;
/// The share of the time that a straggler delays the other ranks.
const SHARE_LATE: f64 = 0.10;
/// The share below which a straggler recovers.
const SHARE_EVEN: f64 = 0.05;
/// The smallest ratio of a straggler's delays to those of any other rank.
const DOMINANCE_LATE: f64 = 4.0;
/// The ratio below which a straggler recovers.
const DOMINANCE_EVEN: f64 = 2.0;
/// The phases in the order of a step.
const PHASES: [StepPhase; 6] = [
    StepPhase::Optimizer,
    StepPhase::Other,
    StepPhase::Data,
    StepPhase::Forward,
    StepPhase::Backward,
    StepPhase::Communication,
];

/// The report of one rank about one step.
#[derive(Debug, Clone, Copy)]
struct RankReport {
    arrived_s: f64,
    times: PhaseTimes,
}

impl RankReport {
    /// Returns the seconds of each of [`PHASES`] between the arrivals at two consecutive steps.
    fn phases_since(&self, before: &Self) -> [f64; PHASES.len()] {
        let (now, last) = (&self.times, &before.times);
        // Everything that counts as computation after the vote, such as the hash of the weights.
        let optimizer_s = (last.compute_s - last.forward_s - last.backward_s).max(0.0);
        let known_s = optimizer_s
            + now.wait_data_s
            + now.forward_s
            + now.backward_s
            + last.communicate_s.max(0.0);
        let other_s = (self.arrived_s - before.arrived_s - known_s).max(0.0);
        [
            optimizer_s,
            other_s,
            now.wait_data_s,
            now.forward_s,
            now.backward_s,
            last.communicate_s,
        ]
    }
}

/// The delays that a rank has caused.
#[derive(Debug, Clone, Copy, Default)]
struct RankDelay {
    seconds: f64,
    /// Seconds in each of [`PHASES`] beyond the median of the other ranks.
    excess: [f64; PHASES.len()],
}

impl RankDelay {
    fn add(&mut self, other: &Self) {
        self.seconds += other.seconds;
        for (sum, excess) in self.excess.iter_mut().zip(other.excess) {
            *sum += excess;
        }
    }

    /// Returns the phase with the largest excess.
    fn phase(&self) -> StepPhase {
        let each = PHASES.iter().zip(self.excess);
        let largest = each.max_by(|a, b| a.1.total_cmp(&b.1));
        largest.map_or(StepPhase::Other, |(phase, _)| *phase)
    }
}

/// The delays in some consecutive steps.
#[derive(Debug, Clone, Default)]
struct DelayWindow {
    first: Option<Step>,
    steps: u64,
    seconds: f64,
    delays: BTreeMap<Rank, RankDelay>,
}

impl DelayWindow {
    /// Returns the rank with the largest delay, its delay, and how many times that is the delay of any other rank.
    fn latest(&self) -> Option<(Rank, RankDelay, f64)> {
        let seconds = |delay: &RankDelay| delay.seconds;
        let (rank, delay) = self
            .delays
            .iter()
            .max_by(|a, b| seconds(a.1).total_cmp(&seconds(b.1)))?;
        let others = self.delays.iter().filter(|(other, _)| *other != rank);
        let next = others.map(|(_, delay)| delay.seconds).fold(0.0, f64::max);
        let dominance = if next > 0.0 {
            delay.seconds / next
        } else {
            f64::INFINITY
        };
        Some((*rank, *delay, dominance))
    }
}

/// A rank that was late in the newest windows.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    rank: Rank,
    since: Step,
    windows: u32,
    steps: u64,
    seconds: f64,
    delay: RankDelay,
}

/// The fold over the events of a job that finds its straggler.
#[derive(Debug, Clone, Default)]
pub(crate) struct StragglerDetector {
    world_size: usize,
    /// Steps that not all ranks have reported, by rank.
    open: BTreeMap<Step, Vec<Option<RankReport>>>,
    previous: Option<(Step, Vec<RankReport>)>,
    window: DelayWindow,
    suspect: Option<Suspect>,
    /// The straggler and the number of consecutive windows in which it was not late.
    straggler: Option<(Rank, u32)>,
}

impl StragglerDetector {
    /// Adds an event. Returns [`Event::StragglerDetected`] or [`Event::StragglerRecovered`] when the decision changes. A
    /// change of the membership begins again without a straggler and without an event, because ranks change.
    pub(crate) fn take(&mut self, event: &Event) -> Option<Event> {
        match event {
            Event::RunStarted { world_size, .. }
            | Event::MembershipChanged { world_size, .. }
            | Event::Resumed { world_size, .. } => {
                *self = Self {
                    world_size: *world_size as usize,
                    ..Self::default()
                };
                None
            }
            Event::StepTimes {
                rank,
                step,
                times,
                arrived_s: Some(arrived_s),
                ..
            } if arrived_s.is_finite() && times.total_s().is_finite() => {
                let report = RankReport {
                    arrived_s: *arrived_s,
                    times: *times,
                };
                let reports = self.complete(*rank, *step, report)?;
                self.add_step(*step, reports)
            }
            _ => None,
        }
    }

    /// Adds a report; returns the reports of all ranks once they are complete.
    fn complete(&mut self, rank: Rank, step: Step, report: RankReport) -> Option<Vec<RankReport>> {
        let size = self.world_size;
        if size < 2 || rank.index() >= size {
            return None;
        }
        let reports = self.open.entry(step).or_insert_with(|| vec![None; size]);
        reports[rank.index()] = Some(report);
        let complete: Option<Vec<RankReport>> = reports.iter().copied().collect();
        if complete.is_some() {
            // Reports of earlier steps that are missing were dropped on their way.
            self.open = self.open.split_off(&Step(step.0.saturating_add(1)));
        } else if self.open.len() > OPEN_STEPS_MAX {
            self.open.pop_first();
        }
        complete
    }

    /// Adds a step to the window, and decides when the window is full.
    fn add_step(&mut self, step: Step, reports: Vec<RankReport>) -> Option<Event> {
        let before = self.previous.replace((step, reports.clone()));
        let (last_step, before) = before?;
        if last_step.0.checked_add(1) != Some(step.0) {
            return None;
        }
        let arrival = |reports: &[RankReport]| {
            let arrivals = reports.iter().map(|report| report.arrived_s);
            arrivals.fold(f64::NEG_INFINITY, f64::max)
        };
        let seconds = arrival(&reports) - arrival(&before);
        if seconds <= 0.0 {
            // The clock of another attempt.
            return None;
        }
        let (rank, delay) = delay(&reports, &before)?;
        self.window.first.get_or_insert(step);
        self.window.steps += 1;
        self.window.seconds += seconds;
        self.window.delays.entry(rank).or_default().add(&delay);
        if self.window.steps < WINDOW_STEPS || self.window.seconds < WINDOW_S {
            return None;
        }
        let window = std::mem::take(&mut self.window);
        self.recovered(&window, step)
            .or_else(|| self.detected(&window))
    }

    /// Counts the windows in which the straggler is not late.
    fn recovered(&mut self, window: &DelayWindow, step: Step) -> Option<Event> {
        let (rank, even) = self.straggler.as_mut()?;
        let is_late = window.latest().is_some_and(|(latest, delay, dominance)| {
            latest == *rank
                && delay.seconds >= SHARE_EVEN * window.seconds
                && dominance >= DOMINANCE_EVEN
        });
        *even = if is_late { 0 } else { *even + 1 };
        if *even < WINDOWS_EVEN {
            return None;
        }
        let rank = *rank;
        self.straggler = None;
        Some(Event::StragglerRecovered { rank, step })
    }

    /// Counts the windows in which a rank is late.
    fn detected(&mut self, window: &DelayWindow) -> Option<Event> {
        let late = window.latest().filter(|(_, delay, dominance)| {
            delay.seconds >= SHARE_LATE * window.seconds && *dominance >= DOMINANCE_LATE
        });
        let Some((rank, delay, _)) = late else {
            self.suspect = None;
            return None;
        };
        let same = self.suspect.filter(|suspect| suspect.rank == rank);
        let mut suspect = same.unwrap_or(Suspect {
            rank,
            since: window.first.unwrap_or(Step(0)),
            windows: 0,
            steps: 0,
            seconds: 0.0,
            delay: RankDelay::default(),
        });
        suspect.windows += 1;
        suspect.steps += window.steps;
        suspect.seconds += window.seconds;
        suspect.delay.add(&delay);
        self.suspect = Some(suspect);
        if suspect.windows < WINDOWS_LATE || self.straggler.is_some() {
            return None;
        }
        self.straggler = Some((rank, 0));
        Some(Event::StragglerDetected {
            rank,
            step: suspect.since,
            phase: suspect.delay.phase(),
            delay_s: suspect.delay.seconds / suspect.steps as f64,
            share: (suspect.delay.seconds / suspect.seconds).min(1.0),
        })
    }
}

/// Returns the last rank at a step, and its delay.
fn delay(reports: &[RankReport], before: &[RankReport]) -> Option<(Rank, RankDelay)> {
    let arrivals: Vec<f64> = reports.iter().map(|report| report.arrived_s).collect();
    let last = (0..arrivals.len()).max_by(|a, b| arrivals[*a].total_cmp(&arrivals[*b]))?;
    let phases: Vec<[f64; PHASES.len()]> = reports
        .iter()
        .zip(before)
        .map(|(now, before)| now.phases_since(before))
        .collect();
    let excess = std::array::from_fn(|phase| {
        let seconds: Vec<f64> = phases.iter().map(|phases| phases[phase]).collect();
        (seconds[last] - median_of_others(&seconds, last)).max(0.0)
    });
    let delay = RankDelay {
        seconds: (arrivals[last] - median_of_others(&arrivals, last)).max(0.0),
        excess,
    };
    Some((Rank(last as u32), delay))
}

/// Returns the median of the values of all ranks but one; the later of the two middle ones if their number is even.
fn median_of_others(values: &[f64], without: usize) -> f64 {
    let others = values
        .iter()
        .enumerate()
        .filter(|(rank, _)| *rank != without);
    let mut others: Vec<f64> = others.map(|(_, value)| *value).collect();
    let middle = others.len() / 2;
    if others.is_empty() {
        return values[without];
    }
    *others.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests;
