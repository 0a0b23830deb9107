//! The processes, the messages and the time of a simulated round.

use ronde_core::BatchCounts;
use ronde_core::seed::SeedTree;
use ronde_protocol::gossip::{
    ExchangeBook, ExchangeVerdict, GossipRound, GossipStart, NextUpdate, Pairings, ReplicaHolding,
    UpdateClaims, merge_updates,
};
use ronde_protocol::served::UpdateSamples;

use super::process::{ExchangeOutcome, GossipProcess, PeerMessage, ReplicaPhase};
use super::script::{GossipBug, GossipScript, MemberChange};
use crate::clock::{MS, SECOND};
use crate::harness::{BrokenInvariant, InvariantName, SeedSummary, SimulatedWorld, WorldStart};
use crate::network::{LinkFaults, Network};
use crate::rng::Rng;
use crate::timeline::Timeline;

/// The interval at which a process repeats unanswered messages.
const AGAIN: u64 = 20 * MS;
/// The time after which the others notice a death.
const DETECTION: u64 = 5 * MS;
/// The time limit after the last fault.
const LIMIT: u64 = 60 * SECOND;

const ONCE: InvariantName = InvariantName("each update counts once");
const SHORT_WAITS: InvariantName = InvariantName("no process waits long for another one");
const ROUND_ENDS: InvariantName = InvariantName("the round ends");

/// The outcome of a simulated round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GossipCounts {
    /// The memberships.
    pub attempts: u64,
    /// The processes that died.
    pub deaths: u64,
    /// The updates that were computed again.
    pub again: u64,
    /// The replicas that did not continue.
    pub dropped: u64,
    /// The exchanges with an effect.
    pub exchanges: u64,
    /// The exchanges without an effect.
    pub missed: u64,
    /// The updates that were computed by another process than their owner.
    pub helped: u64,
}

impl SeedSummary for GossipCounts {
    fn add(&mut self, other: &Self) {
        self.attempts += other.attempts;
        self.deaths += other.deaths;
        self.again += other.again;
        self.dropped += other.dropped;
        self.exchanges += other.exchanges;
        self.missed += other.missed;
        self.helped += other.helped;
    }
}

/// An event of the world.
#[derive(Debug)]
pub enum GossipEvent {
    Deliver {
        attempt: u64,
        from: usize,
        to: usize,
        message: PeerMessage,
    },
    Tick {
        attempt: u64,
        process: usize,
    },
    Change(MemberChange),
    Regroup,
    Calm,
}

/// A world of one round of replicas that average in pairs.
pub struct GossipWorld {
    script: GossipScript,
    bug: Option<GossipBug>,
    rng: Rng,
    seeds: SeedTree,
    timeline: Timeline<GossipEvent>,
    network: Network,
    processes: Vec<Option<GossipProcess>>,
    attempt: u64,
    /// The processes of this attempt, by rank.
    members: Vec<usize>,
    /// The number of times that each update was computed.
    computed: Vec<u64>,
    summary: GossipCounts,
    broken: Option<BrokenInvariant>,
}

impl SimulatedWorld for GossipWorld {
    const NAME: &'static str = "gossip";
    const BUGS: &'static [(&'static str, GossipBug)] = &GossipBug::ALL;
    type Bug = GossipBug;
    type Script = GossipScript;
    type Event = GossipEvent;
    type Summary = GossipCounts;

    fn draw_script(rng: &mut Rng) -> GossipScript {
        GossipScript::new(rng)
    }

    fn new(start: WorldStart<Self>) -> Self {
        let WorldStart {
            mut rng,
            script,
            bug,
            is_traced,
            ..
        } = start;
        let faults = LinkFaults {
            loss: script.loss,
            twice: script.loss,
            late: script.loss,
            late_by: 40 * MS,
        };
        let mut world = Self {
            timeline: Timeline::new(script.calm + LIMIT, is_traced),
            network: Network::new(0, faults, (MS / 50, script.delay_max)),
            processes: Vec::new(),
            bug,
            seeds: SeedTree::new(rng.bits()),
            rng,
            attempt: 0,
            members: Vec::new(),
            computed: vec![0; script.round.updates as usize],
            summary: GossipCounts::default(),
            broken: None,
            script,
        };
        for _ in 0..world.script.processes {
            world.add_process();
        }
        for (at, change) in world.script.changes.clone() {
            world.timeline.schedule(at, GossipEvent::Change(change));
        }
        world
            .timeline
            .schedule(world.script.calm, GossipEvent::Calm);
        world.regroup();
        world
    }

    fn timeline(&mut self) -> &mut Timeline<GossipEvent> {
        &mut self.timeline
    }

    fn execute(&mut self, event: GossipEvent) {
        self.timeline.note(|| format!("{event:?}"));
        match event {
            GossipEvent::Deliver {
                attempt,
                from,
                to,
                message,
            } => {
                if attempt == self.attempt && self.is_member(to) {
                    self.deliver(from, to, message);
                }
            }
            GossipEvent::Tick { attempt, process } => {
                if attempt == self.attempt && self.is_member(process) {
                    self.tick(process);
                }
            }
            GossipEvent::Change(change) => self.change(change),
            GossipEvent::Regroup => self.regroup(),
            GossipEvent::Calm => self.network.calm(),
        }
    }

    fn check(&mut self) -> Result<bool, BrokenInvariant> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let is_finished = self.is_finished();
        if is_finished {
            self.check_end()?;
        }
        Ok(is_finished)
    }

    fn check_timeout(&mut self) -> Result<(), BrokenInvariant> {
        Err(ROUND_ENDS.broken(format!("{:?}", self.script)))
    }

    fn summary(&self) -> GossipCounts {
        self.summary.clone()
    }
}

impl GossipWorld {
    fn round(&self) -> GossipRound {
        self.script.round
    }

    fn now_ms(&self) -> u64 {
        self.timeline.now() / MS
    }

    fn tick_at(&mut self, at: u64, process: usize) {
        let attempt = self.attempt;
        self.timeline
            .schedule(at, GossipEvent::Tick { attempt, process });
    }

    fn rank_of(&self, process: usize) -> u32 {
        let rank = self.members.iter().position(|member| *member == process);
        rank.unwrap_or_default() as u32
    }

    fn add_process(&mut self) {
        let round = self.round();
        let claims = UpdateClaims::new(0, 1, &[]);
        let book = ExchangeBook::new(0, Pairings::new(self.seeds, round.step, 1));
        let process = GossipProcess::new(round, claims, book);
        self.processes.push(Some(process));
    }

    fn is_member(&self, process: usize) -> bool {
        self.processes[process]
            .as_ref()
            .is_some_and(|process| !process.is_away)
    }

    fn present(&self) -> Vec<usize> {
        let all = 0..self.processes.len();
        all.filter(|process| self.is_member(*process)).collect()
    }

    fn change(&mut self, change: MemberChange) {
        match change {
            MemberChange::Dies(victim) => {
                if self.present() == [victim] || self.processes[victim].take().is_none() {
                    return;
                }
                self.summary.deaths += 1;
            }
            MemberChange::Leaves(process) => {
                if self.present() == [process] {
                    return;
                }
                // A stopped process still finishes its update when it continues.
                self.finish_update(process);
                if let Some(process) = &mut self.processes[process] {
                    process.is_away = true;
                }
            }
            MemberChange::Returns(process) => {
                if let Some(process) = &mut self.processes[process] {
                    process.is_away = false;
                }
            }
            MemberChange::Joins => self.add_process(),
        }
        self.timeline
            .schedule_after(DETECTION, GossipEvent::Regroup);
    }

    /// Begins an attempt of the processes that are members. Each finishes the update that it computes first.
    fn regroup(&mut self) {
        self.attempt += 1;
        self.summary.attempts += 1;
        self.members = self.present();
        for member in self.members.clone() {
            self.finish_update(member);
        }
        let round = self.round();
        let of = |process: usize| self.processes[process].as_ref();
        let words = self.members.iter().flat_map(|member| {
            // A process that has just joined has no replica.
            let log = of(*member).map(|process| &process.log);
            let log = log.filter(|log| log.attempt() > 0);
            ReplicaHolding::encode(log.map(ReplicaHolding::of).as_ref())
        });
        let words: Vec<u64> = words.collect();
        let holdings = ReplicaHolding::decode_all(&words, self.members.len()).unwrap_or_default();
        let mut start = GossipStart::decide(round, &holdings);
        if self.bug == Some(GossipBug::KeepsLateReplicas) {
            start.continues = holdings.iter().map(Option::is_some).collect();
        }
        if self.bug == Some(GossipBug::CountsLostUpdates) {
            start.done = self.computed.iter().map(|count| *count > 0).collect();
        }
        let lost = self.computed.iter().zip(&start.done);
        self.summary.again += lost.filter(|(count, done)| **count > 0 && !**done).count() as u64;
        let source = start.source.map(|rank| self.members[rank]);
        let copied = source.and_then(of).map(|process| process.shares.clone());
        self.enter(&start, copied, &holdings);
    }

    /// Brings all members into the attempt that begins.
    fn enter(
        &mut self,
        start: &GossipStart,
        copied: Option<Vec<f64>>,
        holdings: &[Option<ReplicaHolding>],
    ) {
        let (round, ranks) = (self.round(), self.members.len() as u32);
        let pairings = Pairings::new(self.seeds, round.step, ranks);
        for (rank, member) in self.members.clone().into_iter().enumerate() {
            let number = rank as u32;
            let claims = UpdateClaims::new(number, ranks, &start.done);
            let book = ExchangeBook::new(number, pairings);
            let mut process = GossipProcess::new(round, claims, book);
            let before = self.processes[member].take();
            match before.filter(|_| start.continues[rank]) {
                Some(before) => (process.log, process.shares) = (before.log, before.shares),
                None => {
                    self.summary.dropped += u64::from(holdings[rank].is_some());
                    if let Some(shares) = &copied {
                        process.shares.clone_from(shares);
                    }
                }
            }
            process.log.enter(self.attempt);
            self.processes[member] = Some(process);
            self.tick_at(self.timeline.now() + 1, member);
        }
    }

    /// Ends the update that a process computes, if there is one: adds it to the replica and the log.
    fn finish_update(&mut self, index: usize) {
        let now_ms = self.now_ms();
        let Some(process) = self.processes[index].as_mut() else {
            return;
        };
        let ReplicaPhase::Computing { update, .. } = process.phase else {
            return;
        };
        process.phase = ReplicaPhase::Free;
        process.claims.finish(now_ms);
        process.shares[update as usize] += 1.0;
        self.computed[update as usize] += 1;
        let samples = UpdateSamples {
            counts: BatchCounts {
                samples: 1,
                targets: 1,
            },
            sample_ids: vec![update.into()],
            ..UpdateSamples::default()
        };
        if !process.log.insert(update, samples) {
            self.broken =
                Some(ONCE.broken(format!("process {index} computes update {update} twice")));
        }
    }

    fn tick(&mut self, index: usize) {
        let now = self.timeline.now();
        let Some(process) = self.processes[index].as_ref() else {
            return;
        };
        match process.phase.clone() {
            ReplicaPhase::Computing { until, .. } if until > now => {}
            ReplicaPhase::Computing { .. } => {
                self.finish_update(index);
                self.answer_postponed(index);
                self.begin_exchange(index);
                self.work(index);
            }
            ReplicaPhase::Waiting { until } if until > now => {}
            ReplicaPhase::Waiting { .. } => self.next_update(index),
            ReplicaPhase::Free => self.next_update(index),
            _ => self.work(index),
        }
    }

    fn begin_exchange(&mut self, index: usize) {
        let (now, steps) = (self.timeline.now(), self.script.gossip_steps);
        let Some(process) = self.processes[index].as_mut() else {
            return;
        };
        let made = process.log.len() as u64;
        let exchange = made.is_multiple_of(steps).then(|| process.book.begin());
        if let Some(exchange) = exchange.flatten() {
            process.phase = ReplicaPhase::Exchanging {
                exchange,
                weights: process.shares.clone(),
                since: now,
            };
        }
    }

    /// Follows the decision of a process's claims.
    fn next_update(&mut self, index: usize) {
        let (now, now_ms, pace) = (self.timeline.now(), self.now_ms(), self.script.pace(index));
        let never_helps = self.bug == Some(GossipBug::NeverHelps);
        let Some(process) = self.processes[index].as_mut() else {
            return;
        };
        match process.claims.next(now_ms) {
            NextUpdate::Compute(update) => {
                let until = now + pace;
                process.phase = ReplicaPhase::Computing { update, until };
                self.tick_at(until, index);
            }
            NextUpdate::Ask { .. } if never_helps => process.phase = ReplicaPhase::Left,
            NextUpdate::Ask { owner, number } => {
                process.phase = ReplicaPhase::Asking { owner, number };
            }
            NextUpdate::Wait(until_ms) => {
                let until = (until_ms * MS).max(now + MS);
                process.phase = ReplicaPhase::Waiting { until };
                self.tick_at(until, index);
            }
            NextUpdate::Complete => process.phase = ReplicaPhase::Left,
        }
        self.work(index);
    }

    /// Sends the messages whose answers a process waits for, also those that were sent before.
    fn work(&mut self, index: usize) {
        let Some(process) = self.processes[index].as_ref() else {
            return;
        };
        let progress = process.claims.progress();
        let to = |rank: u32| self.members[rank as usize];
        match process.phase.clone() {
            ReplicaPhase::Free => return self.next_update(index),
            ReplicaPhase::Asking { owner, number } => {
                self.send(index, to(owner), PeerMessage::Ask(number, progress));
            }
            ReplicaPhase::Exchanging {
                exchange, weights, ..
            } => {
                let message = PeerMessage::Exchange(exchange.number, weights);
                self.send(index, to(exchange.partner), message);
            }
            ReplicaPhase::Left => {
                let ranks = 0..self.members.len() as u32;
                let me = self.rank_of(index);
                let deaf = ranks.filter(|rank| *rank != me && !process.heard.contains(rank));
                for rank in deaf.collect::<Vec<_>>() {
                    self.send(index, self.members[rank as usize], PeerMessage::Leave);
                }
            }
            ReplicaPhase::Waiting { .. } | ReplicaPhase::Computing { .. } => return,
        }
        self.tick_at(self.timeline.now() + AGAIN, index);
    }

    fn send(&mut self, from: usize, to: usize, message: PeerMessage) {
        for delay in self.network.deliveries(from, to, &mut self.rng) {
            self.timeline.schedule_after(
                delay,
                GossipEvent::Deliver {
                    attempt: self.attempt,
                    from,
                    to,
                    message: message.clone(),
                },
            );
        }
    }

    fn deliver(&mut self, from: usize, to: usize, message: PeerMessage) {
        let rank = self.rank_of(from);
        match message {
            PeerMessage::Ask(number, progress) => {
                let is_again = self.bug == Some(GossipBug::GrantsAgain);
                let number_seen = if is_again {
                    self.timeline.scheduled()
                } else {
                    number
                };
                let Some(process) = self.processes[to].as_mut() else {
                    return;
                };
                let update = process.claims.grant(rank, number_seen, progress);
                let own = process.claims.progress();
                if let ReplicaPhase::Waiting { .. } = process.phase {
                    process.phase = ReplicaPhase::Free;
                    self.tick_at(self.timeline.now(), to);
                }
                self.send(to, from, PeerMessage::Granted(number, update, own));
            }
            PeerMessage::Granted(number, update, progress) => {
                self.hear_grant((from, to), number, update, progress);
            }
            PeerMessage::Exchange(number, weights) => self.offer(from, to, number, weights),
            PeerMessage::Exchanged(number, outcome) => self.hear_outcome(rank, to, number, outcome),
            PeerMessage::Leave => {
                if let Some(process) = self.processes[to].as_mut() {
                    process.left.insert(rank);
                }
                self.send(to, from, PeerMessage::LeaveHeard);
            }
            PeerMessage::LeaveHeard => {
                if let Some(process) = self.processes[to].as_mut() {
                    process.heard.insert(rank);
                }
            }
        }
    }

    fn hear_grant(
        &mut self,
        (from, to): (usize, usize),
        number: u64,
        update: Option<u32>,
        progress: ronde_protocol::gossip::WorkerProgress,
    ) {
        let (now, now_ms, pace) = (self.timeline.now(), self.now_ms(), self.script.pace(to));
        let rank = self.rank_of(from);
        let Some(process) = self.processes[to].as_mut() else {
            return;
        };
        process.claims.hear(rank, progress);
        let is_asking = matches!(process.phase, ReplicaPhase::Asking { owner, number: own } if (owner, own) == (rank, number));
        if !is_asking {
            return;
        }
        process.phase = ReplicaPhase::Free;
        if let Some(update) = process.claims.answered(rank, number, update, now_ms) {
            self.summary.helped += 1;
            let until = now + pace;
            process.phase = ReplicaPhase::Computing { update, until };
            return self.tick_at(until, to);
        }
        self.work(to);
    }

    /// Answers an exchange.
    fn offer(&mut self, from: usize, to: usize, number: u64, weights: Vec<f64>) {
        let rank = self.rank_of(from);
        let bug = self.bug;
        let Some(process) = self.processes[to].as_mut() else {
            return;
        };
        let is_computing = matches!(process.phase, ReplicaPhase::Computing { .. });
        if bug == Some(GossipBug::AnswersBetweenUpdates) && is_computing {
            return process.postponed.push((from, number, weights));
        }
        let averages = bug == Some(GossipBug::AveragesWhileWaiting);
        let outcome = match process.book.offer(rank, number) {
            ExchangeVerdict::Average => ExchangeOutcome::Averaged(process.average(&weights)),
            ExchangeVerdict::Busy if averages => {
                ExchangeOutcome::Averaged(process.average(&weights))
            }
            ExchangeVerdict::Repeated => match process.answered.get(&rank) {
                Some((last, outcome)) if *last == number => outcome.clone(),
                _ => ExchangeOutcome::Missed,
            },
            ExchangeVerdict::Busy | ExchangeVerdict::Crossed | ExchangeVerdict::Declined => {
                ExchangeOutcome::Missed
            }
        };
        if let ExchangeOutcome::Averaged(_) = &outcome {
            process.answered.insert(rank, (number, outcome.clone()));
        }
        self.send(to, from, PeerMessage::Exchanged(number, outcome));
    }

    fn answer_postponed(&mut self, index: usize) {
        let Some(process) = self.processes[index].as_mut() else {
            return;
        };
        for (from, number, weights) in std::mem::take(&mut process.postponed) {
            self.offer(from, index, number, weights);
        }
    }

    fn hear_outcome(&mut self, rank: u32, to: usize, number: u64, outcome: ExchangeOutcome) {
        let now = self.timeline.now();
        let Some(process) = self.processes[to].as_mut() else {
            return;
        };
        let ReplicaPhase::Exchanging {
            exchange, since, ..
        } = process.phase
        else {
            return;
        };
        if (exchange.partner, exchange.number) != (rank, number) {
            return;
        }
        process.phase = ReplicaPhase::Free;
        match outcome {
            ExchangeOutcome::Averaged(mean) => {
                process.shares = mean;
                process.book.end(true);
                self.summary.exchanges += 1;
            }
            ExchangeOutcome::Missed => {
                process.book.end(false);
                self.summary.missed += 1;
            }
        }
        if self.script.is_calm() && now - since > 2 * self.script.delay_max {
            let waited = (now - since) / 1000;
            self.broken = Some(SHORT_WAITS.broken(format!(
                "process {to} waited {waited} us for the process of rank {rank}"
            )));
        }
        self.work(to);
    }

    /// Returns whether all members have nothing left to do, and know it of each other.
    fn is_finished(&self) -> bool {
        let others = self.members.len() - 1;
        let mut members = self.members.iter();
        members.all(|member| {
            let process = self.processes[*member].as_ref();
            process.is_some_and(|process| {
                matches!(process.phase, ReplicaPhase::Left)
                    && process.left.len() == others
                    && !process.is_away
            })
        })
    }

    fn check_end(&self) -> Result<(), BrokenInvariant> {
        let round = self.round();
        let of = |member: &usize| self.processes[*member].as_ref();
        let logs = self.members.iter().filter_map(of);
        let logged = logs.flat_map(|process| process.log.logged());
        let merged = merge_updates(round.updates, logged);
        merged.map_err(|problem| ONCE.broken(problem.to_string()))?;
        for (update, computed) in self.computed.iter().enumerate() {
            let each = self.members.iter().filter_map(of);
            let shares: Vec<f64> = each.map(|process| process.shares[update]).collect();
            let most = *computed as f64 + 1e-9;
            if shares.iter().any(|share| !(0.0..=most).contains(share)) {
                return Err(ONCE.broken(format!("update {update} has the shares {shares:?}")));
            }
            let sum: f64 = shares.iter().sum();
            if self.script.is_calm() && (sum - 1.0).abs() > 1e-9 {
                return Err(ONCE.broken(format!("update {update} has the shares {shares:?}")));
            }
        }
        self.check_time()
    }

    /// Checks that a slow process has delayed the end by a few of its updates at most, if nothing has failed.
    fn check_time(&self) -> Result<(), BrokenInvariant> {
        if !self.script.is_calm() {
            return Ok(());
        }
        let messages = 4 * self.script.delay_max;
        let paces = self.script.paces.iter().map(|pace| pace + messages);
        let rate: f64 = paces.map(|pace| 1.0 / pace as f64).sum();
        let least = f64::from(self.round().updates) / rate;
        let slowest = self.script.paces.iter().max().copied().unwrap_or(0) + messages;
        let more = 3 * slowest + self.members.len() as u64 * messages;
        match self.timeline.now() as f64 > least + more as f64 {
            true => Err(SHORT_WAITS.broken(format!(
                "the round takes {} us instead of {} us: {:?}",
                self.timeline.now() / 1000,
                least as u64 / 1000,
                self.script
            ))),
            false => Ok(()),
        }
    }
}
