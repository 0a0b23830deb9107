//! [`SimulatedWorker`]: a simulated worker process: the real state machine, a training loop, real sums.

use std::collections::VecDeque;

use ronde_core::{Generation, Step};
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::VoteRequests;
use ronde_protocol::{
    LossCause, MemberInfo, Reason, Settings, WorkerCommand, WorkerEvent, WorkerId, WorkerMachine,
};

use crate::clock::{MS, ProcessClock};
use crate::cluster::effect::{Alarm, Effect, Effects, HostMessage};
use crate::cluster::fact::{Fact, WorkerExit};
use crate::cluster::group::{DataFrame, GatherPart, SimulatedGroup};
use crate::cluster::injected_bug::InjectedBug;
use crate::cluster::model::{SimulatedRun, all_elements};
use crate::cluster::replica::Replica;

mod entry;
mod exchange;
mod plane;
mod recover;
mod saving;
mod step;

use entry::SimulatedEntry;
use saving::PartSave;

/// The number of steps between two checkpoints.
const CHECKPOINT_EVERY: u64 = 4;

/// The event that the training loop waits for.
#[derive(Debug, Clone)]
enum LoopWait {
    Nothing,
    Members,
    Loading,
    Reports,
    Snapshot,
    Slices,
    /// The elements that move to this worker.
    Moving(Vec<HeldRanges>),
    /// Nothing: this worker does its next work on the way into the group.
    Rejoining,
    Weights(AfterWeights),
    Confirming,
    Computing(Step),
    Reducing(Step),
    /// The second copy of the gradient of these elements; the gradient of this worker's own.
    Copying(Step, HeldRanges, Vec<f32>),
    Voting(Step),
    /// This worker's part of the last checkpoint.
    WritingPart(Step),
    Parts(Step),
    Publishing,
    /// The confirmation of all members that the checkpoint is published.
    Published,
}

/// The next action when all weights have been gathered.
#[derive(Debug, Clone, Copy)]
enum AfterWeights {
    /// All members confirm that they have received their slices.
    Exchange,
    /// The requests in the votes on a step, and whether the generation ends after it.
    Step(VoteRequests, bool),
}

/// A worker process.
#[derive(Debug)]
pub(super) struct SimulatedWorker {
    /// The worker's id.
    pub id: WorkerId,
    clock: ProcessClock,
    machine: WorkerMachine,
    run: SimulatedRun,
    replica: Replica,
    group: Option<SimulatedGroup>,
    early: Vec<DataFrame>,
    /// The way into the group, until the worker continues with its steps.
    entry: Option<SimulatedEntry>,
    task: LoopWait,
    /// Commands to leave the group or to continue, until the exchange with its other members is over.
    postponed: Vec<WorkerCommand>,
    saving: PartSave,
    /// The elements that each rank has at present, then after each of the next steps: see [`ronde_protocol::holdings::restoration`].
    layouts: VecDeque<Vec<HeldRanges>>,
    /// Whether the members save the state together because the job stops.
    stops: bool,
    queue: VecDeque<WorkerEvent>,
    alarm: u64,
    is_busy: bool,
    is_over: bool,
}

impl SimulatedWorker {
    /// Creates a process that has just started.
    ///
    /// # Panics
    /// If the settings are invalid, which is a bug of the simulator.
    pub(super) fn new(
        me: MemberInfo,
        settings: Settings,
        run: SimulatedRun,
        fx: &mut Effects<'_>,
    ) -> Self {
        let clock = ProcessClock::new(fx.rng);
        let id = me.worker;
        let machine = WorkerMachine::new(me, settings, run.end, clock.show(fx.now))
            .expect("the simulator's settings are valid");
        fx.fact(Fact::WorkerBegan);
        let mut worker = Self {
            id,
            clock,
            machine,
            run,
            replica: Replica::new(run),
            group: None,
            early: Vec::new(),
            entry: None,
            task: LoopWait::Nothing,
            postponed: Vec::new(),
            saving: PartSave::default(),
            layouts: VecDeque::new(),
            stops: false,
            queue: VecDeque::new(),
            alarm: 0,
            is_busy: false,
            is_over: false,
        };
        worker.event(WorkerEvent::Connected, fx);
        worker
    }

    /// Returns the members of the group and their hosts, which are notified of the exit of the process.
    pub(super) fn connections(&self) -> Vec<(Generation, WorkerId, usize)> {
        let Some(group) = &self.group else {
            return Vec::new();
        };
        group
            .peers()
            .map(|(worker, host)| (group.generation(), worker, host))
            .collect()
    }

    /// Passes an event of the generation that this worker is in; before its first one there is none.
    pub(super) fn event_in_generation(
        &mut self,
        event: impl FnOnce(Generation) -> WorkerEvent,
        fx: &mut Effects<'_>,
    ) {
        if let Some(generation) = self.machine.generation() {
            self.event(event(generation), fx);
        }
    }

    /// Passes an event to the state machine.
    pub(super) fn event(&mut self, event: WorkerEvent, fx: &mut Effects<'_>) {
        self.queue.push_back(event);
        // Events that occur while commands are executed are passed to the state machine after the last command.
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

    /// Handles an alarm.
    pub(super) fn ring(&mut self, alarm: Alarm, fx: &mut Effects<'_>) {
        match alarm {
            Alarm::Wake => self.event(WorkerEvent::Tick, fx),
            Alarm::Computed(generation, step) => {
                let is_due = matches!(self.task, LoopWait::Computing(current) if current == step);
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
                if let Some(stored) = fx.disk.read(next) {
                    let hash = stored.state.hash();
                    fx.fact(Fact::Written { next, hash });
                }
                fx.send_to_coordinators(&HostMessage::Written(generation, next));
            }
            Alarm::PartWritten(generation, next) => self.part_written(generation, next, fx),
            Alarm::Published(generation, next) => self.published(generation, next, fx),
        }
    }

    fn late(&mut self, generation: Generation, number: u64, fx: &mut Effects<'_>) {
        let Some(group) = self.group.as_ref().filter(|g| g.generation() == generation) else {
            return;
        };
        if group.current() != Some(number) {
            return;
        }
        let (suspect, what) = match self.task {
            LoopWait::Nothing | LoopWait::Rejoining | LoopWait::Computing(_) => return,
            LoopWait::Moving(..) | LoopWait::Copying(..) => (None, "message after all-gather"),
            LoopWait::WritingPart(_) | LoopWait::Publishing => return,
            _ => (group.missing().next(), "all-gather"),
        };
        let suspect = suspect.map(|rank| group.assignment.members[rank].worker);
        self.lose_group(suspect, format!("{what} {number} took too long"), fx);
    }

    /// Returns whether the training loop exchanges something with the other members that follows a vote or a plan.
    fn is_exchanging(&self) -> bool {
        matches!(
            self.task,
            LoopWait::Rejoining
                | LoopWait::Slices
                | LoopWait::Moving(..)
                | LoopWait::Weights(_)
                | LoopWait::Confirming
                | LoopWait::WritingPart(_)
                | LoopWait::Parts(_)
                | LoopWait::Publishing
                | LoopWait::Published
        )
    }

    fn execute(&mut self, command: WorkerCommand, fx: &mut Effects<'_>) {
        let follows = matches!(
            command,
            WorkerCommand::Compute { .. }
                | WorkerCommand::Connect { .. }
                | WorkerCommand::Checkpoint { .. }
                | WorkerCommand::End(_)
                | WorkerCommand::Leave { in_order: true, .. }
        );
        if follows && self.is_exchanging() {
            return self.postponed.push(command);
        }
        self.note(&command, fx);
        match command {
            WorkerCommand::Report(report) => {
                fx.send_to_coordinators(&HostMessage::Report(Box::new(report)));
            }
            WorkerCommand::Leave { in_order, .. } => {
                self.postponed.clear();
                self.leave(in_order, fx);
            }
            WorkerCommand::Connect { assignment, rank } => {
                let group = SimulatedGroup::new(assignment, rank.index());
                self.connect(group, fx);
            }
            WorkerCommand::Compute { generation, step } => self.compute(generation, step, fx),
            WorkerCommand::Vote { step, newest, .. } => self.vote(step, newest, fx),
            // Done with the votes, as by real workers.
            WorkerCommand::Commit { .. } => {}
            WorkerCommand::Record {
                generation,
                term,
                step,
            } => {
                fx.fact(Fact::Recorded {
                    worker: self.id,
                    generation,
                    term,
                    step,
                });
                if self.run.division.is_none() && step.next().0.is_multiple_of(CHECKPOINT_EVERY) {
                    self.write_checkpoint(generation, step.next(), fx);
                }
            }
            WorkerCommand::Checkpoint { generation, next } => {
                if self.replica.slices.held() == &all_elements() {
                    self.write_checkpoint(generation, next, fx);
                } else {
                    // Members were lost before all could save their parts together.
                    self.exit(WorkerExit::Regular, fx);
                }
            }
            WorkerCommand::Log(_) => {}
            WorkerCommand::End(reason) => {
                let exit = match reason {
                    Reason::NoCoordinator { .. } => WorkerExit::Orphaned,
                    Reason::Finished { .. } | Reason::Stopped { .. } | Reason::Drained => {
                        WorkerExit::Regular
                    }
                    _ => WorkerExit::Irregular,
                };
                self.exit(exit, fx);
            }
        }
    }

    fn vote(&mut self, step: Step, newest: Generation, fx: &mut Effects<'_>) {
        self.replica.transaction.announce(newest);
        if self.run.division.is_some() {
            self.prepare_vote();
        }
        let vote = match fx.has(InjectedBug::VoteWithoutSamples) {
            true => self.replica.vote_without_samples(),
            false => self.replica.vote(),
        };
        self.task = LoopWait::Voting(step);
        self.gather(GatherPart::Vote(vote), fx);
    }

    fn exit(&mut self, exit: WorkerExit, fx: &mut Effects<'_>) {
        self.is_over = true;
        fx.done.push(Effect::Exit(exit));
    }

    fn note(&self, command: &WorkerCommand, fx: &mut Effects<'_>) {
        let id = self.id;
        fx.note(|| match command {
            WorkerCommand::Report(report) => format!(
                "worker {id} reports {:?} in generation {:?}, next {:?}",
                report.phase, report.generation, report.next
            ),
            WorkerCommand::Connect { assignment, rank } => format!(
                "worker {id} enters generation {} as rank {rank} of {}, {:?}: {}",
                assignment.generation,
                assignment.members.len(),
                self.replica.transaction,
                assignment.reason
            ),
            WorkerCommand::Leave { reason, .. } | WorkerCommand::Log(reason) => {
                format!("worker {id}: {reason}")
            }
            WorkerCommand::End(reason) => format!("worker {id} ends: {reason}"),
            other => format!("worker {id}: {other:?}"),
        });
    }

    fn write_checkpoint(&mut self, generation: Generation, next: Step, fx: &mut Effects<'_>) {
        let is_due = self.replica.transaction.next_step() == next;
        if let (Some(state), true) = (&self.replica.state, is_due) {
            let cursor = self.replica.transaction.cursor();
            fx.disk.begin(next, state.clone(), cursor);
            let at = fx.now + fx.rng.range(5 * MS, 300 * MS);
            fx.done
                .push(Effect::Alarm(at, Alarm::Written(generation, next)));
            if fx.has(InjectedBug::CheckpointCountsEarly) {
                fx.send_to_coordinators(&HostMessage::Written(generation, next));
            }
        }
    }

    /// Returns the exit that the agent observes when the process exits by itself.
    #[must_use]
    pub(super) fn exit_cause(exit: WorkerExit) -> LossCause {
        match exit {
            WorkerExit::Killed => LossCause::Signal(9),
            WorkerExit::Regular => LossCause::ExitCode(0),
            WorkerExit::Orphaned | WorkerExit::StateLost | WorkerExit::Irregular => {
                LossCause::ExitCode(1)
            }
        }
    }
}
