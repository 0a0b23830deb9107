//! Taking the state over from those that have it: every one of them sends a part, all at once.
//!
//! Messages are started and not waited for, so that those that have the state compute meanwhile.

use std::ops::Range;

use ronde_core::session::Courses;
use ronde_core::shards::even_range;
use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, Tag, Work};

/// Names the messages of a transfer.
const TAG: Tag = Tag(0x6865_616c);

/// A transfer that is under way: what this rank sends, or what it gets.
#[derive(Default)]
pub(crate) struct Healing {
    sends: Vec<Box<dyn Work>>,
    /// Which run of the replica, which elements of it, and the message that brings them.
    receives: Vec<(usize, Range<usize>, Box<dyn Work>)>,
}

impl Healing {
    /// Starts this rank's part of what `courses` ask for.
    pub(crate) fn start(
        courses: &Courses,
        group: &dyn Group,
        state: &[&[f32]],
    ) -> Result<Self, CollectiveError> {
        let (whole, healing) = courses.sides();
        let me = group.rank().index();
        let mut this = Self::default();
        for (run, values) in state.iter().enumerate() {
            let parts = whole.len() as u64;
            for (part, &from) in whole.iter().enumerate() {
                let range = even_range(values.len() as u64, parts, part as u64);
                let range = range.start as usize..range.end as usize;
                if from == me {
                    for &to in &healing {
                        let buffer = Buffer::copy_of(&values[range.clone()]);
                        let to = GroupRank(to as u32);
                        this.sends.push(group.send(to, TAG, buffer)?);
                    }
                } else if healing.contains(&me) {
                    let buffer = Buffer::host(DType::F32, range.len());
                    let work = group.receive(GroupRank(from as u32), TAG, buffer)?;
                    this.receives.push((run, range, work));
                }
            }
        }
        Ok(this)
    }

    /// Waits for what this rank gets and puts it into its state; false when it gets nothing.
    pub(crate) fn receive(&mut self, state: &mut [&mut [f32]]) -> Result<bool, CollectiveError> {
        if self.receives.is_empty() {
            return Ok(false);
        }
        for (run, range, work) in std::mem::take(&mut self.receives) {
            let buffer = work.wait()?;
            if let Some(values) = state.get_mut(run) {
                values[range].copy_from_slice(buffer.as_slice());
            }
        }
        Ok(true)
    }

    /// Waits until everything that this rank sends is on its way.
    pub(crate) fn sent(&mut self) -> Result<(), CollectiveError> {
        for work in std::mem::take(&mut self.sends) {
            work.wait()?;
        }
        Ok(())
    }
}
