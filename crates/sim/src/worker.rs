//! [`Worker`]: a simulated worker process: the real machine, a training loop, real sums.

use std::collections::VecDeque;

use ronde_core::{Generation, Step};
use ronde_elastic::{
    LossCause, MemberInfo, Reason, RecoveryPlan, Settings, WorkerCommand, WorkerEvent, WorkerId,
    WorkerMachine, WorkerPhase,
};

use crate::clock::{Clock, MS};
use crate::effect::{Alarm, Effect, Effects, Message};
use crate::fact::{Exit, Fact};
use crate::group::{Frame, Group, Piece};
use crate::model::Run;
use crate::replica::{Replica, Vote};
use crate::sabotage::Sabotage;

mod plane;
mod recover;
mod step;

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
    pub fn new(me: MemberInfo, settings: Settings, run: Run, fx: &mut Effects<'_>) -> Self {
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
        worker.event(WorkerEvent::Connected, fx);
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
        self.note(&command, fx);
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
                    worker: self.id,
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
            WorkerCommand::Log(_) => {}
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

    fn note(&self, command: &WorkerCommand, fx: &mut Effects<'_>) {
        let id = self.id;
        fx.note(|| match command {
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
            WorkerCommand::Leave { reason, .. } | WorkerCommand::Log(reason) => {
                format!("worker {id}: {reason}")
            }
            WorkerCommand::End(reason) => format!("worker {id} ends: {reason}"),
            other => format!("worker {id}: {other:?}"),
        });
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
    pub fn phase(&self) -> WorkerPhase {
        self.machine.phase()
    }
}
