//! Values that pass between the stages of a pipeline on different ranks.
//!
//! A message has the number of samples, then the values, and room for the largest shard, so that its length is known before
//! it arrives. The messages of a rank are received in the order in which it sends them: otherwise one that nobody waits for
//! yet would hold up those behind it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, PointToPoint, Tag, Work};
use ronde_engine::{Activation, Chain};
use ronde_schedule::{Border, ProgramAction};

use super::mesh::MeshPosition;

/// The tags of borders begin here, apart from those of other messages.
const FIRST_TAG: u32 = 0x7000_0000;

/// The number of messages of each rank that may arrive before they are needed.
const AHEAD: usize = 2;

/// The forms of the values that pass between stages.
#[derive(Debug, Clone, Default)]
pub(super) struct BorderForms {
    /// The shape of one sample of the output of each stage.
    pub(super) shapes: Vec<Vec<usize>>,
    /// The most samples of a shard.
    pub(super) samples_max: usize,
    /// The number of shards.
    pub(super) shards: u32,
}

impl BorderForms {
    /// Returns the forms for samples of a shape, without the most samples of a shard. In training, ranks with different parts of the
    /// layers may have different tokens, as `parts` describes.
    pub(super) fn new(
        mesh: &MeshPosition,
        chain: &Chain,
        sample: &[usize],
        parts: Option<&Range<u32>>,
    ) -> Self {
        let mut shape: Vec<usize> = std::iter::once(1).chain(sample.iter().copied()).collect();
        let mut shapes = Vec::new();
        let stages = mesh.layout.stages();
        // The output of the last stage stays where it is.
        for stage in &stages[..stages.len() - 1] {
            let mut tokens = None;
            for layer in &chain.layers()[stage.layers.clone()] {
                shape = layer.cost(&shape).output_shape;
                tokens = layer.facts().output_tokens.clone();
            }
            let mut of_rank = shape[1..].to_vec();
            if let (Some(tokens), Some(parts)) = (tokens, parts) {
                of_rank[0] = tokens.of(parts);
            }
            shapes.push(of_rank);
        }
        Self {
            shapes,
            samples_max: 0,
            shards: mesh.layout.shards().shards(),
        }
    }

    /// Returns the shape of one sample of a border.
    fn shape(&self, border: Border) -> &[usize] {
        &self.shapes[border.from.min(border.to)]
    }

    pub(super) fn message_len(&self, border: Border) -> usize {
        1 + self.samples_max * self.shape(border).iter().product::<usize>()
    }

    pub(super) fn tag(&self, border: Border) -> Tag {
        let direction = u32::from(border.from > border.to);
        let number = border.from.min(border.to) as u32 * 2 + direction;
        Tag(FIRST_TAG + number * self.shards + border.shard)
    }

    /// Starts to send the values of a shard; `None` for a shard without samples.
    pub(super) fn send(
        &self,
        group: &dyn PointToPoint,
        to: GroupRank,
        border: Border,
        values: Option<Activation>,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        let mut message = Buffer::host(DType::F32, self.message_len(border));
        let floats = message.as_mut_slice::<f32>();
        if let Some(values) = values {
            let values = values.on_host();
            floats[0] = f32::from_bits(values.samples() as u32);
            floats[1..=values.elements()].copy_from_slice(values.as_slice());
        }
        group.send(to, self.tag(border), message)
    }

    /// Waits for the values of a border; `None` for a shard without samples.
    pub(super) fn receive(
        &self,
        group: &dyn PointToPoint,
        from: GroupRank,
        border: Border,
    ) -> Result<Option<Activation>, CollectiveError> {
        let message = Buffer::host(DType::F32, self.message_len(border));
        let message = group.receive(from, self.tag(border), message)?.wait()?;
        self.read_received(border, &message)
    }

    pub(super) fn read_received(
        &self,
        border: Border,
        message: &Buffer,
    ) -> Result<Option<Activation>, CollectiveError> {
        let read = self.read(border, message);
        read.map_err(|problem| CollectiveError::Invalid {
            operation: "receive".to_owned(),
            problem,
        })
    }

    /// Returns the values of a message; `None` for a shard without samples.
    fn read(&self, border: Border, message: &Buffer) -> Result<Option<Activation>, String> {
        let floats = message.as_slice::<f32>();
        let samples = floats[0].to_bits() as usize;
        if samples > self.samples_max {
            let most = self.samples_max;
            return Err(format!(
                "{samples} samples, more than the {most} of a shard"
            ));
        }
        let shape = self.shape(border);
        let elements = samples * shape.iter().product::<usize>();
        let whole: Vec<usize> = std::iter::once(samples)
            .chain(shape.iter().copied())
            .collect();
        let values = floats[1..=elements].to_vec();
        Ok((samples > 0).then(|| Activation::from_host(&whole, values)))
    }
}

/// The messages that a rank receives in a step from one other rank.
struct PeerInbox {
    rank: GroupRank,
    /// Those that are not awaited yet, in the order in which they are sent.
    later: VecDeque<Border>,
    awaited: VecDeque<(Border, Box<dyn Work>)>,
}

impl PeerInbox {
    /// Returns whether a message is pending.
    fn sends(&self, border: Border) -> bool {
        let is_awaited = self.awaited.iter().any(|(awaited, _)| *awaited == border);
        is_awaited || self.later.contains(&border)
    }

    /// Begins to receive as many messages as may be under way.
    fn fill(&mut self, group: &dyn Group, forms: &BorderForms) -> Result<(), CollectiveError> {
        while self.awaited.len() < AHEAD
            && let Some(next) = self.later.pop_front()
        {
            let message = Buffer::host(DType::F32, forms.message_len(next));
            let work = group.receive(self.rank, forms.tag(next), message)?;
            self.awaited.push_back((next, work));
        }
        Ok(())
    }
}

/// The messages that a rank receives in a step.
pub(super) struct Inbox {
    peers: Vec<PeerInbox>,
    /// Those that arrived before they were needed.
    arrived: BTreeMap<Border, Buffer>,
}

impl Inbox {
    /// Returns the inbox of the rank in column `me`. `programs` has the programs of the pipeline by column, and `ranks` the
    /// rank of each column.
    pub(super) fn new(programs: &[Vec<ProgramAction>], me: usize, ranks: &[GroupRank]) -> Self {
        let mine: Vec<Border> = programs[me].iter().filter_map(received).collect();
        let from = |(program, &rank): (&Vec<ProgramAction>, &GroupRank)| {
            let sent = program.iter().filter_map(sent);
            let later: VecDeque<Border> = sent.filter(|border| mine.contains(border)).collect();
            (!later.is_empty()).then(|| PeerInbox {
                rank,
                later,
                awaited: VecDeque::new(),
            })
        };
        Self {
            peers: programs.iter().zip(ranks).filter_map(from).collect(),
            arrived: BTreeMap::new(),
        }
    }

    /// Begins to receive the first messages.
    pub(super) fn open(
        &mut self,
        group: &dyn Group,
        forms: &BorderForms,
    ) -> Result<(), CollectiveError> {
        let mut peers = self.peers.iter_mut();
        peers.try_for_each(|peer| peer.fill(group, forms))
    }

    /// Waits for the values of a border.
    pub(super) fn receive(
        &mut self,
        group: &dyn Group,
        forms: &BorderForms,
        border: Border,
    ) -> Result<Option<Activation>, CollectiveError> {
        let message = match self.arrived.remove(&border) {
            Some(message) => message,
            None => self.wait(group, forms, border)?,
        };
        forms.read_received(border, &message)
    }

    fn wait(
        &mut self,
        group: &dyn Group,
        forms: &BorderForms,
        border: Border,
    ) -> Result<Buffer, CollectiveError> {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.sends(border)) {
            while let Some((found, work)) = peer.awaited.pop_front() {
                peer.fill(group, forms)?;
                let message = work.wait()?;
                if found == border {
                    return Ok(message);
                }
                self.arrived.insert(found, message);
            }
        }
        Err(CollectiveError::Invalid {
            operation: "receive".to_owned(),
            problem: format!("no rank sends {border:?}"),
        })
    }
}

fn received(action: &ProgramAction) -> Option<Border> {
    match action {
        ProgramAction::Receive(border) => Some(*border),
        _ => None,
    }
}

fn sent(action: &ProgramAction) -> Option<Border> {
    match action {
        ProgramAction::Send(border) => Some(*border),
        _ => None,
    }
}
