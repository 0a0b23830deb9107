//! [`GraphLayer`]: runs a graph of operations as one layer.

mod again;
mod extension;
mod joined;
mod parts;
mod planned;
mod rounding;
mod tokens;

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::{Arena, Role, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_core::{PartTransfers, Shard};

use self::again::ValueAgain;
use self::joined::{SumOfShards, apart};
use self::parts::PartGradients;
use self::tokens::TokenSums;
use super::{
    GraphOutline, JoinedShard, JoinedShards, KeptText, LoadedState, NodeGradient, PartPlace,
    PassEnds, TensorGradients, Tensors,
};
use crate::activation::Activation;
use crate::blocks::Blocks;
use crate::context::Mode;
use crate::device::kernel::AddKernel;
use crate::device::{Device, HostDevice};
use crate::error::EngineError;
use crate::initial::fill_tensor;
use crate::layer::{
    BackwardPart, BackwardPass, DiscardedShards, GradientForm, Layer, LayerCost, LayerExt,
    LayerFacts, LayerSetting, SavedValues, ShardPasses, StateChange,
};
use crate::lock_step::{ShardGradient, ShardInput, ShardSums};
use crate::pending_shards::PendingShards;
use crate::precision::Precision;
use crate::shard_map::ShardMap;
use crate::shared_state::SharedState;

/// A layer made of explicit operations, which reads its tensors where the state is stored and
/// writes gradients directly to their destination. Build one with
/// [`GraphBuilder`](crate::GraphBuilder).
pub struct GraphLayer {
    facts: LayerFacts,
    outline: GraphOutline,
    device: Arc<dyn Device>,
    precision: Precision,
    /// Whether each value has numbers that select rows of a table.
    has_numbers: Vec<bool>,
    /// Whether each value is computed again in the backward pass.
    is_again: Vec<bool>,
    /// Whether each value depends on tensors, so that its gradient is needed even if that of the input is not.
    needs_gradient: Vec<bool>,
    /// These values of pending shards.
    again: ShardMap<Vec<ValueAgain>>,
    /// The parts that this process computes.
    place: PartPlace,
    /// The gradients of values that several parts read, during a backward pass.
    part_gradients: PartGradients,
    /// The gradients of tensors as sums over the own tokens, until they are summed over all.
    token_sums: TokenSums,
    /// Whether each tensor is a matrix of weights.
    is_matrix: Vec<bool>,
    /// The last operation that reads each value; 0 for the output.
    last_use: Vec<usize>,
    state: LoadedState,
    /// The seeds of the initial weights; `None` for a layer that only plans.
    seeds: Option<SeedTree>,
    /// Whether nothing was loaded yet: the initial weights take memory when they are used.
    is_initial: bool,
    /// Whether the loaded weights are the initial ones.
    has_initial: bool,
    pending: PendingShards<PendingGraph>,
    /// Shards between the two backward passes.
    deferred: ShardMap<DeferredGraph>,
}

/// The state with which a pending shard is computed; `None` if it is that of the layer, which was suspended meanwhile.
type PendingState = Option<LoadedState>;

/// A shard, or joined ones under the number of the first, between forward and backward.
struct PendingGraph {
    state: PendingState,
    output_shape: Vec<usize>,
    joined: JoinedShards,
}

/// A shard, or joined ones, between the backward pass for the input and that for the weights.
struct DeferredGraph {
    state: PendingState,
    joined: JoinedShards,
    /// The output gradients of each operation.
    kept: Vec<Option<Activation>>,
}

/// A shard, or joined ones, in a backward pass.
struct OpenShards {
    /// The first one.
    shard: Shard,
    state: LoadedState,
    joined: JoinedShards,
}

impl OpenShards {
    /// Returns joined shards as operations get them: none if it is one shard.
    fn joined(&self) -> &[JoinedShard] {
        match self.joined.shards() {
            [_] => &[],
            joined => joined,
        }
    }
}

/// The values or gradients of all shards, by value of the graph.
type ShardValues = Vec<Vec<Option<Activation>>>;

impl GraphLayer {
    /// Creates a layer with initial weights that depend only on the seed and the tensors' names. They take memory when the
    /// layer computes before others are loaded.
    #[must_use]
    pub fn new(outline: GraphOutline, seeds: &SeedTree) -> Self {
        let mut layer = Self::without_state(outline, Arc::new(HostDevice::new()));
        layer.seeds = Some(*seeds);
        layer.is_initial = true;
        layer
    }

    /// Loads the initial weights unless others are loaded.
    fn load_initial(&mut self) {
        if self.is_initial {
            let tensors = &self.outline.layout.tensors;
            let arena = Arena::new(tensors.iter().map(TensorEntry::elements));
            let mut values = vec![0.0; arena.len()];
            self.save(SavedValues::Initial, &mut values, arena.ranges());
            let values: SharedState = Arc::new(values);
            self.load_shared(&values, arena.ranges());
            self.has_initial = true;
        }
    }

    fn without_state(outline: GraphOutline, device: Arc<dyn Device>) -> Self {
        let mut last_use = vec![0; outline.shapes.len()];
        for (index, node) in outline.nodes.iter().enumerate() {
            for value in &node.inputs {
                last_use[*value] = index;
            }
        }
        let of_matrix =
            |tensor: &TensorEntry| tensor.role == Role::Parameter && tensor.shape.len() >= 2;
        let mut layer = Self {
            facts: facts_of(&outline, device.name()),
            last_use,
            is_matrix: outline.layout.tensors.iter().map(of_matrix).collect(),
            state: LoadedState::default(),
            seeds: None,
            is_initial: false,
            has_initial: false,
            device,
            precision: Precision::F32,
            has_numbers: outline.number_values(),
            is_again: outline.values_computed_again(),
            needs_gradient: outline.values_of_tensors(),
            again: ShardMap::new(),
            place: PartPlace::all(outline.parts),
            part_gradients: PartGradients::new(),
            token_sums: TokenSums::new(),
            pending: PendingShards::new(&outline.name),
            deferred: ShardMap::new(),
            outline,
        };
        layer.find_joining();
        layer
    }

    /// Returns the inputs of an operation for each shard, moved where nothing needs them later.
    fn inputs_of(&self, index: usize, values: &mut ShardValues) -> Vec<Vec<Activation>> {
        let inputs = &self.outline.nodes[index].inputs;
        let shards = values[inputs[0]].len();
        let of_shard = |shard: usize| {
            let one = |(place, value): (usize, &usize)| {
                let is_last =
                    self.last_use[*value] == index && !inputs[place + 1..].contains(value);
                let slot = &mut values[*value][shard];
                let found = if is_last { slot.take() } else { slot.clone() };
                found.unwrap_or_else(Activation::nothing)
            };
            inputs.iter().enumerate().map(one).collect()
        };
        (0..shards).map(of_shard).collect()
    }

    /// Runs the operations in order for all shards of a rank.
    fn run(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        self.load_initial();
        let mut values: ShardValues = vec![Vec::new(); self.outline.shapes.len()];
        let mut contexts = Vec::with_capacity(shards.len());
        let mut joined = Vec::with_capacity(shards.len());
        for (ShardInput { input, context }, of_input) in self.joined_inputs(shards)? {
            let mut input = input.on_device(self.device.as_ref());
            self.pack_input(&mut input);
            values[0].push(Some(input));
            contexts.push(context);
            joined.push(of_input);
        }
        let several = match joined.as_slice() {
            [joined] if joined.shards().len() > 1 => joined.shards(),
            _ => &[],
        };
        let state = self.state.clone();
        let device = self.device.clone();
        self.begin_values_again(&contexts);
        let own = self.place.own();
        let trains = contexts.iter().any(|context| context.mode == Mode::Train);
        for index in 0..self.outline.nodes.len() {
            if !self.computes(index) {
                values[index + 1] = vec![None; contexts.len()];
                continue;
            }
            let mut inputs = self.inputs_of(index, &mut values);
            self.unpack_for(index, inputs.iter_mut().flatten());
            let packs = self.format_of_output(index);
            let (node, tokens) = self.outline.node_and_tokens(index, &own);
            let tensors = Tensors::new(device.as_ref(), &state, node.tensors.start)
                .with_tokens(tokens.filter(|_| trains))
                .with_shards(several)
                .with_output_again(self.is_again[index + 1])
                .packing(packs);
            let mut outputs = node.node.forward(inputs, tensors, &contexts, sums)?;
            self.leave_values_again(index, &outputs, &contexts);
            self.pack_outputs(index, &mut outputs, &contexts);
            values[index + 1] = outputs.into_iter().map(Some).collect();
        }
        self.check_device()?;
        let outputs = values.pop().unwrap_or_default();
        let mut outputs: Vec<Activation> = outputs.into_iter().flatten().collect();
        // Packed by an operation of values as they are.
        outputs
            .iter_mut()
            .for_each(|output| output.unpack(device.as_ref()));
        for ((output, context), joined) in outputs.iter().zip(&contexts).zip(&joined) {
            if context.mode == Mode::Train {
                let pending = PendingGraph {
                    state: Some(state.clone()),
                    output_shape: output.shape().to_vec(),
                    joined: joined.clone(),
                };
                self.pending.begin(context.shard, pending);
            }
        }
        Ok(apart(outputs, &joined))
    }

    /// Begins the backward pass of shards: returns them with their output gradients as those of the last value.
    fn begin_backward(
        &mut self,
        shards: Vec<(Shard, Activation)>,
    ) -> Result<(Vec<OpenShards>, ShardValues), EngineError> {
        let shards = self.joined_gradients(shards)?;
        let mut gradients: ShardValues = vec![Vec::new(); self.outline.shapes.len()];
        gradients
            .iter_mut()
            .for_each(|value| value.resize(shards.len(), None));
        let mut open = Vec::with_capacity(shards.len());
        for (index, (shard, gradient)) in shards.into_iter().enumerate() {
            let pending = self.pending.end(shard)?;
            self.pending
                .check_gradient(gradient.shape(), &pending.output_shape)?;
            if let Some(last) = gradients.last_mut() {
                last[index] = Some(gradient.on_device(self.device.as_ref()));
            }
            open.push(OpenShards {
                shard,
                state: pending.state.unwrap_or_else(|| self.state.clone()),
                joined: pending.joined,
            });
        }
        Ok((open, gradients))
    }

    /// Runs the backward pass of one operation from the gradients of its output to those of its
    /// inputs, and returns the former.
    fn back_through(
        &mut self,
        index: usize,
        open: &[OpenShards],
        gradients: &mut ShardValues,
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let device = self.device.clone();
        self.sum_part_gradients(index + 1, gradients)?;
        let mut given = std::mem::take(&mut gradients[index + 1]);
        if !self.computes(index) {
            return Ok(vec![None; given.len()]);
        }
        self.round_gradients(index, &mut given);
        self.unpack_for(index, given.iter_mut().flatten());
        for OpenShards { shard, state, .. } in open {
            self.restore_values_again(index, (*shard, state))?;
            self.unpack_saved(index, *shard);
        }
        let packs = self.format_of_results(index);
        let own = self.place.own();
        let (node, tokens) = self.outline.node_and_tokens(index, &own);
        let wanted: Vec<bool> = node
            .inputs
            .iter()
            .map(|&value| self.needs_gradient[value] || needs_input_gradient)
            .collect();
        // An operation without tensors gets the only handle, so that it can work in place.
        let is_kept = !node.tensors.is_empty();
        let mut kept = vec![None; given.len()];
        let mut shards = Vec::new();
        let mut positions = Vec::new();
        for (position, (gradient, of)) in given.into_iter().zip(open).enumerate() {
            let Some(gradient) = gradient else { continue };
            if is_kept {
                kept[position] = Some(gradient.clone());
            }
            positions.push(position);
            shards.push(NodeGradient {
                shard: of.shard,
                gradient,
                tensors: Tensors::new(device.as_ref(), &of.state, node.tensors.start)
                    .with_tokens(tokens)
                    .with_shards(of.joined())
                    .packing(packs),
            });
        }
        let found = node.node.backward_input(shards, &wanted, sums)?;
        for (position, of_inputs) in positions.into_iter().zip(found) {
            let inputs = self.outline.nodes[index].inputs.clone();
            for (value, of_input) in inputs.into_iter().zip(of_inputs) {
                if let Some(mut of_input) = of_input {
                    self.pack_contribution(&mut of_input);
                    self.add_gradient(index, (value, position), gradients, of_input);
                }
            }
        }
        Ok(kept)
    }

    /// Writes the gradients of one operation's tensors for shards, in a buffer for each sum of shards, and ends its passes.
    fn weights_of(
        &mut self,
        index: usize,
        open: &OpenShards,
        gradient: Option<&Activation>,
        sums: &mut [SumOfShards<'_>],
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError> {
        let mut gradient = gradient.cloned();
        self.unpack_for(index, gradient.iter_mut());
        let packs = self.format_of_results(index);
        let OpenShards { shard, state, .. } = open;
        let tensors = self.outline.nodes[index].tensors.clone();
        let own_ranges = &ranges[tensors.clone()];
        if own_ranges.is_empty() {
            // Nothing to write.
        } else if self.outline.divisions[index + 1].is_some() {
            self.add_token_sums(index, (*shard, state), gradient.as_ref(), own_ranges)?;
        } else {
            let device = self.device.as_ref();
            for sum in sums {
                let Some(gradient) = &gradient else {
                    sum.clear(own_ranges);
                    continue;
                };
                let joined = open.joined().get(sum.shards.clone());
                let given = NodeGradient {
                    shard: *shard,
                    gradient: gradient.clone(),
                    tensors: Tensors::new(device, state, tensors.start)
                        .with_shards(joined.unwrap_or_default())
                        .packing(packs),
                };
                let mut to = TensorGradients::new(device, sum.gradients, own_ranges);
                let node = &mut self.outline.nodes[index].node;
                node.backward_weights(&given, &mut to)?;
                for (found, range) in to.foreign().iter().zip(own_ranges) {
                    found.read(&mut sum.gradients[range.clone()]);
                }
            }
        }
        self.outline.nodes[index].node.end(*shard);
        self.end_value_again(index, *shard);
        Ok(())
    }

    fn run_backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let (given, mut to) = joined::sums_of(shards);
        let (open, mut gradients) = self.begin_backward(given)?;
        self.check_sums(&open, &to)?;
        for index in (0..self.outline.nodes.len()).rev() {
            let kept =
                self.back_through(index, &open, &mut gradients, needs_input_gradient, sums)?;
            for ((of, gradient), to) in open
                .iter()
                .zip(&kept)
                .zip(joined::sums_each(&open, &mut to))
            {
                self.weights_of(index, of, gradient.as_ref(), to, ranges)?;
            }
        }
        self.sum_part_gradients(0, &mut gradients)?;
        for (of, to) in open.iter().zip(&mut to) {
            self.sum_tokens(of.shard, to.gradients, ranges)?;
        }
        self.check_device()?;
        let of_inputs = std::mem::take(&mut gradients[0]);
        self.check_input_gradients(&open, &of_inputs, needs_input_gradient)?;
        Ok(joined::gradients_apart(
            &open,
            self.rounded_gradients(of_inputs),
        ))
    }

    /// Drops the values kept of all shards.
    fn drop_pending(&mut self) {
        self.pending.clear();
        self.deferred.clear();
        self.again.clear();
        self.part_gradients.clear();
        self.token_sums.clear();
        self.outline
            .nodes
            .iter_mut()
            .for_each(|node| node.node.discard());
    }

    /// Reports an error of the device during a pass.
    fn check_device(&self) -> Result<(), EngineError> {
        match self.device.take_error() {
            None => Ok(()),
            Some(cause) => Err(EngineError::Device {
                layer: self.outline.name.clone(),
                cause,
            }),
        }
    }

    fn check_input_gradients(
        &self,
        open: &[OpenShards],
        of_inputs: &[Option<Activation>],
        needs_input_gradient: bool,
    ) -> Result<(), EngineError> {
        let mut of_inputs = open.iter().zip(of_inputs);
        let missing = of_inputs.find(|(_, found)| found.is_none());
        match missing.filter(|_| needs_input_gradient) {
            Some((of, _)) => Err(EngineError::NoInputGradient {
                layer: self.outline.name.clone(),
                shard: of.shard,
            }),
            None => Ok(()),
        }
    }
}

/// Adds a gradient from one use of a value to those of its other uses.
fn add(device: &dyn Device, found: &mut Option<Activation>, more: Activation) {
    match found {
        None => *found = Some(more),
        Some(sum) => {
            let blocks = Blocks::new(device, sum.elements());
            blocks.change(sum, [&more], |_, sum, [more]| {
                AddKernel { y: sum, x: more }.run_on(device)
            });
        }
    }
}

/// Returns the facts of a layer that a device computes.
fn facts_of(outline: &GraphOutline, engine: String) -> LayerFacts {
    let nodes = || outline.nodes.iter().map(|node| &node.node);
    let output_parts = outline
        .nodes
        .last()
        .and_then(|last| last.node.output_parts());
    LayerFacts {
        layout: outline.layout.clone(),
        name: outline.name.clone(),
        engine,
        parts: outline.parts,
        input_tokens: outline.input_tokens(),
        output_tokens: outline.output_tokens(),
        output_parts: output_parts.map(<[usize]>::to_vec),
        weight_gradients: match nodes().any(|node| node.selects_rows()) {
            true => GradientForm::Sparse,
            false => GradientForm::Dense,
        },
        batch_norms: outline.batch_norms(),
        is_suspendable: true,
        shard_passes: match nodes().any(|node| node.needs_all_shards()) {
            true => ShardPasses::OfAllRanks,
            false => ShardPasses::Apart,
        },
        only_f32: None,
    }
}

impl GraphLayer {
    fn load_state(&mut self, state: &SharedState, ranges: &[Range<usize>]) {
        // Tensors of other parts need not be there.
        let is_own = |tensor: &TensorEntry| {
            let part = tensor.part.as_ref();
            self.place.has(part.map(|part| part.index))
        };
        let tensors = &self.outline.layout.tensors;
        let mut expected = tensors.iter().zip(ranges);
        assert!(
            tensors.len() == ranges.len()
                && expected
                    .all(|(tensor, range)| !is_own(tensor) || range.len() == tensor.elements()),
            "lengths of the tensors of layer {}",
            self.outline.name
        );
        (self.is_initial, self.has_initial) = (false, false);
        self.state = LoadedState::new(Some(state.clone()), ranges.into(), self.access());
    }

    fn release(&mut self) {
        (self.is_initial, self.has_initial) = (false, false);
        self.state.release();
    }

    fn suspend(&mut self) {
        self.release();
        for pending in self.pending.values_mut() {
            pending.state = None;
        }
        for deferred in self.deferred.values_mut() {
            deferred.state = None;
        }
    }

    /// Draws the initial values; false without seeds.
    fn draw_initial(&self, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        let tensors = self.outline.layout.tensors.iter();
        let initial = tensors.zip(&self.outline.initial).zip(ranges);
        let Some(seeds) = &self.seeds else {
            return false;
        };
        for ((tensor, initial), range) in initial {
            fill_tensor(tensor, *initial, seeds, &mut state[range.clone()]);
        }
        true
    }

    /// Computes the gradients of the inputs, and keeps those of the outputs of operations.
    fn run_backward_input(
        &mut self,
        shards: Vec<(Shard, Activation)>,
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let (open, mut gradients) = self.begin_backward(shards)?;
        let nodes = self.outline.nodes.len();
        let mut kept = vec![vec![None; nodes]; open.len()];
        for index in (0..nodes).rev() {
            let given =
                self.back_through(index, &open, &mut gradients, needs_input_gradient, sums)?;
            for (kept, given) in kept.iter_mut().zip(given) {
                kept[index] = given;
            }
        }
        self.sum_part_gradients(0, &mut gradients)?;
        self.check_device()?;
        let of_inputs = std::mem::take(&mut gradients[0]);
        self.check_input_gradients(&open, &of_inputs, needs_input_gradient)?;
        let of_inputs = joined::gradients_apart(&open, self.rounded_gradients(of_inputs));
        for (of, mut kept) in open.into_iter().zip(kept) {
            self.pack_deferred(of.shard, &mut kept);
            let deferred = DeferredGraph {
                state: Some(of.state),
                joined: of.joined,
                kept,
            };
            self.deferred.insert(of.shard, deferred);
        }
        Ok(of_inputs)
    }

    /// Computes the gradients of the tensors of shards after [`GraphLayer::run_backward_input`].
    fn run_backward_weights(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError> {
        let (given, mut to) = joined::sums_of(shards);
        let given: Vec<Shard> = given.into_iter().map(|(shard, _)| shard).collect();
        let Some(&shard) = given.first() else {
            return Ok(());
        };
        let deferred = self.deferred.remove(&shard);
        let deferred = deferred.ok_or_else(|| self.pending.not_pending(shard))?;
        if let Some(other) = deferred.joined.first_other(&given) {
            return Err(self.pending.not_pending(other));
        }
        let open = OpenShards {
            shard,
            state: deferred.state.unwrap_or_else(|| self.state.clone()),
            joined: deferred.joined,
        };
        for (index, gradient) in deferred.kept.iter().enumerate().rev() {
            self.restore_values_again(index, (shard, &open.state))?;
            self.unpack_saved(index, shard);
            self.weights_of(index, &open, gradient.as_ref(), &mut to, ranges)?;
        }
        match to.as_mut_slice() {
            [to] => self.sum_tokens(shard, to.gradients, ranges),
            _ => Ok(()),
        }
    }

    /// Divides shards in those that run together: all of them if the layer needs or joins them all, else one after the other.
    fn together<T>(&self, shards: Vec<T>) -> Vec<Vec<T>> {
        match self.facts.needs_all_shards() || self.facts.joins_shards() {
            true => vec![shards],
            false => shards.into_iter().map(|shard| vec![shard]).collect(),
        }
    }
}

impl Layer for GraphLayer {
    fn facts(&self) -> &LayerFacts {
        &self.facts
    }

    fn set(&mut self, setting: LayerSetting<'_>) {
        match setting {
            LayerSetting::Device(device) => {
                self.drop_pending();
                self.device = device.clone();
                self.facts.engine = device.name();
                self.find_joining();
                self.reload();
            }
            LayerSetting::Precision(precision) => self.change_precision(precision),
            LayerSetting::Parts(place) if self.outline.parts > 1 => self.change_parts(place),
            LayerSetting::Parts(_) => {}
            LayerSetting::OutputApart(is_apart) => {
                if let Some(last) = self.outline.nodes.last_mut() {
                    last.node.set_apart(is_apart);
                }
            }
        }
    }

    fn state(&mut self, change: StateChange<'_>) {
        match change {
            StateChange::Load(state, ranges) => self.load_state(state, ranges),
            StateChange::Release => self.release(),
            StateChange::Suspend => self.suspend(),
        }
    }

    fn save(&self, which: SavedValues, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        if which == SavedValues::Initial || self.is_initial {
            return self.draw_initial(state, ranges);
        }
        self.state.save(state, ranges);
        true
    }

    fn is_initial(&self) -> bool {
        self.is_initial || self.has_initial
    }

    fn forward(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let mut outputs = Vec::with_capacity(shards.len());
        for shards in self.together(shards) {
            outputs.extend(self.run(shards, sums)?);
        }
        Ok(outputs)
    }

    fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let (ranges, needed) = (pass.ranges, pass.needs_input_gradient);
        let mut found = Vec::new();
        for shards in self.together(shards) {
            match pass.part {
                BackwardPart::Whole => {
                    found.extend(self.run_backward(shards, ranges, needed, sums)?);
                }
                BackwardPart::Input => {
                    let (given, _) = joined::sums_of(shards);
                    found.extend(self.run_backward_input(given, needed, sums)?);
                }
                BackwardPart::Weights if self.facts.joins_shards() => {
                    let count: usize = shards.iter().map(|given| 1 + given.added.len()).sum();
                    self.run_backward_weights(shards, ranges)?;
                    found.extend(vec![None; count]);
                }
                BackwardPart::Weights => {
                    for given in shards {
                        self.run_backward_weights(vec![given], ranges)?;
                        found.push(None);
                    }
                }
            }
        }
        Ok(found)
    }

    fn extend(
        &mut self,
        input: Activation,
        texts: &mut [&mut KeptText],
        layer: u32,
    ) -> Result<Activation, EngineError> {
        self.run_extension(input, texts, layer)
    }

    fn discard(&mut self, which: DiscardedShards) {
        let DiscardedShards::One(shard) = which else {
            return self.drop_pending();
        };
        self.pending.discard(shard);
        self.deferred.remove(&shard);
        self.again.remove(&shard);
        self.token_sums.remove(&shard);
        for node in &mut self.outline.nodes {
            node.node.end(shard);
        }
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        let samples = input_shape.first().copied().unwrap_or(0);
        (self.outline).cost_of_parts(samples, self.precision, &self.place)
    }

    fn work(&mut self, input_shape: &[usize], needs_input_gradient: bool) -> Option<f64> {
        self.planned_work(input_shape, needs_input_gradient).ok()
    }

    fn part_transfers(&self, input_shape: &[usize], ends: PassEnds) -> PartTransfers {
        let samples = input_shape.first().copied().unwrap_or(0);
        self.outline.part_transfers(samples, ends)
    }
}
