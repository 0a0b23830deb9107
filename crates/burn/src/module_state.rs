//! Walks over a Burn module: the tensors of its state, and their transfer to and from flat arenas.
//!
//! A walk visits the tensors of a module in the order of its fields. A [`TensorSlot`] classifies
//! each of them: a trained parameter, a running statistic, or a constant.

use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor, TensorData};
use ronde_core::layout::{Role, StateLayout, TensorEntry};

/// The kind of the n-th tensor of a walk, with its index in the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TensorSlot {
    /// A trained parameter.
    Parameter(usize),
    /// A `RunningState`.
    Buffer(usize),
    /// A frozen tensor, which is not part of the state.
    Constant,
}

/// Returns the state of a module that is ready for training, and the slot of each tensor of a walk.
pub(crate) fn survey<M: Module>(module: &M) -> (StateLayout, Vec<TensorSlot>) {
    // A running state refuses to require a gradient; every parameter, frozen or not, accepts it.
    // Only this distinguishes them, whatever their names.
    let probed = module.clone().map(&mut RequireGradients);
    let mut is_parameter = Trainable::default();
    probed.visit(&mut is_parameter);
    let mut is_trained = Trainable::default();
    module.visit(&mut is_trained);
    let mut names = Names::default();
    module.visit(&mut names);

    let mut layout = StateLayout::default();
    let mut slots = Vec::new();
    for (index, (name, shape)) in names.found.into_iter().enumerate() {
        let next = layout.tensors.len();
        let (slot, role) = match (is_parameter.0[index], is_trained.0[index]) {
            (true, true) => (TensorSlot::Parameter(next), Role::Parameter),
            (true, false) => (TensorSlot::Constant, Role::Parameter),
            (false, _) => (TensorSlot::Buffer(next), Role::Buffer),
        };
        slots.push(slot);
        if slot != TensorSlot::Constant {
            layout.tensors.push(TensorEntry::f32(name, &shape, role));
        }
    }
    (layout, slots)
}

struct RequireGradients;

impl ModuleMapper for RequireGradients {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(Tensor::require_grad)
    }
}

/// Records whether each tensor requires a gradient.
#[derive(Default)]
struct Trainable(Vec<bool>);

impl ModuleVisitor for Trainable {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.base().is_require_grad());
    }
}

/// Burn's marker of the step from an enum to its variant.
const ENUM: &str = "Enum:";

#[derive(Default)]
struct Names {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for Names {
    // The variant of an enum is not part of its tensors' names.
    fn enter_module(&mut self, name: &str, container: &str) {
        if !container.starts_with(ENUM) {
            self.path.push(name.to_owned());
        }
    }

    fn exit_module(&mut self, _name: &str, container: &str) {
        if !container.starts_with(ENUM) {
            self.path.pop();
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.base().dims().to_vec();
        self.found.push((self.path.join("."), shape));
    }
}

/// Replaces parameters and buffers by values of a flat arena.
pub(crate) struct LoadMapper<'a> {
    slots: std::slice::Iter<'a, TensorSlot>,
    state: &'a [f32],
    ranges: &'a [Range<usize>],
    roles: &'a [Role],
}

impl<'a> LoadMapper<'a> {
    /// Selects the tensors of the given roles.
    pub(crate) fn new(
        slots: &'a [TensorSlot],
        state: &'a [f32],
        ranges: &'a [Range<usize>],
        roles: &'a [Role],
    ) -> Self {
        Self {
            slots: slots.iter(),
            state,
            ranges,
            roles,
        }
    }
}

impl ModuleMapper for LoadMapper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (index, role) = match self.slots.next() {
            Some(TensorSlot::Parameter(index)) => (*index, Role::Parameter),
            Some(TensorSlot::Buffer(index)) => (*index, Role::Buffer),
            _ => return param,
        };
        if !self.roles.contains(&role) {
            return param;
        }
        let state = &self.state[self.ranges[index].clone()];
        param.map(|old| {
            let (shape, device) = (old.dims(), old.device());
            let new = Tensor::from_data(TensorData::new(state.to_vec(), shape), &device);
            new.set_require_grad(role == Role::Parameter)
        })
    }
}

/// Writes the tensors of the given roles to a flat arena.
pub(crate) struct SaveVisitor<'a> {
    slots: std::slice::Iter<'a, TensorSlot>,
    state: &'a mut [f32],
    ranges: &'a [Range<usize>],
    roles: &'a [Role],
}

impl<'a> SaveVisitor<'a> {
    /// Selects the tensors of the given roles.
    pub(crate) fn new(
        slots: &'a [TensorSlot],
        state: &'a mut [f32],
        ranges: &'a [Range<usize>],
        roles: &'a [Role],
    ) -> Self {
        Self {
            slots: slots.iter(),
            state,
            ranges,
            roles,
        }
    }
}

impl ModuleVisitor for SaveVisitor<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (index, role) = match self.slots.next() {
            Some(TensorSlot::Parameter(index)) => (*index, Role::Parameter),
            Some(TensorSlot::Buffer(index)) => (*index, Role::Buffer),
            _ => return,
        };
        if self.roles.contains(&role) {
            write(param.base(), &mut self.state[self.ranges[index].clone()]);
        }
    }
}

/// Writes the gradient of every parameter to a flat arena: zeros for parameters without one.
pub(crate) struct TakeGradients<'a> {
    slots: std::slice::Iter<'a, TensorSlot>,
    found: Option<&'a mut Gradients>,
    gradients: &'a mut [f32],
    ranges: &'a [Range<usize>],
}

impl<'a> TakeGradients<'a> {
    /// Takes the gradients of backward; `None` when the output depends on no parameter.
    pub(crate) fn new(
        slots: &'a [TensorSlot],
        found: Option<&'a mut Gradients>,
        gradients: &'a mut [f32],
        ranges: &'a [Range<usize>],
    ) -> Self {
        Self {
            slots: slots.iter(),
            found,
            gradients,
            ranges,
        }
    }
}

impl ModuleVisitor for TakeGradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(TensorSlot::Parameter(index)) = self.slots.next() else {
            return;
        };
        let to = &mut self.gradients[self.ranges[*index].clone()];
        let found = self.found.as_deref_mut();
        match found.and_then(|found| param.base().grad_remove(found)) {
            Some(gradient) => {
                let values = gradient.into_data().try_into_vec::<f32>();
                let values = values.expect("a gradient is f32");
                to.copy_from_slice(&values);
            }
            None => to.fill(0.0),
        }
    }
}

fn write<const D: usize>(tensor: Tensor<D>, to: &mut [f32]) {
    let data = tensor.into_data();
    to.copy_from_slice(data.as_slice().expect("the state of a module is f32"));
}
