//! [`Worker`]: a simulated worker process: the real machine, a training loop, real sums.

use std::collections::VecDeque;

use ronde_core::ledger::Ledger;
use ronde_core::{Generation, Step};
use ronde_elastic::{
    Course, LossCause, Member, Phase, Position, Reason, RecoveryPlan, Settings, StartFrom,
    WorkerCommand, WorkerEvent, WorkerId, WorkerMachine,
};

use crate::clock::{Clock, MS, SECOND};
use crate::effect::{Alarm, Effect, Effects, Message};
use crate::fact::{Exit, Fact};
use crate::group::{Frame, Group, Part, Piece};
use crate::model::{Run, State};
use crate::replica::{Replica, Vote};
use crate::sabotage::Sabotage;

/// How long an all-gather may take.
const OPERATION_MAX: u64 = 2 * SECOND;
/// A checkpoint is written every so many steps.
const CHECKPOINT_EVERY: u64 = 4;

/// What the training loop waits for.
#[derive(Debug, Clone)]
enum Task {
    Nothing,
    Positions,
    Snapshot(RecoveryPlan),
    Computing(Step),
    Reducing(Step),
    Voting(Step),
}

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    /// Its name.
    pub id: WorkerId,
    clock: Clock,
    machine: WorkerMachine,
    run: Run,
    replica: Replica,
    group: Option<Group>,
    early: Vec<Frame>,
    task: Task,
    votes: Vec<Vote>,
    /// The generation in which the last step was computed.
    computed_in: Generation,
    queue: VecDeque<WorkerEvent>,
    alarm: u64,
    is_busy: bool,
    is_over: bool,
}

impl Worker {
    /// A process that has just begun.
    ///
    /// # Panics
    /// When the settings are impossible: a bug of the simulator.
    pub fn new(me: Member, settings: Settings, run: Run, fx: &mut Effects<'_>) -> Self {
        let clock = Clock::new(fx.rng);
        let id = me.worker;
        let machine = WorkerMachine::new(me, settings, run.end, clock.show(fx.now))
            .expect("the simulator's settings are possible");
        fx.fact(Fact::WorkerBegan(id));
        let mut worker = Self {
            id,
            clock,
            machine,
            run,
            replica: Replica::new(run),
            group: None,
            early: Vec::new(),
            task: Task::Nothing,
            votes: Vec::new(),
            computed_in: Generation(0),
            queue: VecDeque::new(),
            alarm: 0,
            is_busy: false,
            is_over: false,
        };
        worker.event(WorkerEvent::Linked, fx);
        worker
    }

    /// Its members and their hosts, to tell them that the process has ended.
    pub fn connections(&self) -> Vec<(Generation, WorkerId, usize)> {
        let Some(group) = &self.group else {
            return Vec::new();
        };
        group
            .peers()
            .map(|(worker, host)| (group.generation(), worker, host))
            .collect()
    }

    /// Something for the machine.
    pub fn event(&mut self, event: WorkerEvent, fx: &mut Effects<'_>) {
        self.queue.push_back(event);
        // What happens while commands are executed is told to the machine after the last of them.
        if std::mem::replace(&mut self.is_busy, true) {
            return;
        }
        while let Some(event) = self.queue.pop_front() {
            if self.is_over {
                return;
            }
            let commands = self.machine.handle(self.clock.show(fx.now), event);
            for command in commands {
                self.execute(command, fx);
            }
        }
        self.is_busy = false;
        self.set_alarm(fx);
    }

    fn set_alarm(&mut self, fx: &mut Effects<'_>) {
        let Some(at) = self
            .machine
            .wake_at()
            .map(|at| self.clock.when(at).max(fx.now + MS))
        else {
            return;
        };
        if self.alarm <= fx.now || at < self.alarm {
            self.alarm = at;
            fx.done.push(Effect::Alarm(at, Alarm::Wake));
        }
    }

    /// An alarm rings.
    pub fn ring(&mut self, alarm: Alarm, fx: &mut Effects<'_>) {
        match alarm {
            Alarm::Wake => self.event(WorkerEvent::Tick, fx),
            Alarm::Computed(generation, step) => {
                let is_due = matches!(self.task, Task::Computing(current) if current == step);
                if is_due
                    && self
                        .group
                        .as_ref()
                        .is_some_and(|g| g.generation() == generation)
                {
                    self.computed(step, fx);
                }
            }
            Alarm::Late(generation, number) => self.late(generation, number, fx),
            Alarm::Written(generation, next) => {
                fx.disk.complete(next);
                if let Some((state, _)) = fx.disk.read(next) {
                    let hash = state.hash();
                    fx.fact(Fact::Written { next, hash });
                }
                fx.send_to_coordinators(&Message::Written(generation, next));
            }
        }
    }

    fn late(&mut self, generation: Generation, number: u64, fx: &mut Effects<'_>) {
        let Some(group) = self.group.as_ref().filter(|g| g.generation() == generation) else {
            return;
        };
        if group.current() != Some(number)
            || matches!(self.task, Task::Nothing | Task::Computing(_))
        {
            return;
        }
        let suspect = group
            .missing()
            .next()
            .map(|rank| group.assignment.members[rank].worker);
        let cause = format!("all-gather {number} took too long");
        self.event(
            WorkerEvent::Failed {
                generation,
                suspect,
                cause,
            },
            fx,
        );
    }

    fn execute(&mut self, command: WorkerCommand, fx: &mut Effects<'_>) {
        let id = self.id;
        fx.note(|| match &command {
            WorkerCommand::Report(report) => format!(
                "worker {id} reports {:?} in generation {}, next {:?}",
                report.phase, report.generation, report.next
            ),
            WorkerCommand::Connect {
                assignment,
                rank,
                position,
            } => format!(
                "worker {id} enters generation {} as rank {rank} of {}, {position:?}: {}",
                assignment.generation,
                assignment.members.len(),
                assignment.reason
            ),
            WorkerCommand::Leave { reason, .. } | WorkerCommand::Tell(reason) => {
                format!("worker {id}: {reason}")
            }
            WorkerCommand::End(reason) => format!("worker {id} ends: {reason}"),
            other => format!("worker {id}: {other:?}"),
        });
        match command {
            WorkerCommand::Report(report) => {
                fx.send_to_coordinators(&Message::Report(Box::new(report)));
            }
            WorkerCommand::Leave { in_order, .. } => self.leave(in_order, fx),
            WorkerCommand::Connect {
                assignment,
                rank,
                position,
            } => {
                let group = Group::new(assignment, rank.index());
                self.connect(group, position, fx);
            }
            WorkerCommand::Compute { generation, step } => self.compute(generation, step, fx),
            WorkerCommand::Vote { step, newest, .. } => {
                let mut vote = self.replica.vote(step, newest);
                if fx.has(Sabotage::VoteWithoutSamples) {
                    vote.ids.clear();
                }
                self.task = Task::Voting(step);
                self.gather(Piece::Vote(Box::new(vote)), fx);
            }
            WorkerCommand::Commit { generation, step } => {
                let votes = std::mem::take(&mut self.votes);
                self.commit(generation, step, votes, fx);
            }
            WorkerCommand::Record {
                generation,
                term,
                step,
            } => {
                fx.fact(Fact::Recorded {
                    worker: id,
                    generation,
                    term,
                    step,
                });
                if step.next().0.is_multiple_of(CHECKPOINT_EVERY) {
                    self.write_checkpoint(generation, step.next(), fx);
                }
            }
            WorkerCommand::Checkpoint { generation, next } => {
                self.write_checkpoint(generation, next, fx);
            }
            WorkerCommand::Tell(_) => {}
            WorkerCommand::End(reason) => {
                let exit = match reason {
                    Reason::NoCoordinator { .. } => Exit::Orphaned,
                    Reason::Finished { .. } | Reason::Stopped { .. } | Reason::Drained => {
                        Exit::Regular
                    }
                    _ => Exit::Irregular,
                };
                self.is_over = true;
                fx.done.push(Effect::Exit(exit));
            }
        }
    }

    fn write_checkpoint(&mut self, generation: Generation, next: Step, fx: &mut Effects<'_>) {
        if let (Some(state), true) = (&self.replica.state, self.replica.next == Some(next)) {
            fx.disk
                .begin(next, state.clone(), self.replica.ledger().clone());
            let at = fx.now + fx.rng.range(5 * MS, 300 * MS);
            fx.done
                .push(Effect::Alarm(at, Alarm::Written(generation, next)));
            if fx.has(Sabotage::CheckpointCountsEarly) {
                fx.send_to_coordinators(&Message::Written(generation, next));
            }
        }
    }

    fn leave(&mut self, in_order: bool, fx: &mut Effects<'_>) {
        self.task = Task::Nothing;
        self.votes.clear();
        let Some(group) = self.group.take() else {
            return;
        };
        let generation = group.generation();
        for (to, host) in group.peers() {
            let part = if in_order {
                Part::Goodbye
            } else {
                Part::Closed { has_ended: false }
            };
            let frame = Frame {
                to,
                from: self.id,
                generation,
                part,
            };
            fx.send(host, Message::Frame(Box::new(frame)));
        }
        if fx.has(Sabotage::SurvivorsRestart) && self.replica.next > Some(Step(0)) {
            self.is_over = true;
            fx.done.push(Effect::Exit(Exit::Irregular));
        }
    }

    fn connect(&mut self, mut group: Group, position: Position, fx: &mut Effects<'_>) {
        if fx.has(Sabotage::RanksDiffer) && self.id.0 % 2 == 1 {
            group.assignment.members.reverse();
            group.rank = group.rank_of(self.id).unwrap_or_default();
        }
        if fx.has(Sabotage::GenerationIsReused) {
            group.assignment.generation.0 = group.assignment.generation.0.min(2);
        }
        let mut position = position;
        if fx.has(Sabotage::GradientIsClaimed) {
            position.holds_gradient = true;
        }
        if fx.has(Sabotage::StateIsForgotten) && group.generation() > Generation(1) {
            position.next = None;
            group.assignment.start = StartFrom::Checkpoint(None);
        }
        fx.fact(Fact::Entered {
            worker: self.id,
            term: group.assignment.term,
            generation: group.generation(),
            members: group
                .assignment
                .members
                .iter()
                .map(|member| member.worker)
                .collect(),
        });
        self.group = Some(group);
        self.task = Task::Positions;
        self.gather(Piece::Position(position), fx);
        for frame in std::mem::take(&mut self.early) {
            self.frame(frame, fx);
        }
    }

    /// Begins an all-gather.
    fn gather(&mut self, piece: Piece, fx: &mut Effects<'_>) {
        let Some(group) = &mut self.group else {
            return;
        };
        let generation = group.generation();
        let number = group.begin(piece.clone());
        for (to, host) in group.peers() {
            let frame = Frame {
                to,
                from: self.id,
                generation,
                part: Part::Piece(number, piece.clone()),
            };
            fx.send(host, Message::Frame(Box::new(frame)));
        }
        fx.done.push(Effect::Alarm(
            fx.now + OPERATION_MAX,
            Alarm::Late(generation, number),
        ));
        self.go_on(fx);
    }

    /// Something comes over the data plane.
    pub fn frame(&mut self, mut frame: Frame, fx: &mut Effects<'_>) {
        let newest = self
            .group
            .as_ref()
            .map_or(self.machine.generation(), Group::generation);
        if fx.has(Sabotage::OldFramesPass) && frame.generation < newest {
            frame.generation = newest;
        }
        let Some(group) = self
            .group
            .as_mut()
            .filter(|group| group.generation() == frame.generation)
        else {
            if frame.generation > newest {
                self.early.push(frame);
            }
            return;
        };
        let Some(rank) = group.rank_of(frame.from) else {
            return;
        };
        match frame.part {
            Part::Piece(number, piece) => {
                group.take(number, rank, piece);
                self.go_on(fx);
            }
            Part::Slice(index, values) => {
                if let Some(early) = &mut group.early_slices {
                    early.push((index, values));
                } else {
                    self.take_slice(index, values, fx);
                }
            }
            Part::Goodbye => {
                group.goodbye(rank);
                self.go_on(fx);
            }
            Part::Closed { has_ended } => {
                let generation = frame.generation;
                if fx.has(Sabotage::DeadVoteCounts)
                    && let (Task::Voting(step), Some(current)) = (&self.task, group.current())
                {
                    let mut vote = self.replica.vote(*step, generation);
                    (vote.shards, vote.ids) = (Vec::new(), Vec::new());
                    group.take(current, rank, Piece::Vote(Box::new(vote)));
                    self.go_on(fx);
                    return;
                }
                let (suspect, cause) = if has_ended {
                    (
                        Some(frame.from),
                        format!("worker {} closed its connection", frame.from),
                    )
                } else {
                    (None, format!("worker {} left", frame.from))
                };
                self.event(
                    WorkerEvent::Failed {
                        generation,
                        suspect,
                        cause,
                    },
                    fx,
                );
            }
        }
    }

    /// Whether what the loop waits for is there.
    fn go_on(&mut self, fx: &mut Effects<'_>) {
        if let (Task::Voting(step), true) = (&self.task, fx.has(Sabotage::OwnVoteIsEnough)) {
            let step = *step;
            let vote = self.replica.vote(step, Generation(0));
            return self.voted(step, vec![vote], fx);
        }
        let Some(group) = &mut self.group else {
            return;
        };
        if matches!(self.task, Task::Nothing | Task::Computing(_)) {
            return;
        }
        let Some(pieces) = group.finished() else {
            if let Some(rank) = group.left_too_early() {
                let cause = format!("worker {} left", group.assignment.members[rank].worker);
                self.fail(cause, fx);
            }
            return;
        };
        match std::mem::replace(&mut self.task, Task::Nothing) {
            Task::Positions => self.plan(&pieces, fx),
            Task::Snapshot(plan) => self.recover(&plan, pieces, fx),
            Task::Reducing(step) => self.reduced(step, pieces, fx),
            Task::Voting(step) => {
                let votes = pieces.into_iter().filter_map(|piece| match piece {
                    Piece::Vote(vote) => Some(*vote),
                    _ => None,
                });
                self.voted(step, votes.collect(), fx);
            }
            Task::Nothing | Task::Computing(_) => {}
        }
    }

    fn fail(&mut self, cause: String, fx: &mut Effects<'_>) {
        let generation = self.machine.generation();
        self.event(
            WorkerEvent::Failed {
                generation,
                suspect: None,
                cause,
            },
            fx,
        );
    }

    /// All positions are known.
    fn plan(&mut self, pieces: &[Piece], fx: &mut Effects<'_>) {
        let Some(group) = &self.group else {
            return;
        };
        let mut positions: Vec<Position> = pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Position(position) => Some(*position),
                _ => None,
            })
            .collect();
        let told = positions.clone();
        if fx.has(Sabotage::SmallestStepWins)
            && let Some(least) = positions.iter().filter_map(|position| position.next).min()
        {
            positions
                .iter_mut()
                .for_each(|position| position.next = Some(least));
        }
        let plan = match RecoveryPlan::new(&positions, group.assignment.start) {
            Ok(plan) => plan,
            Err(error) => return self.fail(error.to_string(), fx),
        };
        let (worker, generation) = (self.id, group.generation());
        fx.fact(Fact::Planned {
            worker,
            generation,
            positions: told,
            next: plan.next,
        });
        let leads = plan.holders().first() == Some(&group.rank);
        let is_wanted = plan
            .courses
            .iter()
            .any(|c| matches!(c, Course::Apply | Course::Heal));
        let snapshot = (leads && is_wanted).then(|| Box::new(self.replica.snapshot()));
        self.task = Task::Snapshot(plan);
        self.gather(Piece::Snapshot(snapshot), fx);
    }

    /// Does what the plan says.
    fn recover(&mut self, plan: &RecoveryPlan, pieces: Vec<Piece>, fx: &mut Effects<'_>) {
        let snapshot = pieces.into_iter().find_map(|piece| match piece {
            Piece::Snapshot(snapshot) => snapshot,
            _ => None,
        });
        let Some(group) = &mut self.group else {
            return;
        };
        group.whole = plan
            .courses
            .iter()
            .map(|course| *course != Course::Heal)
            .collect();
        let (generation, rank) = (group.generation(), group.rank);
        let holders = plan.holders();
        let mut is_whole = true;
        match (plan.courses[rank], snapshot) {
            (Course::Keep, _) => self.send_slices(plan, &holders, fx),
            (Course::Apply, Some(snapshot)) => {
                let step = Step(plan.next.0 - 1);
                let votes = snapshot.votes.unwrap_or_default();
                self.commit(self.computed_in, step, votes, fx);
            }
            (Course::Heal, Some(snapshot)) => {
                self.replica
                    .begin_to_heal(plan.next, &snapshot, holders.len());
                fx.fact(Fact::Heals {
                    worker: self.id,
                    next: plan.next,
                });
                is_whole = false;
            }
            (Course::Load, _) => self.load(plan.next, fx),
            _ => return self.fail("nobody has told of the last votes".to_owned(), fx),
        }
        let mut next = plan.next;
        if fx.has(Sabotage::LostStepIsSkipped) && generation > Generation(1) {
            next = next.next();
        }
        self.event(
            WorkerEvent::Level {
                generation,
                next,
                is_whole,
            },
            fx,
        );
        let early = self
            .group
            .as_mut()
            .and_then(|group| group.early_slices.take());
        for (index, values) in early.into_iter().flatten() {
            if !is_whole {
                self.take_slice(index, values, fx);
            }
        }
        if fx.has(Sabotage::HealIsSkipped) && !is_whole {
            self.replica.state = Some(State::initial());
            self.healed(fx);
        }
    }

    fn send_slices(&mut self, plan: &RecoveryPlan, holders: &[usize], fx: &mut Effects<'_>) {
        let Some(group) = &self.group else {
            return;
        };
        let index = holders
            .iter()
            .position(|holder| *holder == group.rank)
            .unwrap_or_default();
        for (rank, course) in plan.courses.iter().enumerate() {
            if *course == Course::Heal {
                let part = Part::Slice(index, self.replica.slice(index, holders.len()));
                let member = &group.assignment.members[rank];
                let (to, host) = (member.worker, member.place.0 as usize);
                let frame = Frame {
                    to,
                    from: self.id,
                    generation: group.generation(),
                    part,
                };
                let extra = fx.rng.range(20 * MS, 600 * MS);
                let message = Message::Frame(Box::new(frame));
                fx.done.push(Effect::Send {
                    to: host,
                    message,
                    extra,
                });
            }
        }
    }

    fn load(&mut self, next: Step, fx: &mut Effects<'_>) {
        let (state, ledger) = fx.disk.read(next).unwrap_or_else(|| {
            let batches = self.run.batches;
            (
                State::initial(),
                Ledger::new(batches.samples(), batches.samples_per_epoch()),
            )
        });
        let hash = state.hash();
        self.replica.load(next, state, ledger);
        fx.fact(Fact::Holds {
            worker: self.id,
            next,
            hash,
        });
    }

    fn take_slice(&mut self, index: usize, values: Vec<f32>, fx: &mut Effects<'_>) {
        match self.replica.take_slice(index, values) {
            Ok(true) => self.healed(fx),
            Ok(false) => {}
            Err(problem) => fx.fact(Fact::Contradiction(problem)),
        }
    }

    fn healed(&mut self, fx: &mut Effects<'_>) {
        if let (Some(state), Some(next)) = (&self.replica.state, self.replica.next) {
            let hash = state.hash();
            fx.fact(Fact::Holds {
                worker: self.id,
                next,
                hash,
            });
        }
        let generation = self.machine.generation();
        self.event(WorkerEvent::Healed { generation }, fx);
    }

    fn compute(&mut self, generation: Generation, step: Step, fx: &mut Effects<'_>) {
        self.replica.gradient = None;
        self.computed_in = generation;
        fx.fact(Fact::Computes {
            worker: self.id,
            generation,
            step,
        });
        self.task = Task::Computing(step);
        let at = fx.now + fx.rng.range(20 * MS, 140 * MS);
        fx.done
            .push(Effect::Alarm(at, Alarm::Computed(generation, step)));
    }

    fn computed(&mut self, step: Step, fx: &mut Effects<'_>) {
        let Some(group) = &self.group else {
            return;
        };
        let (index, of) = group.computing();
        let subtrees = self.replica.backward(step, index, of);
        self.task = Task::Reducing(step);
        self.gather(Piece::Subtrees(subtrees), fx);
    }

    fn reduced(&mut self, step: Step, pieces: Vec<Piece>, fx: &mut Effects<'_>) {
        let subtrees = pieces.into_iter().filter_map(|piece| match piece {
            Piece::Subtrees(subtrees) => Some(subtrees),
            _ => None,
        });
        let subtrees: Vec<_> = subtrees.collect();
        let mut gradient = self.replica.reduce(subtrees.clone());
        if fx.has(Sabotage::SumInOrderOfArrival) {
            let mut sum = vec![0.0; crate::model::PARAMETERS];
            for (_, values) in subtrees.iter().rev().flatten() {
                sum.iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += value);
            }
            gradient = Some(sum);
        }
        let Some(gradient) = gradient else {
            fx.fact(Fact::Contradiction(format!(
                "step {step}: the subtrees do not make the tree"
            )));
            return self.fail("the subtrees do not make the tree".to_owned(), fx);
        };
        self.replica.gradient = Some((step, gradient));
        let generation = self.machine.generation();
        self.event(WorkerEvent::Reduced { generation, step }, fx);
    }

    fn voted(&mut self, step: Step, votes: Vec<Vote>, fx: &mut Effects<'_>) {
        if let Some(problem) = self.replica.contradiction(step, &votes) {
            fx.fact(Fact::Contradiction(problem.clone()));
            return self.fail(problem, fx);
        }
        let newest = votes
            .iter()
            .map(|vote| vote.newest)
            .max()
            .unwrap_or_default();
        if let Some(group) = &mut self.group {
            group.whole = votes.iter().map(|vote| vote.is_whole).collect();
        }
        self.votes = votes;
        let generation = self.machine.generation();
        self.event(
            WorkerEvent::Voted {
                generation,
                step,
                newest,
            },
            fx,
        );
    }

    fn commit(
        &mut self,
        generation: Generation,
        step: Step,
        votes: Vec<Vote>,
        fx: &mut Effects<'_>,
    ) {
        let (ids, verdict) = self.replica.commit(step, votes);
        fx.fact(Fact::Committed {
            worker: self.id,
            generation,
            step,
            ids,
            verdict,
        });
        if let Some(state) = &self.replica.state {
            let hash = state.hash();
            fx.fact(Fact::Holds {
                worker: self.id,
                next: step.next(),
                hash,
            });
        }
    }

    /// The script or an agent's user sends SIGTERM.
    pub fn drain(&mut self, fx: &mut Effects<'_>) {
        self.event(WorkerEvent::Drain, fx);
    }

    /// What its agent sees when it ends by itself.
    #[must_use]
    pub fn exit_cause(exit: Exit) -> LossCause {
        match exit {
            Exit::Killed => LossCause::Signal(9),
            Exit::Regular => LossCause::ExitCode(0),
            Exit::Orphaned | Exit::Irregular => LossCause::ExitCode(1),
        }
    }

    /// What its machine does.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.machine.phase()
    }
}
