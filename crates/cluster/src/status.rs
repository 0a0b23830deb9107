//! [`Status`]: the status of a job, from its events, its record and its workers' reports. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ronde_core::event::{PhaseTimes, StepPhase};
use ronde_core::{Event, Generation, Rank, Step};
use ronde_protocol::{JobPhase, MemberInfo, Term, WorkerPhase};
use ronde_report::TextTable;
use serde::{Deserialize, Serialize};

/// Weight of the newest step in the displayed times.
const NEWEST: f64 = 0.1;

/// One member of a job's newest generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its rank.
    pub rank: u32,
    /// The host name.
    pub host: String,
    /// The worker's id.
    pub worker: u64,
    /// The slot that it runs in; restarts are counted per slot.
    #[serde(rename = "place")]
    pub slot: u64,
    /// Its activity, if it has reported.
    pub phase: Option<WorkerPhase>,
    /// Its next step, if its state is complete.
    pub next_step: Option<u64>,
    /// How it was lost, if it was.
    pub lost: Option<String>,
    /// Whether it is leaving the job.
    pub draining: bool,
    /// Moving averages of the times of its steps, in seconds.
    pub times: Option<PhaseTimes>,
}

/// The rank that the others wait for: the fields of [`Event::StragglerDetected`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StragglerStatus {
    /// The rank.
    pub rank: Rank,
    /// The first step since which it delays the others.
    pub since: Step,
    /// The phase in which it takes longer than the others.
    pub phase: StepPhase,
    /// The mean delay of a step in seconds.
    pub delay_s: f64,
    /// The share of the time that the delays take, from 0 to 1.
    pub share: f64,
}

/// A host whose agent is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its name.
    pub host: String,
    /// Number of slots that it offers.
    #[serde(rename = "places")]
    pub slots: u32,
}

/// The status of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub job: String,
    /// The job's phase.
    pub phase: JobPhase,
    /// The address of the coordinator that answered; `None` if none did and this status was read
    /// from the job's folder.
    pub coordinator: Option<SocketAddr>,
    /// The coordinator's term.
    pub term: Term,
    /// The newest generation, once there is one.
    pub generation: Option<Generation>,
    /// Its members by rank.
    pub members: Vec<MemberStatus>,
    /// Target number of workers.
    pub wanted: u32,
    /// The last committed step.
    pub step: Option<Step>,
    /// Mean loss of that step.
    pub loss: Option<f64>,
    /// Number of steps in the whole run.
    pub steps: Option<u64>,
    /// The rank that the others wait for, if there is one.
    pub straggler: Option<StragglerStatus>,
    /// Hosts whose agents are connected.
    pub hosts: Vec<HostStatus>,
    /// The last change of membership, with its reason.
    pub last_change: Option<String>,
    /// The condition that the job waits for.
    pub waits_for: Option<String>,
}

/// A summary of a job's events.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatusBoard {
    step: Option<Step>,
    loss: Option<f64>,
    steps: Option<u64>,
    times: BTreeMap<Rank, PhaseTimes>,
    straggler: Option<StragglerStatus>,
    last_change: Option<String>,
}

impl StatusBoard {
    /// Adds an event.
    pub(crate) fn take(&mut self, event: &Event) {
        match event {
            Event::RunStarted { steps, .. } => self.steps = Some(*steps),
            Event::StepCommitted { step, loss, .. } => {
                (self.step, self.loss) = (Some(*step), Some(*loss));
            }
            Event::MembershipChanged { reason, .. } => {
                self.last_change = Some(reason.clone());
                self.times.clear();
                self.straggler = None;
            }
            Event::StragglerDetected {
                rank,
                step,
                phase,
                delay_s,
                share,
            } => {
                self.straggler = Some(StragglerStatus {
                    rank: *rank,
                    since: *step,
                    phase: *phase,
                    delay_s: *delay_s,
                    share: *share,
                });
            }
            Event::StragglerRecovered { .. } => self.straggler = None,
            Event::StepTimes { rank, times, .. } => {
                let mean = self.times.entry(*rank).or_insert(*times);
                let weigh = |old: f64, new: f64| old + NEWEST * (new - old);
                mean.compute_s = weigh(mean.compute_s, times.compute_s);
                mean.communicate_s = weigh(mean.communicate_s, times.communicate_s);
                mean.wait_data_s = weigh(mean.wait_data_s, times.wait_data_s);
            }
            _ => {}
        }
    }

    /// Returns the status of a job with these members; the caller adds the remaining fields.
    pub(crate) fn status(&self, job: &str, members: &[MemberInfo]) -> Status {
        let member = |(rank, member): (usize, &MemberInfo)| MemberStatus {
            rank: rank as u32,
            host: member.host.clone(),
            worker: member.worker.0,
            slot: member.slot.0,
            phase: None,
            next_step: None,
            lost: None,
            draining: false,
            times: self.times.get(&Rank(rank as u32)).copied(),
        };
        Status {
            job: job.to_owned(),
            phase: JobPhase::Running,
            coordinator: None,
            term: Term(0),
            generation: None,
            members: members.iter().enumerate().map(member).collect(),
            wanted: members.len() as u32,
            step: self.step,
            loss: self.loss,
            steps: self.steps,
            straggler: self
                .straggler
                .filter(|straggler| straggler.rank.index() < members.len()),
            hosts: Vec::new(),
            last_change: self.last_change.clone(),
            waits_for: None,
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phase = match self.phase {
            JobPhase::Running => "running",
            JobPhase::Stopping => "stopping",
            JobPhase::Stopped => "stopped",
            JobPhase::Finished => "finished",
        };
        write!(f, "job {}: {phase}", self.job)?;
        if let Some(step) = self.step {
            // Steps count from 0.
            write!(f, ", {} steps committed", step.0 + 1)?;
        }
        if let Some(steps) = self.steps {
            write!(f, " of {steps}")?;
        }
        if let Some(loss) = self.loss {
            write!(f, ", loss {loss:.4}")?;
        }
        let have = self.members.len();
        match self.generation {
            Some(generation) => write!(f, "\ngeneration {generation}, ")?,
            None => f.write_str("\nno generation yet, ")?,
        }
        write!(f, "{have} of {} workers", self.wanted)?;
        match self.coordinator {
            Some(address) => write!(f, "; term {}, coordinator at {address}", self.term)?,
            None if self.phase == JobPhase::Running => write!(
                f,
                "; term {}, no coordinator answers; this is the state of the job's folder",
                self.term
            )?,
            None => {}
        }
        if !self.members.is_empty() {
            let times = ["compute ms", "communic. ms", "data ms"];
            let head = ["rank", "host", "phase", "step"].into_iter().chain(times);
            let mut table = TextTable::new(head).right([0, 3, 4, 5, 6]).indented(1);
            self.members
                .iter()
                .for_each(|member| table.row(member.row()));
            write!(f, "\n{table}")?;
        }
        if let Some(straggler) = &self.straggler {
            write!(
                f,
                "\nstraggler: rank {} has delayed the others since step {} by {:.1} ms per step ({:.0} % of the time), \
                 most in {}",
                straggler.rank,
                straggler.since,
                1e3 * straggler.delay_s,
                100.0 * straggler.share,
                straggler.phase
            )?;
        }
        if !self.hosts.is_empty() {
            let hosts = self.hosts.iter();
            let listed: Vec<String> = hosts
                .map(|host| format!("{} ({} slots)", host.host, host.slots))
                .collect();
            write!(f, "\nhosts: {}", listed.join(", "))?;
        }
        if let Some(change) = &self.last_change {
            write!(f, "\nlast change: {change}")?;
        }
        if let Some(waits) = &self.waits_for {
            write!(f, "\n{waits}")?;
        }
        Ok(())
    }
}

impl Status {
    /// Returns the status as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Numbers that JSON cannot represent become `null`; no other failure is possible.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl MemberStatus {
    /// Returns the cells of a table.
    fn row(&self) -> [String; 8] {
        let phase = match (&self.lost, self.phase) {
            (Some(_), _) => "lost",
            _ if self.draining => "leaving",
            (None, Some(WorkerPhase::Idle)) => "waiting",
            (None, Some(WorkerPhase::Forming)) => "forming",
            (None, Some(WorkerPhase::Training)) => "training",
            (None, Some(WorkerPhase::Complete)) => "complete",
            (None, None) => "?",
        };
        let ms = |part: fn(&PhaseTimes) -> f64| {
            let times = self.times.as_ref();
            times.map_or_else(String::new, |times| format!("{:.2}", 1e3 * part(times)))
        };
        [
            self.rank.to_string(),
            self.host.clone(),
            phase.to_owned(),
            self.next_step
                .map_or_else(String::new, |step| step.to_string()),
            ms(|times| times.compute_s),
            ms(|times| times.communicate_s),
            ms(|times| times.wait_data_s),
            self.lost
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
        ]
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::Epoch;
    use ronde_protocol::{WorkerId, WorkerSlot};

    use super::*;

    #[test]
    fn events_are_summarized_as_steps_times_and_the_straggler() {
        let mut board = StatusBoard::default();
        let times = |rank, compute_s| Event::StepTimes {
            rank: Rank(rank),
            step: Step(4),
            times: PhaseTimes {
                compute_s,
                ..PhaseTimes::default()
            },
            arrived_s: None,
            bytes_sent: 0,
        };
        for event in [
            times(0, 0.010),
            times(1, 0.030),
            Event::StragglerDetected {
                rank: Rank(1),
                step: Step(2),
                phase: StepPhase::Forward,
                delay_s: 0.02,
                share: 0.5,
            },
            Event::StepCommitted {
                step: Step(4),
                epoch: Epoch(0),
                generation: Generation(1),
                loss: 0.5,
                samples: 8,
                targets: 8,
                skipped: 0,
                learning_rate: 0.1,
                gradient_norm: 1.0,
                skipped_update: None,
                duration_s: 0.03,
            },
        ] {
            board.take(&event);
        }
        let member = |rank: u64| MemberInfo {
            worker: WorkerId(rank),
            slot: WorkerSlot(rank),
            host: "here".to_owned(),
            address: ([127, 0, 0, 1], 1).into(),
        };
        let status = board.status("job-1", &[member(0), member(1)]);
        let straggler = status.straggler.map(|straggler| straggler.rank);
        assert_eq!((status.step, straggler), (Some(Step(4)), Some(Rank(1))));
        let text = status.to_string();
        for words in [
            "5 steps committed, loss 0.5",
            "30.00",
            "rank 1 has delayed the others since step 2 by 20.0 ms per step (50 % of the time), most in the forward pass",
            "no coordinator answers",
        ] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        board.take(&Event::MembershipChanged {
            generation: Generation(2),
            world_size: 1,
            reason: "rank 1 lost".to_owned(),
        });
        let status = board.status("job-1", &[member(0)]);
        assert_eq!((status.straggler, status.members[0].times), (None, None));
        assert!(status.to_string().contains("last change: rank 1 lost"));
    }
}
