//! [`BurnLayer`]: a [`Layer`] made of any Burn module and a closure that runs it.

mod pending_shard;

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use ronde_core::Shard;
use ronde_core::layout::{Arena, Role, TensorEntry};
use ronde_core::seed::SeedTree;
use ronde_engine::{
    Activation, BackwardPart, BackwardPass, DiscardedShards, EngineError, ForwardContext, Initial,
    Layer, LayerCost, LayerExt, LayerFacts, LayerSetting, Mode, PendingShards, SavedValues,
    ShardGradient, ShardInput, ShardSums, StateChange, fill_tensor,
};

use self::pending_shard::{LayerBuffers, PendingShard, RecordedGraph};
use crate::module_state::{LoadMapper, SaveVisitor, TakeGradients, TensorSlot, survey};
use crate::values::{from_tensor, into_tensor};

type CostFunction = Box<dyn Fn(&[usize]) -> LayerCost + Send>;

/// A layer made of a Burn module, with inputs of rank `I` and outputs of rank `O`.
///
/// ```
/// use ronde_burn::burn::nn::{Linear, LinearConfig};
/// use ronde_burn::{BurnLayer, training_device};
/// use ronde_engine::{ForwardContext, LayerExt};
///
/// let module = LinearConfig::new(4, 2).init(&training_device());
/// let layer = BurnLayer::new(module, |module: &Linear, x, _: &ForwardContext| {
///     module.forward::<2>(x)
/// })
/// .named("head");
/// assert_eq!(layer.layout().tensors[0].name, "head.weight");
/// ```
///
/// Every `RunningState` in the module is a buffer. Tensors frozen with `no_grad` are constants and
/// not part of the layout: build them with equal values in every process. A parameter must not
/// occur in the module twice. Before each training forward the engine's generator is seeded from
/// (seed, step, shard, layer), so that Burn's own `Dropout` is reproducible as long as no other
/// thread of the process uses that generator at the same time.
///
/// It computes in f32 only: a chain with it refuses another [`Precision`](ronde_engine::Precision).
pub struct BurnLayer<M, F, const I: usize, const O: usize> {
    /// `None` only while the state is loaded.
    module: Option<M>,
    forward: F,
    facts: LayerFacts,
    slots: Vec<TensorSlot>,
    committed: LayerBuffers,
    pending: PendingShards<PendingShard<M, I, O>>,
    /// The gradients of shards between the two backward passes.
    deferred: BTreeMap<Shard, Vec<f32>>,
    gives_input_gradient: bool,
    sample_shape: Option<Vec<usize>>,
    cost: Option<CostFunction>,
}

impl<M, F, const I: usize, const O: usize> BurnLayer<M, F, I, O>
where
    M: Module,
    F: Fn(&M, Tensor<I>, &ForwardContext) -> Tensor<O> + Send,
{
    /// Creates a layer named `layer` that runs `forward`. The module may be on a plain or a
    /// training device; it is set to training mode.
    #[must_use]
    pub fn new(module: M, forward: F) -> Self {
        let module = module.train();
        let (layout, slots) = survey(&module);
        let mut layer = Self {
            module: Some(module),
            forward,
            committed: LayerBuffers::new(&layout),
            facts: LayerFacts::new(layout, crate::engine_name()),
            slots,
            pending: PendingShards::new("layer"),
            deferred: BTreeMap::new(),
            gives_input_gradient: true,
            sample_shape: None,
            cost: None,
        };
        layer.committed.values = layer.read_buffers();
        layer
    }

    /// Sets the layer's name and prefixes the names of its tensors with it: the name `layer1` makes
    /// `layer1.conv.weight` of `conv.weight`. An empty name changes nothing.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        if !name.is_empty() {
            let mut layout = self.facts.layout;
            for tensor in &mut layout.tensors {
                tensor.name = format!("{name}.{}", tensor.name);
            }
            self.facts = LayerFacts::new(layout, crate::engine_name());
            self.pending = PendingShards::new(name);
        }
        self
    }

    /// Sets the shape of one sample, against which inputs are checked. Without it Burn panics on an
    /// input that has the right rank but another shape.
    #[must_use]
    pub fn with_sample_shape(mut self, shape: &[usize]) -> Self {
        self.sample_shape = Some(shape.to_vec());
        self
    }

    /// Sets the function that computes [`Layer::cost`]. The default runs a forward pass on zeros
    /// and estimates the kept values as twice the input and output.
    #[must_use]
    pub fn with_cost(mut self, cost: impl Fn(&[usize]) -> LayerCost + Send + 'static) -> Self {
        self.cost = Some(Box::new(cost));
        self
    }

    /// Declares this the first layer of a model, whose input gradient is never requested, which
    /// saves work in backward.
    #[must_use]
    pub fn without_input_gradient(mut self) -> Self {
        self.gives_input_gradient = false;
        self
    }

    /// Draws the initial weights from the seed and the tensors' names, replacing the module's own:
    /// Kaiming-uniform for rectifiers, zero for biases. Call it after [`BurnLayer::named`].
    ///
    /// Tensors of rank 1 whose name is not `bias` are unchanged. Source: He, Zhang, Ren, Sun,
    /// "Delving deep into rectifiers", ICCV 2015, section 2.2.
    #[must_use]
    pub fn with_initial_weights_from_seed(mut self, seeds: &SeedTree) -> Self {
        let (mut state, arena) = (Vec::new(), self.arena());
        state.resize(arena.len(), 0.0);
        self.save_state(&mut state, arena.ranges());
        for (index, tensor) in self.facts.layout.tensors.iter().enumerate() {
            let is_bias = tensor.name == "bias" || tensor.name.ends_with(".bias");
            let initial = match (tensor.role, tensor.shape.len()) {
                (Role::Parameter, 2..) => Initial::Rectifier,
                (Role::Parameter, _) if is_bias => Initial::Constant(0.0),
                _ => continue,
            };
            fill_tensor(tensor, initial, seeds, &mut state[arena.range(index)]);
        }
        self.load(&state, arena.ranges());
        self
    }

    /// Returns the arrangement of all tensors one after the other.
    fn arena(&self) -> Arena {
        Arena::new(self.facts.layout.tensors.iter().map(TensorEntry::elements))
    }

    fn module(&self) -> &M {
        self.module
            .as_ref()
            .expect("the module is only absent while it is loaded")
    }

    fn device(&self) -> Device {
        let devices = self.module().devices();
        let device = devices.into_iter().next().unwrap_or_default();
        device.autodiff()
    }

    fn check_input(&self, input: &Activation) -> Result<(), EngineError> {
        let shape = input.shape();
        if shape.len() != I {
            let expected = match &self.sample_shape {
                Some(sample) => format!("samples of {sample:?}"),
                None => format!("{I} dimensions"),
            };
            return Err(self.pending.wrong_shape("input", shape, expected));
        }
        match &self.sample_shape {
            Some(sample) => self.pending.check_samples(shape, sample),
            None => Ok(()),
        }
    }

    fn evaluate(&self, input: Activation, context: &ForwardContext) -> Activation {
        let device = self.device().inner();
        let input = into_tensor(input, &device);
        from_tensor((self.forward)(&self.module().valid(), input, context))
    }

    fn train(&mut self, input: Activation, context: &ForwardContext) -> PendingShard<M, I, O> {
        let device = self.device();
        let input_shape = input.shape().to_vec();
        device.seed(context.engine_seed());
        let leaf = into_tensor::<I>(input, &device);
        let leaf = leaf.set_require_grad(self.gives_input_gradient);
        let output = (self.forward)(self.module(), leaf.clone(), context);
        let buffers = self.take_buffers();
        PendingShard {
            input_shape,
            output_shape: output.dims().to_vec(),
            graph: Some(RecordedGraph {
                module: self.module().clone(),
                input: leaf,
                output,
            }),
            buffers,
        }
    }

    /// Records a shard without samples: no computation, unchanged buffers.
    fn train_on_nothing(&mut self, input: &Activation) -> PendingShard<M, I, O> {
        PendingShard {
            graph: None,
            input_shape: input.shape().to_vec(),
            output_shape: self.cost(input.shape()).output_shape,
            buffers: self.committed.values.clone(),
        }
    }

    fn has_buffers(&self) -> bool {
        !self.committed.arena.is_empty()
    }

    /// Returns the current buffers, including pending updates of this thread.
    fn read_buffers(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.committed.arena.len()];
        if self.has_buffers() {
            // A running state keeps its newest value in thread-local storage; leaving training mode
            // flushes it.
            let _ = self.module().valid();
            let ranges = self.committed.arena.ranges();
            let roles = [Role::Buffer];
            self.module().visit(&mut SaveVisitor::new(
                &self.slots,
                &mut values,
                ranges,
                &roles,
            ));
        }
        values
    }

    /// Returns the buffers after the last forward and restores the committed ones.
    fn take_buffers(&mut self) -> Vec<f32> {
        let updated = self.read_buffers();
        if self.has_buffers() {
            let ranges = self.committed.arena.ranges();
            let roles = [Role::Buffer];
            let mut load = LoadMapper::new(&self.slots, &self.committed.values, ranges, &roles);
            self.module = self.module.take().map(|module| module.map(&mut load));
        }
        updated
    }
}

impl<M, F, const I: usize, const O: usize> BurnLayer<M, F, I, O>
where
    M: Module,
    F: Fn(&M, Tensor<I>, &ForwardContext) -> Tensor<O> + Send,
{
    fn forward_one(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        self.check_input(&input)?;
        let empty = input.samples() == 0;
        if context.mode == Mode::Evaluate {
            return Ok(if empty {
                Activation::from_host(&self.cost(input.shape()).output_shape, Vec::new())
            } else {
                self.evaluate(input, context)
            });
        }
        let shard = if empty {
            self.train_on_nothing(&input)
        } else {
            self.train(input, context)
        };
        let output = match &shard.graph {
            Some(graph) => from_tensor(graph.output.clone()),
            None => Activation::from_host(&shard.output_shape, Vec::new()),
        };
        self.pending.begin(context.shard, shard);
        Ok(output)
    }

    fn backward_one(
        &mut self,
        (shard, grad_output): (Shard, Activation),
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        if needs_input_gradient && !self.gives_input_gradient {
            return Err(EngineError::NoInputGradient {
                layer: self.pending.layer().to_owned(),
                shard,
            });
        }
        let pending_shard = self.pending.end(shard)?;
        self.pending
            .check_gradient(grad_output.shape(), &pending_shard.output_shape)?;
        self.committed
            .write(&pending_shard.buffers, gradients, ranges);
        let input_gradient = match pending_shard.graph {
            Some(graph) => graph.backward(&self.slots, grad_output, gradients, ranges),
            None => {
                let mut nothing = TakeGradients::new(&self.slots, None, gradients, ranges);
                self.module().visit(&mut nothing);
                None
            }
        };
        Ok(needs_input_gradient.then(|| {
            input_gradient.unwrap_or_else(|| {
                let elements = pending_shard.input_shape.iter().product();
                Activation::from_host(&pending_shard.input_shape, vec![0.0; elements])
            })
        }))
    }
}

impl<M, F, const I: usize, const O: usize> Layer for BurnLayer<M, F, I, O>
where
    M: Module,
    F: Fn(&M, Tensor<I>, &ForwardContext) -> Tensor<O> + Send,
{
    fn facts(&self) -> &LayerFacts {
        &self.facts
    }

    fn set(&mut self, _setting: LayerSetting<'_>) {}

    fn state(&mut self, change: StateChange<'_>) {
        let StateChange::Load(state, ranges) = change else {
            // The module has a copy.
            return;
        };
        let (state, roles) = (state.values(), [Role::Parameter, Role::Buffer]);
        let mut load = LoadMapper::new(&self.slots, state, ranges, &roles);
        self.module = self.module.take().map(|module| module.map(&mut load));
        self.committed.load(state, ranges);
    }

    fn save(&self, which: SavedValues, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        if which == SavedValues::Initial {
            return false;
        }
        let roles = [Role::Parameter];
        self.module()
            .visit(&mut SaveVisitor::new(&self.slots, state, ranges, &roles));
        self.committed.write(&self.committed.values, state, ranges);
        true
    }

    fn forward(
        &mut self,
        shards: Vec<ShardInput>,
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let shards = shards.into_iter();
        shards
            .map(|ShardInput { input, context }| self.forward_one(input, &context))
            .collect()
    }

    /// Burn computes all gradients at once: those of the parameters are kept until they are requested.
    fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let needed = pass.needs_input_gradient;
        let one = |given: ShardGradient<'_>| match pass.part {
            BackwardPart::Whole => {
                let ShardGradient {
                    shard,
                    grad_output,
                    gradients,
                    added: _,
                } = given;
                self.backward_one((shard, grad_output), gradients, pass.ranges, needed)
            }
            BackwardPart::Input => {
                let arena = self.arena();
                let mut own = vec![0.0; arena.len()];
                let ended = (given.shard, given.grad_output);
                let found = self.backward_one(ended, &mut own, arena.ranges(), needed)?;
                self.deferred.insert(given.shard, own);
                Ok(found)
            }
            BackwardPart::Weights => {
                let own = self.deferred.remove(&given.shard);
                let own = own.ok_or_else(|| self.pending.not_pending(given.shard))?;
                for (from, to) in self.arena().ranges().iter().zip(pass.ranges) {
                    given.gradients[to.clone()].copy_from_slice(&own[from.clone()]);
                }
                Ok(None)
            }
        };
        shards.into_iter().map(one).collect()
    }

    fn discard(&mut self, which: DiscardedShards) {
        match which {
            DiscardedShards::All => {
                self.deferred.clear();
                self.pending.clear();
            }
            DiscardedShards::One(shard) => {
                self.deferred.remove(&shard);
                self.pending.discard(shard);
            }
        }
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        if let Some(cost) = &self.cost {
            return cost(input_shape);
        }
        let mut shape = input_shape.to_vec();
        let Some(first) = shape.first_mut().filter(|_| input_shape.len() == I) else {
            return LayerCost::default();
        };
        *first = (*first).max(1);
        let zeros = Activation::from_host(&shape, vec![0.0; shape.iter().product()]);
        if self.check_input(&zeros).is_err() {
            return LayerCost::default();
        }
        let output = self.evaluate(zeros, &ForwardContext::evaluate());
        let mut output_shape = output.shape().to_vec();
        if let Some(first) = output_shape.first_mut().filter(|_| input_shape[0] == 0) {
            *first = 0;
        }
        let kept = input_shape.iter().product::<usize>() + output_shape.iter().product::<usize>();
        LayerCost {
            output_shape,
            kept_floats: 2 * kept,
        }
    }
}

#[cfg(test)]
mod tests;
