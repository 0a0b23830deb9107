//! A worker's end of the data plane: joining a group, all-gathers, leaving.

use ronde_core::{Generation, Step};
use ronde_protocol::{RejoinAnswer, WorkerCommand, WorkerEvent, WorkerId};

use super::{LoopWait, SimulatedWorker};
use crate::clock::SECOND;
use crate::cluster::effect::{Alarm, Effect, Effects, HostMessage};
use crate::cluster::fact::{Fact, WorkerExit};
use crate::cluster::group::{DataFrame, FramePayload, GatherPart, SimulatedGroup};
use crate::cluster::injected_bug::InjectedBug;
use crate::cluster::replica::Replica;

/// The time limit of an all-gather.
const OPERATION_MAX: u64 = 2 * SECOND;

impl SimulatedWorker {
    pub(super) fn leave(&mut self, in_order: bool, fx: &mut Effects<'_>) {
        self.task = LoopWait::Nothing;
        self.entry = None;
        let Some(group) = self.group.take() else {
            return;
        };
        let generation = group.generation();
        for (to, host) in group.peers() {
            let part = if in_order {
                FramePayload::Goodbye
            } else {
                FramePayload::Closed { has_ended: false }
            };
            let frame = DataFrame {
                to,
                from: self.id,
                generation,
                part,
            };
            fx.send(host, HostMessage::Frame(Box::new(frame)));
        }
        if fx.has(InjectedBug::SurvivorsRestart) && self.replica.transaction.next_step() > Step(0) {
            self.is_over = true;
            fx.done.push(Effect::Exit(WorkerExit::Irregular));
        }
    }

    pub(super) fn connect(&mut self, mut group: SimulatedGroup, fx: &mut Effects<'_>) {
        if fx.has(InjectedBug::RanksDiffer) && self.id.0 % 2 == 1 {
            group.assignment.members.reverse();
            group.rank = group.rank_of(self.id).unwrap_or_default();
        }
        if fx.has(InjectedBug::GenerationIsReused) {
            group.assignment.generation.0 = group.assignment.generation.0.min(2);
        }
        if fx.has(InjectedBug::StateIsForgotten) && group.generation() > Generation(1) {
            self.replica = Replica::new(self.run);
        }
        self.replica
            .enter(group.generation(), group.rank, group.size());
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
        let rank = group.rank;
        self.group = Some(group);
        self.saving.enter();
        self.layouts.clear();
        self.begin_entry(rank, fx);
        for frame in std::mem::take(&mut self.early) {
            self.frame(frame, fx);
        }
    }

    /// Begins an all-gather.
    pub(super) fn gather(&mut self, piece: GatherPart, fx: &mut Effects<'_>) {
        let Some(group) = &mut self.group else {
            return;
        };
        let generation = group.generation();
        let number = group.begin(piece.clone());
        for (to, host) in group.peers() {
            let frame = DataFrame {
                to,
                from: self.id,
                generation,
                part: FramePayload::Piece(number, piece.clone()),
            };
            fx.send(host, HostMessage::Frame(Box::new(frame)));
        }
        fx.done.push(Effect::Alarm(
            fx.now + OPERATION_MAX,
            Alarm::Late(generation, number),
        ));
        self.go_on(fx);
    }

    /// Returns the generation of the group, or the one that this worker is about to enter.
    fn newest(&self) -> Option<Generation> {
        let group = self.group.as_ref().map(SimulatedGroup::generation);
        group.or(self.machine.generation())
    }

    /// Handles a frame of the data plane.
    pub(crate) fn frame(&mut self, mut frame: DataFrame, fx: &mut Effects<'_>) {
        let newest = self.newest();
        if fx.has(InjectedBug::OldFramesPass)
            && let Some(newest) = newest
            && frame.generation < newest
        {
            frame.generation = newest;
        }
        let Some(group) = self
            .group
            .as_mut()
            .filter(|group| group.generation() == frame.generation)
        else {
            if Some(frame.generation) > newest {
                self.early.push(frame);
            }
            return;
        };
        let Some(rank) = group.rank_of(frame.from) else {
            return;
        };
        match frame.part {
            FramePayload::Piece(number, piece) => {
                group.take(number, rank, piece);
                self.go_on(fx);
            }
            FramePayload::Slice(index, values) => {
                if let Some(early) = &mut group.early_slices {
                    early.push((index, values));
                } else {
                    self.take_slice(index, values, fx);
                }
            }
            FramePayload::Moved(elements, values) => {
                group.moved.push((elements, values));
                self.go_on(fx);
            }
            FramePayload::Copied(step, elements, values) => {
                group.copied.push((step, elements, values));
                self.go_on(fx);
            }
            FramePayload::Goodbye => {
                group.goodbye(rank);
                self.go_on(fx);
            }
            FramePayload::Closed { has_ended } => {
                if fx.has(InjectedBug::DeadVoteCounts)
                    && let (LoopWait::Voting(_), Some(current)) = (&self.task, group.current())
                {
                    group.take(current, rank, GatherPart::Vote(self.replica.empty_vote()));
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
                self.lose_group(suspect, cause, fx);
            }
        }
    }

    /// Returns whether the event that the loop waits for has occurred.
    pub(super) fn go_on(&mut self, fx: &mut Effects<'_>) {
        if let (LoopWait::Voting(step), true) = (&self.task, fx.has(InjectedBug::OwnVoteIsEnough)) {
            let (step, vote) = (*step, self.replica.vote());
            return self.voted(step, vote, fx);
        }
        let Some(group) = &mut self.group else {
            return;
        };
        match self.task {
            LoopWait::Nothing | LoopWait::Rejoining | LoopWait::Computing(_) => return,
            LoopWait::WritingPart(_) | LoopWait::Publishing => return,
            LoopWait::Moving(..) => return self.take_moved(fx),
            LoopWait::Copying(..) => return self.take_copy(fx),
            _ => {}
        }
        let Some(pieces) = group.finished() else {
            if let Some(rank) = group.left_too_early() {
                let cause = format!("worker {} left", group.assignment.members[rank].worker);
                self.fail(cause, fx);
            }
            return;
        };
        match std::mem::replace(&mut self.task, LoopWait::Nothing) {
            LoopWait::Members | LoopWait::Slices => {
                let words = GatherPart::concatenate_words(pieces);
                self.rejoin(RejoinAnswer::Words(words), fx);
            }
            LoopWait::Loading => self.loaded(&pieces, fx),
            LoopWait::Reports => self.reported(GatherPart::concatenate(pieces), fx),
            LoopWait::Snapshot => {
                self.rejoin(RejoinAnswer::Bytes(GatherPart::concatenate(pieces)), fx);
            }
            LoopWait::Weights(after) => self.weights_gathered(after, pieces, fx),
            LoopWait::Confirming => self.rejoin(RejoinAnswer::Done, fx),
            LoopWait::Reducing(step) => self.reduced(step, pieces, fx),
            LoopWait::Voting(step) => self.voted(step, GatherPart::concatenate(pieces), fx),
            LoopWait::Parts(next) => self.all_parts_written(next, fx),
            LoopWait::Published if self.stops => self.exit(WorkerExit::Regular, fx),
            LoopWait::Published => self.resume(fx),
            LoopWait::Nothing
            | LoopWait::Rejoining
            | LoopWait::Computing(_)
            | LoopWait::Moving(..)
            | LoopWait::Copying(..)
            | LoopWait::WritingPart(_)
            | LoopWait::Publishing => {}
        }
    }

    pub(super) fn fail(&mut self, cause: String, fx: &mut Effects<'_>) {
        self.lose_group(None, cause, fx);
    }

    /// Ends the group after a failure. The state machine may have left it already, with the last vote.
    pub(super) fn lose_group(
        &mut self,
        suspect: Option<WorkerId>,
        cause: String,
        fx: &mut Effects<'_>,
    ) {
        let leaves = |command: &WorkerCommand| matches!(command, WorkerCommand::Leave { .. });
        if self.postponed.iter().any(leaves) {
            let postponed = std::mem::take(&mut self.postponed);
            self.leave(false, fx);
            for command in postponed.into_iter().filter(|command| !leaves(command)) {
                self.execute(command, fx);
            }
            return;
        }
        let failed = |generation| WorkerEvent::Failed {
            generation,
            suspect,
            is_unreachable: false,
            cause,
        };
        let generation = self.group.as_ref().map(SimulatedGroup::generation);
        if self.is_exchanging() {
            // The exchange has failed, so nothing may wait for its end.
            self.leave(false, fx);
        }
        match generation {
            Some(generation) => self.event(failed(generation), fx),
            None => self.event_in_generation(failed, fx),
        }
    }

    /// Executes the commands that were postponed until the exchange with the other members was over.
    pub(super) fn resume(&mut self, fx: &mut Effects<'_>) {
        self.task = LoopWait::Nothing;
        for command in std::mem::take(&mut self.postponed) {
            self.execute(command, fx);
        }
    }
}
