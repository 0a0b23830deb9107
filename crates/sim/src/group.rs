//! [`Group`]: one worker's end of a data plane: all-gathers, in order, among the members of a
//! generation.

use std::collections::BTreeMap;

use ronde_core::Generation;
use ronde_elastic::{GenerationAssignment, Position, WorkerId};

use crate::network::Host;
use crate::replica::{Snapshot, Subtrees, Vote};

/// What a rank brings to an all-gather.
#[derive(Debug, Clone)]
pub enum Piece {
    /// The first one of a group.
    Position(Position),
    /// The second one: of the first rank that holds the newest state.
    Snapshot(Option<Box<Snapshot>>),
    /// Of a step: its subtrees.
    Subtrees(Subtrees),
    /// Of a step: its vote.
    Vote(Box<Vote>),
}

/// What travels between members.
#[derive(Debug, Clone)]
pub enum Part {
    /// A piece of the all-gather with this number.
    Piece(u64, Piece),
    /// A slice of the state: which one.
    Slice(usize, Vec<f32>),
    /// The sender has left between two steps.
    Goodbye,
    /// The sender has dropped the group, or its process has ended.
    Closed {
        /// Whether the process has ended.
        has_ended: bool,
    },
}

/// A message on the data plane: in order and reliable as long as both ends live and the link is whole.
#[derive(Debug, Clone)]
pub struct Frame {
    /// To whom.
    pub to: WorkerId,
    /// Who sent it.
    pub from: WorkerId,
    /// Of which group.
    pub generation: Generation,
    /// What.
    pub part: Part,
}

/// A member's end of a group.
#[derive(Debug, Clone)]
pub struct Group {
    /// Who belongs to it.
    pub assignment: GenerationAssignment,
    /// This member.
    pub rank: usize,
    /// Which ranks have the complete state.
    pub whole: Vec<bool>,
    /// Slices that came before this rank knew that it heals; `None` from then on.
    pub early_slices: Option<Vec<(usize, Vec<f32>)>>,
    left: Vec<bool>,
    next: u64,
    pieces: BTreeMap<(u64, usize), Piece>,
}

impl Group {
    /// A group in which nothing was said yet.
    #[must_use]
    pub fn new(assignment: GenerationAssignment, rank: usize) -> Self {
        let size = assignment.members.len();
        Self {
            assignment,
            rank,
            whole: vec![false; size],
            early_slices: Some(Vec::new()),
            left: vec![false; size],
            next: 0,
            pieces: BTreeMap::new(),
        }
    }

    /// Its generation.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.assignment.generation
    }

    /// Members.
    #[must_use]
    pub fn size(&self) -> usize {
        self.assignment.members.len()
    }

    /// The rank of a member.
    #[must_use]
    pub fn rank_of(&self, worker: WorkerId) -> Option<usize> {
        self.assignment.rank_of(worker).map(|rank| rank.index())
    }

    /// The other members and their hosts.
    pub fn peers(&self) -> impl Iterator<Item = (WorkerId, Host)> {
        let numbered = self.assignment.members.iter().enumerate();
        let others = numbered.filter(|(rank, _)| *rank != self.rank);
        others.map(|(_, member)| (member.worker, member.slot.0 as Host))
    }

    /// Begins the next all-gather with this rank's piece; gives its number.
    pub fn begin(&mut self, piece: Piece) -> u64 {
        let number = self.next;
        self.next += 1;
        self.pieces.insert((number, self.rank), piece);
        number
    }

    /// A piece of another rank.
    pub fn take(&mut self, number: u64, rank: usize, piece: Piece) {
        self.pieces.insert((number, rank), piece);
    }

    /// The number of the last all-gather that was begun.
    #[must_use]
    pub fn current(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    /// Ranks whose piece of the last all-gather is missing.
    pub fn missing(&self) -> impl Iterator<Item = usize> {
        let current = self.current().unwrap_or_default();
        (0..self.size()).filter(move |rank| !self.pieces.contains_key(&(current, *rank)))
    }

    /// A rank will say nothing more.
    pub fn goodbye(&mut self, rank: usize) {
        self.left[rank] = true;
    }

    /// A rank that has left without the piece that is waited for.
    #[must_use]
    pub fn left_too_early(&self) -> Option<usize> {
        self.missing().find(|rank| self.left[*rank])
    }

    /// All pieces of the last all-gather by rank, once they are there.
    pub fn finished(&mut self) -> Option<Vec<Piece>> {
        let current = self.current()?;
        if self.missing().next().is_some() {
            return None;
        }
        (0..self.size())
            .map(|rank| self.pieces.remove(&(current, rank)))
            .collect()
    }

    /// This rank's index among those with a complete state, and how many these are.
    #[must_use]
    pub fn computing(&self) -> (Option<usize>, usize) {
        let before = self.whole[..self.rank]
            .iter()
            .filter(|whole| **whole)
            .count();
        let all = self.whole.iter().filter(|whole| **whole).count();
        (self.whole[self.rank].then_some(before), all)
    }
}
