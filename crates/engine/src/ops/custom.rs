//! Functions on slices as operations of the engine, with their own backward.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::{Autodiff, AutodiffBackend, Flex};
use burn::tensor::{Tensor, TensorData};

use super::memory;

/// The values that backward of an operation with `N` inputs needs.
pub(crate) trait SavedForBackward<const N: usize>: Debug + Send + Sync + 'static {
    /// Returns the gradient of each wanted input, given that of the output, which is contiguous.
    fn backward(&self, gradient: &[f32], wanted: [bool; N]) -> [Option<HostTensor>; N];
}

/// Contiguous values with a shape, on the host. The last owner returns the memory for reuse.
#[derive(Debug, Clone)]
pub(crate) struct HostTensor(Option<FlexTensor>);

impl HostTensor {
    /// Takes ownership of values. Cost: none.
    pub(crate) fn new(values: Vec<f32>, shape: &[usize]) -> Self {
        let data = TensorData::new(values, shape.to_vec());
        Self(Some(FlexTensor::from_data(data)))
    }

    fn of(tensor: &FlexTensor) -> Self {
        Self(Some(tensor.to_contiguous()))
    }

    fn tensor(&self) -> &FlexTensor {
        self.0.as_ref().expect("present until it is taken")
    }

    pub(crate) fn into_tensor(mut self) -> FlexTensor {
        self.0.take().expect("present until it is taken")
    }

    /// Returns the values. Cost: none for the only owner of values stored as a `Vec`, otherwise one
    /// copy.
    pub(crate) fn into_values(mut self) -> Vec<f32> {
        if let Some(tensor) = self.0.take_if(|tensor| tensor.is_unique()) {
            let values = tensor.into_data().try_into_vec();
            return values.expect("made contiguous, of f32");
        }
        let from = self.values();
        let mut values = memory::take(from.len());
        values.copy_from_slice(from);
        values
    }

    /// Returns memory for `length` values with unspecified contents, reusing its own when this is
    /// the only owner.
    pub(crate) fn into_memory(mut self, length: usize) -> Vec<f32> {
        let own = self.0.take_if(|tensor| tensor.is_unique());
        let own = own.and_then(|tensor| tensor.into_data().try_into_vec().ok());
        own.filter(|values: &Vec<f32>| values.len() == length)
            .unwrap_or_else(|| memory::take(length))
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.tensor().layout().shape().as_slice()
    }

    pub(crate) fn values(&self) -> &[f32] {
        self.tensor().as_slice().expect("made contiguous, of f32")
    }
}

impl Drop for HostTensor {
    fn drop(&mut self) {
        if let Some(tensor) = self.0.take().filter(FlexTensor::is_unique)
            && let Ok(values) = tensor.into_data().try_into_vec()
        {
            memory::give(values);
        }
    }
}

/// One input of an operation: a node of the graph, or plain values.
pub(crate) enum OperationInput {
    Node(<Autodiff<Flex> as burn::backend::BackendTypes>::FloatTensorPrimitive),
    Values(FlexTensor),
}

impl OperationInput {
    /// Takes a tensor of f32 on the engine's device; a shared or transposed one is not copied yet.
    pub(crate) fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        if tensor.device().is_autodiff() {
            let node = tensor.try_into_primitive::<Autodiff<Flex>>();
            Self::Node(node.expect("models are built on the engine's training device"))
        } else {
            let values = tensor.try_into_primitive::<Flex>();
            Self::Values(values.expect("the engine has one device"))
        }
    }

    /// Does the same as [`OperationInput::values`] without keeping a handle.
    pub(crate) fn into_values(self) -> HostTensor {
        let values = match self {
            Self::Node(node) => Autodiff::<Flex>::inner(node),
            Self::Values(values) => values,
        };
        HostTensor::of(&values)
    }

    /// Returns its values, made contiguous. Cost: a copy only where they are not contiguous.
    pub(crate) fn values(&self) -> HostTensor {
        match self {
            Self::Node(node) => HostTensor::of(&Autodiff::<Flex>::inner(node.clone())),
            Self::Values(values) => HostTensor::of(values),
        }
    }
}

#[derive(Debug)]
struct RecordedOperation<S>(PhantomData<fn() -> S>);

impl<S: SavedForBackward<N>, const N: usize> Backward<Flex, N> for RecordedOperation<S> {
    type State = Arc<S>;

    fn backward(
        self,
        ops: Ops<Arc<S>, N>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = HostTensor::of(&gradients.consume::<Flex>(&ops.node));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let found = ops.state.backward(gradient.values(), wanted);
        for (node, found) in ops.parents.into_iter().zip(found) {
            if let (Some(node), Some(found)) = (node, found) {
                gradients.register::<Flex>(node.id, found.into_tensor());
            }
        }
    }
}

/// Runs `forward` on the inputs' values and, if one of them is part of a graph, records it:
/// `forward` returns the output and the values for backward.
pub(crate) fn record<S: SavedForBackward<N>, const N: usize, const O: usize>(
    inputs: [OperationInput; N],
    forward: impl FnOnce([HostTensor; N]) -> (HostTensor, S),
) -> Tensor<O> {
    let (output, saved) = forward(inputs.each_ref().map(OperationInput::values));
    if inputs
        .iter()
        .all(|input| matches!(input, OperationInput::Values(_)))
    {
        return Tensor::from_primitive::<Flex>(output.into_tensor());
    }
    let guards = inputs.map(|input| match input {
        OperationInput::Node(node) => node.node(),
        OperationInput::Values(values) => Autodiff::<Flex>::from_inner(values).node(),
    });
    let operation = RecordedOperation::<S>(PhantomData);
    let prepared = operation
        .prepare::<NoCheckpointing>(guards)
        .compute_bound()
        .stateful();
    let output = match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(Arc::new(saved), output.into_tensor()),
        OpsKind::UnTracked(prepared) => prepared.finish(output.into_tensor()),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(output)
}
