//! The processes, the messages and the time of a simulated round.

use std::collections::{BTreeMap, BTreeSet};

use ronde_core::BatchCounts;
use ronde_protocol::served::{
    LeaseAnswer, LeaseSettings, PlacementSettings, PushHeader, PushVerdict, RoundPlacement,
    ServedRound, SlotHolding, SlotLog, UpdateLeases, UpdateSamples,
};

use super::process::{CopiedPush, RoundMessage, RoundPhase, ServedProcess, SimulatedSlot};
use super::script::{ServedBug, ServedScript};
use crate::clock::{MS, SECOND};
use crate::harness::{BrokenInvariant, InvariantName, SeedSummary, SimulatedWorld, WorldStart};
use crate::network::{LinkFaults, Network};
use crate::rng::Rng;
use crate::timeline::Timeline;

/// The interval at which a worker repeats unanswered messages.
const AGAIN: u64 = 20 * MS;
/// The time after which a lease expires, in milliseconds.
const EXPIRY_MS: u64 = 60;
/// The time after which the others are notified of a death.
const DETECTION: u64 = 5 * MS;
/// The time limit after the last fault.
const LIMIT: u64 = 60 * SECOND;

const ONCE: InvariantName = InvariantName("each update counts once");
const BOUND: InvariantName = InvariantName("no gradient is staler than the bound");
const ROUND_ENDS: InvariantName = InvariantName("the round ends");

/// The outcome of a simulated round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedCounts {
    /// The membership changes after deaths.
    pub attempts: u64,
    /// The processes that died.
    pub deaths: u64,
    /// The pushes of updates that a slot had applied before.
    pub repeated: u64,
    /// The pushes that were refused.
    pub refused: u64,
    /// The times that all slots had to start again.
    pub restarts: u64,
    /// The highest staleness.
    pub staleness: u64,
}

impl SeedSummary for ServedCounts {
    fn add(&mut self, other: &Self) {
        self.attempts += other.attempts;
        self.deaths += other.deaths;
        self.repeated += other.repeated;
        self.refused += other.refused;
        self.restarts += other.restarts;
        self.staleness = self.staleness.max(other.staleness);
    }
}

/// An event of the world.
#[derive(Debug)]
pub enum RoundEvent {
    Deliver {
        attempt: u64,
        from: usize,
        to: usize,
        message: RoundMessage,
    },
    Copy {
        attempt: u64,
        to: usize,
    },
    Tick {
        attempt: u64,
        process: usize,
    },
    Kill(usize, bool),
    Regroup,
    Calm,
}

/// A world of one round of parameter servers.
pub struct ServedWorld {
    script: ServedScript,
    bug: Option<ServedBug>,
    rng: Rng,
    timeline: Timeline<RoundEvent>,
    network: Network,
    processes: Vec<Option<ServedProcess>>,
    attempt: u64,
    /// The processes of this attempt, by rank.
    members: Vec<usize>,
    placement: Option<RoundPlacement>,
    summary: ServedCounts,
    broken: Option<BrokenInvariant>,
}

impl SimulatedWorld for ServedWorld {
    const NAME: &'static str = "served";
    const BUGS: &'static [(&'static str, ServedBug)] = &ServedBug::ALL;
    type Bug = ServedBug;
    type Script = ServedScript;
    type Event = RoundEvent;
    type Summary = ServedCounts;

    fn draw_script(rng: &mut Rng) -> ServedScript {
        ServedScript::new(rng)
    }

    fn new(start: WorldStart<Self>) -> Self {
        let WorldStart {
            rng,
            script,
            bug,
            is_traced,
            ..
        } = start;
        let faults = LinkFaults {
            loss: script.loss,
            twice: script.loss,
            late: script.loss / 2,
            late_by: 100 * MS,
        };
        let processes = (0..script.processes).map(|_| Some(ServedProcess::new()));
        let mut world = Self {
            timeline: Timeline::new(script.calm + LIMIT, is_traced),
            network: Network::new(0, faults, (MS / 20, script.delay_max)),
            processes: processes.collect(),
            script,
            bug,
            rng,
            attempt: 0,
            members: Vec::new(),
            placement: None,
            summary: ServedCounts::default(),
            broken: None,
        };
        for (at, victim, is_told) in world.script.kills.clone() {
            world
                .timeline
                .schedule(at, RoundEvent::Kill(victim, is_told));
        }
        world.timeline.schedule(world.script.calm, RoundEvent::Calm);
        world.regroup();
        world
    }

    fn timeline(&mut self) -> &mut Timeline<RoundEvent> {
        &mut self.timeline
    }

    fn execute(&mut self, event: RoundEvent) {
        self.timeline.note(|| format!("{event:?}"));
        match event {
            RoundEvent::Deliver {
                attempt,
                from,
                to,
                message,
            } => {
                // Pushes of an earlier attempt may arrive late; a slot must refuse or count them once.
                let is_push = matches!(message, RoundMessage::Push { .. });
                if attempt == self.attempt || is_push {
                    self.deliver(from, to, message);
                }
            }
            RoundEvent::Copy { attempt, to } if attempt == self.attempt => self.copy_next(to),
            RoundEvent::Tick { attempt, process } if attempt == self.attempt => self.tick(process),
            RoundEvent::Copy { .. } | RoundEvent::Tick { .. } => {}
            RoundEvent::Kill(victim, is_told) => self.kill(victim, is_told),
            RoundEvent::Regroup => {
                let mut members = self.members.iter();
                if members.any(|member| self.processes[*member].is_none()) {
                    self.regroup();
                }
            }
            RoundEvent::Calm => self.network.calm(),
        }
    }

    fn check(&mut self) -> Result<bool, BrokenInvariant> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let is_finished = self.is_finished();
        if is_finished {
            self.check_end().map_err(|message| ONCE.broken(message))?;
        }
        Ok(is_finished)
    }

    fn check_timeout(&mut self) -> Result<(), BrokenInvariant> {
        Err(ROUND_ENDS.broken(format!("{:?}", self.script)))
    }

    fn summary(&self) -> ServedCounts {
        self.summary.clone()
    }
}

/// Returns the report of an update: its samples have its number.
fn report_of(update: u32) -> UpdateSamples {
    UpdateSamples {
        counts: BatchCounts {
            samples: 1,
            targets: 1,
        },
        skipped: 0,
        loss_sum: f64::from(update),
        sample_ids: vec![u64::from(update)],
    }
}

impl ServedWorld {
    fn round(&self) -> ServedRound {
        self.script.round
    }

    fn now_ms(&self) -> u64 {
        self.timeline.now() / MS
    }

    fn is_faulty(&self) -> bool {
        self.timeline.now() < self.script.calm
    }

    fn kill(&mut self, victim: usize, is_told: bool) {
        let alive = self.processes.iter().flatten().count();
        if alive < 2 || self.processes[victim].take().is_none() {
            return;
        }
        self.summary.deaths += 1;
        // A dead server is always noticed; of a worker only its lease may expire.
        let serves = |place: &RoundPlacement| {
            let rank = self.members.iter().position(|member| *member == victim);
            let mut slots = place.slots.iter();
            slots.any(|slot| Some(slot.primary) == rank || slot.copy == rank)
        };
        let others_compute = self.placement.as_ref().is_some_and(|place| {
            let mut workers = place.workers.iter();
            workers.any(|rank| self.processes[self.members[*rank]].is_some())
        });
        if is_told || !others_compute || self.placement.as_ref().is_some_and(serves) {
            self.timeline.schedule_after(DETECTION, RoundEvent::Regroup);
        }
    }

    /// Begins an attempt of the processes that are alive.
    fn regroup(&mut self) {
        self.attempt += 1;
        self.summary.attempts += 1;
        let alive = self.processes.iter().enumerate();
        let alive = alive.filter_map(|(index, process)| process.as_ref().map(|_| index));
        self.members = alive.collect();
        let holdings: Vec<Vec<SlotHolding>> = self
            .members
            .iter()
            .map(|member| {
                let process = self.processes[*member].iter();
                let slots = process.flat_map(|process| &process.slots);
                slots
                    .map(|(slot, held)| SlotHolding::of(*slot, &held.log))
                    .collect()
            })
            .collect();
        let words: Vec<u64> = holdings
            .iter()
            .flat_map(|held| SlotHolding::encode_all(held))
            .collect();
        let holdings = SlotHolding::decode_all(&words, self.members.len()).unwrap_or_default();
        let settings = PlacementSettings {
            ranks: self.members.len(),
            copies: self.script.copies,
        };
        let mut placement = RoundPlacement::decide(self.round(), settings, &holdings);
        if self.bug == Some(ServedBug::TrustsFirstSlot)
            && let Some(source) = placement.slots[0].source
        {
            let mut held = holdings[source].iter();
            placement.done = held
                .find(|held| held.slot == 0)
                .map(|held| held.applied.clone())
                .unwrap_or_default();
        }
        let is_restart = placement.slots.iter().any(|slot| slot.source.is_none());
        if is_restart && self.attempt > 1 {
            self.summary.restarts += 1;
        }
        self.place_slots(&placement);
        self.begin_work(&placement);
        self.placement = Some(placement);
    }

    /// Gives each server and each holder of a copy its slots, from their sources.
    fn place_slots(&mut self, placement: &RoundPlacement) {
        let round = self.round();
        let bound = self.bound();
        let sources: Vec<SimulatedSlot> = placement
            .slots
            .iter()
            .enumerate()
            .map(|(slot, place)| {
                let source = place
                    .source
                    .and_then(|rank| self.processes[self.members[rank]].as_ref());
                let held = source.and_then(|process| process.slots.get(&(slot as u32)));
                match held {
                    Some(held) => SimulatedSlot {
                        // As it travels between processes.
                        log: SlotLog::decode(&held.log.encode(), round, bound)
                            .unwrap_or_else(|| SlotLog::new(round, bound)),
                        order: held.order.clone(),
                    },
                    None => SimulatedSlot {
                        log: SlotLog::new(round, bound),
                        order: Vec::new(),
                    },
                }
            })
            .collect();
        for member in self.members.clone() {
            if let Some(process) = self.processes[member].as_mut() {
                *process = ServedProcess::new();
            }
        }
        for (slot, (place, source)) in placement.slots.iter().zip(sources).enumerate() {
            for rank in [Some(place.primary), place.copy].into_iter().flatten() {
                if let Some(process) = self.processes[self.members[rank]].as_mut() {
                    let mut own = source.clone();
                    own.log.enter(self.attempt);
                    process.slots.insert(slot as u32, own);
                }
            }
        }
    }

    fn bound(&self) -> Option<u64> {
        match self.bug {
            Some(ServedBug::IgnoresBound) => None,
            _ => self.script.staleness_max,
        }
    }

    fn begin_work(&mut self, placement: &RoundPlacement) {
        let settings = LeaseSettings {
            staleness_max: self.bound(),
            expiry_ms: EXPIRY_MS,
        };
        let workers = placement.workers.iter().map(|rank| *rank as u32).collect();
        let leases = UpdateLeases::new(settings, placement.done.clone(), workers);
        if let Some(lead) = self.processes[self.members[placement.lead()]].as_mut() {
            lead.leases = Some(leases);
        }
        for rank in &placement.workers {
            let process = self.members[*rank];
            if let Some(worker) = self.processes[process].as_mut() {
                worker.worker = Some(RoundPhase::Asking);
            }
            self.timeline.schedule_after(
                1,
                RoundEvent::Tick {
                    attempt: self.attempt,
                    process,
                },
            );
        }
    }

    fn rank_of(&self, process: usize) -> u32 {
        let rank = self.members.iter().position(|member| *member == process);
        rank.unwrap_or(usize::MAX) as u32
    }

    fn primary(&self, slot: u32) -> usize {
        let placement = self.placement.as_ref();
        let rank = placement.and_then(|place| place.slots.get(slot as usize));
        self.members[rank.map_or(0, |place| place.primary)]
    }

    fn send(&mut self, from: usize, to: usize, message: RoundMessage) {
        for delay in self.network.deliveries(from, to, &mut self.rng) {
            self.timeline.schedule_after(
                delay,
                RoundEvent::Deliver {
                    attempt: self.attempt,
                    from,
                    to,
                    message: message.clone(),
                },
            );
        }
    }

    fn deliver(&mut self, from: usize, to: usize, message: RoundMessage) {
        if self.processes[to].is_none() {
            return;
        }
        match message {
            RoundMessage::Request => self.grant(from, to),
            RoundMessage::Pull(slot) => {
                let process = self.processes[to].as_ref();
                if let Some(held) = process.and_then(|process| process.slots.get(&slot)) {
                    let version = held.log.version();
                    self.send(to, from, RoundMessage::Pulled { slot, version });
                }
            }
            RoundMessage::Push {
                slot,
                push,
                is_finite,
            } => self.push(from, to, slot, push, is_finite),
            RoundMessage::Granted(_) | RoundMessage::Complete => self.hear_lease(to, &message),
            RoundMessage::Pulled { slot, version } => self.hear_version(to, slot, version),
            RoundMessage::Answered {
                slot,
                update,
                is_refused,
            } => self.hear_answer(to, slot, update, is_refused),
        }
    }

    fn grant(&mut self, from: usize, to: usize) {
        let (rank, now_ms) = (self.rank_of(from), self.now_ms());
        let leases = self.processes[to]
            .as_mut()
            .and_then(|process| process.leases.as_mut());
        let answer = leases.map(|leases| leases.request(rank, now_ms));
        match answer {
            Some(LeaseAnswer::Granted(update)) => {
                self.send(to, from, RoundMessage::Granted(update))
            }
            Some(LeaseAnswer::Complete) => self.send(to, from, RoundMessage::Complete),
            // The worker sends its request again.
            Some(LeaseAnswer::Wait(_)) | None => {}
        }
    }

    fn push(&mut self, from: usize, to: usize, slot: u32, push: PushHeader, is_finite: bool) {
        if self.primary(slot) != to {
            return;
        }
        let now_ms = self.now_ms();
        let Some(process) = self.processes[to].as_mut() else {
            return;
        };
        let Some(held) = process.slots.get_mut(&slot) else {
            return;
        };
        let report = if slot == 0 {
            report_of(push.update)
        } else {
            UpdateSamples::default()
        };
        let verdict = held.log.offer(&push, is_finite, report.clone());
        match verdict {
            PushVerdict::Apply { staleness, .. } => {
                held.order.push(push.update);
                self.summary.staleness = self.summary.staleness.max(staleness);
                if self
                    .script
                    .staleness_max
                    .is_some_and(|most| staleness > most)
                {
                    self.broken = Some(
                        BOUND.broken(format!("a gradient of staleness {staleness} was applied")),
                    );
                }
                self.send_copy(CopiedPush { slot, push, report });
            }
            PushVerdict::Repeated => {
                self.summary.repeated += 1;
                if self.bug == Some(ServedBug::AppliesTwice) {
                    held.order.push(push.update);
                }
            }
            PushVerdict::Refused(_) => self.summary.refused += 1,
        }
        let is_refused = matches!(verdict, PushVerdict::Refused(_));
        if slot == 0
            && !is_refused
            && let Some(leases) = self.processes[to]
                .as_mut()
                .and_then(|process| process.leases.as_mut())
        {
            leases.complete(push.worker, push.update, now_ms);
        }
        self.send(
            to,
            from,
            RoundMessage::Answered {
                slot,
                update: push.update,
                is_refused,
            },
        );
    }

    /// Sends an applied update to the copy, which receives all of them in order.
    fn send_copy(&mut self, copied: CopiedPush) {
        let place = self
            .placement
            .as_ref()
            .map(|place| place.slots[copied.slot as usize]);
        let Some(rank) = place.and_then(|place| place.copy) else {
            return;
        };
        let to = self.members[rank];
        let Some(process) = self.processes[to].as_mut() else {
            return;
        };
        let is_first = self.bug == Some(ServedBug::CopiesOutOfOrder) && self.rng.per_mille(300);
        match is_first {
            true => process.copying.push_front(copied),
            false => process.copying.push_back(copied),
        }
        let delay = self.rng.range(MS / 20, 20 * MS);
        self.timeline.schedule_after(
            delay,
            RoundEvent::Copy {
                attempt: self.attempt,
                to,
            },
        );
    }

    fn copy_next(&mut self, to: usize) {
        let Some(process) = self.processes[to].as_mut() else {
            return;
        };
        let Some(CopiedPush { slot, push, report }) = process.copying.pop_front() else {
            return;
        };
        let Some(held) = process.slots.get_mut(&slot) else {
            return;
        };
        match held.log.offer(&push, true, report) {
            PushVerdict::Apply { .. } => held.order.push(push.update),
            PushVerdict::Repeated | PushVerdict::Refused(_) if self.bug.is_none() => {
                let problem = format!(
                    "the copy of slot {slot} does not apply update {}",
                    push.update
                );
                self.broken = Some(ONCE.broken(problem));
            }
            _ => {}
        }
    }

    fn hear_lease(&mut self, to: usize, message: &RoundMessage) {
        let Some(worker) = self.processes[to]
            .as_mut()
            .and_then(|process| process.worker.as_mut())
        else {
            return;
        };
        if !matches!(worker, RoundPhase::Asking) {
            return;
        }
        *worker = match message {
            RoundMessage::Granted(update) => RoundPhase::Pulling {
                update: *update,
                versions: BTreeMap::new(),
            },
            _ => RoundPhase::Done,
        };
        self.work(to);
    }

    fn hear_version(&mut self, to: usize, slot: u32, version: u64) {
        let (slots, until) = (
            self.round().slots as usize,
            self.timeline.now() + self.script.paces[to],
        );
        let Some(worker) = self.processes[to]
            .as_mut()
            .and_then(|process| process.worker.as_mut())
        else {
            return;
        };
        let RoundPhase::Pulling { update, versions } = worker else {
            return;
        };
        versions.entry(slot).or_insert(version);
        if versions.len() == slots {
            *worker = RoundPhase::Computing {
                update: *update,
                versions: std::mem::take(versions),
                until,
            };
            self.timeline.schedule(
                until,
                RoundEvent::Tick {
                    attempt: self.attempt,
                    process: to,
                },
            );
        }
    }

    fn hear_answer(&mut self, to: usize, slot: u32, answered: u32, is_refused: bool) {
        let Some(worker) = self.processes[to]
            .as_mut()
            .and_then(|process| process.worker.as_mut())
        else {
            return;
        };
        let RoundPhase::Pushing { update, left, .. } = worker else {
            return;
        };
        if *update != answered {
            return;
        }
        if is_refused {
            *worker = RoundPhase::Asking;
        } else {
            left.retain(|other| *other != slot);
            if left.is_empty() {
                *worker = RoundPhase::Asking;
            }
        }
        self.work(to);
    }

    fn tick(&mut self, process: usize) {
        let now = self.timeline.now();
        let slots = self.round().slots;
        let Some(worker) = self.processes[process]
            .as_mut()
            .and_then(|process| process.worker.as_mut())
        else {
            return;
        };
        if let RoundPhase::Computing {
            update,
            versions,
            until,
        } = worker
        {
            if *until > now {
                return;
            }
            let left = (0..slots).rev().collect();
            *worker = RoundPhase::Pushing {
                update: *update,
                versions: std::mem::take(versions),
                left,
            };
        }
        self.work(process);
        self.timeline.schedule(
            now + AGAIN,
            RoundEvent::Tick {
                attempt: self.attempt,
                process,
            },
        );
    }

    /// Sends the messages whose answers a worker waits for, also those that were sent before.
    fn work(&mut self, process: usize) {
        let Some(worker) = self.processes[process]
            .as_ref()
            .and_then(|process| process.worker.clone())
        else {
            return;
        };
        let rank = self.rank_of(process);
        match worker {
            RoundPhase::Asking => {
                let lead = self.primary(0);
                self.send(process, lead, RoundMessage::Request);
            }
            RoundPhase::Pulling { versions, .. } => {
                for slot in (0..self.round().slots).filter(|slot| !versions.contains_key(slot)) {
                    let to = self.primary(slot);
                    self.send(process, to, RoundMessage::Pull(slot));
                }
            }
            RoundPhase::Pushing {
                update,
                versions,
                left,
            } => {
                let others: Vec<u32> = left.iter().copied().filter(|slot| *slot > 0).collect();
                // The first slot is the last to learn of an update.
                let is_first = self.bug == Some(ServedBug::PushesFirstSlotFirst);
                let next = match is_first && left.contains(&0) {
                    true => vec![0],
                    false if others.is_empty() => left,
                    false => others,
                };
                for slot in next {
                    let damage = if self.is_faulty() {
                        self.script.damage
                    } else {
                        0
                    };
                    let mut round = self.round();
                    if self.rng.per_mille(damage) {
                        round.start ^= 1;
                    }
                    let push = PushHeader {
                        round,
                        attempt: self.attempt,
                        update,
                        base: versions[&slot],
                        worker: rank,
                    };
                    let is_finite = !self.rng.per_mille(damage);
                    let to = self.primary(slot);
                    self.send(
                        process,
                        to,
                        RoundMessage::Push {
                            slot,
                            push,
                            is_finite,
                        },
                    );
                }
            }
            RoundPhase::Computing { .. } | RoundPhase::Done => {}
        }
    }

    /// Returns whether the leases are complete and all messages to copies have arrived.
    fn is_finished(&self) -> bool {
        let Some(placement) = &self.placement else {
            return false;
        };
        let of = |rank: usize| self.processes[self.members[rank]].as_ref();
        let places = placement
            .slots
            .iter()
            .flat_map(|slot| [Some(slot.primary), slot.copy]);
        if !places
            .flatten()
            .all(|rank| of(rank).is_some_and(|process| process.copying.is_empty()))
        {
            return false;
        }
        let lead = of(placement.lead()).and_then(|process| process.leases.as_ref());
        lead.is_some_and(UpdateLeases::is_complete)
    }

    fn check_end(&self) -> Result<(), String> {
        let Some(placement) = &self.placement else {
            return Ok(());
        };
        let updates = self.round().updates;
        for (slot, place) in placement.slots.iter().enumerate() {
            let held = |rank: usize| {
                let process = self.processes[self.members[rank]].as_ref();
                process.and_then(|process| process.slots.get(&(slot as u32)))
            };
            let Some(primary) = held(place.primary) else {
                return Err(format!("slot {slot} is lost"));
            };
            let once: BTreeSet<u32> = primary.order.iter().copied().collect();
            if primary.order.len() != updates as usize || once.len() != updates as usize {
                return Err(format!(
                    "slot {slot} has applied {:?} of {updates} updates",
                    primary.order
                ));
            }
            for (update, report) in primary.log.reports().iter().enumerate() {
                let expected = if slot == 0 {
                    report_of(update as u32)
                } else {
                    UpdateSamples::default()
                };
                if report.as_ref() != Some(&expected) {
                    return Err(format!("slot {slot} has {report:?} for update {update}"));
                }
            }
            if let Some(copy) = place.copy.and_then(held)
                && (copy.order != primary.order || copy.log != primary.log)
            {
                return Err(format!(
                    "the copy of slot {slot} differs: {:?} and {:?}",
                    copy.order, primary.order
                ));
            }
        }
        Ok(())
    }
}
