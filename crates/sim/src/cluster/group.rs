//! [`SimulatedGroup`]: one worker's end of the data plane: all-gathers, in order, among the members of a
//! generation.

use std::collections::BTreeMap;

use ronde_core::{Generation, Step};
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::{GenerationAssignment, WorkerId};

use crate::cluster::replica::Subtrees;
use crate::network::HostIndex;

/// The contribution of a rank to an all-gather.
#[derive(Debug, Clone)]
pub enum GatherPart {
    /// The first all-gather of a group: [`ronde_protocol::transaction::MemberState::encode`].
    Member(Vec<u64>),
    /// The step of the checkpoint that the rank has loaded.
    Loaded(Option<Step>),
    /// The reports before the plan: [`ronde_protocol::transaction::Transaction::report`].
    Report(Vec<u8>),
    /// The transfer after the plan, if a member needs it: [`ronde_protocol::transaction::Transaction::snapshot`].
    Snapshot(Vec<u8>),
    /// The subtrees of a step.
    Subtrees(Subtrees),
    /// The slices that the rank has: [`ronde_protocol::transaction::SliceExchange::report`].
    Slices(Vec<u64>),
    /// The weights of the elements that the rank owns.
    Weights(HeldRanges, Vec<f32>),
    /// The rank has reached this point.
    Confirm,
    /// The vote on a step: [`ronde_protocol::transaction::Transaction::vote`].
    Vote(Vec<u8>),
}

impl GatherPart {
    /// Returns the encoded contribution, of a kind that is exchanged as bytes.
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Report(bytes) | Self::Snapshot(bytes) | Self::Vote(bytes) => bytes,
            _ => Vec::new(),
        }
    }

    /// Returns the encoded contribution, of a kind that is exchanged as words.
    fn words(self) -> Vec<u64> {
        match self {
            Self::Member(words) | Self::Slices(words) => words,
            _ => Vec::new(),
        }
    }

    /// Returns the contributions in words one after the other.
    #[must_use]
    pub fn concatenate_words(parts: Vec<Self>) -> Vec<u64> {
        parts.into_iter().flat_map(Self::words).collect()
    }

    /// Returns the encoded contributions one after the other, as an all-gather of bytes does.
    #[must_use]
    pub fn concatenate(parts: Vec<Self>) -> Vec<u8> {
        parts.into_iter().flat_map(Self::bytes).collect()
    }
}

/// The payload of a frame between members.
#[derive(Debug, Clone)]
pub enum FramePayload {
    /// A contribution to the all-gather with this number.
    Piece(u64, GatherPart),
    /// A slice of the state, by index.
    Slice(usize, Vec<f32>),
    /// Elements of a divided state that move to the receiver.
    Moved(HeldRanges, Vec<f32>),
    /// The reduced gradient of a step, of elements whose second copy the receiver has.
    Copied(Step, HeldRanges, Vec<f32>),
    /// The sender has left between two steps.
    Goodbye,
    /// The sender has dropped the group, or its process has ended.
    Closed {
        /// Whether the process has ended.
        has_ended: bool,
    },
}

/// A message on the data plane: in order and reliable as long as both processes run and the link works.
#[derive(Debug, Clone)]
pub struct DataFrame {
    /// The receiver.
    pub to: WorkerId,
    /// The sender.
    pub from: WorkerId,
    /// The group.
    pub generation: Generation,
    /// The payload.
    pub part: FramePayload,
}

/// A member's end of a group.
#[derive(Debug, Clone)]
pub(super) struct SimulatedGroup {
    /// The assignment, which lists the members.
    pub assignment: GenerationAssignment,
    /// The rank of this member.
    pub rank: usize,
    /// Whether each rank has the complete state.
    pub whole: Vec<bool>,
    /// Slices that arrived before this rank knew that it has to heal; `None` from then on.
    pub early_slices: Option<Vec<(usize, Vec<f32>)>>,
    /// The elements that have moved to this rank.
    pub moved: Vec<(HeldRanges, Vec<f32>)>,
    /// The received second copies of reduced gradients.
    pub copied: Vec<(Step, HeldRanges, Vec<f32>)>,
    left: Vec<bool>,
    next: u64,
    pieces: BTreeMap<(u64, usize), GatherPart>,
}

impl SimulatedGroup {
    /// Creates a group without messages.
    #[must_use]
    pub(super) fn new(assignment: GenerationAssignment, rank: usize) -> Self {
        let size = assignment.members.len();
        Self {
            assignment,
            rank,
            whole: vec![false; size],
            early_slices: Some(Vec::new()),
            moved: Vec::new(),
            copied: Vec::new(),
            left: vec![false; size],
            next: 0,
            pieces: BTreeMap::new(),
        }
    }

    /// Returns the generation.
    #[must_use]
    pub(super) fn generation(&self) -> Generation {
        self.assignment.generation
    }

    /// Returns the number of members.
    #[must_use]
    pub(super) fn size(&self) -> usize {
        self.assignment.members.len()
    }

    /// Returns the rank of a member.
    #[must_use]
    pub(super) fn rank_of(&self, worker: WorkerId) -> Option<usize> {
        self.assignment.rank_of(worker).map(|rank| rank.index())
    }

    /// Returns the host of each rank.
    #[must_use]
    pub(super) fn hosts(&self) -> Vec<HostIndex> {
        let members = self.assignment.members.iter();
        members.map(|member| member.slot.0 as HostIndex).collect()
    }

    /// Returns a member and its host.
    #[must_use]
    pub(super) fn member(&self, rank: usize) -> (WorkerId, HostIndex) {
        let member = &self.assignment.members[rank];
        (member.worker, member.slot.0 as HostIndex)
    }

    /// Returns the other members and their hosts.
    pub(super) fn peers(&self) -> impl Iterator<Item = (WorkerId, HostIndex)> {
        let numbered = self.assignment.members.iter().enumerate();
        let others = numbered.filter(|(rank, _)| *rank != self.rank);
        others.map(|(_, member)| (member.worker, member.slot.0 as HostIndex))
    }

    /// Begins the next all-gather with this rank's contribution; returns its number.
    pub(super) fn begin(&mut self, piece: GatherPart) -> u64 {
        let number = self.next;
        self.next += 1;
        self.pieces.insert((number, self.rank), piece);
        number
    }

    /// Adds the contribution of another rank.
    pub(super) fn take(&mut self, number: u64, rank: usize, piece: GatherPart) {
        self.pieces.insert((number, rank), piece);
    }

    /// Returns the number of the last all-gather.
    #[must_use]
    pub(super) fn current(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    /// Returns the ranks whose contributions to the last all-gather are missing.
    pub(super) fn missing(&self) -> impl Iterator<Item = usize> {
        let current = self.current().unwrap_or_default();
        (0..self.size()).filter(move |rank| !self.pieces.contains_key(&(current, *rank)))
    }

    /// Records that a rank will send no more messages.
    pub(super) fn goodbye(&mut self, rank: usize) {
        self.left[rank] = true;
    }

    /// Returns a rank that has left without contributing to the current all-gather.
    #[must_use]
    pub(super) fn left_too_early(&self) -> Option<usize> {
        self.missing().find(|rank| self.left[*rank])
    }

    /// Returns all contributions to the last all-gather by rank, once they are complete.
    pub(super) fn finished(&mut self) -> Option<Vec<GatherPart>> {
        let current = self.current()?;
        if self.missing().next().is_some() {
            return None;
        }
        (0..self.size())
            .map(|rank| self.pieces.remove(&(current, rank)))
            .collect()
    }

    /// Returns this rank's index among the ranks with a complete state, and their number.
    #[must_use]
    pub(super) fn computing(&self) -> (Option<usize>, usize) {
        let before = self.whole[..self.rank]
            .iter()
            .filter(|whole| **whole)
            .count();
        let all = self.whole.iter().filter(|whole| **whole).count();
        (self.whole[self.rank].then_some(before), all)
    }
}
