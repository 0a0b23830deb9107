//! [`ModelStage`]: a part of a model that other workers call.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ronde_core::exact::{Node, TreeSum};
use ronde_core::layout::Role;
use ronde_core::seed::SeedTree;
use ronde_core::{Buffer, DType, Shard, Step};
use ronde_engine::{Activation, Chain, ForwardContext, Layer, LayerExt, Mode, OptimizerConfig};

use super::messages::{
    BACKWARD, DISCARD, FORWARD, GRADIENT, OPEN, STATE, StageCall, StageUpdate, UPDATE,
};
use crate::error::{FunctionError, GradientProblem, RpcError};
use crate::function::FunctionRegistry;
use crate::node::CallContext;
use crate::references::ReferenceTicket;
use crate::values::CallValues;

/// A part of a model with its parameters and optimizer, which other workers call through a reference
/// ([`CallContext::share`]). One context at a time uses it.
pub struct ModelStage {
    parts: Arc<Mutex<StageParts>>,
}

struct StageParts {
    chain: Chain,
    /// The range of each tensor in the state, in the order of the layout.
    ranges: Vec<Range<usize>>,
    state: Vec<f32>,
    moments: Vec<Vec<f32>>,
    optimizer: OptimizerConfig,
    seeds: SeedTree,
    /// The number of updates.
    updates: u64,
    open: Option<OpenGradients>,
    next_context: u64,
}

/// The gradients of the context that uses a stage.
struct OpenGradients {
    number: u64,
    step: Step,
    shards: u32,
    /// Shards whose backward pass has ended.
    ended: Vec<bool>,
    sum: TreeSum,
}

/// A context as an object that its creator holds; it ends with the creator's lease.
struct StageContext {
    stage: Weak<Mutex<StageParts>>,
    number: u64,
}

impl Drop for StageContext {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.upgrade() {
            lock(&stage).discard(self.number);
        }
    }
}

impl ModelStage {
    /// Takes a part of a model with its initial parameters. `seeds` are those of the whole model.
    ///
    /// # Errors
    /// [`RpcError::Gradients`] for a part with buffers or with layers that need all shards at once: batch normalisation
    /// and clusters.
    pub fn new(
        chain: Chain,
        optimizer: OptimizerConfig,
        seeds: SeedTree,
    ) -> Result<Self, RpcError> {
        let layout = chain.layout().clone();
        let has_buffers = layout.tensors.iter().any(|t| t.role != Role::Parameter);
        if has_buffers || chain.facts().needs_all_shards() {
            return Err(GradientProblem::NeedsAllShards.into());
        }
        let mut end = 0;
        let ranges: Vec<Range<usize>> = layout
            .tensors
            .iter()
            .map(|tensor| {
                let start = end;
                end += tensor.elements();
                start..end
            })
            .collect();
        let mut state = vec![0.0; end];
        chain.save_state(&mut state, &ranges);
        let parts = StageParts {
            moments: vec![vec![0.0; end]; optimizer.state_names().len()],
            chain,
            ranges,
            state,
            optimizer,
            seeds,
            updates: 0,
            open: None,
            next_context: 1,
        };
        Ok(Self {
            parts: Arc::new(Mutex::new(parts)),
        })
    }
}

fn lock(parts: &Mutex<StageParts>) -> MutexGuard<'_, StageParts> {
    parts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StageParts {
    fn open(&mut self, step: u64, shards: u32) -> Result<u64, FunctionError> {
        if self.open.is_some() {
            return Err(FunctionError::new(
                "another context uses this stage until it is dropped or its creator's lease ends",
            ));
        }
        if shards == 0 || shards > 1 << 20 {
            let text = format!("invalid number of shards `{shards}`: expected 1 to 1048576");
            return Err(FunctionError::new(text));
        }
        let number = self.next_context;
        self.next_context += 1;
        self.open = Some(OpenGradients {
            number,
            step: Step(step),
            shards,
            ended: vec![false; shards as usize],
            sum: TreeSum::new(shards),
        });
        Ok(number)
    }

    fn context(&mut self, number: u64) -> Result<&mut OpenGradients, FunctionError> {
        let open = self.open.as_mut().filter(|open| open.number == number);
        open.ok_or_else(|| FunctionError::new("this context has ended"))
    }

    fn forward(
        &mut self,
        number: u64,
        shard: u32,
        input: Activation,
    ) -> Result<Activation, FunctionError> {
        let context = self.context(number)?;
        check_shard(context, shard)?;
        let context = ForwardContext {
            step: context.step,
            seeds: self.seeds,
            shard: Shard(shard),
            layer: self.chain.first_layer(),
            mode: Mode::Train,
        };
        Ok(self.chain.forward_shard(input, &context)?)
    }

    fn backward(
        &mut self,
        number: u64,
        call: &StageCall,
        gradient: Activation,
    ) -> Result<Option<Activation>, FunctionError> {
        check_shard(self.context(number)?, call.shard)?;
        let mut gradients = Buffer::host(DType::F32, self.state.len());
        let input = self.chain.backward_shard(
            Shard(call.shard),
            gradient,
            gradients.as_mut_slice(),
            &self.ranges,
            call.needs_input_gradient,
        )?;
        let context = self.context(number)?;
        context.ended[call.shard as usize] = true;
        context.sum.add_shard(call.shard, gradients);
        Ok(input)
    }

    /// Takes the complete sum.
    fn gradient(&mut self, number: u64) -> Result<Vec<f32>, FunctionError> {
        let context = self.context(number)?;
        let missing = context.ended.iter().filter(|ended| !**ended).count();
        if missing > 0 {
            let shards = context.shards;
            let text = format!("{missing} of {shards} shards have not been passed backward");
            return Err(FunctionError::new(text));
        }
        let shards = context.shards;
        let sums = context.sum.take();
        let Some((node, sum)) = sums.into_iter().next() else {
            return Err(FunctionError::new("the gradients were used before"));
        };
        let values = sum.as_slice::<f32>().to_vec();
        debug_assert_eq!(node, Node::root(shards));
        context.sum.add(node, sum);
        Ok(values)
    }

    /// Ends a context, unless it has ended before.
    fn discard(&mut self, number: u64) {
        if self.open.as_ref().is_some_and(|open| open.number == number) {
            self.open = None;
            self.chain.discard_all();
        }
    }

    fn update(&mut self, number: u64, update: &StageUpdate) -> Result<(), FunctionError> {
        if update.samples == 0 {
            return Err(FunctionError::new("no samples"));
        }
        let mut gradient = self.gradient(number)?;
        let samples = update.samples as f32;
        gradient.iter_mut().for_each(|value| *value /= samples);
        self.updates += 1;
        for range in &self.ranges {
            let mut moments: Vec<&mut [f32]> = self
                .moments
                .iter_mut()
                .map(|moments| &mut moments[range.clone()])
                .collect();
            self.optimizer.step_tensor(
                self.updates,
                update.learning_rate,
                &mut self.state[range.clone()],
                &gradient[range.clone()],
                &mut moments,
            );
        }
        self.chain.load(&self.state, &self.ranges);
        // The gradients cannot be applied twice.
        self.open = None;
        Ok(())
    }
}

fn check_shard(context: &OpenGradients, shard: u32) -> Result<(), FunctionError> {
    let shards = context.shards;
    match context.ended.get(shard as usize) {
        Some(false) => Ok(()),
        Some(true) => {
            let text = format!("shard {shard} has been passed backward before");
            Err(FunctionError::new(text))
        }
        None => {
            let text = format!("invalid shard `{shard}`: expected 0 to {}", shards - 1);
            Err(FunctionError::new(text))
        }
    }
}

/// Converts received values, if they have the length of the shape.
fn activation(shape: &[usize], values: CallValues) -> Result<Activation, FunctionError> {
    let elements = shape.iter().try_fold(1_usize, |all, n| all.checked_mul(*n));
    if elements != Some(values.len()) || shape.is_empty() {
        let count = values.len();
        return Err(FunctionError::new(format!(
            "{count} values for shape {shape:?}"
        )));
    }
    Ok(Activation::from_host(shape, values.into_vec()))
}

/// Returns the stage of a context that the caller holds, and the number of the context.
fn stage_of(
    context: &CallContext,
    ticket: &ReferenceTicket,
) -> Result<(Arc<Mutex<StageParts>>, u64), FunctionError> {
    let open = context.object::<StageContext>(ticket)?;
    let stage = open.stage.upgrade();
    let stage = stage.ok_or_else(|| FunctionError::new("the stage of this context has ended"))?;
    Ok((stage, open.number))
}

/// Registers the functions through which other workers use the stages that this worker shares.
pub fn register_stage_functions(functions: &mut FunctionRegistry) {
    functions.register(&OPEN, |context, open, _| {
        let stage = context.object::<ModelStage>(&open.stage)?;
        let number = lock(&stage.parts).open(open.step, open.shards)?;
        let shared = StageContext {
            stage: Arc::downgrade(&stage.parts),
            number,
        };
        Ok((context.share(shared), CallValues::none()))
    });
    functions.register(&FORWARD, |context, call, values| {
        let (stage, number) = stage_of(context, &call.context)?;
        let input = activation(&call.shape, values)?;
        let output = lock(&stage).forward(number, call.shard, input)?;
        Ok((output.shape().to_vec(), output.into_host().into()))
    });
    functions.register(&BACKWARD, |context, call, values| {
        let (stage, number) = stage_of(context, &call.context)?;
        let gradient = activation(&call.shape, values)?;
        let input = lock(&stage).backward(number, &call, gradient)?;
        let shape = input.as_ref().map(|input| input.shape().to_vec());
        let values = input.map_or_else(CallValues::none, |input| input.into_host().into());
        Ok((shape.unwrap_or_default(), values))
    });
    functions.register(&GRADIENT, |context, ticket, _| {
        let (stage, number) = stage_of(context, &ticket)?;
        let gradient = lock(&stage).gradient(number)?;
        Ok(((), gradient.into()))
    });
    functions.register(&UPDATE, |context, update, _| {
        let (stage, number) = stage_of(context, &update.context)?;
        lock(&stage).update(number, &update)?;
        Ok(((), CallValues::none()))
    });
    functions.register(&DISCARD, |context, ticket, _| {
        let (stage, number) = stage_of(context, &ticket)?;
        lock(&stage).discard(number);
        Ok(((), CallValues::none()))
    });
    functions.register(&STATE, |context, ticket, _| {
        let stage = context.object::<ModelStage>(&ticket)?;
        let state = lock(&stage.parts).state.clone();
        Ok(((), state.into()))
    });
}
